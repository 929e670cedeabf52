"""The verdict and what a reader must be told with it: one plain sentence, and warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED
from latfix.formatting import milliseconds
from latfix.profilers.attribution.naming_rule import OF_THE_MACHINE
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.evidence.outside_view import CPU, Counter
from latfix.profilers.evidence.units import Evidence
from latfix.results.diagnosis import CauseSummary
from latfix.run_record.dispatch_lag import is_late
from latfix.run_record.run_record import RunRecord

STEADY, INCONCLUSIVE = "steady", "inconclusive"
#: A tail this close to the median is no jitter, whatever it is made of.
HARDLY_ABOVE = 0.15
#: ... unless the median itself is this many times the reference.
_MOSTLY_WAITING = 2.0
_MOST_UNEXPLAINED = 0.25
#: So little is unexplained on any machine, and hides nothing.
_NOISE_MS = 1.0
_MOSTLY = 0.5
_FEW_REQUESTS = 100
_FEW_IN_TAIL = 10
#: Causes of first uses, and from which share of the tail on the missing warm-up is worth a warning.
_FIRST_USE = "cold."
_WORTH_A_NOTE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the run amounts to.

    :param word: the id of a cause, ``steady`` or ``inconclusive``.
    :param sentence: for someone on call.
    """

    word: str
    sentence: str


def judge(
    causes: tuple[CauseSummary, ...], tail: Tail, latency_ms: Mapping[str, float], percentile: float, at_ms: float
) -> Verdict:
    """Weigh the causes.

    :param latency_ms: the summary of the run; ``at_ms`` its latency at ``percentile``.
    """
    name = f"p{percentile:g}"
    if not tail.requests:
        return Verdict(word=INCONCLUSIVE, sentence="No request ended ok, so there is no latency to explain.")
    median = latency_ms["p50"]
    ratio = at_ms / median if median > 0 else 1.0
    opening = f"{name} is {milliseconds(at_ms)}, {ratio:.1f}x the median"
    named = [cause for cause in causes if cause.named]
    top = max(named, key=lambda cause: cause.tail_ms, default=None)
    close = tail.mean_ms - median <= max(HARDLY_ABOVE * median, 0.1)
    # All requests alike may still be all late: a queue that never empties, a timer that all wait for.
    if close and (top is None or median <= _MOSTLY_WAITING * (tail.mean_ms - tail.excess_ms)):
        extra = f"; all requests carry {milliseconds(top.tail_ms)} of {CATALOGUE[top.cause].happened}" if top else ""
        return Verdict(
            word=STEADY,
            sentence=f"{opening}: steady, slow requests take hardly longer than typical ones{extra}.",
        )
    unexplained = next((cause.tail_ms for cause in causes if cause.cause == UNEXPLAINED), 0.0)
    if unexplained > max(_MOST_UNEXPLAINED * tail.excess_ms, _NOISE_MS):
        known = f" Of what is known, {_share(top, tail)}." if top else ""
        return Verdict(
            word=INCONCLUSIVE,
            sentence=(
                f"{opening}; no probe accounts for {milliseconds(unexplained)} of the {milliseconds(tail.excess_ms)} "
                f"by which slow requests exceed normal ones, too much to name a cause.{known}"
            ),
        )
    if top is None:
        return Verdict(word=STEADY, sentence=f"{opening}: steady, {_noise(causes, tail)}.")
    return Verdict(word=top.cause, sentence=f"{opening}: {_share(top, tail)}.")


def _noise(causes: tuple[CauseSummary, ...], tail: Tail) -> str:
    """What slow requests of a steady run are made of."""
    chance = next((cause for cause in causes if cause.cause == "traffic.burst"), None)
    if chance is not None and chance.tail_share > _MOSTLY:
        return (
            f"{milliseconds(chance.tail_ms)} of the {milliseconds(tail.excess_ms)} by which slow requests exceed "
            "normal ones is no more than independent callers at this load make each other wait by chance"
        )
    largest = max(causes, key=lambda cause: cause.tail_ms, default=None)
    if largest is not None and largest.tail_share > _MOST_UNEXPLAINED and largest.cause in OF_THE_MACHINE:
        return (
            f"no fault stands out; {milliseconds(largest.tail_ms)} of the {milliseconds(tail.excess_ms)} by which "
            f"slow requests exceed normal ones is {CATALOGUE[largest.cause].happened}, by a little in many requests, "
            "as on any machine with neighbors"
        )
    return "no cause of the slow requests stands out from the run's own noise"


def _share(cause: CauseSummary, tail: Tail) -> str:
    known = CATALOGUE[cause.cause]
    waits = cause.propagated_ms > cause.own_ms
    what = f"requests waiting behind {known.behind}" if waits else known.happened
    part = 100 * cause.tail_share
    figures = f"{milliseconds(cause.tail_ms)} of {milliseconds(tail.excess_ms)}"
    return f"{part:.0f} % of the excess ({figures}) is {what}"


def dispatch_trust(lag_ms: float, median_ms: float, observer_share: float) -> str | None:
    """Why the replay was too late for the percentiles to mean anything; ``None`` where it was not.

    :param lag_ms: p99 of the lag that is the replayer's own. A lag that the service made, by a collection that
        held the interpreter lock, would have met the request in any server of that process.
    """
    if is_late(lag_ms, median_ms):
        return (
            f"Requests were handed over up to {milliseconds(lag_ms)} late (p99; the median latency is "
            f"{milliseconds(median_ms)}): the replay itself was too slow for these percentiles to mean anything."
        )
    if observer_share > 0.2:
        return (
            f"{100 * observer_share:.0f} % of the tail's excess is latfix's own lag: the replay itself was too slow "
            "for these percentiles to mean anything."
        )
    return None


def warnings(
    record: RunRecord, evidence: Evidence, tail: Tail, causes: tuple[CauseSummary, ...], percentile: float
) -> list[str]:
    """What a reader must know before believing the figures, a sentence each."""
    notes: list[str] = []
    counts = record.counts()
    n, ended = tail.requests, sum(counts.values())
    if record.partial:
        missing = max(record.unrecorded(), 0)
        notes.append(
            f"The run is partial ({record.meta.state}): {ended} requests were recorded and {missing} were not."
        )
    elif record.unrecorded() > 0:
        notes.append(f"{record.unrecorded()} scheduled requests have no record.")
    if not n:
        notes.append("No request ended ok: there is nothing to diagnose.")
    elif n < _FEW_REQUESTS or tail.inside < _FEW_IN_TAIL:
        notes.append(_too_few(tail.inside, n, percentile))
    lost = counts["ok"] - n
    if lost > 0:
        notes.append(f"{lost} requests that ended ok have no record of their batch and are not in these figures.")
    failed = ended - counts["ok"]
    if ended and failed > 0.01 * ended:
        parts = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "ok" and count)
        notes.append(f"Percentiles are over the {counts['ok']} requests that ended ok; {parts} are not in them.")
    unexplained = next((cause.tail_ms for cause in causes if cause.cause == UNEXPLAINED), 0.0)
    if unexplained < -_MOST_UNEXPLAINED * max(tail.excess_ms, 0.0) - 0.1:
        notes.append(
            f"The causes claim {milliseconds(-unexplained)} more than slow requests exceed the reference by."
        )
    notes += [f"{note}." for note in record.meta.setup_notes]
    if n and evidence.setup.outside:
        return notes + _not_seen(evidence)
    first_use = sum(cause.tail_share for cause in causes if cause.cause.startswith(_FIRST_USE))
    if n and not np.any(evidence.rows["warmup"]) and first_use >= _WORTH_A_NOTE:
        notes.append(
            f"No warm-up requests were sent, and first use is {100 * first_use:.0f} % of the tail: "
            "warmup_requests = 10 in workload.toml leaves it out."
        )
    if n and not evidence.expected.models["compute"].accepted:
        notes.append(_no_model(evidence))
    return notes


def _not_seen(evidence: Evidence) -> list[str]:
    """What of a service behind an address is not known."""
    notes = []
    if not Counter.of(evidence.samples, CPU).known:
        notes.append("What the service did meanwhile is not known: --pid watches its process, if it runs here.")
    if evidence.setup.servers == 0:
        notes.append(
            "Answers do not show one queue in front of a fixed number of servers: waiting in line is not told "
            "apart from being served."
        )
    return notes


def _too_few(inside: int, n: int, percentile: float) -> str:
    """How few, how many would do, and the option that makes them."""
    enough = max(math.ceil(_FEW_IN_TAIL / max(1 - percentile / 100, 1e-9)), _FEW_REQUESTS)
    times = math.ceil(enough / max(n, 1))
    more = f"--repeat {times} or a longer --duration" if times > 1 else "a longer --duration"
    return f"p{percentile:g} rests on {inside} of {n} requests; about {enough:,} would do ({more})."


def _no_model(evidence: Evidence) -> str:
    samples = evidence.expected.models["compute"].samples
    if samples < _FEW_REQUESTS:
        return f"{samples} batches are too few to tell what inputs, batch size and padding cost."
    return "Compute time does not follow the inputs, batch size or padding: nothing is charged to them."
