"""Every value of two diagnoses is compared, by its path."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.profilers.same_diagnosis import compared, same

BEFORE: dict[str, Any] = {
    "verdict": "python.gc",
    "tail": {"excess_ms": 2.5, "empty": []},
    "causes": [{"cause": "a", "tail_ms": 2.0}, {"cause": "b", "tail_ms": 0.5, "ci95_ms": [0.25, 0.75]}],
}


def test_the_same_diagnosis_differs_nowhere() -> None:
    assert compared(BEFORE, BEFORE) == {**{"equal": 8, "by_section": {}, "differ": {}, "missing": {}, "new": {}}}


def test_entries_are_compared_by_their_names_and_what_differs_is_listed() -> None:
    other = {**BEFORE, "tail": {"excess_ms": 2.5 * (1 + 1e-12), "found": [1]}, "causes": BEFORE["causes"][::-1]}
    found = compared(BEFORE, other)
    assert found["equal"] == 7 and not found["differ"]
    assert (found["missing"], found["new"]) == ({"tail.empty": []}, {"tail.found": [1]})
    other = {**BEFORE, "causes": [{"cause": "b", "tail_ms": 0.8, "ci95_ms": [0.25, 1.0]}]}
    found = compared(BEFORE, other)
    assert found["differ"] == {"causes[b].tail_ms": [0.5, 0.8], "causes[b].ci95_ms": [[0.25, 0.75], [0.25, 1.0]]}
    assert found["by_section"] == {"causes": {"values": 2, "largest": 0.375}}
    assert found["missing"] == {"causes[a].cause": "a", "causes[a].tail_ms": 2.0} and not found["new"]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.001, False),
        (0.0, 1e-12, False),
        (0, 0.0, True),
        (True, 1.0, True),
        (None, 0.0, False),
        ("1", 1, False),
        (math.inf, math.inf, True),
        ([1.0, "a"], [1.0 + 1e-12, "a"], True),
        ([1.0], [1.0, 2.0], False),
        ("python.gc", "host.steal", False),
    ],
)
def test_numbers_are_equal_but_for_rounding(one: object, other: object, equal: bool) -> None:
    assert same(one, other) is equal
