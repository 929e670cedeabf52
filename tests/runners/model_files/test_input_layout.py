"""The layout of a model's inputs, from its signature and ``[inputs]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from latfix.errors import InputError
from latfix.runners.model_files.input_layout import Layout, lay_out
from latfix.runners.model_files.opened_model import Axis
from tests.runners.model_files.conftest import opened, rules


def shapes(layout: Layout) -> dict[str, tuple[int | None, list[Any]]]:
    return {
        given.name: (given.batch_axis, [axis.size or axis.symbol for axis in given.axes or ()])
        for given in layout.inputs
    }


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"x": ("s0", "s1")}, {"x": (0, ["s1"])}),
        ({"x": ("batch", "length", 64)}, {"x": (0, ["length", 64])}),
        ({"x": ("length", "batch", 64)}, {"x": (1, ["length", 64])}),
        ({"x": ("length", 64)}, {"x": (None, ["length", 64])}),
        ({"x": ("seq_len",)}, {"x": (None, ["seq_len"])}),
        ({"x": ("N", 3, 224, 224)}, {"x": (0, [3, 224, 224])}),
        ({"x": ("dynamic_batch_size", "length")}, {"x": (0, ["length"])}),
        ({"x": ("time", "max batch", 64)}, {"x": (1, ["time", 64])}),
        ({"x": (1, 3, 224, 224)}, {"x": (0, [3, 224, 224])}),
        ({"x": ("s0", 4), "rate": ()}, {"x": (0, [4]), "rate": (None, [])}),
        ({"x": ("s0", 4), "table": (7, 4)}, {"x": (0, [4]), "table": (None, [7, 4])}),
        ({"x": None}, {"x": (0, [])}),
    ],
)
def test_the_batch_is_found(inputs: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert shapes(lay_out(opened(inputs), {})) == expected


def test_a_fixed_batch_limits_batches() -> None:
    assert lay_out(opened({"x": ("s0", 4)}), {}).largest_batch is None
    assert lay_out(opened({"x": (1, 4)}), {}).largest_batch == 1
    assert lay_out(opened({"x": (8, 4)}), rules('x = { shape = ["batch", 4] }')).largest_batch == 8
    assert lay_out(opened({"x": (8, 4)}), rules("x = { shape = [8, 4] }")).largest_batch == 1
    assert lay_out(opened({"x": ("s0", 4), "rate": ()}), {}).largest_batch == 1


def test_limits_of_a_batch_that_varies() -> None:
    """From the profiles of an engine or the bounds of an exported program: the tightest of all inputs."""
    inputs: dict[str, Any] = {
        "x": (Axis(symbol="s0", least=2, most=8), 4),
        "y": (Axis(symbol="s0", least=3, most=6), Axis(symbol="length", least=5, most=9)),
    }
    layout = lay_out(opened(inputs), {})
    assert (layout.least_batch, layout.most_batch, layout.largest_batch, layout.fixed_batch) == (3, 6, 6, 0)
    layout = lay_out(opened({"x": ("batch", 4)}), {})
    assert (layout.least_batch, layout.most_batch, layout.largest_batch) == (0, 0, None)
    with pytest.raises(InputError, match="batch dimensions of 2 and 8"):
        both = 'x = { shape = ["batch", 4] }\ny = { shape = ["batch"] }'
        lay_out(opened({"x": (8, 4), "y": (2,)}), rules(both))


def test_an_ambiguous_batch_is_refused_with_the_lines_to_write() -> None:
    with pytest.raises(InputError, match="may be the batch") as caught:
        lay_out(opened({"x": (3, 224, "s1")}), {})
    assert 'x = { shape = ["batch", 224, "s1"] } or x = { shape = [3, 224, "s1"] }' in caught.value.message
    with pytest.raises(InputError, match=r'write "input.1:0" = \{ shape'):
        lay_out(opened({"input.1:0": (3, 224)}), {})


def test_rules_supply_what_a_file_does_not_state() -> None:
    layout = lay_out(
        opened({"x": None}, dtype=None), rules('x = { shape = ["batch", "length", 4], dtype = "int32" }')
    )
    assert shapes(layout) == {"x": (0, ["x[1]", 4])}
    assert layout.inputs[0].dtype == "int32"
    assert {symbol: expression.source for symbol, expression in layout.expressions.items()} == {"x[1]": "length"}


def test_a_rule_may_fix_what_the_file_leaves_free() -> None:
    free = opened({"x": ("s0", Axis(symbol="s1", least=4, most=64))})
    assert shapes(lay_out(free, rules('x = { shape = ["batch", 32] }'))) == {"x": (0, [32])}
    for size in (3, 65):
        with pytest.raises(InputError, match=f"found {size} for dimension 1 of x; model.pt2 takes 4 to 64"):
            lay_out(free, rules(f'x = {{ shape = ["batch", {size}] }}'))


def test_dimensions_of_one_symbol_share_their_expression() -> None:
    model = opened({"x": ("s0", "s1"), "mask": ("s0", "s1"), "wide": ("s0", "2*s1")})
    layout = lay_out(model, rules('x = { shape = ["batch", "length"] }'))
    assert list(layout.symbols()) == ["s1"]
    assert layout.expressions["s1"].source == "length"
    derived = layout.inputs[2].axes
    assert derived is not None and derived[0].derived is not None and derived[0].derived.evaluate({"s1": 5}) == 10
    with pytest.raises(InputError, match="as long as one of another input"):
        lay_out(model, rules('x = { shape = ["batch", "length"] }\nmask = { shape = ["batch", "other"] }'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y = {}", "found input 'y'; expected one of model.pt2's: tokens"),
        ("token = {}", "did you mean 'tokens'"),
        ('tokens = { shape = ["batch"] }', "with 1 dimensions; model.pt2 takes 3: (s0, s1, 64)"),
        ('tokens = { shape = ["batch", "length", "width"] }', "fixes it at 64"),
        ('tokens = { shape = ["batch", "length", 65] }', "takes 64"),
        ('tokens = { dtype = "int32" }', "tokens of int32; model.pt2 takes float32"),
    ],
)
def test_rules_that_contradict_the_file(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        lay_out(opened({"tokens": ("s0", "s1", 64)}), rules(text))
    assert message in caught.value.message
    assert caught.value.message.startswith("workload.toml:2: ")


def test_what_one_input_message_of_a_dimension_holds_for_all_that_share_it() -> None:
    model = opened({"x": ("s0", "s1"), "mask": ("s0", "s1")})
    assert shapes(lay_out(model, rules('x = { shape = ["batch", 16] }'))) == {"x": (0, [16]), "mask": (0, [16])}
    turned = rules('x = { shape = ["length", "batch"] }')
    assert shapes(lay_out(model, turned)) == {"x": (1, ["s0"]), "mask": (1, ["s0"])}
    wide = lay_out(opened({"x": ("s0", "s1"), "wide": ("s0", "2*s1")}), rules('x = { shape = ["batch", 5] }'))
    assert shapes(wide) == {"x": (0, ["s1"]), "wide": (0, ["2*s1"])}, "the derived dimension needs its value"
    with pytest.raises(InputError, match=r"found '2' in .* as long as dimension 0 of mask, the batch"):
        lay_out(model, rules('x = { shape = [2, "length"] }'))


@pytest.mark.parametrize(
    ("rule", "dtype", "rows", "message"),
    [
        (
            "low = 0, high = 100000",
            "int64",
            1000,
            "index a table of 1000 rows: expected low = 0 or more and high = 1000",
        ),
        ("low = -1, high = 5", "int64", 1000, "expected low = 0 or more"),
        ("low = 0.2, high = 0.9", "int64", None, "int64 takes whole numbers"),
        ("high = 300", "uint8", None, "it is uint8: expected low = 0 or more and high = 256 or less"),
        ("high = 5", "complex64", None, "x with low and high, which latfix cannot draw as complex64"),
        ("low = -5, high = 5", "int64", None, ""),
        ("low = 0.2, high = 0.9", "float32", None, ""),
    ],
)
def test_values_that_an_input_cannot_hold(rule: str, dtype: str, rows: int | None, message: str) -> None:
    model = opened({"x": ("batch", 4)}, dtype=dtype, rows=rows)
    if not message:
        assert lay_out(model, rules(f"x = {{ {rule} }}")).inputs[0].high is not None
        return
    with pytest.raises(InputError) as caught:
        lay_out(model, rules(f"x = {{ {rule} }}"))
    assert message in caught.value.message and caught.value.message.startswith("workload.toml:2: ")
