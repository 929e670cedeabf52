"""Sessions to render: one ordinary, and every awkward one that a reader may meet."""

from __future__ import annotations

import io
import re
import unicodedata
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from latfix.cause_catalogue import EvidenceClass
from latfix.results.diagnosis import CauseSummary, Diagnosis, Ledger
from latfix.results.optimization import Optimization
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.stages import STAGES, Status
from latfix.traffic.schedule import Traffic
from tests.records import build_record, zeros

HOSTILE = (
    '<script>alert("1")</script>\x1b[31m[red]x[/red]\x00]]>&\u202egnp.exe\'"$\\x{1}$ -->\ud800 {0} $title ${style}'
)
CAUSES = ("python.gc", "traffic.burst", "batching.window", "input.size", "memory.page_faults", "observer")
KEYS = ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")


Session = tuple[RunRecord, Diagnosis]


def printed(renderable: RenderableType, *, width: int = 80, color: bool = False, encoding: str = "utf-8") -> str:
    """What a console of this width and encoding shows."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    system: Literal["standard"] | None = "standard" if color else None
    Console(file=file, width=width, force_terminal=color, color_system=system, legacy_windows=False).print(renderable)
    file.flush()
    return raw.getvalue().decode(encoding)


def unharmed(text: str, width: int, *, figures: bool = True) -> None:
    """It fits, no line ends in a blank, it holds no control characters and, with ``figures``, no figure is cut."""
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert not figures or not re.search(r"(?<!\S)[0-9,.]+…", text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\u200c\u200d" for c in text)


def in_one_line(text: str) -> str:
    """Without line breaks and runs of blanks."""
    return " ".join(text.split())


def make_record(
    n: int,
    *,
    seed: int = 0,
    error_share: float = 0.004,
    scale: float = 1.0,
    text: str = "request",
    partial: bool = False,
    warmup: int = 10,
) -> RunRecord:
    """A run with a service that pauses now and then; stages sum to the latency."""
    rng = np.random.default_rng(seed)
    total = n + warmup
    rows: dict[str, Any] = zeros(REQUEST_DTYPE, total)
    rows["index"] = np.concatenate([-np.arange(1, warmup + 1)[::-1], np.arange(n)]).astype(np.int64)
    rows["warmup"] = (rows["index"] < 0).astype(np.int64)
    arrivals = np.sort(rng.uniform(0, n / 40 * 1e9 if n else 1, size=n)).astype(np.int64)
    rows["arrival_ns"] = np.concatenate([np.arange(-warmup, 0) * 10**7, arrivals]).astype(np.int64)
    means = {"dispatch": 0.02, "prepare": 2.0, "queue": 6.0, "batch": 1.5, "compute": 18.0, "finish": 0.8}
    for stage, mean in means.items():
        values = rng.gamma(4.0, mean / 4.0, size=total) * scale * 1e6
        if stage == "queue":
            phase = (rows["arrival_ns"] // 10**9) % 12 == 5
            values = values + phase * rng.gamma(3.0, 70.0, size=total) * scale * 1e6
        rows[f"{stage}_ns"] = values.astype(np.int64)
    rows["latency_ns"] = np.sum([rows[f"{stage}_ns"] for stage in STAGES], axis=0)
    failed = rng.random(total) < error_share
    rows["status"] = np.where(failed, rng.integers(1, 4, size=total), 0).astype(np.int64)
    rows["batch_id"] = np.arange(total)
    errors = {int(k): f"{text}: tensor sizes differ" for k in rows["index"][failed & (rows["warmup"] == 0)]}
    traffic = Traffic.plain(
        arrivals, ids=[f"{text}-{k}" for k in range(n)], features={"tokens": rng.integers(8, 512, size=n)}
    )
    meta: dict[str, Any] = {
        "state": "running" if partial else "complete",
        "workload": text,
        "scheduled": n + (5 if partial else 0),
        "started": "2026-01-02T03:04:05Z",
        "machine": {"cpu": "a processor", "cores": 2, "memory_bytes": 8 * 2**30, text: text},
        "versions": {"torch": "2.13.0", "python": "3.11.7"},
        "settings": {"max_batch_size": 8, "env": {"OMP_WAIT_POLICY": text}, "empty": {}},
        "list": [1, text, None, True],
    }
    return build_record(
        **meta,
        requests=rows,
        traffic=traffic,
        errors=errors,
        partial=partial,
    )


def make_ledger(record: RunRecord, causes: tuple[str, ...]) -> Ledger:
    """Entries that sum to each request's excess exactly; some of them negative."""
    keep = record.measured & (record.requests["status"] == Status.OK)
    latency = record.requests["latency_ns"][keep]
    reference = int(np.median(latency)) if len(latency) else 0
    excess = latency - reference
    shape = (len(causes) + 1, len(latency))
    own, propagated = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for k in range(len(causes)):
        (own if k % 2 == 0 else propagated)[k] = excess // (k + 2)
    own[-1] = excess - (own + propagated).sum(axis=0)
    measured: list[EvidenceClass] = ["measured"]
    return Ledger(
        request=record.requests["index"][keep],
        latency_ns=latency,
        reference_ns=reference,
        causes=(*causes, "unexplained"),
        own_ns=own,
        propagated_ns=propagated,
        classes=(*measured * len(causes), "remainder"),
    )


def make_diagnosis(
    record: RunRecord, *, text: str = "", causes: tuple[str, ...] = CAUSES, named: int = 2, factor: float = 1.0
) -> Diagnosis:
    """A diagnosis whose causes are the tail means of a ledger of the record."""
    ledger = make_ledger(record, causes)
    latency = ledger.latency_ns / 1e6
    summary = {key: float("nan") for key in KEYS}
    tail = np.zeros(0, dtype=np.int64)
    if len(latency):
        points = np.percentile(latency, [50, 90, 95, 99, 99.9])
        summary = dict(zip(KEYS, [latency.mean(), *points, latency.max()], strict=True))
        tail = np.flatnonzero(latency >= points[3])
    excess = float(np.mean(latency[tail]) - ledger.reference_ns / 1e6) if len(tail) else 0.0
    entries = []
    for k, cause in enumerate(ledger.causes):
        own = float(ledger.own_ns[k, tail].mean()) / 1e6 * factor if len(tail) else 0.0
        through = float(ledger.propagated_ns[k, tail].mean()) / 1e6 * factor if len(tail) else 0.0
        entries.append(
            CauseSummary(
                cause=cause,
                tail_ms=own + through,
                tail_share=(own + through) / excess if excess else 0.0,
                own_ms=own,
                propagated_ms=through,
                ci95_ms=(own + through - abs(own + through) * 0.2, own + through + abs(own + through) * 0.3),
                named=k < named and cause != "unexplained",
                evidence_class=ledger.classes[k],
                requests=31,
                evidence=f"31 pauses of 12.1 ms{text}",
                whatif_ms={"p50": 30.0, "p95": 60.0, "p99": 90.0},
                fixes=("gc.freeze", "batching.size") if k == 0 else (),
            )
        )
    entries.sort(key=lambda entry: -entry.tail_ms)
    intervals = {key: (value * 0.9, value * 1.1) for key, value in summary.items()} if len(latency) else {}
    stages = {}
    for stage in STAGES:
        keep = record.measured & (record.requests["status"] == Status.OK)
        values = record.requests[f"{stage}_ns"][keep] / 1e6
        if len(values):
            p50, p99 = np.percentile(values, [50, 99])
            stages[stage] = {"mean": float(values.mean()), "p50": p50, "p99": p99, "reference": p50}
    verdict = causes[0] if named and causes else "steady"
    return Diagnosis(
        workload=f"ranker{text}",
        device=f"cpu{text}",
        requests=record.counts(),
        latency_ms=summary,
        latency_ci95_ms=intervals,
        stages_ms=stages,
        verdict=verdict,
        sentence=f"p99 is {summary['p99']:.0f} ms; the garbage collector owns half of the tail's excess.{text}",
        percentile=99.0,
        excess_ms=excess,
        reference_ms=ledger.reference_ns / 1e6,
        unexplained_ms=next(entry.tail_ms for entry in entries if entry.cause == "unexplained"),
        causes=tuple(entries),
        dispatch_ms={"p50": 0.0031, "p99": 0.041, "max": 0.31},
        throughput_rps=39.9,
        overhead={"per_request_us": 12.3, "core_share": 0.008},
        ledger=ledger,
        partial=record.partial,
        notes=(f"Warm-up is short.{text}",) if text else (),
    )


@cache
def make_session(name: str) -> Session:
    """One of :data:`SESSIONS`; tests must not change it in place."""
    if name == "hostile":
        record = make_record(300, text=HOSTILE)
        attacks = ("python.gc", HOSTILE, "$x^{", "\u202ecause")
        return (record, make_diagnosis(record, text=HOSTILE, causes=attacks))
    if name == "non-ascii":
        record = make_record(200, text="推薦-größe-🧪-สวัสดี")
        return (record, make_diagnosis(record, text=" 推薦 größe 🧪 สวัสดี", causes=("推薦.遅延", "größe")))
    if name == "many causes":
        record = make_record(500)
        return (record, make_diagnosis(record, causes=tuple(f"cause.number{k}" for k in range(40)), named=12))
    record = make_record(**RECORDS[name])
    if name in ("zero", "all errors", "no causes"):
        return (record, replace(make_diagnosis(record, causes=(), named=0), causes=()))
    diagnosis = make_diagnosis(record, factor=-1.0 if name == "negative" else 1.0)
    if name == "untrusted":
        diagnosis = replace(diagnosis, trustworthy=False, verdict="inconclusive")
    return (record, diagnosis)


#: Runs of which a diagnosis is made as usual, by name.
RECORDS: dict[str, dict[str, Any]] = {
    "ordinary": {"n": 2000},
    "zero": {"n": 0},
    "one": {"n": 1, "error_share": 0.0, "warmup": 0},
    "all errors": {"n": 50, "error_share": 1.1},
    "huge": {"n": 200, "scale": 1e8},
    "tiny": {"n": 200, "scale": 1e-5},
    "no causes": {"n": 200},
    "negative": {"n": 200},
    "partial": {"n": 200, "partial": True},
    "untrusted": {"n": 200},
}
SESSIONS = (*RECORDS, "hostile", "non-ascii", "many causes")


def make_document(kind: str = "ordinary") -> dict[str, Any]:
    """An ``optimization.json``."""
    text = HOSTILE if kind == "hostile" else ""
    before = dict(zip(KEYS, (88.1, 61.2, 180.0, 251.0, 412.0, 630.0, 701.0), strict=True))
    after = dict(zip(KEYS, (31.9, 27.3, 52.0, 66.0, 98.0, 139.0, 181.0), strict=True))
    requests = {"ok": 2000, "error": 0, "timeout": 0, "shed": 0}
    return {
        "schema": "latfix.optimization/1",
        "workload": f"ranker{text}",
        "device": "cpu",
        "verdict": "improved",
        "before": {"latency_ms": before, "throughput_rps": 39.8, "requests": requests, "accuracy": 0.9124},
        "after": {
            "latency_ms": after,
            "throughput_rps": 40.1,
            "requests": {**requests, "ok": 1999, "error": 1},
            "accuracy": 0.9112,
        },
        "accuracy_limit": 0.9024,
        "ratio": {
            "mean": {"value": 0.362, "ci95": [0.351, 0.377]},
            "p50": {"value": 0.446, "ci95": [0.432, 0.459]},
            "p95": {"value": 0.263, "ci95": [0.244, 0.288]},
            "p99": {"value": 0.238, "ci95": [0.21, 0.28]},
        },
        "steps": [
            _step("gc.freeze", "kept", 0.78, (0.71, 0.86), f"p99 lower in 5 of 5 rounds{text}", text),
            _step("quantize.int8_dynamic", "rejected", None, None, "accuracy 0.912 -> 0.871, limit 0.902", text),
            _step("quantize.bf16", "kept", 0.55, (0.5, 0.61), "p99 lower in 5 of 5 rounds", text),
            _step("fusion.compile", "not_effective", None, None, "fell back to eager after 8 recompiles", text),
            _step("batching.size", "undecided", 0.97, (0.88, 1.08), "interval holds 1 after 9 rounds", text),
            _step("batching.length", "no_gain", 1.12, (1.03, 1.22), "p99 higher", text),
            _step(f"transfer.pin{text}", "skipped", None, None, "needs a CUDA device", text),
        ],
        "gates": [
            {"gate": "p99<200ms", "value": 98.0, "passed": True, "reason": f"98{text}"},
            {"gate": "p99<=baseline*0.2", "value": 0.238, "passed": False, "reason": "0.238"},
            {"gate": "p99.9<150ms", "value": 139.0, "passed": None, "reason": ""},
        ],
        "plan": f"plan.toml{text}",
        "notes": [f"The machine was busy.{text}"],
    }


def _step(
    fix: str, status: str, p99: float | None, bounds: tuple[float, float] | None, reason: str, text: str
) -> dict[str, Any]:
    step: dict[str, Any] = {"fix": fix, "status": status, "reason": reason, "predicted_p99_ms": 300.0}
    if p99 is not None and bounds is not None:
        step["ratio"] = {"mean": {"value": 0.9, "ci95": [0.85, 0.96]}, "p99": {"value": p99, "ci95": list(bounds)}}
        step |= {"p99_ms": 412 * p99, "accuracy": 0.911, "verified": f"0 collections in 2,000 requests{text}"}
    return step


@pytest.fixture(params=SESSIONS)
def session(request: pytest.FixtureRequest) -> Session:
    """Every session in turn."""
    return make_session(request.param)


@pytest.fixture
def ordinary() -> Session:
    """A run of 2,000 requests with two named causes."""
    return make_session("ordinary")


@pytest.fixture
def hostile() -> Session:
    """A run whose every text is an attack."""
    return make_session("hostile")


@pytest.fixture(params=("ordinary", "hostile"))
def optimization(request: pytest.FixtureRequest) -> Optimization:
    """Every optimization in turn."""
    return Optimization.from_json(make_document(request.param))


@pytest.fixture
def improved() -> Optimization:
    """An optimization that helped."""
    return Optimization.from_json(make_document())


@pytest.fixture(scope="session")
def large() -> RunRecord:
    """A run of 200,000 requests."""
    return make_record(200_000)
