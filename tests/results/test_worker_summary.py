"""A run by worker: counts, shares and notes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.records import build_record, worker_rows, zeros

MS = 1_000_000


def make(
    batches: list[tuple[int, float, float]],
    *,
    warmup: int = 0,
    settings: dict[str, Any] | None = None,
    **meta: Any,
) -> RunRecord:
    """A run of one-request batches: by batch its worker, when it closed and how long it took, in milliseconds."""
    n = len(batches)
    rows, table = zeros(REQUEST_DTYPE, n), zeros(BATCH_DTYPE, n)
    worker, close, took = (np.array(column) for column in zip(*batches, strict=True)) if n else (np.zeros(0),) * 3
    rows["index"], rows["batch_id"] = np.arange(n), np.arange(n)
    rows["warmup"][:warmup] = table["warmup"][:warmup] = 1
    rows["latency_ns"] = (took * MS).astype(np.int64)
    table["batch_id"], table["size"] = np.arange(n), np.ones(n, np.int64)
    table["worker"] = worker.astype(np.int64)
    table["close_ns"] = table["h2d_end_ns"] = (close * MS).astype(np.int64)
    table["compute_end_ns"] = table["finish_end_ns"] = ((close + took) * MS).astype(np.int64)
    traffic = Traffic.plain(np.zeros(n, np.int64))
    known: dict[str, Any] = {"device": "cuda:0", "settings": {"workers": 2, **(settings or {})}}
    return build_record(rows, table, traffic=traffic, **known, **meta)


def test_figures_of_each_worker() -> None:
    run = make([(0, 0, 10), (1, 0, 40), (0, 50, 10), (0, 60, 20), (1, 60, 40)], worker_devices=["cuda:0", "cuda:1"])
    rows = worker_rows(run, 80.0)
    assert [(row.worker, row.device, row.batches, row.requests) for row in rows] == [
        (0, "cuda:0", 3, 3),
        (1, "cuda:1", 2, 2),
    ]
    assert [row.busy_share for row in rows] == [pytest.approx(0.4), pytest.approx(0.8)]
    assert [row.compute_p50_ms for row in rows] == [10.0, 40.0]
    assert [(row.tail_requests, row.tail_share) for row in rows] == [(0, 0.0), (2, 1.0)]
    assert rows[0].weight is None and "weight" in rows[0].to_json()


def test_time_in_several_places_at_once_counts_once() -> None:
    run = make(
        [(0, 0, 50), (1, 10, 50), (2, 0, 20), (3, 80, 20)],
        settings={"batching": "continuous", "max_batch_size": 2, "workers": 2},
    )
    rows = worker_rows(run, 99.0)
    assert [row.batches for row in rows] == [2, 2]
    assert [row.busy_share for row in rows] == [pytest.approx(0.6), pytest.approx(0.4)]


def test_warm_up_and_errors() -> None:
    run = make([(1, 0, 90), (0, 100, 10), (1, 100, 30)], warmup=1)
    run.requests["status"][2] = int(Status.ERROR)
    rows = worker_rows(run, 50.0)
    assert [(row.batches, row.requests, row.tail_requests) for row in rows] == [(1, 1, 1), (1, 1, 0)]


def test_one_worker_and_no_request_at_all() -> None:
    assert worker_rows(make([(0, 0, 10)], settings={"workers": 1}), 99.0) == ()
    assert [row.busy_share for row in worker_rows(make([]), 99.0)] == [0.0, 0.0]


def test_weights_and_how_long_one_was_slow() -> None:
    run = make([(0, 0, 10), (1, 0, 10)])
    samples: Any = run.samples
    samples["series"] = np.array(["runner.worker_1.weight"] * 3 + ["runner.worker_0.weight"], object)
    samples["value"] = np.array([1.0, 3.2, 2.0, 1.0])
    events: Any = run.events
    events["kind"] = np.array(["note", "note", "gc", "note"], object)
    told = {"worker": 1, "weight": 3.2}
    events["detail"] = np.array([{**told, "slow": True}, {**told, "slow": False}, None, {"message": "x"}], object)
    events["duration_ns"] = np.array([0, 4_500 * MS, 9, 9], np.int64)
    rows = worker_rows(run, 99.0)
    assert [(row.weight, row.slow_s) for row in rows] == [((1.0, 1.0), 0.0), ((1.0, 3.2), 4.5)]
