"""Synthetic records, contexts made of them, and a machine that supports everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.allocator_lab.compare_policies import Choice
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE
from latfix.runners.fixes import FIXES, Applied, Context, Fix, Verified
from latfix.runners.host.cpu_topology import Domain, Topology
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.profilers.samples import values_in_order
from tests.records import build_record, cause_summary, zeros

_MS = 1_000_000
#: Before any fix: every one of them has something to change here.
_BEFORE = RunnerSettings(max_batch_size=2, batch_window_ms=20.0, intra_op_threads=0)
_BY_ID: Mapping[str, Fix] = {fix.id: fix for fix in FIXES}
_Times = float | Sequence[float]

_MIB = 1 << 20
_LATE = [int(Status.OK)] * 9 + [int(Status.TIMEOUT)]
_LENGTHS = [20, 400, 60, 150, 300, 30] * 10
#: Runs that need a fix which the ordinary one does not need.
_CALLED_FOR: dict[str, dict[str, Any]] = {
    "quantize.fp8_dynamic": {"device": "cuda:0"},
    "quantize.tf32": {"device": "cuda:0"},
    "quantize.fp16": {"device": "cuda:0"},
    "fuse.tensorrt": {"device": "cuda:0"},
    "batch.continuous": {"notes": [{"steps": True}]},
    "schedule.shortest_expected": {
        "members": [[length] for length in _LENGTHS],
        "compute_ms": [length / 20 for length in _LENGTHS],
    },
    "schedule.priority": {"priority": [0, 2], "queue_ms": [1.0, 60.0]},
    "schedule.memory_aware": {"members": [[40, 40], [50, 51], [45, 190], [60, 62]] * 20, "resident_mb": 2},
    "admit.limit": {"status": _LATE},
    "admit.shed": {"status": _LATE, "deadline_ms": 100.0},
    "numerics.flush_denormal": {"columns": {"compute_denormals": [0, 0, 0, 1]}},
    "memory.page_prefault": {"memory": {"resident_start_bytes": 0, "peak_bytes": 64 * _MIB}},
    "host.parallel": {"torch_threads": 1, "compute_ms": 20.0, "gap_ms": 80.0},
    "warmup.resident": {"gap_ms": [5.0, 60.0], "open_ms": 0.0, "compute_ms": [4.0, 8.0], "members": [[50]] * 40},
    "transfer.pinned": {"device": "cuda:0"},
    "transfer.overlap": {"device": "cuda:0"},
    "fuse.cudagraph": {"device": "cuda:0"},
    "fuse.planless_attention": {
        "device": "cuda:0",
        "model": {"kernels": {"aten::_scaled_dot_product_cudnn_attention": 12}},
    },
    "fuse.compile_autotune": {"device": "cuda:0"},
    "host.routing": {
        "members": [[50]] * 60,
        "compute_ms": [4.0, 12.0],
        "workers": 2,
        "settings": {"workers": 2},
    },
    "cache.embeddings": {"embeddings": {"tables": 1, "rows": 10**6, "bytes": 10**9}},
}
_STALLED = {
    "device": "cuda:0",
    "device_memory": {
        "total_bytes": 8 << 30,
        "left_bytes": 0,
        "reserved_start_bytes": 1 << 30,
        "reserved_end_bytes": 7 << 30,
        "reserved_peak_bytes": 7 << 30,
        "allocated_start_bytes": 1 << 30,
        "allocated_peak_bytes": 4 << 30,
        "retries": 9,
        "allocs": 40,
        "frees": 30,
        "share": 1.0,
        "backend": "native",
        "settings": {},
    },
}
_CALLED_FOR |= {"memory.device_allocator": _STALLED, "memory.limit": _STALLED}
#: Results of their set-ups.
_FOUND: dict[str, Any] = {
    "quantize.int8_excluded": {"keep": {"head": 0.2}},
    "memory.device_allocator": Choice(setting="expandable_segments:True", description="none would be left"),
}


def _ns(milliseconds: _Times, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A time for each of ``count``; a sequence is repeated as often as it takes."""
    return (np.resize(np.asarray(milliseconds, dtype=np.float64), count) * _MS).astype(np.int64)


def make_record(
    members: list[list[int]] | None = None,
    *,
    settings: RunnerSettings | Mapping[str, Any] = _BEFORE,
    open_ms: float = 20.0,
    gap_ms: _Times = 5.0,
    compute_ms: _Times = 4.0,
    queue_ms: _Times = 5.0,
    cores_busy: float = 1.0,
    faults: int = 1000,
    resident_mb: int = 0,
    pauses_ms: Sequence[float] = (30.0,),
    workers: int = 1,
    of_worker: Sequence[int] = (),
    features: Mapping[str, Any] | None = None,
    priority: Sequence[int] = (1,),
    status: Sequence[int] = (0,),
    deadline_ms: float = np.nan,
    series: Mapping[str, Sequence[float]] | None = None,
    notes: Sequence[Mapping[str, Any]] = (),
    columns: Mapping[str, _Times] | None = None,
    **meta: Any,
) -> RunRecord:
    """A run of batches whose members have the given lengths, each ``gap_ms`` after the one before has ended.

    :param settings: those of the run, or what differs from the ones before any fix.
    :param queue_ms: waits of the requests; this, ``priority`` and ``status`` are repeated.
    :param of_worker: who ran the batches, repeated; by turns where there is none.
    :param resident_mb: how much each batch makes the process grow.
    :param series: values by the name of a sampled series.
    :param columns: more columns of the batches, repeated as often as it takes.
    """
    settings = settings if isinstance(settings, RunnerSettings) else _BEFORE.with_overrides(settings)
    batches = [[40, 200], [50], [45, 190], [60]] * 20 if members is None else members
    lengths = np.array([length for batch in batches for length in batch], dtype=np.int64)
    n, count = len(lengths), len(batches)
    batch_of = np.repeat(np.arange(count), [len(batch) for batch in batches])
    compute = _ns(compute_ms, count)
    end = np.cumsum(_ns(gap_ms, count) + compute + int(open_ms * _MS))
    rows = zeros(REQUEST_DTYPE, n)
    rows["index"], rows["batch_id"] = np.arange(n), batch_of
    rows["arrival_ns"] = np.arange(n) * 10 * _MS
    rows["input_elements"] = rows["bucket_length"] = lengths
    rows["queue_ns"], rows["compute_ns"] = _ns(queue_ms, n), compute[batch_of]
    rows["latency_ns"] = rows["queue_ns"] + rows["compute_ns"]
    rows["status"] = np.resize(np.asarray(status, dtype=np.int64), n)
    table = zeros(BATCH_DTYPE, count)
    table["batch_id"], table["worker"] = np.arange(count), np.resize(of_worker or range(workers), count)
    table["size"] = np.array([len(batch) for batch in batches], dtype=np.int64)
    table["real_elements"] = np.array([sum(batch) for batch in batches], dtype=np.int64)
    table["padded_elements"] = np.array([len(batch) * max(batch) for batch in batches], dtype=np.int64)
    table["compute_end_ns"] = table["finish_end_ns"] = end
    table["close_ns"] = table["collated_ns"] = table["h2d_end_ns"] = end - compute
    table["open_ns"] = table["close_ns"] - int(open_ms * _MS)
    table["process_cpu_ns"] = (compute * cores_busy).astype(np.int64)
    table["compute_minflt"] = table["size"] * faults
    table["compute_resident_bytes"] = np.full(count, resident_mb << 20)
    for name, values in (columns or {}).items():
        table[name] = np.resize(np.asarray(values, dtype=np.int64), count)
    traffic = Traffic(
        arrival_ns=rows["arrival_ns"].copy(),
        ids=[str(k) for k in range(n)],
        priority=np.resize(np.asarray(priority, dtype=np.int8), n),
        sessions=[None] * n,
        deadline_ms=np.full(n, deadline_ms),
        features=dict(features or {}),
        payloads=[None] * n,
    )
    known = {"device": "cpu", "settings": settings, "torch_threads": 2}
    return build_record(
        **{**known, **meta},
        requests=rows,
        batches=table,
        events=_events(pauses_ms, notes),
        samples=values_in_order(series or {}),
        traffic=traffic,
    )


def _events(pauses_ms: Sequence[float], notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    count = len(pauses_ms) + len(notes)
    events: dict[str, Any] = {name: np.zeros(count, dtype=np.int64) for name in EVENT_FIELDS}
    events["kind"] = np.array(["gc"] * len(pauses_ms) + ["note"] * len(notes), dtype=object)
    events["duration_ns"][: len(pauses_ms)] = _ns(pauses_ms, len(pauses_ms)) if pauses_ms else 0
    events["detail"] = np.array([None] * len(pauses_ms) + [dict(note) for note in notes], dtype=object)
    return events


def diagnosis_of(shares: Mapping[str, float]) -> Diagnosis:
    """A diagnosis with these shares of the tail by cause."""
    causes = (cause_summary(name, 100 * share, tail_share=share, named=share > 0.1) for name, share in shares.items())
    return Diagnosis(
        workload="w",
        device="cpu",
        requests={},
        latency_ms={},
        verdict="steady",
        sentence="",
        percentile=99.0,
        excess_ms=0.0,
        reference_ms=0.0,
        unexplained_ms=0.0,
        causes=tuple(causes),
        throughput_rps=0.0,
    )


@pytest.fixture(scope="session")
def before() -> RunnerSettings:
    """Settings before any fix."""
    return _BEFORE


def make_context(
    run: RunRecord | None = None,
    settings: RunnerSettings = _BEFORE,
    *,
    shares: Mapping[str, float] | None = None,
    **more: Any,
) -> Context:
    """A context of a record, settings, shares of the tail by cause, and other fields."""
    known: dict[str, Any] = {"diagnosis": diagnosis_of(shares or {}), "default_collate": True, "cores": 2}
    return Context(settings=settings, record=make_record() if run is None else run, **{**known, **more})


@pytest.fixture(scope="session")
def uncalled() -> frozenset[str]:
    """Fixes that an ordinary run does not need."""
    return frozenset({*_CALLED_FOR, *_FOUND})


def calling(fix: Fix, *settings: RunnerSettings) -> Context:
    """A context in which a fix applies, under the settings given."""
    run = make_record(**_CALLED_FOR.get(fix.id, {}))
    if not settings and fix.id == "host.routing":  # the fixture's own settings have one worker
        settings = (run.meta.settings,)
    return make_context(run, *settings, found=_FOUND)


def verified(fix: str, run: RunRecord, without: RunRecord | None = None, **evidence: Any) -> Verified:
    """What a fix makes of a run with it and one without, and of the service's evidence."""
    return _BY_ID[fix].verify(Applied(evidence=evidence, record=run, without=without or make_record()))


@pytest.fixture(autouse=True)
def machine_that_can_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tests independent of the machine."""
    topology = Topology(
        cores=(0, 1, 2, 3),
        physical=((0,), (1,), (2,), (3,)),
        domains=(Domain(node=0, cores=(0, 1)), Domain(node=1, cores=(2, 3))),
    )
    glibc = SimpleNamespace(libc_ver=lambda: ("glibc", "2.36"))
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("latfix.runners.model_transforms.precision_support.torchao_missing", lambda: "")
    for where, what in {
        "quantize.bf16.native_bf16": lambda: True,
        "fuse.compile.compiler_missing": lambda: "",
        "fuse.converted_model.backend_missing": lambda _, **_exports: "",
        "memory.allocator.platform": glibc,
        "memory.page_prefault.available_bytes": lambda: 4 << 30,
        "memory.huge_pages.huge_page_mode": lambda: "madvise",
        "memory.huge_pages.glibc_version": lambda: (2, 36),
        "memory.preloaded_allocators.preload_name": lambda allocator: allocator.sonames[0],
        "host.priority.least_nice": lambda: -20,
        "host.priority.current_nice": lambda: 0,
        "host.pin.read_topology": lambda: topology,
        "locality_cores.read_topology": lambda: topology,
        "cache_embeddings.last_level_cache_bytes": lambda _: 32 << 20,
    }.items():
        monkeypatch.setattr(f"latfix.runners.fixes.{where}", what)
