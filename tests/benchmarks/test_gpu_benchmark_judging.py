"""What the benchmarks for a GPU take for shown: nothing that was not run, did not end, or proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.gpu.judging import FAULTS, FRAGMENTATION, problems
from benchmarks.gpu.needs import Package, missing

Found = dict[str, Any]
Change = Callable[[Found], object]

_STAGE = {"batches": 40, "told_ns": 5e6, "difference_ns": 40e3}
_SESSIONS = {"asked": 40, "found": 40, "least_kernels": 32, "most_kernels": 32}
_STAGED = {"stages": dict.fromkeys(("copy_in", "compute", "copy_out"), _STAGE), "sessions": _SESSIONS}
_PATH = {"profiles": {"asked": 3, "found": 3}, "busy_over_floor": 1.4}
_RUN = {"right": True, "expected": "transfer.copy", "named": ["transfer.copy"], "evidence_missing": []}

#: A result of each part that shows what it is to show.
_GOOD: dict[str, Found] = {
    "doctor": {"exit_code": 0, "findings": []},
    "tests": {"exit_code": 0, "passed": 40, "not_passed": []},
    "ceilings": {"rates": {"flops": {}}, "recommender": _PATH, "vision": _PATH},
    "stages": {"recommender": _STAGED, "copies": _STAGED},
    "faults": dict.fromkeys(FAULTS, _RUN),
    "fragmentation": {
        **{name: {"retries": 3} for name in FRAGMENTATION},
        "shown": dict.fromkeys(("a", "b", "c", "d", "e"), True),
    },
    "probes": {
        "exit_code": 0,
        "measured": {"device": "cuda:0", "requests": 900, "ratio": {"p50": {"value": 1.0}}},
    },
    "samples.vision": {"exit_code": 0, "verdict": "no_gain", "steps": [{"status": "skipped"}, {"status": "no_gain"}]},
}


def _good(part: str) -> Found:
    """One that may be changed: nothing in it is in two places."""
    found: Found = json.loads(json.dumps(_GOOD[part]))
    return found


def _set(*path: Any, value: Any) -> Change:
    """Another value in the place that the path leads to."""

    def change(found: Found) -> None:
        inner: Any = found
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


@pytest.mark.parametrize("part", _GOOD)
def test_a_part_that_shows_all_of_it_passes(part: str) -> None:
    assert problems(part, _GOOD[part]) == []


@pytest.mark.parametrize("part", _GOOD)
@pytest.mark.parametrize(
    "found", [{}, {"failed": "OSError"}, {"skipped": "no time: 3 s were left"}], ids=["none", "failed", "skipped"]
)
def test_a_part_that_was_not_run_does_not_pass(part: str, found: Found) -> None:
    assert len(problems(part, found)) == 1


@pytest.mark.parametrize("part", _GOOD)
def test_a_part_that_was_cut_short_does_not_pass(part: str) -> None:
    assert problems(part, {**_GOOD[part], "cut": "stopped after 60 s"}) == ["stopped after 60 s"]


@pytest.mark.parametrize("part", ["ceilings", "stages", "faults", "fragmentation"])
def test_every_item_counts(part: str) -> None:
    for item in (name for name in _GOOD[part] if name != "shown"):
        rest = {name: value for name, value in _GOOD[part].items() if name != item}
        assert problems(part, rest) == [f"{item}: nothing was found"]
        assert problems(part, {**rest, item: {"failed": "RuntimeError: CUDA"}}) == [
            f"{item}: failed: RuntimeError: CUDA"
        ]
        assert problems(part, {**rest, item: {"skipped": "no time"}}) == [f"{item}: skipped, no time"]


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("doctor", _set("exit_code", value=4), "exit code 4"),
        ("doctor", lambda found: found.pop("findings"), "no findings"),
        ("tests", _set("exit_code", value=124), "exit code 124"),
        ("tests", _set("not_passed", value=["tests/gpu/test_x.py::test_y"]), "test_y"),
        ("tests", _set("passed", value=0), "no test has passed"),
        ("ceilings", _set("vision", "profiles", "found", value=1), "2 of 3 profiles"),
        ("ceilings", _set("vision", "busy_over_floor", value=None), "no profile"),
        ("ceilings", _set("vision", "busy_over_floor", value=0.5), "which therefore is none"),
        ("stages", _set("copies", "stages", "copy_in", "difference_ns", value=-150e3), "copies, copy_in"),
        ("stages", _set("copies", "stages", "copy_out", "difference_ns", value=150e3), "copies, copy_out"),
        ("stages", _set("copies", "stages", "compute", "batches", value=4), "only 4 batches"),
        ("stages", _set("copies", "sessions", "found", value=37), "3 of 40 profiles show no kernel"),
        ("stages", _set("copies", "sessions", "least_kernels", value=28), "28 to 32 kernels"),
        ("faults", _set("Quiet", "right", value=False), "Quiet"),
        ("faults", _set("Quiet", value={**_RUN, "right": False, "evidence_missing": ["cpu"]}), "no evidence: cpu"),
        ("fragmentation", _set("shown", "a", value=False), "not shown: a"),
        ("fragmentation", lambda found: found["shown"].pop("a"), "4 of 5"),
        ("fragmentation", _set("shown", value={}), "0 of 5"),
        ("probes", _set("exit_code", value=1), "exit code 1"),
        ("probes", lambda found: found.pop("measured"), "nothing was measured"),
        ("probes", _set("measured", "device", value="cpu"), "measured on cpu"),
        ("samples.vision", _set("exit_code", value=4), "exit code 4"),
        ("samples.vision", lambda found: found.pop("verdict"), "no verdict"),
        ("samples.vision", _set("steps", value=[{"status": "skipped"}] * 3), "none of 3 fixes was tried"),
        ("samples.vision", _set("steps", value=[]), "none of 0 fixes was tried"),
    ],
)
def test_what_speaks_against_a_part_is_said(part: str, change: Change, said: str) -> None:
    found = _good(part)
    change(found)
    assert any(said in line for line in problems(part, found)), problems(part, found)


def test_short_copies_may_differ_by_the_hosts_way_to_them() -> None:
    """Of 100 µs two per cent are less than the host takes from the event to the copy."""
    found = _good("stages")
    stages = found["recommender"]["stages"] = {
        "copy_in": {"batches": 40, "told_ns": 100e3, "difference_ns": 45e3},
        "compute": _STAGE,
        "copy_out": {"batches": 40, "told_ns": 4e3, "difference_ns": 8e3},
    }
    assert problems("stages", found) == []
    stages["copy_out"]["difference_ns"] = 12e3
    assert len(problems("stages", found)) == 1


def test_a_neighbor_that_nobody_can_see_is_no_wrong_answer() -> None:
    found = _good("faults")
    found["Neighbor"] = {**_RUN, "right": None, "named": [], "cannot_be_told": "no series"}
    assert problems("faults", found) == []
    found["Launching"] = {**_RUN, "right": False, "named": []}
    assert problems("faults", found) == ["Launching: expected transfer.copy, named nothing"]


def test_each_missing_package_is_said_once_with_the_parts_that_need_it() -> None:
    packages = (
        Package(name="pytest", module="pytest", parts=("tests",)),
        Package(name="safetensors", module="safetensors", parts=("stages", "samples")),
        Package(name="typer", module="typer._not_there"),
        Package(name="not-asked-for", module="not_asked_for", of="typer"),
    )
    lines = missing(["tests", "samples"], lambda module: module == "pytest", packages)
    assert list(lines.values()) == [["samples"], ["tests", "samples"]]
    first, second = lines
    assert first == "safetensors is not installed; pip install safetensors"
    assert second.startswith("typer ") and "has no typer._not_there; pip install --upgrade typer" in second
    assert missing(["tests"], lambda _: True, packages) == {}


def test_what_this_environment_has_is_found() -> None:
    parts = tuple(name.partition(".")[0] for name in _GOOD)
    assert missing(parts) == {}
