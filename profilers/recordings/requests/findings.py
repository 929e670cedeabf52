"""From the ledger of a recording to its diagnosis: the tail, the named causes, the windows, the verdict.

The ledger is read slice by slice and summed by blocks of neighboring requests, so that memory does not grow beyond
the columns themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.cause_catalogue import UNEXPLAINED, KnownCause
from latfix.formatting import LATENCY_KEYS, counted, milliseconds, percentile_label, share
from latfix.profilers.attribution.tail import reaching
from latfix.profilers.attribution.verdict import describe_part
from latfix.profilers.over_time.time_windows import WindowTally, window_edges
from latfix.profilers.recordings.reader import ReadOptions
from latfix.results.diagnosis import (
    HARDLY_ABOVE,
    MOST_UNEXPLAINED,
    CauseSummary,
    Diagnosis,
    Ledger,
    Source,
    UnitLedger,
)
from latfix.statistics.block_bootstrap import block_length
from latfix.statistics.censored import Outcomes
from latfix.statistics.latency_summary import percentile_ns, summarize_ms, summary_intervals_ms
from latfix.statistics.quantile_sketch import Distribution

#: Minimum share of the tail's excess for naming a cause: one that stands out, and one that any service may show.
MATERIAL, DOMINANT = 0.05, 0.25
#: Requests per slice of the ledger, and the largest recording of which every entry is kept.
_STRETCH, _KEPT = 250_000, 200_000
#: Most blocks to resample, replicates, and requests from which the block length is estimated.
_BLOCKS, _REPLICATES, _SAMPLE = 2_000, 400, 100_000
#: Requests in the tail of the default percentile, at least.
_IN_TAIL = 20
#: Minimum size of a named cause, in milliseconds and as a share of p50.
_LEAST_MS, _LEAST_OF_P50 = 0.1, 0.01
#: Unexplained milliseconds that are noise.
_NOISE_MS = 1.0
#: Unexplained time is mostly a wait behind others from this share.
_MOSTLY = 0.5
#: Limits in milliseconds are at most this share of p50: a service may answer within microseconds.
_OF_FAST = 0.1
#: Unexplained share of the excess from which unread columns are pointed out.
_WORTH_READING = 0.1
#: A median that is this many times the reference is not steady.
_MOSTLY_WAITING = 2.0
#: Recordings with fewer requests get a warning.
_FEW = 100
#: Decimals of shares; the least requests that have a rate.
_DIGITS, _LEAST_FOR_RATE = 12, 2
_SLOWEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The ledger of a recording: requests that ended ok, in order of arrival. Times in nanoseconds.

    :param arrival_ns: ``(n,)``; ``latency_ns`` likewise.
    :param reference_ns: the latency of a quiet, typical request.
    :param causes: ``K`` causes, ``unexplained`` last.
    :param entries: own and propagated parts ``(K, m)`` of a slice of requests; with the reference they sum to the
        latency exactly.
    :param evidence: by cause, one sentence with the figures.
    :param nameable: causes that may be named, with the minimum share of the tail's excess; others are only listed.
    :param floors_ms: by cause, the milliseconds that chance alone produces.
    :param stages: measured parts of latencies, each ``(n,)``, -1 if unknown.
    :param timed: False if only the order of arrivals is known.
    :param culprit: which server or route has nearly all of the unexplained time, and a clause on it; empty without.
    :param unread: a note on unread columns, shown if much is unexplained.
    """

    arrival_ns: Ints
    latency_ns: Ints
    reference_ns: int
    causes: tuple[KnownCause, ...]
    entries: Callable[[slice], tuple[Ints, Ints]]
    evidence: Mapping[str, str]
    nameable: Mapping[str, float]
    floors_ms: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, Ints] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    timed: bool = True
    notes: tuple[str, ...] = ()
    culprit: tuple[str, str] = ("", "")
    unread: str = ""


class _Sums:
    """Sums over the tail, by block of neighbors: ``(blocks,)``, and ``(K, blocks)`` for own and propagated.

    :ivar touched: ``(K,)`` requests of which each cause has a part.
    :ivar without: by cause, the latencies without its parts.
    """

    def __init__(self, accounts: Accounts, offered_ns: Ints, threshold: float) -> None:
        latency, n, kinds = accounts.latency_ns, len(accounts.latency_ns), len(accounts.causes)
        length = max(block_length(latency[:_SAMPLE]), -(-n // _BLOCKS), 1) if n else 1
        blocks = max(-(-n // length), 1)
        edges = np.array([0.0, 1.0])
        if n:
            edges = window_edges(n, int(accounts.arrival_ns[0]), int(accounts.arrival_ns[-1]))
        self.requests, self.latency = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
        self.own, self.propagated = np.zeros((kinds, blocks)), np.zeros((kinds, blocks))
        self.touched = np.zeros(kinds, np.int64)
        self.without = [Distribution(exact=n <= _KEPT) for _ in range(kinds)]
        self.windows = WindowTally(edges, kinds, exact=n <= _KEPT)
        self.windows.offer(offered_ns)
        for first in range(0, n, _STRETCH):
            part = slice(first, min(first + _STRETCH, n))
            own, propagated = accounts.entries(part)
            tail = np.flatnonzero(latency[part] >= threshold)
            block = (tail + first) // length
            self.requests += np.bincount(block, minlength=blocks)
            np.add.at(self.latency, block, latency[part][tail])
            for k in range(kinds):
                both = own[k] + propagated[k]
                if both.any():
                    self.own[k] += np.bincount(block, own[k, tail], blocks)
                    self.propagated[k] += np.bincount(block, propagated[k, tail], blocks)
                    self.touched[k] += int(np.count_nonzero(np.abs(own[k]) > 1_000))
                if accounts.causes[k].id in accounts.nameable:
                    self.without[k].add(np.maximum(latency[part] - both, 0))
            self.windows.add(accounts.arrival_ns[part], latency[part], dict(enumerate(own + propagated)))

    def drawn(self, seed: int) -> Floats:
        """``(replicates, K)``: every cause's mean over the tail of resampled blocks, in milliseconds."""
        blocks = len(self.requests)
        weights = np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=_REPLICATES)
        size = weights @ self.requests
        held = size > 0  # skip resamples without a tail request
        means = weights[held] @ (self.own + self.propagated).T / size[held, None] / 1e6
        return np.asarray(means if len(means) else np.zeros((1, len(self.own))), dtype=np.float64)


def default_percentile(requests: int) -> float:
    """The highest of 99, 95 and 90 whose tail rests on enough requests."""
    return next((q for q in (99.0, 95.0) if requests * (1 - q / 100) >= _IN_TAIL), 90.0)


def diagnose_accounts(
    accounts: Accounts,
    options: ReadOptions,
    *,
    source: Source,
    statuses: Mapping[str, int | None],
    offered_ns: Ints,
    workload: str,
    outcomes: Outcomes | None = None,
) -> Diagnosis:
    """The diagnosis of a ledger.

    :param statuses: requests by status; ``None`` if it is not recorded.
    :param offered_ns: ``(m,)`` arrivals of all requests, of any status.
    :param outcomes: of all requests that arrived, if some did not end ok.
    """
    percentile, seed = options.percentile, options.seed
    latency, n = accounts.latency_ns, len(accounts.latency_ns)
    q = default_percentile(n) if percentile is None else percentile
    threshold = percentile_ns(latency, q) if n else 0.0
    sums = _Sums(accounts, offered_ns, threshold)
    inside = max(int(sums.requests.sum()), 1)
    own, propagated = sums.own.sum(axis=1) / inside / 1e6, sums.propagated.sum(axis=1) / inside / 1e6
    excess_ms = (float(sums.latency.sum()) / inside - accounts.reference_ns) / 1e6 if n else math.nan
    latency_ms = summarize_ms(latency) if n else dict.fromkeys(LATENCY_KEYS, math.nan)
    ends = np.quantile(sums.drawn(seed), [0.025, 0.975], axis=0)
    # Of intervals, too: the least error of a ledger's entry is that of a replay, in milliseconds.
    fast = min(1.0, _OF_FAST * latency_ms["p50"] / _LEAST_MS) or 1.0
    ci95 = fast * reaching((own + propagated) / fast, ends / fast, inside)
    causes = _causes(accounts, sums, own, propagated, ci95, excess_ms, latency_ms["p50"])
    unexplained = next((each.tail_ms for each in causes if each.cause == UNEXPLAINED), 0.0)
    name = percentile_label(q) + (" of the requests that ended ok" if outcomes is not None else "")
    verdict, sentence = _verdict(accounts, causes, name, threshold / 1e6, excess_ms, latency_ms["p50"], unexplained)
    if outcomes is not None and (lost := _losing(outcomes, q)):
        verdict, sentence = "losing", f"{lost} {sentence}"
    listed = {each.cause for each in causes}
    shown = {cause.id: k for k, cause in enumerate(accounts.causes) if cause.id in listed}
    return Diagnosis(
        workload=workload,
        device="",
        requests=statuses,
        latency_ms=latency_ms if outcomes is None else outcomes.summary_ms(),
        latency_ms_ok=latency_ms,
        latency_ci95_ms=summary_intervals_ms(latency, seed=seed) if 0 < n <= _KEPT else {},
        stages_ms=_stages_ms(accounts, latency >= threshold),
        verdict=verdict,
        sentence=sentence,
        percentile=q,
        excess_ms=excess_ms,
        reference_ms=accounts.reference_ns / 1e6 if n else math.nan,
        unexplained_ms=unexplained,
        causes=causes,
        dispatch_ms=_dispatch_ms(accounts),
        throughput_rps=_rate(accounts),
        notes=tuple(_notes(accounts, n, q, inside, unexplained > _WORTH_READING * excess_ms)),
        models=accounts.models,
        windows=sums.windows.windows(shown) if n and accounts.timed else (),
        learned_from=n,
        seen=tuple(cause.id for cause in accounts.causes),
        source=source,
        slowest=tuple(_slowest(accounts)),
        ledger=_ledger(accounts),
    )


def _losing(outcomes: Outcomes, q: float) -> str:
    """A sentence on the share of lost requests if that exceeds what the percentile allows; else empty."""
    lost = 1 - float(outcomes.answered.mean())
    if lost <= 1 - q / 100:
        return ""
    return f"{share(lost)} of the requests that arrived did not end ok: {percentile_label(q)} is lost among them."


def _causes(
    accounts: Accounts, sums: _Sums, own: Floats, propagated: Floats, ci95: Floats, excess_ms: float, p50_ms: float
) -> tuple[CauseSummary, ...]:
    result = []
    for k, cause in enumerate(accounts.causes):
        total = float(own[k] + propagated[k])
        if total == 0 and not sums.touched[k]:
            continue
        # 1, not 0.9999999999999999, if it is all of the excess.
        portion = round(total / excess_ms, _DIGITS) if excess_ms > 0 else 0.0
        floor = max(min(_LEAST_MS, _OF_FAST * p50_ms), _LEAST_OF_P50 * p50_ms) + accounts.floors_ms.get(cause.id, 0.0)
        least = accounts.nameable.get(cause.id)
        low, high = (float(end) for end in ci95[k])
        removed = sums.without[k]
        result.append(
            CauseSummary(
                cause=cause.id,
                tail_ms=total,
                tail_share=portion,
                own_ms=float(own[k]),
                propagated_ms=float(propagated[k]),
                ci95_ms=(low, high),
                named=least is not None and portion >= least and low > floor,
                evidence_class=cause.evidence_class,
                requests=int(sums.touched[k]),
                evidence=accounts.evidence.get(cause.id, ""),
                whatif_ms={f"p{q}": removed.percentile(q) / 1e6 for q in (50, 95, 99)} if len(removed) else {},
                fixes=(),
                culprit=accounts.culprit[0] if cause.id == UNEXPLAINED else "",
            )
        )
    return tuple(sorted(result, key=lambda each: -each.tail_ms))


def _verdict(
    accounts: Accounts,
    causes: tuple[CauseSummary, ...],
    name: str,
    at_ms: float,
    excess_ms: float,
    p50_ms: float,
    unexplained: float,
) -> tuple[str, str]:
    words = {cause.id: cause for cause in accounts.causes}
    if not len(accounts.latency_ns):
        return "inconclusive", "No request ended ok, so there is no latency to explain."
    ratio = f"{at_ms / p50_ms:.1f}x the median" if p50_ms > 0 else "the median is 0"
    opening = f"{name} is {milliseconds(at_ms)}, {ratio}"
    top = max((each for each in causes if each.named), key=lambda each: each.tail_ms, default=None)
    reference_ms = accounts.reference_ns / 1e6
    # The percentile may be the fastest of the slow requests: with a cause, their mean counts.
    mean_ms = reference_ms + excess_ms
    slow_ms = at_ms if top is None else max(at_ms, mean_ms)
    close = slow_ms - p50_ms <= HARDLY_ABOVE * p50_ms
    # Similar latencies may still all be late, as in a queue that never empties.
    if close and (top is None or p50_ms <= _MOSTLY_WAITING * reference_ms):
        carried = f"; all include {milliseconds(top.tail_ms)} of {words[top.cause].happened}" if top else ""
        longer = "slow requests take hardly longer than typical ones"
        if mean_ms - p50_ms > HARDLY_ABOVE * p50_ms:
            longer = f"although the requests beyond take {milliseconds(mean_ms)} on average"
        return "steady", f"{opening}: steady, {longer}{carried}."
    if abs(unexplained) > max(MOST_UNEXPLAINED * excess_ms, min(_NOISE_MS, _OF_FAST * p50_ms)):
        known = f" Of the known part, {describe_part(words[top.cause], top, excess_ms)}." if top else ""
        behind = next((each.propagated_ms for each in causes if each.cause == UNEXPLAINED), 0.0)
        why = f"the recording does not explain {milliseconds(unexplained)} of it"
        if behind > _MOSTLY * unexplained > 0:
            why = (
                f"{milliseconds(behind)} of it is waiting behind requests whose own service took longer; the "
                "recording does not show why"
            )
        first = f": {accounts.culprit[1]}" if accounts.culprit[1] else ""
        return "inconclusive", (
            f"{opening}{first}; slow requests exceed normal ones by {milliseconds(excess_ms)}, and {why}.{known}"
        )
    if top is not None:
        return top.cause, f"{opening}: {describe_part(words[top.cause], top, excess_ms)}."
    largest = max(causes, key=lambda each: each.tail_ms, default=None)
    if largest is None:
        return "inconclusive", f"{opening}; no cause stands out in this recording."
    part = describe_part(words[largest.cause], largest, excess_ms)
    if largest.rests_on_few:
        return "inconclusive", f"{opening}; the largest part is not certain, because it happened seldom: {part}."
    if chance_ms := accounts.floors_ms.get(largest.cause):
        low = milliseconds(largest.ci95_ms[0])
        return "inconclusive", (
            f"{opening}; the largest part is not certain: {part}, at least {low}, but chance alone may bring "
            f"{milliseconds(chance_ms)}. A longer recording decides, if it happens again."
        )
    return "inconclusive", f"{opening}; no cause stands out in this recording; the largest part: {part}."


def _stages_ms(accounts: Accounts, tail: Any) -> dict[str, dict[str, float]]:
    result = {}
    for name, column in accounts.stages.items():
        known = column >= 0
        if not known.any():
            continue
        values, slow = column[known] / 1e6, column[known & tail] / 1e6
        p50, p99 = np.quantile(values, [0.5, 0.99])
        result[name] = {
            "mean": float(values.mean()),
            "p50": float(p50),
            "p99": float(p99),
            "reference": float(p50),
            "tail": float(slow.mean()) if len(slow) else math.nan,
        }
    return result


def _dispatch_ms(accounts: Accounts) -> dict[str, float]:
    known = accounts.stages.get("dispatch", np.zeros(0, np.int64))
    late = known[known >= 0] / 1e6
    if not len(late):
        return dict.fromkeys(("p50", "p99", "max"), math.nan)
    p50, p99 = np.quantile(late, [0.5, 0.99])
    return {"p50": float(p50), "p99": float(p99), "max": float(late.max())}


def _rate(accounts: Accounts) -> float:
    if not accounts.timed or len(accounts.latency_ns) < _LEAST_FOR_RATE:
        return math.nan
    ended = int((accounts.arrival_ns + accounts.latency_ns).max()) - int(accounts.arrival_ns[0])
    return len(accounts.latency_ns) / max(ended, 1) * 1e9


def _notes(accounts: Accounts, n: int, q: float, inside: int, wanting: bool) -> Iterator[str]:
    yield from accounts.notes
    if accounts.unread and wanting:
        yield accounts.unread
    if n and (n < _FEW or inside < _IN_TAIL // 2):
        yield f"{percentile_label(q)} rests on {inside} of {counted(n, 'request')}, too few for a reliable figure."


def _slowest(accounts: Accounts) -> Iterator[UnitLedger]:
    latency = accounts.latency_ns
    many = min(_SLOWEST, len(latency))
    rows = np.argpartition(latency, len(latency) - many)[len(latency) - many :] if many else np.zeros(0, np.int64)
    for row in sorted(rows.tolist(), key=lambda each: -int(latency[each])):
        own, propagated = accounts.entries(slice(row, row + 1))
        both = (own + propagated)[:, 0]
        causes = {"reference": accounts.reference_ns / 1e6}
        causes |= {
            each.id: amount / 1e6 for each, amount in zip(accounts.causes, both.tolist(), strict=True) if amount
        }
        yield UnitLedger(
            id=accounts.ids[row] if accounts.ids else f"#{row}",
            start_ms=float(accounts.arrival_ns[row]) / 1e6 if accounts.timed else None,
            latency_ms=float(latency[row]) / 1e6,
            causes_ms=causes,
        )


def _ledger(accounts: Accounts) -> Ledger:
    """Every entry if the recording is not too large, else empty."""
    n = len(accounts.latency_ns)
    if n > _KEPT or not n:
        return Ledger.empty()
    own, propagated = accounts.entries(slice(0, n))
    return Ledger(
        request=np.arange(n),
        latency_ns=accounts.latency_ns,
        reference_ns=accounts.reference_ns,
        causes=tuple(cause.id for cause in accounts.causes),
        own_ns=own,
        propagated_ns=propagated,
        classes=tuple(cause.evidence_class for cause in accounts.causes),
        ids=accounts.ids,
    )
