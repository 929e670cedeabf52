"""The parts and their checks. ``-k NAME`` selects some of them; docs/gpu.md has a table.

A part that was cut short or could not be checked fails.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import ceilings, faults, fragmentation, models, stages
from benchmarks.gpu.commands import LATFIX, Ended
from benchmarks.gpu.nvml_recording import recorded_nvml
from benchmarks.gpu.parts import Part

SAMPLES = ("recommender", "vision", "assistant")
#: An optimization may exceed its budget by this, to finish the current step and write the report.
_BEYOND_S = 30.0
#: Status of a step of an optimization whose fix was replayed.
_TRIED = ("kept", "rejected", "no_gain", "undecided")
_KEPT = ("verdict", "before", "after", "ratio", "steps", "notes")
#: A line of ``pytest -v``: a test and its outcome.
_TEST = re.compile(r"^(tests/\S+?\.py::.+?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*)?$")


@pytest.mark.gpu("doctor")
def test_doctor(part: Part, tmp_path: Path) -> None:
    """Findings of ``latfix doctor``; it changes nothing."""
    file = tmp_path / "doctor.json"
    ended = part.command([*LATFIX, "doctor", "--json", str(file)], 30)
    if file.exists():
        part.put("findings", _read(file)["findings"])
    part.check(problems_of_doctor(ended, part.found))


@pytest.mark.gpu("ceilings")
def test_ceilings(part: Part) -> None:
    """The card's limits, and how close batches of two samples come."""
    part.check(ceilings.problems(part.measure("benchmarks.gpu.ceilings", 60)))


@pytest.mark.gpu("stages")
def test_stages(part: Part) -> None:
    """Durations of stages by events and by the profiler."""
    part.check(stages.problems(part.measure("benchmarks.gpu.stages", 60)))


@pytest.mark.gpu("faults")
@pytest.mark.parametrize("fault", faults.EXPECTED)
def test_faults(part: Part, fault: str) -> None:
    """Injected faults are named, and none without a fault."""
    found = part.attempt(fault, lambda: faults.planted(fault, part.runs(fault), 45))
    part.check(faults.problems(fault, found), fault)


@pytest.mark.gpu("probes")
def test_probes(part: Part, tmp_path: Path) -> None:
    """Cost of latfix's probes for a service on the GPU: the same requests with and without them, in turns."""
    file = tmp_path / "probes.json"
    command = [sys.executable, "-m", "benchmarks.profilers.probe_cost", "vision", "--profile", "gpu"]
    ended = part.command([*command, "--blocks", "4", "--seconds", "3", "--out", str(file)], 75)
    if file.exists():
        part.put("measured", _read(file))
    part.check(problems_of_probes(ended, part.found))


@pytest.mark.gpu("fragmentation")
def test_fragmentation(part: Part) -> None:
    """A p99 caused by allocator stalls, removed by a reserved pool."""
    part.check(fragmentation.problems(part.measure("benchmarks.gpu.fragmentation", 115)))


@pytest.mark.gpu("tests")
def test_gpu_tests(part: Part) -> None:
    """All tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "--durations=10", "-p", "no:cacheprovider"]
    # On a new device, an unknown warning must not fail the tests.
    ended = part.command([*command, "-o", "filterwarnings=default", "tests/gpu"], 200)
    part.update(found={**part.found, **outcomes(ended.output)})
    part.check(problems_of_tests(ended, part.found))


@pytest.mark.gpu("samples")
@pytest.mark.parametrize("sample", SAMPLES)
def test_samples(part: Part, sample: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """``latfix optimize`` of a sample in its profile ``gpu``; NVML is recorded during the first."""
    seconds: float = pytestconfig.getoption("--sample-seconds")
    file = tmp_path / "optimization.json"
    command = [*LATFIX, "optimize", sample, "--profile", "gpu", "--duration", "6"]
    command += [
        "--budget",
        f"{max(seconds - _BEYOND_S, 1):.0f}s",
        "--out",
        str(part.runs() / "run"),
        "--json",
        str(file),
    ]
    record = recorded_nvml(part.file.with_name("nvml.jsonl"))
    with record if sample == SAMPLES[0] else contextlib.nullcontext(""):
        ended = part.command(command, seconds)
    if file.exists():
        part.update(found={**part.found, **{key: value for key, value in _read(file).items() if key in _KEPT}})
    part.check(problems_of_samples(ended, part.found))


@pytest.mark.gpu("models")
@pytest.mark.parametrize("sample", models.MODELS)
def test_models(part: Part, sample: str, pytestconfig: pytest.Config) -> None:
    """Models as users bring them: latfix's plan beside obvious single changes."""
    if find_spec(package := models.MODELS[sample][0]) is None:
        pytest.skip(f"{package} is not installed")
    seconds: float = pytestconfig.getoption("--sample-seconds")
    part.check(models.measure(part, sample, seconds - _BEYOND_S))


def problems_of_doctor(ended: Ended, found: dict[str, Any]) -> list[str]:
    """Objections to the result of ``latfix doctor``."""
    return _lines(ended.why, "" if "findings" in found else "no findings")


def problems_of_probes(ended: Ended, found: dict[str, Any]) -> list[str]:
    """Objections to a measurement of the probes."""
    measured = found.get("measured", {})
    seen = "p50" in measured.get("ratio", {}) and bool(measured.get("requests"))
    device = str(measured.get("device", ""))
    elsewhere = f"measured on {device}" if seen and not device.startswith("cuda") else ""
    return _lines(ended.why, "" if seen else "nothing was measured", elsewhere)


def problems_of_tests(ended: Ended, found: dict[str, Any]) -> list[str]:
    """Objections to a run of tests."""
    failed = [f"failed: {name}" for name in found["not_passed"]]
    return _lines(ended.why, *failed, "" if found["passed"] else "no test has passed")


def problems_of_samples(ended: Ended, found: dict[str, Any]) -> list[str]:
    """Objections to an optimization."""
    steps = found.get("steps", ())
    tried = any(step["status"] in _TRIED for step in steps)
    none = "" if tried else f"none of {len(steps)} fixes was tried"
    return _lines(ended.why, "" if "verdict" in found else "no verdict", none)


def outcomes(output: str) -> dict[str, Any]:
    """Outcomes of tests, from complete or partial output of ``pytest -v``.

    :returns: the numbers ``passed`` and ``skipped``, names of tests ``not_passed``, and the one ``under_way``.
    """
    last: dict[str, str] = {}
    for line in output.splitlines():
        if (hit := _TEST.match(line)) is not None:
            last[hit[1].strip()] = hit[2] or ""
        if line.startswith("====") and last:  # the summary repeats names of tests
            break
    names: dict[str, list[str]] = defaultdict(list)
    for name, outcome in last.items():
        names[outcome].append(name)
    return {
        "passed": len(names["PASSED"]),
        "skipped_tests": len(names["SKIPPED"]),
        "not_passed": [*names["FAILED"], *names["ERROR"], *names["XPASS"]],
        "under_way": names[""],
    }


def _lines(*lines: str) -> list[str]:
    return [line for line in lines if line]


def _read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document
