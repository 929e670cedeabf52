"""A mapping becomes the same request as the equal line of recorded traffic."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.request import PRIORITIES, Request
from latfix.runners.live.requests import LONGEST_MS, RequestReader
from latfix.traffic.io.reader import read_traffic

MAPPING = {"tokens": "min(a * 2, 100)", "more": "tokens + 1"}
NAMES = st.sampled_from(["b", "c", "a feature", "größe"])
ROWS = st.fixed_dictionaries(
    {"a": st.integers(-50, 200)},
    optional={
        "id": st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8),
        "priority": st.sampled_from(PRIORITIES),
        "session": st.text(st.characters(codec="ascii", categories=["L"]), min_size=1) | st.integers(0, 10**6),
        "deadline_ms": st.integers(1, 10**6) | st.floats(0.001, 1e6),
        "payload": st.none() | st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3),
    },
).flatmap(
    lambda row: st.dictionaries(NAMES, st.floats(-1e9, 1e9) | st.text("xyz", min_size=1), max_size=3).map(
        lambda more: {**more, **row}
    )
)


def _reader(**mapping: str) -> RequestReader:
    return RequestReader(mapping, 0)


def _same_but_times_and_names(one: Request, other: Request) -> bool:
    plain = {"arrival_s": 0.0, "id": "x"}
    return replace(one, **plain) == replace(other, **plain)  # type: ignore[arg-type]


@settings(max_examples=60)
@given(ROWS, st.booleans())
def test_a_mapping_is_read_as_the_same_line_of_traffic(row: dict[str, Any], nested: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "traffic.jsonl"
        file.write_text(json.dumps({"arrival_s": 0.0, **row}) + "\n", encoding="utf-8")
        recorded = read_traffic(file, mapping=MAPPING).request(0)

    given_ = dict(row)
    if nested:
        features = {name: given_.pop(name) for name in list(given_) if name in ("a", "b", "c", "a feature", "größe")}
        given_["features"] = features
    live = _reader(**MAPPING).read(given_, 1_500_000_000)

    assert _same_but_times_and_names(live, recorded)
    assert live.arrival_s == 1.5
    assert live.id == row.get("id", "live-0")


def test_a_request_is_used_unmodified() -> None:
    request = Request(id="r", arrival_s=3.0, features={"tokens": 4})
    assert _reader(**MAPPING).read(request, 5) is request


def test_names_are_given_in_order() -> None:
    reader = _reader()
    assert [reader.read({}, 0).id for _ in range(3)] == ["live-0", "live-1", "live-2"]


def test_a_payload_may_be_any_object() -> None:
    payload = object()
    assert _reader().read({"payload": payload}, 0).payload is payload


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ([], "found a list; expected a latfix.Request or a mapping"),
        ({"id": 1.5}, "id: found 1.5; expected a text or a whole number"),
        ({"id": ""}, "id: found ''"),
        ({"session": []}, "session: found []"),
        ({"deadline_ms": 0}, "deadline_ms: found 0; expected a finite number of milliseconds above 0"),
        ({"deadline_ms": float("nan")}, "deadline_ms: found nan"),
        ({"priority": 1}, "priority: found 1; expected high, normal or low"),
        ({"priority": "High"}, "priority: found 'High'"),
        ({"features": [1]}, "features: found [1]; expected a mapping"),
        ({"value": [1]}, "value: found a list [1]; expected a number or a text; put nested values under payload"),
        ({"value": float("inf")}, "value: found inf"),
        ({"features": {"value": {}}}, "value: found an object"),
        ({3: 1}, "found feature name 3"),
        ({"features": {"": 1}}, "found feature name ''"),
    ],
)
def test_invalid_values_are_one_clear_line(given_: Any, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        _reader().read(given_, 0)
    assert caught.value.message.startswith("request: ") and expected in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"priority": "urgent"}, "priority: found 'urgent'; expected high, normal or low"),
        ({"priority": None}, "priority: found None"),
        ({"deadline_ms": float("inf")}, "deadline_ms: found inf"),
        ({"deadline_ms": float("nan")}, "deadline_ms: found nan"),
        ({"deadline_ms": -5}, "deadline_ms: found -5"),
        ({"deadline_ms": [5]}, "deadline_ms: found [5]"),
        ({"features": None}, "features: found None; expected a mapping of features by name"),
    ],
)
def test_a_request_made_by_the_caller_is_checked_too(wrong: dict[str, Any], expected: str) -> None:
    """The engine's threads rely on the types of its fields, and serve all other callers too."""
    with pytest.raises(InputError) as caught:
        _reader().read(Request(**{"id": "r", "arrival_s": 0.0, **wrong}), 0)
    assert caught.value.message.startswith("request: ") and expected in caught.value.message


@pytest.mark.parametrize("limit_ms", [1e13, 1e305, 10**200, "1e300"])
def test_a_deadline_beyond_all_clocks_is_clipped(limit_ms: Any) -> None:
    request = Request(id="r", arrival_s=0.0, deadline_ms=limit_ms)
    for read in (_reader().read({"deadline_ms": limit_ms}, 0), _reader().read(request, 0)):
        assert read.deadline_ms == LONGEST_MS


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({}, "tokens: found no feature a"),
        ({"a": "text"}, "tokens: found feature a is text"),
        ({"a": None}, "tokens: found no feature a"),
    ],
)
def test_derived_features_must_be_derivable(features: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        _reader(**MAPPING).read(features, 0)
    assert expected in caught.value.message


def test_a_feature_that_is_not_finite_is_refused() -> None:
    with pytest.raises(InputError, match="share: found"):
        _reader(share="1 / a").read({"a": 0}, 0)
