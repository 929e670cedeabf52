"""Runs without a runner: what `diagnose` replays is answered with a record that the test describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.errors import LatfixError
from latfix.profilers.diagnose import diagnose as attribute
from latfix.run_record.run_meta import write_meta
from latfix.run_record.run_record import RunRecord, finalize
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.runners.replay.run_session import Interrupted, Replay, prepare_folder
from latfix.stages import STAGES

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


Diagnose = Callable[..., tuple[int, str, str]]


@pytest.fixture
def diagnose(
    service: Service, cli: Diagnose, write_workload: Callable[..., Path], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Calls `latfix diagnose` on a workload of 300 requests, each time into a new folder ``run-1``, ``run-2``, …"""
    workload = write_workload(tmp_path / "w", traffic=[{"arrival_s": k * 0.1} for k in range(300)])

    def call(*arguments: object) -> tuple[int, str, str]:
        return cli("diagnose", workload, "--out", tmp_path / f"run-{service.runs + 1}", *arguments)

    return call
