"""A model file as a workload: tensors of requests, batches of them, and the module around the file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from latfix.adapter_api import Workload
from latfix.errors import InputError
from latfix.runners.calls.model_call import split_output
from latfix.runners.model_files.file_workload import FileWorkload, PaddedFileWorkload, _default_collate_pads
from latfix.runners.model_files.input_layout import lay_out
from latfix.runners.model_files.input_values import value_range
from latfix.runners.model_files.opened_model import Axis, OpenedModel
from latfix.runners.service.load import pool_applies
from tests.runners.model_files.conftest import opened, request_of, rules, traffic_of


def adapter(model: OpenedModel, text: str = "") -> FileWorkload:
    layout = lay_out(model, rules(text))
    return (FileWorkload if _default_collate_pads(layout) else PaddedFileWorkload)(model, layout)


def test_the_same_request_gives_the_same_tensor() -> None:
    model = opened({"x": ("batch", "length", 4)})
    first, again = (adapter(model).prepare(request_of(length=5)) for _ in range(2))
    assert first.shape == (5, 4) and torch.equal(first, again)
    others = [request_of(length=6), request_of("b", length=5)]
    others += [request_of(length=5, user="u"), request_of(payload=3, length=5)]
    for other in others:
        assert not torch.equal(adapter(model).prepare(other)[:5], first)


def test_values_have_the_kind_that_their_input_has() -> None:
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    ids = opened(dict.fromkeys(names, ("batch", "length")), dtype="int64", rows=7)
    tokens, mask, segments, positions = adapter(ids).prepare(request_of(length=200))
    assert set(tokens.tolist()) == {1, 2, 3, 4, 5, 6}, "all rows but that of padding"
    assert mask.tolist() == [1] * 200 and segments.tolist() == [0] * 200 and positions.tolist() == list(range(200))
    floats = adapter(opened({"x": ("batch", "length")})).prepare(request_of(length=4000))
    assert abs(float(floats.mean())) < 0.1 and 0.9 < float(floats.std()) < 1.1
    for dtype, least, most in (("uint8", 0, 255), ("int8", -128, 127), ("int64", 0, 1), ("bool", 0, 1)):
        drawn = adapter(opened({"x": ("batch", "length")}, dtype=dtype)).prepare(request_of(length=9000))
        assert drawn.dtype == getattr(torch, dtype)
        assert (int(drawn.min()), int(drawn.max())) == (least, most)
    assert value_range(adapter(ids).layout.inputs[0]) == (1, 7)
    only = opened({"ids": ("batch", "length")}, dtype="int64", rows=1)
    assert set(adapter(only).prepare(request_of(length=20)).tolist()) == {0}, "the table's only row"


def test_a_padding_mask_is_false_for_values_and_true_for_padding() -> None:
    """If all were true, attention would have no input and answer NaN."""
    model = adapter(opened({"src_key_padding_mask": ("batch", "length")}, dtype="bool"))
    assert isinstance(model, PaddedFileWorkload)
    inputs = [model.prepare(request_of(length=length)) for length in (2, 3)]
    assert model.collate(inputs).tolist() == [[False, False, True], [False] * 3]
    ruled = adapter(opened({"padding_mask": ("batch", "length")}, dtype="bool"), "padding_mask = { pad = 0 }")
    assert ruled.layout.inputs[0].pad == 0


@pytest.mark.parametrize("name", ["input_lengths", "seq_len", "length"])
def test_a_length_is_that_of_the_request(name: str) -> None:
    def drawn(**inputs: Any) -> Any:
        model = opened({"x": ("batch", 80, "frames"), **inputs})
        whole = [replace(given, dtype="int64") if given.name == name else given for given in model.inputs]
        return adapter(replace(model, inputs=tuple(whole)))

    for shape in (("batch",), ("batch", 1)):
        assert drawn(**{name: shape}).prepare(request_of(frames=37))[1].tolist() in (37, [37])
    of_two = drawn(y=("batch", "other"), **{name: ("batch",)})
    assert of_two.prepare(request_of(frames=37, other=9))[2] in (0, 1), "ambiguous: of x or of y"


def test_rules_give_the_range() -> None:
    whole = adapter(opened({"ids": ("batch", "length")}, dtype="int64", rows=7), "ids = { low = 3, high = 5 }")
    assert set(whole.prepare(request_of(length=50)).tolist()) == {3, 4}
    even = adapter(opened({"x": ("batch", "length")}), "x = { low = -2, high = 2 }")
    drawn = even.prepare(request_of(length=2000))
    assert -2 <= float(drawn.min()) < -1.9 and 1.9 < float(drawn.max()) <= 2


def test_sizes_come_from_expressions_rounded_up() -> None:
    model = adapter(opened({"x": ("batch", "s1")}), 'x = { shape = ["batch", "tokens / 16"] }')
    assert model.prepare(request_of(tokens=17)).shape == (2,)
    assert model.prepare(request_of(tokens=0)).shape == (1,), "at least 1"
    with pytest.raises(InputError, match="no numeric feature 'tokens'"):
        model.prepare(request_of(length=3))


def test_a_size_that_the_model_does_not_take_fails_the_request() -> None:
    model = adapter(opened({"x": ("batch", Axis(symbol="length", least=4, most=9))}))
    assert model.prepare(request_of(length=9)).shape == (9,)
    for length in (3, 10):
        with pytest.raises(ValueError, match=f"length is {length}; the model takes"):
            model.prepare(request_of(length=length))


def test_tensors_in_the_payload_are_used() -> None:
    model = adapter(opened({"x": ("batch", "s1"), "mask": ("batch", "s1"), "wide": ("batch", "2*s1")}))
    x, mask, wide = model.prepare(request_of(payload={"x": [1, 2, 3]}))
    assert x.tolist() == [1.0, 2.0, 3.0] and x.dtype == torch.float32
    assert mask.tolist() == [1.0] * 3, "as long as x in the payload"
    assert wide.shape == (6,)
    whole = {"x": [1], "mask": [0], "wide": [5, 6]}
    assert [tensor.tolist() for tensor in model.prepare(request_of(payload=whole))] == [[1.0], [0.0], [5.0, 6.0]]
    alone = adapter(opened({"x": None}, dtype=None))
    assert alone.prepare(request_of(payload={"x": [[1, 2], [3, 4]]})).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="neither shape nor dtype"):
        alone.prepare(request_of())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1, 2], [3]], "payload 'x'"),
        ("text", "payload 'x'"),
        (None, "payload 'x'"),
        ({"a": 1}, "payload 'x'"),
        (3, "has 0 dimensions; expected 1"),
        ([[1.0]], "has 2 dimensions; expected 1"),
        ([1.0] * 10, "is 10 long in dimension 0; the model takes 1 to 9"),
        ([], "is 0 long"),
        (["a"], "payload 'x'"),
        ([10**400], "payload 'x'"),
    ],
    ids=range(10),
)
def test_a_payload_that_is_no_tensor_fails_the_request(value: Any, message: str) -> None:
    model = adapter(opened({"x": ("batch", Axis(symbol="length", most=9))}))
    with pytest.raises(ValueError, match=message):
        model.prepare(request_of(payload={"x": value}))


def test_batches_are_padded_with_zeros_and_so_are_masks() -> None:
    model = adapter(opened({"x": ("batch", "length"), "mask": ("batch", "length")}))
    assert type(model).collate is Workload.collate and pool_applies(model)
    x, mask = model.collate([model.prepare(request_of(length=length)) for length in (2, 5)])
    assert x.shape == (2, 5) and mask.tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert x[0, 2:].tolist() == [0, 0, 0]


def test_several_dimensions_and_other_values_are_padded_too() -> None:
    model = adapter(opened({"x": ("batch", "height", "width"), "y": ("batch", "width")}), "y = { pad = -1 }")
    assert isinstance(model, PaddedFileWorkload) and not pool_applies(model)
    inputs = [model.prepare(request_of(height=h, width=w)) for h, w in ((2, 3), (4, 1))]
    x, y = model.collate(inputs)
    assert x.shape == (2, 4, 3) and y[1].tolist()[1:] == [-1, -1]
    assert torch.equal(x[0, :2, :3], inputs[0][0]) and torch.equal(x[1, :4, :1], inputs[1][0])
    assert float(x[0, 2:].abs().sum()) == float(x[1, :, 1:].abs().sum()) == 0
    alone = adapter(opened({"x": ("batch", "length")}), "x = { pad = 9 }")
    assert alone.collate([torch.zeros(1), torch.zeros(2)]).tolist() == [[0, 9], [0, 0]]


def test_a_fixed_batch_is_filled_up_and_cut_again() -> None:
    seen: list[tuple[int, ...]] = []

    def run(x: torch.Tensor) -> dict[str, torch.Tensor]:
        seen.append(tuple(x.shape))
        return {"sum": x.sum(1), "x": x, "scale": torch.tensor(7.0)}

    model = adapter(opened({"x": (4, 3)}, run=run), 'x = { shape = ["batch", 3] }')
    inputs = [model.prepare(request_of(name)) for name in "abc"]
    output = model.load("cpu")(model.collate(inputs))
    assert seen == [(4, 3)]
    parts = split_output(output, 3)
    assert [part["scale"].tolist() for part in parts] == [7.0] * 3
    assert [torch.equal(part["x"], given) for part, given in zip(parts, inputs, strict=True)] == [True] * 3


@pytest.mark.parametrize("batch", ["batch", 4, 1])
def test_a_number_of_the_whole_batch_is_each_requests_and_none_stays_none(batch: Any) -> None:
    def run(x: torch.Tensor) -> Any:
        return x.sum(1), torch.tensor(7.0), None

    model = adapter(opened({"x": (batch, 3)}, run=run), 'x = { shape = ["batch", 3] }')
    names = "a" if batch == 1 else "ab"
    output = model.load("cpu")(model.collate([model.prepare(request_of(name)) for name in names]))
    parts = split_output(output, len(names))
    assert [(part[1].tolist(), part[2]) for part in parts] == [(7.0, None)] * len(names)


@pytest.mark.parametrize("batch", [4, "batch"])
def test_a_list_of_tensors_is_several_outputs_and_one_of_texts_is_of_requests(batch: Any) -> None:
    model = adapter(
        opened({"x": (batch, 3)}, run=lambda x: ([x, 2 * x, 3 * x], list("abcd"))), 'x = { shape = ["batch", 3] }'
    )
    inputs = [model.prepare(request_of(name)) for name in ("abc" if batch == 4 else "abcd")]
    parts = split_output(model.load("cpu")(model.collate(inputs)), len(inputs))
    assert [text for _, text in parts] == list("abcd")[: len(inputs)]
    for (levels, _), own in zip(parts, inputs, strict=True):
        assert all(map(torch.equal, levels, (own, 2 * own, 3 * own)))


def test_inputs_without_a_batch_dimension() -> None:
    def run(x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        assert x.shape == (1, 4) and rate.shape == ()
        return x * rate

    model = adapter(opened({"x": ("batch", 4), "rate": ()}, run=run))
    assert model.load("cpu")(*model.collate([model.prepare(request_of())])).shape == (1, 4)
    unbatched = adapter(opened({"x": ("length", 4)}, run=lambda x: (x.sum(0), x)))
    total, same = unbatched.load("cpu")(unbatched.collate([unbatched.prepare(request_of(length=3))]))
    assert total.shape == (1, 4) and same.shape == (1, 3, 4)
    second = adapter(opened({"x": ("length", "batch", 4)}, run=lambda x: x.sum(0)))
    values = [second.prepare(request_of(name, length=3)) for name in "ab"]
    assert torch.allclose(second.load("cpu")(second.collate(values))[1], values[1].sum(0))


def test_inputs_are_described_in_one_line_each() -> None:
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "flags")
    model = adapter(opened(dict.fromkeys(names, ("batch", "s1", 4)), dtype="int64", rows=7), "flags = { high = 3 }")
    lines = model.describe_inputs(traffic_of(length=[3]))
    drawn = ("values from 1 to 6", "ones", "zeros", "0, 1, 2, …", "values from 0 to below 3")
    assert lines == [f"{name}: int64 (batch, length, 4), {what}" for name, what in zip(names, drawn, strict=True)]
    assert model.describe_inputs(traffic_of(width=[3], length=[3]))[0].startswith("input_ids: int64 (batch, s1, 4)")
    one = adapter(opened({"x": (1, 3), "rate": ()}))
    lines = one.describe_inputs(traffic_of())
    assert lines == ["x: float32 (1, 3), normal values", "rate: float32 (), normal values"]
    assert adapter(opened({"x": None}, dtype=None)).describe_inputs(traffic_of()) == ["x: from the payload"]


def test_payloads_without_an_input_are_noted() -> None:
    model = adapter(opened({"x": ("batch", 4), "rate": ("batch",)}))
    assert model.check_traffic(traffic_of(payloads=[None, {"x": [1.0] * 4}])) == []
    (note,) = model.check_traffic(traffic_of(payloads=[{"X": [1.0] * 4}, {"rate": 1.0}, [1.0] * 4, None]))
    assert note.startswith(
        "the payload of 2 requests is not used, because it is not an object with 'x', 'rate': input"
    )


def test_batches_larger_than_the_file_takes_are_refused() -> None:
    fixed = adapter(opened({"x": (1, 4)}))
    fixed.check_batch(1)
    with pytest.raises(InputError, match=r"max_batch_size = 8, but the file's batch dimension is fixed at 1"):
        fixed.check_batch(8)
    with pytest.raises(InputError, match="but its input 'rate' has no batch dimension"):
        adapter(opened({"x": ("batch", 4), "rate": ()})).check_batch(2)
    adapter(opened({"x": ("batch", 4)})).check_batch(4096)
