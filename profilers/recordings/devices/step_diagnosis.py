"""From ledgers of steps to a diagnosis: slow steps compared with quiet ones, or a single step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED, EvidenceClass
from latfix.formatting import clipped, count, from_ns, milliseconds, percent, significant, tail_words
from latfix.profilers.causes import CAUSES
from latfix.profilers.recordings.devices.step_ledger import StepLedger
from latfix.results.diagnosis import (
    HARDLY_ABOVE,
    MOST_UNEXPLAINED,
    CauseSummary,
    Diagnosis,
    Ledger,
    Source,
    UnitLedger,
)
from latfix.statistics.latency_summary import summarize_ms, summary_intervals_ms

#: Minimum share of a named cause: of the excess (or of a single step), and, with several steps, of the median.
_LEAST_SHARE, _LEAST_OF_MEDIAN = 0.05, 0.01
#: Minimum numbers of slow and of quiet steps for resampling.
_LEAST_DRAWN = 3
_REPLICATES = 200
_SHOWN, _NAMES = 20, 3
#: Minimum number of steps for intervals of percentiles.
_LEAST_SUMMARIZED = 8
#: The percentile at which the tail begins, by the least number of steps.
_PERCENTILES: tuple[tuple[int, float], ...] = ((200, 99.0), (20, 95.0), (0, 90.0))
_FIXES: Mapping[str, tuple[str, ...]] = {
    **{cause.id: cause.fixes for cause in CAUSES},
    "gpu.compute": ("quantize.tf32", "fuse.compile", "quantize.bf16", "quantize.fp16", "quantize.fp8_dynamic"),
    "host.python": ("fuse.cudagraph", "fuse.compile"),
    "dispatch.launch": ("fuse.cudagraph", "fuse.compile"),
    "memory.allocator": ("memory.device_allocator", "memory.limit"),
    "cold.start": ("warmup.shapes", "warmup.resident"),
}
#: Descriptions that differ from the catalogue's, which are those of a replay.
_HAPPENED: Mapping[str, str] = {
    "transfer.copy": "copies between host and device",
    "transfer.sync": "the host waiting for the device, and then the device for the host",
    "dispatch.launch": "the device idle until the host had launched its next work",
    "memory.allocator": "calls of the device's allocator",
    "cold.start": "first use (contexts, streams, kernels loaded at their first launch)",
    "cold.compile": "compilation",
    "external.dependency": "the host waiting for another thread or something outside",
    "python.gc": "the garbage collector",
    "input.size": "more work on the device (other kernels, or more of them)",
}
#: Causes that no recording measures directly.
_MODELLED = ("gpu.slowdown", "gpu.rank_wait", "input.size")


def diagnose_steps(
    steps: Sequence[StepLedger],
    *,
    workload: str,
    device: str,
    source: Source,
    percentile: float | None,
    seed: int,
    notes: Sequence[str],
    evidence: Mapping[str, str],
    fixes: Mapping[str, tuple[str, ...]] | None = None,
    quiet: Bools | None = None,
    slow: Bools | None = None,
) -> Diagnosis:
    """The diagnosis of steps.

    :param percentile: where the tail begins; ``None`` for 99, or 95 or 90 with few steps.
    :param evidence: by cause, added to its sentence; ``fixes`` by cause, in place of the usual ones.
    :param quiet: True for the reference steps, by default the faster half; ``slow`` True for steps in the tail.
    """
    lengths = np.array([step.length for step in steps], dtype=np.int64)
    single = len(steps) == 1
    default = next(percentile for least, percentile in _PERCENTILES if len(steps) >= least)
    at = math.nan if single else percentile or default
    if slow is not None and not single:
        at = round(100 * (1 - float(slow.mean())), 1)
    tail = slow if slow is not None else np.ones(1, dtype=bool) if single else _slowest(lengths, at)
    if quiet is None:
        quiet = lengths <= np.median(lengths)
    ledger = _ledger(steps, lengths, None if single else quiet)
    causes = _causes(ledger, steps, tail, quiet, seed, evidence, {**_FIXES, **(fixes or {})})
    excess_ms = float(lengths[tail].mean() - ledger.reference_ns) / 1e6
    unexplained_ms = sum(cause.tail_ms for cause in causes if cause.cause == UNEXPLAINED)
    reference_ms = math.nan if single else ledger.reference_ns / 1e6
    usual = lengths if slow is None else lengths[quiet]
    usual_steps = [step for step, inside in zip(steps, quiet, strict=True) if inside]
    verdict, sentence = _verdict(
        causes, float(np.median(usual)) / 1e6, excess_ms, reference_ms, at, steps[0].name if single else ""
    )
    if verdict == "steady":
        causes = tuple(replace(cause, named=False) for cause in causes)
    return Diagnosis(
        workload=workload,
        device=device,
        requests={"ok": len(steps), "error": None, "timeout": None, "shed": None},
        latency_ms=summarize_ms(lengths),
        latency_ci95_ms=summary_intervals_ms(lengths, seed=seed) if len(steps) >= _LEAST_SUMMARIZED else {},
        stages_ms=_stages(steps, None if single else quiet),
        verdict=verdict,
        sentence=sentence,
        percentile=at,
        excess_ms=excess_ms,
        reference_ms=reference_ms,
        unexplained_ms=unexplained_ms,
        causes=causes,
        reference_gap_ms=math.nan,
        quiet_requests=0 if single else int(quiet.sum()),
        queue_closure_ms=math.nan,
        notes=tuple(notes),
        seen=ledger.causes,
        source=source,
        typical=None if single else _unit(f"typical (mean of {len(usual_steps)})", None, usual_steps),
        slowest=tuple(
            _unit(steps[k].name, (steps[k].start - steps[0].start) / 1e6, [steps[k]])
            for k in np.argsort(-lengths, kind="stable")[:_SHOWN]
        ),
        ledger=ledger,
    )


def _slowest(lengths: Ints, percentile: float) -> Bools:
    """True for the slowest steps by rank, at least one, so that equal lengths do not enlarge the tail."""
    number = max(round(len(lengths) * (1 - percentile / 100)), 1)
    inside = np.zeros(len(lengths), dtype=bool)
    inside[np.argsort(-lengths, kind="stable")[:number]] = True
    return inside


def _drawn(own_ns: Ints, tail: Bools, quiet: Bools, seed: int) -> Floats:
    """``(2, K)``: bounds of the causes' milliseconds over resampled slow and quiet steps; NaN for few steps."""
    slow, usual = np.flatnonzero(tail), np.flatnonzero(quiet)
    if len(slow) < _LEAST_DRAWN or len(usual) < _LEAST_DRAWN:
        return np.full((2, len(own_ns)), math.nan)
    rng = np.random.default_rng(seed)
    drawn = np.empty((_REPLICATES, len(own_ns)))
    for row in drawn:
        row[:] = own_ns[:, rng.choice(slow, len(slow))].mean(axis=1)
        row -= own_ns[:, rng.choice(usual, len(usual))].mean(axis=1)
    means = own_ns[:, slow].mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    return np.stack([np.minimum(low, means), np.maximum(high, means)]) / 1e6


def _ledger(steps: Sequence[StepLedger], lengths: Ints, quiet: Bools | None) -> Ledger:
    """Each step's time beyond a quiet one, or its whole time if ``quiet`` is ``None``."""
    totals: Counter[str] = Counter()
    for step in steps:
        totals.update({cause: abs(value) for cause, value in step.growth.items()})
    names = [cause for cause, _ in totals.most_common() if cause != UNEXPLAINED] + [UNEXPLAINED]
    table = np.array([[step.growth.get(cause, 0) for step in steps] for cause in names], dtype=np.int64)
    # A mean (not a median), so that the reference is the sum of its parts.
    usual = (
        np.zeros(len(names), np.int64) if quiet is None else np.rint(table[:, quiet].mean(axis=1)).astype(np.int64)
    )
    return Ledger(
        request=np.arange(len(steps), dtype=np.int64),
        latency_ns=lengths,
        reference_ns=int(usual.sum()),
        causes=tuple(names),
        own_ns=table - usual[:, None],
        propagated_ns=np.zeros_like(table),
        classes=tuple(_class(cause) for cause in names),
        ids=tuple(step.name for step in steps),
    )


def _class(cause: str) -> EvidenceClass:
    if cause == UNEXPLAINED:
        return "remainder"
    return "modelled" if cause in _MODELLED else "measured"


def _causes(
    ledger: Ledger,
    steps: Sequence[StepLedger],
    tail: Bools,
    quiet: Bools,
    seed: int,
    evidence: Mapping[str, str],
    fixes: Mapping[str, tuple[str, ...]],
) -> tuple[CauseSummary, ...]:
    means = ledger.own_ns[:, tail].mean(axis=1) / 1e6
    ends = _drawn(ledger.own_ns, tail, quiet, seed)
    excess = float(means.sum())
    single = len(steps) == 1
    floor = _LEAST_SHARE * max(excess, 0.0)
    if not single:
        floor = max(floor, _LEAST_OF_MEDIAN * float(np.median(ledger.latency_ns)) / 1e6)
    slow = [step for step, inside in zip(steps, tail, strict=True) if inside]
    result = []
    for k in np.argsort(-means, kind="stable"):
        cause, ms = ledger.causes[k], float(means[k])
        touched = int(np.count_nonzero([step.growth.get(cause, 0) for step in steps]))
        if not touched and cause != UNEXPLAINED:
            continue
        lower = ms if math.isnan(ends[0, k]) else float(ends[0, k])
        result.append(
            CauseSummary(
                cause=cause,
                tail_ms=ms,
                tail_share=ms / excess if excess > 0 else 0.0,
                own_ms=ms,
                propagated_ms=math.nan,
                ci95_ms=(float(ends[0, k]), float(ends[1, k])),
                named=cause != UNEXPLAINED and lower > floor and ms > 0,
                evidence_class=ledger.classes[k],
                requests=touched,
                evidence=_evidence(cause, slow, evidence.get(cause, "")),
                whatif_ms={},
                fixes=fixes.get(cause, ()),
            )
        )
    return tuple(result)


def _evidence(cause: str, steps: Sequence[StepLedger], more: str) -> str:
    """The names with most of a cause's time, per slow step."""
    looked_up = "gpu.compute" if cause in ("input.size", "gpu.slowdown") else cause
    times: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    for step in steps:
        for (owner, name), value in step.named.items():
            if owner == looked_up:
                times[name] += value
                pieces[name] += step.pieces[owner, name]
    if not times:
        return more
    each = len(steps)
    listed = [
        f"{clipped(name, 48)} {from_ns(value / each)} ({_times(pieces[name] / each)})"
        for name, value in times.most_common(_NAMES)
    ]
    rest = len(times) - len(listed)
    words = f"{', '.join(listed)}{f' and {rest} more' if rest else ''}"
    per = "mostly " if each == 1 else "a slow step: "
    return f"{per}{words}{f'; {more}' if more else ''}"


def _times(number: float) -> str:
    return "once" if number == 1 else f"{significant(number) if number % 1 else count(number)} times"


def _verdict(
    causes: Sequence[CauseSummary],
    median: float,
    excess_ms: float,
    reference_ms: float,
    percentile: float,
    name: str,
) -> tuple[str, str]:
    top = next((cause for cause in causes if cause.named), None)
    unknown = next((cause.tail_ms for cause in causes if cause.cause == UNEXPLAINED), 0.0)
    single = math.isnan(reference_ms)
    at_ms = excess_ms if single else excess_ms + reference_ms
    opening = f"{clipped(name, 60)} takes {milliseconds(at_ms)}"
    if not single:
        opening = (
            f"The {tail_words(percentile)} of steps take {milliseconds(at_ms)}, {at_ms / median:.1f}x the median"
        )
        if excess_ms + reference_ms - median <= HARDLY_ABOVE * median:
            return "steady", f"{opening}: steady, slow steps take hardly longer than typical ones."
    if abs(unknown) > MOST_UNEXPLAINED * excess_ms:
        return "inconclusive", (
            f"{opening}; the recording does not explain {milliseconds(unknown)} of it, too much to name a cause."
        )
    if top is None:
        return "inconclusive" if single else "steady", f"{opening}: no cause stands out."
    of = "" if single else " of the excess"
    figures = f"{percent(top.tail_share)}{of} ({milliseconds(top.tail_ms)})"
    return top.cause, f"{opening}: {figures} is {_HAPPENED.get(top.cause) or CATALOGUE[top.cause].happened}."


def _stages(steps: Sequence[StepLedger], quiet: Bools | None) -> dict[str, dict[str, float]]:
    names = dict.fromkeys(name for step in steps for name in step.stages)
    result: dict[str, dict[str, float]] = {}
    for name in names:
        values = np.array([step.stages.get(name, 0) for step in steps]) / 1e6
        result[name] = {
            "mean": float(values.mean()),
            "p50": float(np.median(values)),
            "p99": float(np.percentile(values, 99)),
            "reference": math.nan if quiet is None else float(values[quiet].mean()),
        }
    return dict(sorted(result.items(), key=lambda entry: -entry[1]["mean"]))


def _unit(name: str, start_ms: float | None, steps: Sequence[StepLedger]) -> UnitLedger:
    """The mean of steps."""
    return UnitLedger(
        id=name,
        start_ms=start_ms,
        latency_ms=sum(step.length for step in steps) / len(steps) / 1e6,
        causes_ms=_mean_ms([step.causes for step in steps]),
        stages_ms=_mean_ms([step.stages for step in steps]),
    )


def _mean_ms(parts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Mean milliseconds by name, the largest first, without zeros."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return {name: value / len(parts) / 1e6 for name, value in total.most_common() if value}
