"""Planted faults of real services, diagnosed by address: named right with ``--pid``; without, right or not at all.

Each service is replayed once, with ``--pid``. What latfix would know without it is the same record less the counters
of the service's process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose as attribute
from latfix.run_record.run_record import RunRecord
from tests.runners.http_target.conftest import Plant
from tests.runners.http_target.test_http_diagnose import OF_A_CROWD, causes_of, diagnose, write_arrivals

#: A busy machine adds these to any fault.
_OF_THE_MACHINE = {*OF_A_CROWD, "network.connect"}
_CHAT = "/v1/chat/completions"
#: How the names of series begin that are read with ``--pid``, and of those that are read without ``--metrics off``.
PROCESS, METRICS = ("server.", "nvml."), ("metrics.", "stage.")


def evenly(rng: np.random.Generator, rate: float, seconds: float) -> np.ndarray:
    return np.cumsum(rng.exponential(1 / rate, int(rate * seconds)))


def steady(folder: Path) -> Path:
    return write_arrivals(folder / "t.jsonl", evenly(np.random.default_rng(4), 40, 6), payload={"x": 1})


def busy(folder: Path) -> Path:
    return write_arrivals(folder / "t.jsonl", evenly(np.random.default_rng(4), 150, 5), payload={"x": 1})


def bursts(folder: Path) -> Path:
    at = [evenly(np.random.default_rng(4), 25, 12), *(second + np.arange(25) / 10_000 for second in range(2, 12, 2))]
    return write_arrivals(folder / "t.jsonl", np.concatenate(at), payload={"x": 1})


def sizes(folder: Path) -> Path:
    rng = np.random.default_rng(4)
    tokens = rng.integers(1, 400, 400)
    return write_arrivals(
        folder / "t.jsonl",
        evenly(rng, 40, 6),
        payload=lambda k: {"tokens": int(tokens[k])},
        tokens=lambda k: int(tokens[k]),
    )


def prompts(folder: Path) -> Path:
    return write_arrivals(
        folder / "t.jsonl",
        evenly(np.random.default_rng(4), 12, 12),
        input_tokens=lambda k: 600 if k % 12 == 5 else 10,
        output_tokens=25,
    )


def without(record: RunRecord, *read: str) -> dict[str, Any]:
    """The diagnosis of a replay during which some series, by how their names begin, are not read."""
    series = record.samples["series"].astype(str)
    kept = ~np.any([np.char.startswith(series, prefix) for prefix in read], axis=0)
    assert not kept.all(), read
    samples = {name: column[kept] for name, column in record.samples.items()}
    option = "pid" if read == PROCESS else "metrics"
    meta = record.meta.updated(http={**record.meta.http, option: None})
    return attribute(replace(record, samples=samples, meta=meta), percentile=95).to_json()


def check(found: dict[str, Any], causes: set[str], *, watched: bool) -> None:
    """Nothing but the fault is named. With ``--pid`` it is the largest cause, unless the machine was too busy."""
    by_cause = {name: each["tail_ms"] for name, each in causes_of(found).items()}
    named = {each["cause"] for each in found["causes"] if each["named"]}
    assert named <= causes | _OF_THE_MACHINE, by_cause
    others = {name: ms for name, ms in by_cause.items() if name not in _OF_THE_MACHINE}
    crowded = watched and by_cause.get("host.contention", 0.0) > found["tail"]["excess_ms"] / 2
    largest = max(others, key=lambda name: others[name])
    assert largest in (causes if watched and not crowded else causes | {"unexplained"}), by_cause


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "fault", "path", "traffic", "causes"),
    [
        ("planted_service.py", "dependency", "/predict", steady, {"external.dependency"}),
        ("planted_service.py", "computing", "/predict", bursts, {"traffic.burst"}),
        ("planted_service.py", "sleeping", "/predict", bursts, {"traffic.burst"}),
        # It sleeps for as long.
        ("planted_service.py", "sized", "/predict", sizes, {"input.size", "external.dependency"}),
        # Its prefill is a call in the event loop.
        ("planted_service.py", "stream", _CHAT, prompts, {"batching.size", "input.size", "service.loop"}),
        ("planted_service.py", "stalls", "/predict", busy, {"service.loop"}),
        ("torch_service.py", "burst", "/loop", bursts, {"traffic.burst"}),
        ("torch_service.py", "burst", "/pool", bursts, {"traffic.burst"}),
    ],
)
def test_a_planted_fault_is_named_right_or_left_unexplained(
    tmp_path: Path,
    planted: Plant,
    script: str,
    fault: str,
    path: str,
    traffic: Callable[[Path], Path],
    causes: set[str],
) -> None:
    service = planted(fault, script=script)
    words = ("--traffic", str(traffic(tmp_path)), "--percentile", "95", "--pid", str(service.pid))
    _, found, record = diagnose(tmp_path, service.at(path), *words)
    check(found, causes, watched=True)
    check(without(record, *PROCESS), causes, watched=False)


@pytest.mark.alone  # when a collection ran is only known from readings of the metrics, which others delay
@pytest.mark.slow
def test_a_collection_is_named_and_without_metrics_it_is_the_interpreter_s_lock(
    tmp_path: Path, planted: Plant
) -> None:
    service = planted("collection", script="torch_service.py")
    words = ("--traffic", str(steady(tmp_path)), "--percentile", "95", "--pid", str(service.pid))
    _, found, record = diagnose(tmp_path, service.at("/pool"), *words)
    check(found, {"python.gc"}, watched=True)
    check(without(record, *PROCESS), {"python.gc"}, watched=False)
    check(without(record, *METRICS), {"python.gil", "unexplained"}, watched=True)


@pytest.fixture
def neighbor() -> Iterator[Callable[[int], None]]:
    """Start a process that is busy on a core for half of each second; it ends after the test."""
    processes: list[subprocess.Popen[bytes]] = []
    code = "import time\nwhile True:\n if time.time() % 1 > 0.5: time.sleep(0.01)"

    def start(core: int) -> None:
        process = subprocess.Popen([sys.executable, "-c", code])
        processes.append(process)
        os.sched_setaffinity(process.pid, {core})

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_neighbor_on_the_core_is_named_right_or_left_unexplained(
    tmp_path: Path, planted: Plant, neighbor: Callable[[int], None]
) -> None:
    service, core = planted("computing"), min(os.sched_getaffinity(0))
    os.sched_setaffinity(service.pid, {core})
    neighbor(core)
    words = ("--traffic", str(steady(tmp_path)), "--percentile", "95", "--pid", str(service.pid))
    _, found, record = diagnose(tmp_path, service.at(), *words)
    most, alone = (
        max(each["causes"], key=lambda cause: float(cause["tail_ms"]))["cause"]
        for each in (found, without(record, *PROCESS))
    )
    assert most == "host.contention"
    assert alone in ("unexplained", "traffic.burst")


@pytest.mark.slow
def test_a_slow_dependency_of_litserve(tmp_path: Path, planted: Plant) -> None:
    if importlib.util.find_spec("litserve") is None:
        pytest.skip("litserve is not installed (pip install litserve): no server of this kind was diagnosed")
    service = planted("dependency", script="litserve_service.py")
    words = ("--traffic", str(steady(tmp_path)), "--percentile", "95", "--pid", str(service.pid))
    _, found, record = diagnose(tmp_path, service.at("/predict"), *words)
    assert record.meta.http["server"] == "LitServe"
    # Its one worker serves one request at a time: while it waits all stand still, for which no cause is visible.
    for each in (found, without(record, *PROCESS)):
        check(each, {"external.dependency"}, watched=False)
