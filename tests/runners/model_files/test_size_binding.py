"""Which feature determines which dimension, and the message if none does."""

from __future__ import annotations

import pytest

from latfix.errors import InputError
from latfix.runners.model_files.input_layout import Layout, lay_out
from latfix.runners.model_files.opened_model import Axis, OpenedModel
from latfix.runners.model_files.size_binding import bind, check_traffic
from tests.runners.model_files.conftest import opened, rules, traffic_of


def ruled(model: OpenedModel, text: str = "") -> Layout:
    return lay_out(model, rules(text))


@pytest.mark.parametrize(
    ("symbol", "features", "bound"),
    [
        ("length", ("length", "other_length"), "length"),
        ("s1", ("length",), "length"),
        ("s1", ("length", "user", "price"), "length"),
        ("s1", ("input_tokens", "output_tokens"), "input_tokens"),
        ("s1", ("context_tokens", "generated_tokens"), "context_tokens"),
    ],
)
def test_a_dimension_finds_its_feature(symbol: str, features: tuple[str, ...], bound: str) -> None:
    layout = ruled(opened({"x": ("batch", symbol)}))
    assert bind(layout, features, (symbol,))[symbol].source == bound
    both = bind(ruled(opened({"x": ("batch", "length", "s2")})), ("length", "width"), ("length", "s2"))
    assert {name: expression.source for name, expression in both.items()} == {"length": "length", "s2": "width"}


def test_rules_go_first() -> None:
    layout = ruled(opened({"x": ("batch", "length")}), 'x = { shape = ["batch", "min(tokens, 8)"] }')
    assert bind(layout, ("length", "tokens"), ("length",))["length"].source == "min(tokens, 8)"
    with pytest.raises(InputError, match=r"no numeric feature 'tokens'.*expected one of length.*--map tokens="):
        bind(layout, ("length",), ("length",))


@pytest.mark.parametrize("features", [(), ("price",), ("length", "width"), ("output_tokens",), ("a length",)])
def test_no_feature_or_too_many_are_refused_with_the_lines_to_write(features: tuple[str, ...]) -> None:
    layout = ruled(opened({"x": ("batch", "s1", 64), "mask": ("batch", "s1")}))
    with pytest.raises(InputError) as caught:
        bind(layout, features, ("s1",))
    message = caught.value.message
    assert "x[1] (s1), mask[1] (s1)" in message
    assert 'x = { shape = ["batch", "FEATURE", 64] }, mask = { shape = ["batch", "FEATURE"] }' in message
    assert ", ".join(sorted(features)) in message and "\n" not in message


@pytest.mark.parametrize("name", ["x", "input.1", "serving_default_x:0", 'a "name"'])
def test_the_advised_lines_can_be_read(name: str) -> None:
    model = opened({name: ("batch", "s1", 64)})
    with pytest.raises(InputError) as caught:
        bind(ruled(model), ("a", "b"), ("s1",))
    line = caught.value.message.rpartition("in [workload]: ")[2].replace("FEATURE", "a")
    assert bind(ruled(model, line), ("a", "b"), ("s1",))["s1"].source == "a"


def test_sizes_are_checked_before_anything_is_replayed() -> None:
    layout = ruled(opened({"x": ("batch", Axis(symbol="s1", most=64))}))
    check_traffic(layout, traffic_of(length=[1, 64, 3.2]))
    with pytest.raises(InputError, match=r"request 'r2': found length is 65; .* at most 64") as caught:
        check_traffic(layout, traffic_of(length=[1, 64, 65]))
    assert '"min(length, 64)"' in caught.value.message
    clamped = ruled(
        opened({"x": ("batch", Axis(symbol="s1", most=64))}), 'x = { shape = ["batch", "min(length, 64)"] }'
    )
    check_traffic(clamped, traffic_of(length=[65]))
    least = ruled(opened({"x": ("batch", Axis(symbol="s1", least=4))}))
    with pytest.raises(InputError, match=r'takes 4 or more; .*"max\(length, 4\)"'):
        check_traffic(least, traffic_of(length=[3]))


def test_a_request_without_the_feature() -> None:
    layout = ruled(opened({"x": ("batch", "s1")}))
    with pytest.raises(InputError, match="request 'r1': found the request has no feature 'length'"):
        check_traffic(layout, traffic_of(length=[3, None]))
    with pytest.raises(InputError, match="request 'r1'"):
        check_traffic(layout, traffic_of(length=[3.0, float("nan")]))
    with pytest.raises(InputError, match="no feature for them"):
        check_traffic(layout, traffic_of(length=["long", "short"]))


def test_a_payload_needs_no_features() -> None:
    layout = ruled(opened({"x": ("batch", "s1"), "y": ("batch", "s1")}))
    check_traffic(layout, traffic_of(payloads=[{"x": [1.0]}, {"y": [1.0, 2.0]}]))
    with pytest.raises(InputError, match="no feature for them"):
        check_traffic(layout, traffic_of(payloads=[{"x": [1.0]}, {"z": 3}]))


def test_inputs_of_which_nothing_is_known() -> None:
    layout = ruled(opened({"x.1": None}, dtype=None))
    check_traffic(layout, traffic_of(payloads=[{"x.1": [1.0]}]))
    with pytest.raises(InputError, match=r"no shape and dtype of 'x.1'.*request 'r1'") as caught:
        check_traffic(layout, traffic_of(payloads=[{"x.1": [1.0]}, None]))
    line = caught.value.message.rpartition("in [workload]: ")[2]
    assert 'model = "model.pt2"' in caught.value.message
    line = line.replace("FEATURE", "length").replace("DTYPE", "int64")
    check_traffic(ruled(opened({"x.1": None}, dtype=None), line), traffic_of(length=[3]))


def test_all_undescribed_inputs_are_named_at_once() -> None:
    layout = ruled(opened({"x": None, "y": None, "z": None}, dtype=None))
    with pytest.raises(InputError, match=r"of 'x' and 'z' in the file.*x = \{.*\}, z = \{"):
        check_traffic(layout, traffic_of(payloads=[{"y": [1.0]}]))


def test_sizes_that_no_tensor_has() -> None:
    layout = ruled(opened({"x": ("batch", "s1")}), 'x = { shape = ["batch", "length * 1e9"] }')
    with pytest.raises(InputError, match=r"is 7000000000, too large for a tensor"):
        check_traffic(layout, traffic_of(length=[7]))
    most = opened({"x": ("batch", Axis(symbol="s1", most=64))})
    endless = ruled(most, 'x = { shape = ["batch", "length / 0"] }')
    with pytest.raises(InputError) as caught:
        check_traffic(endless, traffic_of(length=[7]))
    assert "if the service clamps it" not in caught.value.message, "min() would not help"
