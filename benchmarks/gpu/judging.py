"""Whether a part shows what it is to show: what speaks against it, one line each, and nothing where nothing does.

What was not run shows nothing: an item that is missing, was skipped or has failed counts against its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.commands import last_line
from benchmarks.gpu.findings import lacks

Found = Mapping[str, Any]

#: Faults that are planted one at a time, and a run without any.
FAULTS = ("Quiet", "Pageable", "Synchronizing", "Launching", "Neighbor")
#: Runs of the service whose allocator stalls, and how many things they are to show.
FRAGMENTATION = ("defaults", "memory.pool", "memory.device_allocator")
SHOWN = 5
#: Samples whose batches have a floor: the assistant's work depends on how long its answers are.
HOT_PATHS = ("recommender", "vision")
#: A batch below its floor by more than measurements differ says that the floor is none.
_LEAST_OVER_FLOOR = 0.9
#: By how much a stage's length may differ from the profiler's, at the median: a share, or so many nanoseconds. An
#: event before the first copy or kernel is passed while the host is still on its way to it.
_AGREEMENT = 0.02
_ALLOWED_NS: Mapping[str, float] = {"copy_in": 50_000.0, "compute": 50_000.0, "copy_out": 10_000.0}
#: The workload whose batches are all alike, so that all its profiles must show the same kernels.
_ALIKE = "copies"
STAGED = ("recommender", _ALIKE)
_LEAST_BATCHES = 10
#: What became of a step of an optimization whose fix was replayed.
_TRIED = ("kept", "rejected", "no_gain", "undecided")


def problems(part: str, found: Found) -> list[str]:
    """What speaks against a part's result; empty where it shows what it is to show."""
    if reason := lacks(found):
        return [reason]
    kind = part.partition(".")[0]
    return [*_JUDGES[kind](found), *([f"{found['cut']}"] if "cut" in found else [])]


def _command(found: Found) -> Iterator[str]:
    if found.get("exit_code") != 0:
        yield f"exit code {found.get('exit_code')}: {last_line(str(found.get('output', '')))}"


def _doctor(found: Found) -> Iterator[str]:
    yield from _command(found)
    if "findings" not in found:
        yield "no findings"


def _tests(found: Found) -> Iterator[str]:
    yield from _command(found)
    yield from (f"failed: {name}" for name in found.get("not_passed", ()))
    if not found.get("passed"):
        yield "no test has passed"


def _ceilings(found: Found) -> Iterator[str]:
    yield from _each(found, ("rates", *HOT_PATHS))
    for name in HOT_PATHS:
        path = found.get(name, {})
        if lacks(path):
            continue
        asked, seen = path["profiles"]["asked"], path["profiles"]["found"]
        if seen < asked:
            yield f"{name}: {asked - seen} of {asked} profiles show nothing of the device"
        over = path["busy_over_floor"]
        if over is None:
            yield f"{name}: no profile to compare with its floor"
        elif over < _LEAST_OVER_FLOOR:
            yield f"{name}: the device worked for {over:.2f} of the floor, which therefore is none"


def _stages(found: Found) -> Iterator[str]:
    yield from _each(found, STAGED)
    for name in STAGED:
        workload = found.get(name, {})
        if lacks(workload):
            continue
        for stage, allowed in _ALLOWED_NS.items():
            yield from (f"{name}, {stage}: {said}" for said in _stage(workload["stages"][stage], allowed))
        sessions = workload["sessions"]
        if sessions["found"] < sessions["asked"]:
            yield f"{name}: {sessions['asked'] - sessions['found']} of {sessions['asked']} profiles show no kernel"
        if name == _ALIKE and sessions["least_kernels"] != sessions["most_kernels"]:
            least, most = sessions["least_kernels"], sessions["most_kernels"]
            yield f"{name}: profiles of the same batch show {least} to {most} kernels: the profiler lost some"


def _stage(stage: Found, allowed_ns: float) -> Iterator[str]:
    if stage["batches"] < _LEAST_BATCHES:
        yield f"only {stage['batches']} batches, {_LEAST_BATCHES} are needed"
        return
    off, told = abs(stage["difference_ns"]), stage["told_ns"]
    if off > max(_AGREEMENT * told, allowed_ns):
        yield f"the events are {off / 1e3:.1f} µs off the profiler's {told / 1e3:.1f} µs"


def _faults(found: Found) -> Iterator[str]:
    yield from _each(found, FAULTS)
    for fault in FAULTS:
        run = found.get(fault, {})
        if lacks(run) or run["right"]:
            continue
        if run["evidence_missing"]:
            yield f"{fault}: no evidence: {'; '.join(run['evidence_missing'])}"
        elif not run.get("cannot_be_told"):
            yield f"{fault}: expected {run['expected']}, named {', '.join(run['named']) or 'nothing'}"


def _fragmentation(found: Found) -> Iterator[str]:
    yield from _each(found, FRAGMENTATION)
    shown = found.get("shown") or {}
    yield from (f"not shown: {what}" for what, right in shown.items() if not right)
    if len(shown) < SHOWN:
        yield f"{len(shown)} of {SHOWN} things were looked at"


def _probes(found: Found) -> Iterator[str]:
    yield from _command(found)
    measured = found.get("measured", {})
    if "p50" not in measured.get("ratio", {}) or not measured.get("requests"):
        yield "nothing was measured"
    elif not str(measured.get("device", "")).startswith("cuda"):
        yield f"measured on {measured.get('device')}"


def _samples(found: Found) -> Iterator[str]:
    yield from _command(found)
    if "verdict" not in found:
        yield "no verdict"
    steps = found.get("steps", ())
    if not any(step["status"] in _TRIED for step in steps):
        yield f"none of {len(steps)} fixes was tried"


def _each(found: Found, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if reason := lacks(found.get(name)):
            yield f"{name}: {reason}"


_JUDGES = {
    "doctor": _doctor,
    "tests": _tests,
    "ceilings": _ceilings,
    "stages": _stages,
    "faults": _faults,
    "fragmentation": _fragmentation,
    "probes": _probes,
    "samples": _samples,
}
