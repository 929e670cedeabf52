"""Runs without a runner: replays of `diagnose` are replaced by records that the test describes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.errors import LatfixError
from latfix.profilers.diagnose import diagnose as attribute
from latfix.run_record.run_meta import RunMeta, write_meta
from latfix.run_record.run_record import RunRecord, finalize
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.runners.replay.run_session import Interrupted, Replay, prepare_folder
from latfix.runners.replay.runner_process import RunnerProcess
from latfix.stages import STAGES
from latfix.traffic.io.stored_schedule import save_schedule
from latfix.traffic.schedule import Traffic
from tests.conftest import cli, write_workload

#: Runs the command line: exit code, standard output, standard error.
Cli = Callable[..., tuple[int, str, str]]
MACHINE = {"cpu": "a processor", "cores": 2, "memory_bytes": 8 << 30, "os": "Linux", "gpu": None}


def batches_of(rows: Any) -> Any:
    """A batch of its own for each request, with the times that the request's stages give it."""
    batches = np.zeros(len(rows), dtype=BATCH_DTYPE)
    batches["batch_id"], batches["size"] = rows["batch_id"], 1
    ends = np.cumsum([rows[f"{stage}_ns"] for stage in STAGES], axis=0) + rows["arrival_ns"]
    batches["open_ns"] = batches["close_ns"] = ends[2]
    for name, k in (("collated_ns", 3), ("h2d_end_ns", 4), ("compute_end_ns", 5), ("d2h_end_ns", 6)):
        batches[name] = ends[k]
    batches["finish_end_ns"] = ends[7]
    return batches


def serve_one_by_one(work_ns: Sequence[int], prepare_ns: int = 0) -> tuple[Any, Any]:
    """Rows and batches of one worker with a request every 10 ms, each taking its ``work_ns``."""
    n = len(work_ns)
    rows, batches, free = np.zeros(n, REQUEST_DTYPE), np.zeros(n, BATCH_DTYPE), 0
    rows["arrival_ns"], rows["prepare_ns"] = np.arange(n) * 10_000_000, prepare_ns
    rows["compute_ns"] = batches["compute_cpu_ns"] = work_ns
    rows["index"] = rows["batch_id"] = batches["batch_id"] = np.arange(n)
    batches["size"] = 1
    for k, ready in enumerate((rows["arrival_ns"] + prepare_ns).tolist()):
        begin = max(ready, free)
        batches["free_ns"][k], rows["queue_ns"][k] = free, begin - ready
        free = begin + work_ns[k]
        for name in ("open_ns", "close_ns", "collated_ns", "h2d_end_ns"):
            batches[name][k] = begin
        for name in ("compute_end_ns", "d2h_end_ns", "finish_end_ns"):
            batches[name][k] = free
    rows["latency_ns"] = sum(rows[f"{stage}_ns"] for stage in STAGES)
    return rows, batches


def write_run(
    folder: Path,
    rows: Any,
    *,
    batches: Any = None,
    events: Sequence[Any] = (),
    samples: Sequence[Any] = (),
    traffic: Traffic | None = None,
    finished: bool = True,
    **meta: Any,
) -> Path:
    """A run's folder as the runner leaves it: finished, or killed before it was.

    :param rows: of requests, and ``batches``, in the types of the record's segments; events and samples as JSON.
    :param meta: more keys of ``run.json``.
    """
    segments = folder / "segments"
    segments.mkdir(parents=True)
    traffic = traffic or Traffic.plain(rows["arrival_ns"].astype(np.int64))
    save_schedule(traffic, folder / "traffic.parquet")
    state = "complete" if finished else "running"
    known: dict[str, Any] = {"schema": RunMeta.SCHEMA, "state": state, "workload": "w", "device": "cpu"}
    known |= {"scheduled": len(traffic), "settings": {}, "objective": {}}
    (folder / "run.json").write_text(json.dumps(known | meta))
    (segments / "requests.bin").write_bytes(rows.tobytes())
    (segments / "batches.bin").write_bytes(b"" if batches is None else batches.tobytes())
    for name, lines in (("events", events), ("samples", samples)):
        (segments / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        finalize(folder)
    return folder


#: Requests of the runs in ``runs``, of which one fails; nanoseconds in a millisecond.
N, MS = 40, 1_000_000


def _written(folder: Path, *, finished: bool) -> Path:
    traffic = Traffic.plain(np.arange(N, dtype=np.int64) * 10 * MS, features={"tokens": np.arange(N)})
    traffic.sessions[:] = ["s" if k % 2 else None for k in range(N)]
    rows = np.zeros(N, dtype=REQUEST_DTYPE)
    rows["index"], rows["arrival_ns"], rows["batch_id"] = np.arange(N), traffic.arrival_ns, np.arange(N)
    for k, stage in enumerate(STAGES):
        rows[f"{stage}_ns"] = 10_000 * (k + 1)
    rows["compute_ns"][::9] += 5 * MS
    rows["latency_ns"] = np.sum([rows[f"{stage}_ns"] for stage in STAGES], axis=0)
    rows["status"][3] = 1
    return write_run(
        folder,
        rows,
        batches=batches_of(rows),
        events=[
            [10, 5, "gc", 1, -1, -1, {"generation": 2, "collected": 3}],
            [30 * MS, 0, "error", 1, 3, 3, {"message": "bad", "stage": "compute"}],
        ],
        samples=[[20, "process.rss_bytes", 1.5], [90, "process.rss_bytes", 2]],
        traffic=traffic,
        finished=finished,
        settings={"workers": 1},
        objective={"percentile": 99.0},
        overhead={"a_us": 1.0},
        calibration={"minor_fault_ns": 500.0},
    )


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A run that ended, and one that was killed; tests must not change them."""
    base = tmp_path_factory.mktemp("runs")
    return {finished: _written(base / str(finished), finished=finished) for finished in (True, False)}


@pytest.fixture
def runs(originals: dict[bool, Path], tmp_path: Path) -> dict[bool, Path]:
    """Copies of both."""
    return {finished: Path(shutil.copytree(path, tmp_path / path.name)) for finished, path in originals.items()}


@pytest.fixture
def run(runs: dict[bool, Path]) -> Path:
    """A run that ended."""
    return runs[True]


@pytest.fixture
def killed(runs: dict[bool, Path]) -> Path:
    """A run that was killed."""
    return runs[False]


def refused(answer: tuple[int, str, str], *words: str) -> str:
    """The one line of a command that refused its input."""
    code, out, err = answer
    assert (code, out) == (2, ""), (code, out, err)
    assert err.startswith("latfix: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert all(word in err for word in words), err
    return err


class Reached(BaseException):  # past what latfix makes of its own mistakes
    """A runner process was about to be started: the input passed every check."""


@pytest.fixture
def no_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises :class:`Reached` instead of starting a process."""

    def start(*_: object) -> None:
        raise Reached

    monkeypatch.setattr(RunnerProcess, "start", start)


@dataclass
class Service:
    """The service that is replayed instead of a real one.

    :param scale: of its latencies: 5 ms in the median, 25 ms at p99.
    :param spread: by which each request's latency differs from run to run, a share.
    :param fails: raised by the replay.
    :param failed: how many requests do not end ok.
    """

    scale: float = 1.0
    spread: float = 0.02
    failed: int = 0
    fails: LatfixError | None = None
    interrupted: bool = False
    runs: int = 0
    meta: dict[str, Any] = field(default_factory=dict)

    def replay(self, folder: Path, replay: Replay) -> RunRecord:
        """As :func:`latfix.cli.shared.replay_progress.replay_with_progress`."""
        self.runs += 1
        if self.fails is not None:
            raise self.fails
        run = prepare_folder(folder, replay)
        state = "interrupted" if self.interrupted else "complete"
        run.update(**{"machine": MACHINE, "device": "cpu", "state": state, "load_s": 0.1, **self.meta})
        write_meta(folder, run.meta)
        self._write(folder / "segments", replay.traffic.arrival_ns, seed=self.runs)
        finalize(folder)
        record = RunRecord.load(folder)
        if self.interrupted:
            raise Interrupted(record)
        return record

    def _write(self, segments: Path, arrival_ns: Any, *, seed: int) -> None:
        n = len(arrival_ns)
        usual = np.random.default_rng(0).lognormal(0, 0.7, n) * 5e6 * self.scale
        compute = usual * (1 + self.spread * np.random.default_rng(seed).standard_normal(n)).clip(0.1)
        rows = np.zeros(n, dtype=REQUEST_DTYPE)
        rows["index"], rows["arrival_ns"], rows["batch_id"] = np.arange(n), arrival_ns, np.arange(n)
        rows["dispatch_ns"], rows["prepare_ns"], rows["finish_ns"] = 10_000, 50_000, 20_000
        rows["compute_ns"] = compute.astype(np.int64)
        rows["latency_ns"] = np.sum([rows[f"{stage}_ns"] for stage in STAGES], axis=0)
        rows["status"][: self.failed] = 1
        (segments / "requests.bin").write_bytes(rows.tobytes())
        (segments / "batches.bin").write_bytes(batches_of(rows).tobytes())
        (segments / "events.jsonl").write_text("")
        (segments / "samples.jsonl").write_text("")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Service:
    """Replaces the replay of `diagnose`; no page is drawn, and the user's own data folder is one of the test."""
    stand_in = Service()
    monkeypatch.setattr("latfix.cli.shared.replay_progress.replay_with_progress", stand_in.replay)
    monkeypatch.setattr("latfix.profilers.diagnose.diagnose", partial(attribute, bootstrap=20))
    monkeypatch.setattr(
        "latfix.reports.html.pages.write_run_report", lambda path, *_, **__: path.write_text("<html>")
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("LATFIX_HISTORY", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return stand_in


@pytest.fixture
def diagnose(service: Service, tmp_path: Path) -> Cli:
    """Calls `latfix diagnose` on a workload of 300 requests, each time into a new folder ``run-1``, ``run-2``, …"""
    workload = write_workload(tmp_path / "w", traffic=[{"arrival_s": k * 0.1} for k in range(300)])

    def call(*arguments: object) -> tuple[int, str, str]:
        return cli("diagnose", workload, "--out", tmp_path / f"run-{service.runs + 1}", *arguments)

    return call
