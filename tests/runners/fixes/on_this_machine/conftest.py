"""Records and diagnoses of made-up runs, for fixes of memory, host, first use and locality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.results.diagnosis import CauseSummary, Diagnosis, Ledger
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS
from latfix.runners.fixes.fix import Applied, Context
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

MakeRecord = Callable[..., RunRecord]
MakeContext = Callable[..., Context]

_MS = 1_000_000


def _record(
    *,
    n: int = 40,
    faults: int = 0,
    compute_ms: float | list[float] = 4.0,
    gap_ms: float | list[float] = 10.0,
    settings: Mapping[str, Any] | None = None,
    **meta: Any,
) -> RunRecord:
    """One worker's batches of one request each, with ``gap_ms`` of idle time before each."""
    compute = np.broadcast_to(np.asarray(compute_ms) * _MS, n).astype(np.int64)
    gap = np.broadcast_to(np.asarray(gap_ms) * _MS, n).astype(np.int64)
    end = np.cumsum(compute + gap)
    rows = {name: np.zeros(n, dtype=np.int64) for name in REQUEST_DTYPE.names or ()}
    rows["index"] = rows["batch_id"] = np.arange(n)
    rows["arrival_ns"] = end - compute
    rows["input_elements"] = np.full(n, 64)
    rows["compute_ns"] = compute
    table = {name: np.zeros(n, dtype=np.int64) for name in BATCH_DTYPE.names or ()}
    table["batch_id"], table["size"] = np.arange(n), np.ones(n, dtype=np.int64)
    table["padded_elements"] = table["real_elements"] = np.full(n, 64)
    table["open_ns"] = table["close_ns"] = table["h2d_end_ns"] = end - compute
    table["compute_end_ns"] = table["finish_end_ns"] = end
    table["compute_minflt"] = np.full(n, faults)
    traffic = Traffic.plain(rows["arrival_ns"].copy())
    known = {"device": "cpu", "settings": {**RunnerSettings().as_dict(), **(settings or {})}, "torch_threads": 2}
    return RunRecord(
        folder=Path("run"),
        meta={**known, **meta},
        requests=rows,
        batches=table,
        events={name: np.zeros(0) for name in EVENT_FIELDS},
        samples={name: np.zeros(0) for name in SAMPLE_FIELDS},
        traffic=traffic,
    )


def _cause(cause: str, share: float) -> CauseSummary:
    return CauseSummary(
        cause=cause,
        tail_ms=100 * share,
        tail_share=share,
        own_ms=100 * share,
        propagated_ms=0.0,
        ci95_ms=(0.0, 0.0),
        named=share > 0.1,
        evidence_class="measured",
        requests=1,
        evidence="",
        whatif_ms={},
        fixes=(),
    )


def _diagnosis(shares: Mapping[str, float]) -> Diagnosis:
    none = np.zeros((0, 0), dtype=np.int64)
    empty = np.zeros(0, dtype=np.int64)
    ledger = Ledger(
        request=empty, latency_ns=empty, reference_ns=0, causes=(), own_ns=none, propagated_ns=none, classes=()
    )
    return Diagnosis(
        workload="w",
        device="cpu",
        requests={},
        latency_ms={},
        latency_ci95_ms={},
        stages_ms={},
        verdict="steady",
        sentence="",
        percentile=99.0,
        excess_ms=100.0,
        reference_ms=0.0,
        unexplained_ms=0.0,
        causes=tuple(_cause(cause, share) for cause, share in shares.items()),
        dispatch_ms={},
        throughput_rps=0.0,
        overhead={},
        ledger=ledger,
    )


@pytest.fixture
def make_record() -> MakeRecord:
    return _record


@pytest.fixture
def make_context() -> MakeContext:
    """A context from a record, shares of the tail by cause, and settings."""

    def make(
        record: RunRecord | None = None,
        shares: Mapping[str, float] | None = None,
        *,
        cores: int = 4,
        default_collate: bool = True,
        **settings: Any,
    ) -> Context:
        return Context(
            settings=RunnerSettings(**settings),
            record=_record() if record is None else record,
            diagnosis=_diagnosis({"unexplained": 0.3} if shares is None else shares),
            default_collate=default_collate,
            cores=cores,
        )

    return make


@pytest.fixture
def verified() -> Callable[..., tuple[bool, str]]:
    """What a fix makes of a run with it and one without."""

    def check(fix: Any, record: RunRecord, without: RunRecord | None = None, **evidence: Any) -> tuple[bool, str]:
        found = fix.verify(Applied(evidence=evidence, record=record, without=without or _record()))
        return found.effective, found.evidence

    return check
