"""Which layers a precision changes, and that kept layers work with changed ones."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from latfix.errors import InputError
from latfix.runners.model_transforms.int8_linear import Int8WeightLinear
from latfix.runners.model_transforms.precision import in_precision, kept_modules, layer_in_precision, quantizable


class Tied(nn.Module):
    """Embedding and head share a parameter, and attention reads its child's weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        answer: torch.Tensor = self.head(self.middle(x))
        return answer


def tied() -> Tied:
    torch.manual_seed(0)
    return Tied().eval()


IDS = torch.arange(10).view(2, 5)


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    return {name: parameter.dtype for name, parameter in model.named_parameters(remove_duplicate=False)}


def answer(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS)
    return found


def test_a_kept_module_computes_in_its_own_precision() -> None:
    exact = answer(tied())
    model = in_precision(tied(), "bf16", ["middle.0"])
    assert {name for name, dtype in dtypes(model).items() if dtype is torch.float32} == {
        "middle.0.weight",
        "middle.0.bias",
    }
    seen: list[torch.dtype] = []
    model.get_submodule("middle.0").register_forward_hook(lambda *a: seen.append(a[2].dtype), prepend=True)
    found = answer(model)
    assert seen == [torch.float32] and found.dtype is torch.bfloat16
    assert torch.allclose(exact, found.float(), atol=0.05 * float(exact.abs().max()))


class Masking(nn.Module):
    """Its ``forward`` makes float32 tensors, with which bfloat16 ones become float32: masks, and a first state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.recur = nn.LSTM(16, 16, batch_first=True)
        self.scan = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.LayerNorm(16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = (ids > 0).float()[..., None]
        start = torch.zeros(1, len(ids), 16)
        x, _ = self.recur(self.embed(ids) * mask, (start, start))
        x = self.norm(self.scan((x * mask).transpose(1, 2)).transpose(1, 2) * mask)
        x = self.encode(x * mask, src_key_padding_mask=ids == 0)
        answer: torch.Tensor = self.head((x * mask).sum(1) / mask.sum(1))
        return answer


@pytest.mark.parametrize("precision", ["bf16", "int8_weight_only"])
@pytest.mark.parametrize("keep", [[], ["scan"], ["encode.layers.0.linear1", "head"]], ids=" ".join)
def test_layers_take_the_float32_that_a_model_makes_itself(precision: Any, keep: list[str]) -> None:
    torch.manual_seed(0)
    model = Masking().eval()
    exact = answer(model)
    found = answer(in_precision(model, precision, keep))
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)


def test_half_precision_changes_all_but_kept_modules() -> None:
    exact = answer(tied())
    assert set(dtypes(in_precision(tied(), "fp16")).values()) == {torch.float16}
    model = in_precision(tied(), "fp16", ["middle"])
    assert {name for name, dtype in dtypes(model).items() if dtype is torch.float32} == {
        "middle.0.weight",
        "middle.0.bias",
    }
    found = answer(model)
    assert found.dtype is torch.float16
    assert 0 < float((exact - found.float()).abs().max()) < 0.005 * float(exact.abs().max())


@pytest.mark.parametrize("keep", [[], ["middle"]])
def test_complex_numbers_stay_what_they_are(keep: list[str]) -> None:
    """Such as rotary positions; torch would cast them to their real parts."""
    model = tied()
    model.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)))
    assert in_precision(model, "bf16", keep).get_buffer("turns").dtype is torch.complex64


@pytest.mark.parametrize("precision", ["int8_dynamic", "int8_weight_only", "bf16"])
def test_a_model_that_cannot_be_copied_is_changed_in_place(precision: Any) -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    model.lock = threading.Lock()  # type: ignore[assignment]
    changed = in_precision(model, precision)
    assert type(changed[0]) is not nn.Linear or changed[0].weight.dtype is torch.bfloat16  # type: ignore[index]


def test_a_kept_module_computes_in_what_it_was_in_before() -> None:
    model = in_precision(tied().double(), "bf16", ["middle"])
    seen: list[torch.dtype] = []
    model.get_submodule("middle").register_forward_hook(lambda *a: seen.append(a[2].dtype), prepend=True)
    assert answer(model).dtype is torch.bfloat16 and seen == [torch.float64]


def test_what_shares_a_parameter_with_a_kept_module_is_kept_too() -> None:
    model = in_precision(tied(), "bf16", ["head"])
    assert dtypes(model)["embed.weight"] is dtypes(model)["head.weight"] is torch.float32
    assert dtypes(model)["middle.0.weight"] is torch.bfloat16
    assert answer(model).dtype is torch.bfloat16


def test_attention_is_kept_whole() -> None:
    model = in_precision(tied(), "bf16", ["attend.out_proj"])
    assert {dtype for name, dtype in dtypes(model).items() if name.startswith("attend.")} == {torch.float32}
    assert torch.isfinite(answer(model).float()).all()


def test_a_kept_name_holds_for_all_that_is_inside() -> None:
    model = in_precision(tied(), "int8_dynamic", ["middle"])
    assert type(model.get_submodule("middle.0")) is nn.Linear
    assert "quantized" in type(model.get_submodule("head")).__module__


def test_a_shared_layer_is_kept_under_either_of_its_names() -> None:
    shared = nn.Linear(4, 4)
    for keep in ("a", "b"):
        model = in_precision(nn.ModuleDict({"a": shared, "b": shared}), "int8_dynamic", [keep])
        assert all(type(module) is nn.Linear for module in model.values())  # type: ignore[operator]


def test_a_shared_layer_is_changed_under_both_of_its_names() -> None:
    shared = nn.Linear(16, 16)
    model = in_precision(nn.ModuleDict({"a": shared, "b": shared}), "int8_weight_only")
    assert {type(model.get_submodule(name)) for name in "ab"} == {Int8WeightLinear}


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"found 'midle'.*Tied.*did you mean 'middle'"):
        kept_modules(tied(), ["midle"])


@pytest.mark.parametrize(
    ("precision", "names"),
    [
        ("default", set()),
        ("int8_dynamic", {"middle.0", "head"}),
        ("int8_weight_only", set()),  # eight inputs are too few for its kernel
        ("fp8_dynamic", set()),  # also too few
        ("bf16", {"embed", "attend", "middle.0", "head"}),
        ("fp16", {"embed", "attend", "middle.0", "head"}),
    ],
)
def test_layers_that_can_be_left_out(precision: Any, names: set[str]) -> None:
    assert set(quantizable(tied(), precision)) == names


@pytest.mark.parametrize("precision", ["int8_dynamic", "int8_weight_only", "bf16", "fp16"])
def test_one_layer_alone_takes_and_answers_what_it_did(precision: Any) -> None:
    torch.manual_seed(3)
    layer, x = nn.Linear(32, 10).eval(), torch.randn(5, 32)
    before = layer.weight.clone()
    with torch.no_grad():
        exact, found = layer(x), layer_in_precision(layer, precision)(x)
    assert found.dtype is torch.float32
    assert 0 < float((exact - found).abs().max()) < 0.05 * float(exact.abs().max())
    assert torch.equal(layer.weight, before) and not layer._forward_hooks


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 1), (32, 10), (48, 33), (160, 7)])
@pytest.mark.parametrize("rows", [1, 3, 10, 11, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_that_of_the_rounded_weights(inputs: int, outputs: int, rows: int, bias: bool) -> None:
    """Few rows by the packed kernel, many by the same weights in bfloat16."""
    torch.manual_seed(5)
    linear = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    linear.weight[0] = 0.0  # a row whose scale would be zero
    packed = Int8WeightLinear(linear)
    rounded = packed.weight.double() * packed.scale.double()[:, None]
    assert float((rounded - linear.weight.double()).abs().max()) <= float(packed.scale.double().max()) * 0.8
    x = torch.randn(1, rows, inputs).bfloat16()
    expected = x.double() @ rounded.T + (0 if linear.bias is None else linear.bias.double())
    found = packed(x)
    assert found.shape == expected.shape and found.dtype is torch.bfloat16
    assert torch.allclose(found.double(), expected, rtol=0.02, atol=0.02)


def test_sizes_that_the_packed_kernel_reads_beyond_are_left_alone() -> None:
    """In torch 2.13 the kernel crashes, or reads memory behind the row."""
    with pytest.raises(ValueError, match="found 24 inputs; expected a multiple of 16"):
        Int8WeightLinear(nn.Linear(24, 8))
    model = in_precision(nn.Sequential(nn.Linear(24, 32), nn.Linear(32, 4)), "int8_weight_only")
    assert [type(layer) for layer in model.children()] == [nn.Linear, Int8WeightLinear]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        assert torch.isfinite(model(torch.ones(2, 24).bfloat16()).float()).all()


def test_a_layer_that_is_kept_stays_exact_among_int8_weights() -> None:
    model = in_precision(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 4)), "int8_weight_only", ["1"])
    assert [type(layer) for layer in model.children()] == [Int8WeightLinear, nn.Linear]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with torch.no_grad():
        assert model(torch.ones(2, 32).bfloat16()).dtype is torch.bfloat16


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("precision", ["int8_dynamic", "int8_weight_only"])
@pytest.mark.parametrize("keep", [[], ["layers.0.linear1"], ["layers.1"]])
def test_the_frameworks_own_encoder_runs_with_int8_layers(precision: Any, keep: list[str]) -> None:
    """In inference, torch's encoder passes its layers' weights to a fused kernel, which takes only floats."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(3, 6, 32)
    padded = torch.arange(6) >= torch.tensor([[6], [4], [2]])
    with torch.inference_mode():
        exact = encoder(x, src_key_padding_mask=padded)[~padded]
        changed = in_precision(encoder, precision, keep)
        dtype = torch.float32 if precision == "int8_dynamic" else torch.bfloat16
        found = changed(x.to(dtype), src_key_padding_mask=padded)[~padded].float()
    kinds = [type(module).__module__ for module in changed.modules()]
    assert sum(".quantized.dynamic" in kind or kind.endswith("int8_linear") for kind in kinds) >= 2
    assert 0 < float((exact - found).abs().max()) < 0.1 * float(exact.abs().max())


def test_an_int8_layer_takes_a_vector_as_it_did() -> None:
    """A loop that generates text calls its last layer with the last token only."""

    class LastToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answers: torch.Tensor = self.out(x[0, -1])
            return answers

    torch.manual_seed(0)
    model, rows = LastToken().eval(), torch.randn(1, 3, 16)
    with torch.no_grad():
        expected, found = model(rows), in_precision(model, "int8_dynamic")(rows)
    assert found.shape == expected.shape == (4,)
    assert torch.allclose(found, expected, atol=0.1)


def test_tf32_is_allowed_to_the_process_and_changes_no_layer() -> None:
    before = torch.get_float32_matmul_precision()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    try:
        assert in_precision(model, "tf32") is model and torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert model[0].weight.dtype is torch.float32 and quantizable(model, "tf32") == {}


def test_int8_takes_only_layers_in_float32() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).double())
    assert set(quantizable(model, "int8_dynamic")) == {"0"}
    changed = in_precision(model, "int8_dynamic")
    assert type(changed[0]) is not nn.Linear and type(changed[1]) is nn.Linear  # type: ignore[index]
    with pytest.raises(ValueError, match="found linear layers in bfloat16; expected float32"):
        in_precision(nn.Sequential(nn.Linear(8, 8)).bfloat16(), "int8_dynamic")
