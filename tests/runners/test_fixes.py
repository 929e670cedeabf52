"""Each fix: when it applies, that its change is a valid setting, and that its evidence can tell it from nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.columns import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS
from latfix.diagnosis import CauseSummary, Diagnosis, Ledger
from latfix.plan import Plan, PlannedFix, plan_text
from latfix.profilers.causes import CAUSES
from latfix.record import RunRecord
from latfix.runners.fixes import FIXES, Applied, Context, Fix, Verified
from latfix.settings import RunnerSettings
from latfix.settings_check import validate_settings
from latfix.traffic.model import Traffic

BY_ID: Mapping[str, Fix] = {fix.id: fix for fix in FIXES}
#: Before any fix: every one of them has something to change here.
BEFORE = RunnerSettings(max_batch_size=2, batch_window_ms=20.0, intra_op_threads=0)


def record(
    members: list[list[int]] | None = None,
    *,
    settings: RunnerSettings = BEFORE,
    open_ms: float = 20.0,
    compute_ms: float = 4.0,
    faults: int = 1000,
    pauses_ms: tuple[float, ...] = (30.0,),
    workers: int = 1,
    features: Mapping[str, Any] | None = None,
    **meta: Any,
) -> RunRecord:
    """A run of batches whose members have the given lengths; each of them computes for ``compute_ms``."""
    batches = [[40, 200], [50], [45, 190], [60]] * 20 if members is None else members
    lengths = [length for batch in batches for length in batch]
    n, count = len(lengths), len(batches)
    rows = {name: np.zeros(n, dtype=np.int64) for name in REQUEST_DTYPE.names or ()}
    rows["index"] = np.arange(n)
    rows["arrival_ns"] = np.arange(n) * 10_000_000
    rows["batch_id"] = np.repeat(np.arange(count), [len(batch) for batch in batches])
    rows["input_elements"] = rows["bucket_length"] = np.array(lengths, dtype=np.int64)
    rows["queue_ns"] = np.full(n, 5_000_000)
    rows["compute_ns"] = np.full(n, int(compute_ms * 1e6))
    table = {name: np.zeros(count, dtype=np.int64) for name in BATCH_DTYPE.names or ()}
    table["batch_id"], table["worker"] = np.arange(count), np.arange(count) % workers
    table["size"] = np.array([len(batch) for batch in batches], dtype=np.int64)
    table["real_elements"] = np.array([sum(batch) for batch in batches], dtype=np.int64)
    table["padded_elements"] = np.array([len(batch) * max(batch) for batch in batches], dtype=np.int64)
    table["close_ns"] = np.full(count, int(open_ms * 1e6))
    table["h2d_end_ns"] = table["close_ns"]
    table["compute_end_ns"] = table["close_ns"] + int(compute_ms * 1e6)
    table["compute_minflt"] = table["size"] * faults
    events = {name: np.zeros(len(pauses_ms), dtype=np.int64) for name in EVENT_FIELDS}
    events["kind"] = np.array(["gc"] * len(pauses_ms), dtype=object)
    events["duration_ns"] = np.array([int(pause * 1e6) for pause in pauses_ms], dtype=np.int64)
    traffic = Traffic(
        arrival_ns=rows["arrival_ns"].copy(),
        ids=[str(k) for k in range(n)],
        priority=np.zeros(n, dtype=np.int8),
        sessions=[None] * n,
        deadline_ms=np.full(n, np.nan),
        features=dict(features or {}),
        payloads=[None] * n,
    )
    known = {"device": "cpu", "settings": settings.as_dict(), "torch_threads": 2}
    return RunRecord(
        folder=Path("run"),
        meta={**known, **meta},
        requests=rows,
        batches=table,
        events=events,
        samples={name: np.zeros(0) for name in SAMPLE_FIELDS},
        traffic=traffic,
    )


def diagnosis() -> Diagnosis:
    none = np.zeros((0, 0), dtype=np.int64)
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
        excess_ms=0.0,
        reference_ms=0.0,
        unexplained_ms=0.0,
        causes=(),
        dispatch_ms={},
        throughput_rps=0.0,
        overhead={},
        ledger=Ledger(
            request=none[:0, 0] if none.size else np.zeros(0, dtype=np.int64),
            latency_ns=np.zeros(0, dtype=np.int64),
            reference_ns=0,
            causes=(),
            own_ns=none,
            propagated_ns=none,
            classes=(),
        ),
    )


def context(
    run: RunRecord | None = None, settings: RunnerSettings = BEFORE, *, cores: int = 2, default_collate: bool = True
) -> Context:
    return Context(
        settings=settings,
        record=record() if run is None else run,
        diagnosis=diagnosis(),
        default_collate=default_collate,
        cores=cores,
    )


@pytest.fixture(autouse=True)
def machine_that_can_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests say the same wherever they run."""
    monkeypatch.setattr("latfix.runners.fixes.quantize_bf16._native_bf16", lambda: True)
    monkeypatch.setattr("latfix.runners.fixes.fuse_compile.compiler_missing", lambda: "")
    monkeypatch.setattr(
        "latfix.runners.fixes.memory_allocator.platform", SimpleNamespace(libc_ver=lambda: ("glibc", "2.36"))
    )


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_fix_applies_changes_something_and_then_applies_no_more(fix: Fix, tmp_path: Path) -> None:
    now = context()
    assert fix.obstacle(now) == ""
    change = fix.change(now)
    settings = BEFORE.with_overrides(change)
    assert settings != BEFORE
    # The change survives being written into a plan and read from it.
    text = plan_text(Plan(workload="w", fixes=(PlannedFix(id=fix.id, settings=change),)))
    table = tomllib.loads(text)["fix"][0]["settings"]
    read = validate_settings(table, file=tmp_path / "plan.toml", text=text, table_name="fix.settings")
    assert BEFORE.with_overrides(read) == settings
    if fix.id != "batch.size":  # may double more than once
        assert fix.obstacle(context(settings=settings)) != ""


@pytest.mark.parametrize(
    ("fix", "kwargs", "words"),
    [
        ("warmup.shapes", {"settings": replace(BEFORE, warmup_shapes=3)}, "already"),
        ("batch.window", {"settings": replace(BEFORE, batch_window_ms=0.0)}, "no batch window"),
        ("batch.bucket", {"settings": replace(BEFORE, max_batch_size=1)}, "one by one"),
        ("batch.bucket", {"run": record([[50, 50]] * 40)}, "padding"),
        ("batch.size", {"settings": replace(BEFORE, max_batch_size=8)}, "would not fill"),
        ("quantize.int8_dynamic", {"run": record(device="cuda:0")}, "CPU only"),
        ("quantize.int8_dynamic", {"settings": replace(BEFORE, precision="bf16")}, "bf16"),
        ("quantize.int8_dynamic", {"settings": replace(BEFORE, compile="dynamic")}, "torch.compile"),
        ("quantize.bf16", {"settings": replace(BEFORE, precision="int8_dynamic")}, "int8_dynamic"),
        ("fuse.compile", {"settings": replace(BEFORE, precision="int8_dynamic")}, "quantize.int8_dynamic"),
        ("memory.allocator", {"run": record(faults=250)}, "250 page faults"),
        ("memory.allocator", {"settings": replace(BEFORE, env={"LD_PRELOAD": "x.so"})}, "another allocator"),
        ("memory.pool", {"default_collate": False}, "collate of its own"),
        ("gc.freeze", {"run": record(pauses_ms=(0.9, 0.2))}, "0.9 ms"),
        ("gc.freeze", {"run": record(pauses_ms=())}, "0 collections"),
        ("host.threads", {"run": record(device="cuda:0")}, "GPU"),
        ("host.threads", {"cores": 1}, "one core"),
        ("host.threads", {"run": record(torch_threads=1)}, "one thread already"),
        ("host.workers", {"cores": 1}, "1 core"),
        ("host.workers", {"run": record(device="cuda:0")}, "GPU"),
    ],
)
def test_a_fix_says_why_it_does_not_apply(fix: str, kwargs: dict[str, Any], words: str) -> None:
    assert words in BY_ID[fix].obstacle(context(**kwargs))


def of_the_tail(cause: str, share: float) -> CauseSummary:
    return CauseSummary(
        cause=cause,
        tail_ms=100 * share,
        tail_share=share,
        own_ms=100 * share,
        propagated_ms=0.0,
        ci95_ms=(0.0, 0.0),
        named=False,
        evidence_class="counted",
        requests=1,
        evidence="",
        whatif_ms={},
        fixes=(),
    )


@pytest.mark.parametrize("share", [0.03, 0.02])
def test_an_allocator_is_judged_by_all_that_memory_costs_the_tail(share: float) -> None:
    causes = [of_the_tail(cause, share) for cause in ("memory.page_faults", "memory.fragmentation", "python.gc")]
    few = context(record(faults=2))
    told = BY_ID["memory.allocator"].obstacle(replace(few, diagnosis=replace(diagnosis(), causes=tuple(causes))))
    assert ("page faults a request" in told) == (2 * share < 0.05)


def test_what_this_machine_cannot_do_is_no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latfix.runners.fixes.quantize_bf16._native_bf16", lambda: False)
    monkeypatch.setattr("latfix.runners.fixes.fuse_compile.compiler_missing", lambda: "no compiler")
    monkeypatch.setattr("latfix.runners.fixes.memory_allocator.platform", SimpleNamespace(libc_ver=lambda: ("", "")))
    assert "bfloat16" in BY_ID["quantize.bf16"].obstacle(context())
    assert BY_ID["quantize.bf16"].obstacle(context(record(device="cuda:0"))) == ""
    assert BY_ID["fuse.compile"].obstacle(context()) == "no compiler"
    assert "glibc" in BY_ID["memory.allocator"].obstacle(context())


def test_batches_shrink_where_they_cost_more_and_grow_where_they_pay() -> None:
    dear = record([[50]] * 20 + [[50, 400, 50, 50]] * 20)
    dear.batches["compute_end_ns"][20:] += 100_000_000
    cheap = record([[50]] * 20 + [[50] * 2] * 20)
    assert BY_ID["batch.size"].change(context(dear)) == {"max_batch_size": 1}
    assert BY_ID["batch.size"].change(context(cheap)) == {"max_batch_size": 4}
    assert BY_ID["batch.size"].obstacle(context(dear)) == BY_ID["batch.size"].obstacle(context(cheap)) == ""


def test_buckets_go_by_the_feature_that_tells_the_compute_time() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.permutation(np.arange(60) + 10)
    run = record([[50]] * 60, features={"noise": rng.permutation(60), "tokens": tokens})
    run.requests["compute_ns"] = tokens * 1_000_000
    assert BY_ID["batch.bucket"].change(context(run)) == {"batch_order": "length", "batch_key": "tokens"}
    run.requests["input_elements"] = tokens.astype(np.int64)
    assert BY_ID["batch.bucket"].change(context(run))["batch_key"] == ""


def verified(fix: str, run: RunRecord, without: RunRecord | None = None, **evidence: Any) -> Verified:
    return BY_ID[fix].verify(Applied(evidence=evidence, record=run, without=without or record()))


def having(**settings: Any) -> RunnerSettings:
    return replace(BEFORE, **settings)


INT8 = "torch.ao.nn.quantized.dynamic.modules.linear.Linear"
ALIKE = [[40, 42], [50], [190, 200], [60]] * 20
TOOK_EFFECT: list[tuple[str, RunRecord, dict[str, Any]]] = [
    ("warmup.shapes", record(), {"warmup_batches": 32, "warmup_shapes": 8, "warmup_s": 0.5}),
    ("batch.window", record(open_ms=0.01), {}),
    ("batch.bucket", record(ALIKE, settings=having(batch_order="length")), {}),
    ("batch.size", record([[40], [50]] * 40, settings=having(max_batch_size=1)), {}),
    ("batch.size", record([[40, 40, 40], [50]] * 40, settings=having(max_batch_size=16)), {}),
    ("quantize.int8_dynamic", record(), {"modules": {INT8: 4, "torch.nn.modules.activation.ReLU": 2}}),
    ("quantize.bf16", record(), {"dtypes": {"bfloat16": 5, "float32": 1}}),
    ("fuse.compile", record(compilations_in_run=0), {"compilations": 3, "compile_s": 9.0}),
    ("memory.allocator", record(faults=20), {}),
    ("memory.pool", record(pool_hits=70, pool_misses=4), {}),
    ("gc.freeze", record(), {"gc_frozen": 90_000, "gc_enabled": False}),
    ("host.threads", record(), {"torch_threads": 1}),
    ("host.workers", record(workers=2), {}),
]


@pytest.mark.parametrize(("fix", "run", "evidence"), TOOK_EFFECT)
def test_an_effect_is_seen(fix: str, run: RunRecord, evidence: dict[str, Any]) -> None:
    found = verified(fix, run, **evidence)
    assert found.effective, found.evidence
    assert any(character.isdigit() for character in found.evidence)


def test_every_fix_is_verified_in_these_tests() -> None:
    assert {fix for fix, _, _ in TOOK_EFFECT} == {fix for fix, _, _ in NOTHING} == set(BY_ID)


#: What a service shows in which the setting did nothing; a replay of the same service differs by chance.
CHANCE = record([[40, 200], [50], [45, 190], [60]] * 19 + [[40], [50], [45], [60]], open_ms=19.0, faults=950)
IDLE_SERVICE: dict[str, Any] = {
    "warmup_batches": 0,
    "warmup_s": 0.0,
    "compilations": 0,
    "gc_enabled": True,
    "gc_frozen": 0,
    "torch_threads": 2,
    "modules": {"torch.nn.modules.linear.Linear": 4},
    "dtypes": {"float32": 4},
}
NOTHING: list[tuple[str, RunRecord, dict[str, Any]]] = [
    *((fix.id, CHANCE, {}) for fix in FIXES),
    ("batch.bucket", replace(CHANCE, meta={**CHANCE.meta, "settings": having(batch_order="length").as_dict()}), {}),
    ("batch.size", replace(CHANCE, meta={**CHANCE.meta, "settings": having(max_batch_size=1).as_dict()}), {}),
    ("batch.size", replace(CHANCE, meta={**CHANCE.meta, "settings": having(max_batch_size=16).as_dict()}), {}),
    ("quantize.int8_dynamic", CHANCE, {"modules": {}}),
    (
        "quantize.bf16",
        replace(CHANCE, meta={**CHANCE.meta, "settings": having(precision="bf16").as_dict()}),
        {"dtypes": {}},
    ),
    ("fuse.compile", record(compilations_in_run=1), {"compilations": 3}),
    ("fuse.compile", record(compilations_in_run=0), {"compilations": 0}),
    ("memory.pool", record(pool_hits=3, pool_misses=70), {}),
    ("memory.pool", record(pool_hits=0, pool_misses=0), {}),
    ("memory.allocator", record(faults=510), {}),
    ("gc.freeze", CHANCE, {"gc_enabled": True, "gc_frozen": 90_000}),
    ("gc.freeze", CHANCE, {"gc_enabled": False, "gc_frozen": 0}),
    ("host.threads", CHANCE, {"torch_threads": 0}),
]


@pytest.mark.parametrize(("fix", "run", "evidence"), NOTHING)
def test_a_fix_that_did_nothing_is_not_taken_for_effective(
    fix: str, run: RunRecord, evidence: dict[str, Any]
) -> None:
    found = verified(fix, run, **{**IDLE_SERVICE, **evidence})
    assert not found.effective, found.evidence


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_service_that_says_nothing_proves_nothing(fix: Fix) -> None:
    empty = record([], pauses_ms=())
    assert not fix.verify(Applied(evidence={}, record=empty, without=empty)).effective


def test_what_was_so_before_is_no_effect() -> None:
    """Threads and workers that the service without the fix had, too, are not the fix's."""
    assert not verified("host.threads", record(), record(torch_threads=1), torch_threads=1).effective
    assert not verified("host.workers", record(workers=2), record(workers=2)).effective
    assert verified("host.workers", record(workers=4), record(workers=2)).effective
    assert not verified("batch.bucket", record(ALIKE), record(ALIKE)).effective


def test_buckets_of_a_feature_are_verified_by_that_feature() -> None:
    """Inputs are all of one size; what differs is a feature."""
    tokens = np.array([10, 400] * 40)
    mixed = record([[50, 50]] * 40, features={"tokens": tokens})
    sorted_run = record(
        [[50, 50]] * 40,
        features={"tokens": tokens},
        settings=having(batch_order="length", batch_key="tokens"),
    )
    sorted_run.requests["bucket_length"] = np.repeat(np.array([10, 400] * 20), 2)
    found = verified("batch.bucket", sorted_run, mixed)
    assert found.effective and "tokens" in found.evidence, found.evidence
    sorted_run.requests["bucket_length"] = tokens
    assert not verified("batch.bucket", sorted_run, mixed).effective


def test_a_compiled_model_that_was_cast_is_believed_by_its_settings() -> None:
    run = record(settings=having(precision="bf16", compile="dynamic"))
    assert verified("quantize.bf16", run).effective


def test_every_cause_that_a_fix_treats_exists() -> None:
    known = {cause.id for cause in CAUSES}
    assert {cause for fix in FIXES for cause in fix.treats} <= known


def test_every_fix_that_a_cause_names_exists() -> None:
    for cause in CAUSES:
        assert set(cause.fixes) <= set(BY_ID), cause.id


def test_the_page_of_fixes_has_a_row_for_each_and_no_other() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "fixes.md"
    rows = {line.split("`")[1]: line for line in page.read_text().splitlines() if line.startswith("| `")}
    assert set(rows) == set(BY_ID)


def test_what_changes_answers_says_so() -> None:
    assert {fix.id for fix in FIXES if fix.changes_outputs} == {
        "quantize.int8_dynamic",
        "quantize.bf16",
        "fuse.compile",
    }
    assert not any(fix.gentle and fix.changes_outputs for fix in FIXES)
