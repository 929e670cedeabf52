"""8-bit layers by torchao, run on the CPU in place of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from latfix.runners.engine.worker import ModelInstance
from latfix.runners.model_transforms.precision import (
    in_precision,
    layer_in_precision,
    pays_only_compiled,
    quantizable,
)
from latfix.runners.model_transforms.precision_support import by_torchao
from latfix.runners.model_transforms.torchao_layers import FewRowsLinear, quantize_layers
from latfix.runners.service.forward_census import census, weight_kinds
from tests.conftest import write_workload

INT8: tuple[Any, ...] = ("int8_dynamic", "int8_weight_only")


class Net(nn.Module):
    """Sizes that fit and one that does not, a tied pair, a shared layer and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(48, 32)
        self.attend = nn.MultiheadAttention(32, 2, batch_first=True)
        self.wide = nn.Linear(32, 64)
        self.narrow = nn.Linear(64, 32)
        self.again = self.narrow
        self.odd = nn.Linear(32, 20)
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        x = self.again(torch.relu(self.wide(self.narrow(torch.relu(self.wide(x))))))
        return torch.cat([self.head(x), self.odd(x)], dim=-1)


@pytest.fixture(autouse=True)
def in_place_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the kernels is as on a GPU: torchao's tensors, and its products by torch's operators."""
    # Not while tests are collected: each process that runs any tests would spend more than a second on it.
    pytest.importorskip("torchao", reason="torchao is not installed: pip install 'latfix[quantization]'")
    monkeypatch.setattr("latfix.runners.model_transforms.precision._gpu", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr("latfix.runners.model_transforms.precision.device_capability", lambda _: (9, 0))
    monkeypatch.setattr("torchao.quantization.quant_api._check_hardware_support", lambda _: None)
    monkeypatch.setattr("torchao.quantization.quant_api.is_sm_at_least_89", lambda: True)


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


IDS = torch.arange(40).view(4, 10)


def answer(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(IDS)
    return found


def off_by(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.float() - exact).abs().max() / exact.abs().max())


def by_name(model: nn.Module) -> dict[str, bool]:
    """Linear layers by name: True if torchao holds their weights."""
    return {name: by_torchao(part.weight) for name, part in model.named_modules() if isinstance(part, nn.Linear)}


@pytest.mark.parametrize(
    ("precision", "dtype", "most"),
    [
        ("int8_dynamic", torch.float32, 0.05),
        ("int8_weight_only", torch.bfloat16, 0.05),
        ("fp8_dynamic", torch.bfloat16, 0.15),
    ],
)
def test_layers_that_fit_are_quantized_and_answer_nearly_the_same(
    precision: Any, dtype: torch.dtype, most: float
) -> None:
    model = in_precision(net(), precision)
    assert by_name(model) == {
        "attend.out_proj": False,
        "wide": True,
        "narrow": True,
        "odd": precision == "int8_weight_only",
        "head": True,
    }
    assert not by_torchao(model.get_submodule("embed").weight), "it shared a parameter with the head"
    found = answer(model)
    assert found.dtype is dtype
    assert 0 < off_by(found, answer(net())) < most
    assert quantizable(model, precision) == {}, "nothing is quantized twice"
    assert pays_only_compiled(model, precision)


@pytest.mark.parametrize("precision", [*INT8, "fp8_dynamic"])
def test_kept_layers_compute_as_before(precision: Any) -> None:
    model = in_precision(net(), precision, ["wide", "attend"])
    assert by_name(model) | {"odd": False} == {
        "attend.out_proj": False,
        "wide": False,
        "narrow": True,
        "odd": False,
        "head": True,
    }
    assert model.get_submodule("wide").weight.dtype is torch.float32
    seen: list[torch.dtype] = []
    model.get_submodule("wide").register_forward_hook(lambda *a: seen.append(a[2].dtype), prepend=True)
    assert 0 < off_by(answer(model), answer(net())) < 0.15
    assert set(seen) == {torch.float32}
    weights = weight_kinds(model, ["wide", "attend"])
    assert weights["kept_weights"] == {"float32": 2}
    assert sum(number for kind, number in weights["weights"].items() if "torchao" in kind) == by_count(model)


def by_count(model: nn.Module) -> int:
    return sum(by_name(model).values())


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 5), (31,), (32,), (40,), (2, 3, 7), (0,)])
@pytest.mark.parametrize("bias", [True, False])
def test_few_rows_are_padded_and_answers_do_not_change(shape: tuple[int, ...], bias: bool) -> None:
    """Each row's answer is independent of the others."""
    torch.manual_seed(2)
    layer = nn.Linear(32, 16, bias=bias)
    quantize_layers([layer], "int8_dynamic", (9, 0))
    assert type(layer) is FewRowsLinear
    x = torch.randn(*shape, 32)
    products: list[int] = []
    with torch.inference_mode(), Products(products):
        found = layer(x)
        assert found.shape == (*shape, 16)
        if x.numel():  # torchao alone takes no empty batch
            assert torch.equal(found, nn.functional.linear(x, layer.weight, layer.bias))
    assert products[0] >= 32, "the kernel of a GPU takes no fewer than 17"


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the number of rows of each int8 product."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._int_mm.default:
            self._rows.append(args[0].shape[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("capability", "scales"), [((9, 0), 16), ((10, 0), 16), ((8, 9), 1), ((12, 0), 1)])
def test_fp8_has_a_scale_per_row_if_the_gpu_takes_that(capability: tuple[int, int], scales: int) -> None:
    layer = nn.Linear(32, 16).bfloat16()
    quantize_layers([layer], "fp8_dynamic", capability)
    weight: Any = layer.weight
    assert weight.scale.numel() == scales and weight.qdata.dtype is torch.float8_e4m3fn


def test_a_layer_that_torchao_does_not_change_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="torchao did not change a linear layer of 24 × 16"):
        quantize_layers([nn.Linear(24, 16).bfloat16()], "fp8_dynamic", (9, 0))


def test_the_compilers_settings_and_those_of_other_products_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config, "coordinate_descent_tuning", False)
    before = torch.get_float32_matmul_precision()
    for precision in (*INT8, "fp8_dynamic"):
        quantize_layers([nn.Linear(32, 16).bfloat16()], precision, (9, 0))
    assert not torch._inductor.config.coordinate_descent_tuning
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("precision", [*INT8, "fp8_dynamic"])
def test_one_layer_alone_takes_and_answers_what_it_did(precision: Any) -> None:
    torch.manual_seed(3)
    layer, x = nn.Linear(32, 16).eval(), torch.randn(5, 32)
    with torch.no_grad():
        exact, found = layer(x), layer_in_precision(layer, precision)(x)
    assert found.dtype is torch.float32 and not by_torchao(layer.weight)
    assert 0 < off_by(found, exact) < 0.1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("precision", [*INT8, "fp8_dynamic"])
def test_the_frameworks_own_encoder_runs(precision: Any) -> None:
    """In inference, torch's encoder passes its layers' weights to a fused kernel, which takes only floats."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    x = torch.randn(3, 6, 32)
    with torch.inference_mode():
        exact = encoder(x)
        changed = in_precision(encoder, precision)
        found = changed(x if precision == "int8_dynamic" else x.bfloat16())
    assert by_count(changed) == 4 and 0 < off_by(found, exact) < 0.15


@pytest.mark.parametrize(("precision", "operator"), [("int8_dynamic", "_int_mm"), ("fp8_dynamic", "_scaled_mm")])
def test_a_forward_pass_shows_layers_and_their_products(precision: Any, operator: str) -> None:
    model = in_precision(net(), precision)
    dtype = torch.bfloat16 if precision == "fp8_dynamic" else None
    instance = ModelInstance(None, model, "cpu", dtype, list, set())  # type: ignore[arg-type]
    seen = census(instance, IDS)
    layers = sum(number for kind, number in seen["modules"].items() if "torchao" in kind)
    assert layers == 5, "wide and narrow twice, and the head"
    assert sum(number for name, number in seen["kernels"].items() if operator in name) == layers


def test_settings_reach_torchao(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From settings to loaded service, with the CPU as the GPU; compiled without constant weights."""
    from latfix.runners.service import load as loading
    from latfix.settings import RunnerSettings

    compiled: list[bool] = []

    def compile_nothing(model: Any, *_: Any, freezing: bool) -> Any:
        compiled.append(freezing)
        return model

    monkeypatch.setattr(loading, "unsupported", lambda *_: "")
    monkeypatch.setattr(loading, "uses_torchao", lambda precision, _: precision != "default")
    monkeypatch.setattr(loading, "compiled", compile_nothing)
    adapter = """
        import torch
        from latfix import Workload

        class Own(Workload):
            def load(self, device):
                return torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Linear(16, 4))

            def prepare(self, request):
                return torch.ones(32)
    """
    folder = write_workload(tmp_path / "own", adapter=adapter)
    for precision, freezing in (("int8_dynamic", False), ("default", True)):
        settings = RunnerSettings(device="cpu", precision=precision, compile="dynamic")  # type: ignore[arg-type]
        loaded = loading.load_models(folder, "adapter:Own", settings).instances[0]
        assert by_torchao(loaded.model[0].weight) is not freezing and not by_torchao(loaded.model[1].weight)
        assert compiled.pop() is freezing
    assert loaded.set_up is not None


def test_an_assertion_of_torchao_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from latfix.errors import RunnerError
    from latfix.runners.service import load as loading
    from latfix.settings import RunnerSettings

    def refuse(*_: Any) -> None:
        raise AssertionError("no such hardware")

    monkeypatch.setattr(loading, "in_precision", refuse)
    folder = write_workload(tmp_path / "plain")
    with pytest.raises(RunnerError, match=r"precision = 'bf16'.*AssertionError: no such hardware"):
        loading.load_models(folder, "adapter:Plain", RunnerSettings(device="cpu", precision="bf16"))
