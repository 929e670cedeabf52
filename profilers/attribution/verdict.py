"""The verdict and what a reader must be told with it: one plain sentence, and warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED, KnownCause
from latfix.formatting import milliseconds, percent, share
from latfix.lower_bound import AtLeast
from latfix.profilers.attribution.naming_rule import OF_THE_MACHINE
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.evidence.outside.outside_view import CPU, Counter, late_acknowledgements
from latfix.profilers.evidence.units import Evidence
from latfix.results.diagnosis import CauseSummary, Losses
from latfix.run_record.dispatch_lag import is_late
from latfix.run_record.live_record import LIVE
from latfix.run_record.run_record import RunRecord
from latfix.statistics.percentiles import percentile_key

STEADY, INCONCLUSIVE, LOSING = "steady", "inconclusive", "losing"
#: A tail this close to the median is no jitter, whatever it is made of.
HARDLY_ABOVE = 0.15
#: ... unless the median itself is this many times the reference.
_MOSTLY_WAITING = 2.0
_MOST_UNEXPLAINED = 0.25
#: What one request is charged may be off by as much.
_NOISE_MS = 0.1
#: Where nothing is named, a tail up to this many times the median, beside chance, is near it.
_NEAR = 2.0
_MOSTLY = 0.5
#: So many times what is named, another cause is told of though it is uncertain.
_MUCH_LARGER = 2.0
_CHANCE = "traffic.burst"
_FEW_REQUESTS = 100
_FEW_IN_TAIL = 10
#: Causes of first uses, and from which share of the tail on the missing warm-up is worth a warning.
_FIRST_USE = "cold."
_WORTH_A_NOTE = 0.05
#: What a request of each status did, to follow its number.
_DID = {
    "error": "failed",
    "timeout": "timed out",
    "shed": "were shed",
    "unfinished": "were in flight when the run ended",
}
#: What lost requests waited for, where it is no cause.
_WAITED_FOR = {
    "work": "ordinary work ahead of them",
    "hang": "a batch that never ended",
    "unrecorded": "what is not recorded",
    UNEXPLAINED: "work ahead of them that took longer than any probe explains",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the run amounts to.

    :param word: the id of a cause, ``steady``, ``inconclusive`` or ``losing``.
    :param sentence: for someone on call.
    """

    word: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Requests that did not end ``ok``.

    :param cut: somebody ended the run early: what was in flight then is no loss of the service.
    :param hung: the run ended because the service did, or hung.
    """

    every: tuple[Losses, ...] = ()
    cut: bool = False
    hung: bool = False

    @classmethod
    def of(cls, every: tuple[Losses, ...], state: str) -> Loss:
        """Of a run that ended in a state of ``run.json``."""
        return cls(every=every, cut=state in ("interrupted", "running"), hung=state == "failed" and bool(every))

    @property
    def charged(self) -> tuple[Losses, ...]:
        """Those that the service is charged with."""
        return tuple(one for one in self.every if not (self.cut and one.status == "unfinished"))

    def beyond(self, percentile: float) -> bool:
        """Whether more was lost than a percentile allows."""
        return sum(one.share for one in self.charged) > 1.0 - percentile / 100

    @property
    def words(self) -> str:
        """``76 of 600 requests (12.7 %) did not end ok: 76 timed out after 12.0 ms, 60 of them in queue; …``."""
        lost = sum(one.requests for one in self.charged)
        share_lost = sum(one.share for one in self.charged)
        return (
            f"{lost:,} of {round(lost / share_lost):,} requests ({share(share_lost)}) did not end ok: "
            + "; ".join(map(_lost_words, self.charged))
        )


def judge(
    causes: tuple[CauseSummary, ...],
    tail: Tail,
    ok_ms: Mapping[str, float],
    percentile: float,
    at_ms: float,
    loss: Loss = Loss(),
) -> Verdict:
    """Weigh the causes.

    :param ok_ms: the summary of the requests that ended ``ok``.
    :param at_ms: the latency at ``percentile`` of all that arrived.
    """
    name = f"p{percentile:g}"
    if loss.charged and isinstance(at_ms, AtLeast) and (loss.beyond(percentile) or not loss.cut):
        about = f"{name} is more than {milliseconds(at_ms.bound)}" if at_ms.bound > 0 else f"{name} is lost"
        return Verdict(word=LOSING, sentence=f"{about}: losing, {loss.words}.")
    if loss.hung and any(one.status == "unfinished" for one in loss.every):
        sentence = f"{name} of what was recorded is {milliseconds(at_ms)}; but the run failed: losing, {loss.words}."
        return Verdict(word=LOSING, sentence=sentence)
    if not tail.requests:
        return Verdict(word=INCONCLUSIVE, sentence="No request ended ok, so there is no latency to explain.")
    if isinstance(at_ms, AtLeast):
        return Verdict(
            word=INCONCLUSIVE,
            sentence=f"{name} is not known: so many requests were in flight when the run was ended that it is among "
            f"them; of those that ended ok it is {milliseconds(ok_ms.get(percentile_key(percentile)))}.",
        )
    verdict = _of_the_tail(causes, tail, ok_ms["p50"], f"{name} is {milliseconds(at_ms)}", at_ms)
    if verdict.word == STEADY and loss.charged:
        sentence = f"{verdict.sentence.removesuffix('.')}; but {loss.words}."
        return Verdict(word=INCONCLUSIVE, sentence=sentence.replace(": steady,", ":", 1))
    return verdict


def _lost_words(one: Losses) -> str:
    stage, most = max(one.in_stage.items(), key=lambda entry: entry[1])
    where = {"admission": "on arrival", "unknown": "where is not recorded"}.get(stage, f"in {stage}")
    said = f"{one.requests:,} {_DID[one.status]}"
    if one.waited_ms["max"] > 0:
        said += f" after {milliseconds(one.waited_ms['p50'])}"
    said += f", {where}" if most == one.requests else f", {most:,} of them {where}"
    cause, spent = next(iter(one.waited_for_ms.items()), ("", 0.0))
    wait = sum(one.waited_for_ms.values())
    if spent > _MOSTLY * wait > 0:
        known = CATALOGUE.get(cause)
        behind = _WAITED_FOR.get(cause) or f"requests that suffered {known.behind if known else cause}"
        said += f", {percent(min(spent / wait, 1.0))} of the wait for {behind}"
    return said


def _of_the_tail(causes: tuple[CauseSummary, ...], tail: Tail, median: float, about: str, at_ms: float) -> Verdict:
    ratio = at_ms / median if median > 0 else 1.0
    opening = f"{about}, {ratio:.1f}x the median"
    named = [cause for cause in causes if cause.named]
    top = max(named, key=lambda cause: cause.tail_ms, default=None)
    longer = tail.mean_ms - median
    close = longer <= max(HARDLY_ABOVE * median, _NOISE_MS)
    # All requests alike may still be all late: a queue that never empties, a timer that all wait for.
    if close and (top is None or median <= _MOSTLY_WAITING * (tail.mean_ms - tail.excess_ms)):
        extra = f"; all requests carry {milliseconds(top.tail_ms)} of {CATALOGUE[top.cause].happened}" if top else ""
        much = "hardly" if longer <= HARDLY_ABOVE * median else f"{milliseconds(longer)}"
        sentence = f"{opening}: steady, slow requests take {much} longer than typical ones{extra}."
        return Verdict(word=STEADY, sentence=sentence)
    unexplained = next((cause.tail_ms for cause in causes if cause.cause == UNEXPLAINED), 0.0)
    if abs(unexplained) > max(_MOST_UNEXPLAINED * tail.excess_ms, _NOISE_MS):
        return Verdict(word=INCONCLUSIVE, sentence=f"{opening}; {_doubt(unexplained, tail, top)}")
    # What arrivals make wait by chance belongs to the load that was asked for.
    chance = next((cause.tail_ms for cause in causes if cause.cause == _CHANCE), 0.0)
    if top is None and at_ms - max(chance, 0.0) <= _NEAR * median:
        return Verdict(word=STEADY, sentence=f"{opening}: steady, {_noise(causes, tail)}.")
    if top is None:
        return Verdict(word=INCONCLUSIVE, sentence=f"{opening}; {_noise(causes, tail)}.")
    return Verdict(
        word=top.cause,
        sentence=f"{opening}: {part_words(CATALOGUE[top.cause], top, tail.excess_ms)}{_larger(causes, top)}.",
    )


def _larger(causes: tuple[CauseSummary, ...], top: CauseSummary) -> str:
    """A cause that is much more of the tail than the one that is named, but not for certain; empty without one."""
    largest = max((cause for cause in causes if cause.cause != UNEXPLAINED), key=lambda cause: cause.tail_ms)
    if largest.tail_ms <= _MUCH_LARGER * top.tail_ms:
        return ""
    low, high = (milliseconds(max(end, 0.0)) for end in largest.ci95_ms)
    return (
        f"; more, {100 * largest.tail_share:.0f} %, may be {CATALOGUE[largest.cause].happened}, but somewhere from "
        f"{low} to {high}: too uncertain to be named"
    )


def _doubt(unexplained: float, tail: Tail, top: CauseSummary | None) -> str:
    """Why what the causes claim does not make up what is to be explained."""
    excess = f"the {milliseconds(tail.excess_ms)} by which slow requests exceed normal ones"
    if unexplained < 0:
        known = f" The largest claim: {part_words(CATALOGUE[top.cause], top, tail.excess_ms)}." if top else ""
        return f"the causes claim {milliseconds(-unexplained)} more than {excess}, too much to name one.{known}"
    known = f" Of what is known, {part_words(CATALOGUE[top.cause], top, tail.excess_ms)}." if top else ""
    return f"no probe accounts for {milliseconds(unexplained)} of {excess}, too much to name a cause.{known}"


def _noise(causes: tuple[CauseSummary, ...], tail: Tail) -> str:
    """What slow requests of a steady run are made of."""
    chance = next((cause for cause in causes if cause.cause == _CHANCE), None)
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


def part_words(known: KnownCause, cause: CauseSummary, excess_ms: float) -> str:
    """How much of the excess a cause is, and what happened."""
    waits = cause.propagated_ms > cause.own_ms
    what = f"requests waiting behind {known.behind}" if waits else known.happened
    figures = f"{milliseconds(cause.tail_ms)} of {milliseconds(excess_ms)}"
    return f"{100 * cause.tail_share:.0f} % of the excess ({figures}) is {what}"


def late_words(lag_ms: float, median_ms: float) -> str | None:
    """Why the replay was too late for the percentiles to mean anything; ``None`` where it was not.

    :param lag_ms: p99 of the replayer's lag.
    """
    if not is_late(lag_ms, median_ms):
        return None
    return (
        f"Requests were handed over up to {milliseconds(lag_ms)} late (p99; the median latency is "
        f"{milliseconds(median_ms)}): the replay itself was too slow for these percentiles to mean anything."
    )


def warnings(
    record: RunRecord, evidence: Evidence, tail: Tail, causes: tuple[CauseSummary, ...], percentile: float
) -> list[str]:
    """What a reader must know before believing the figures, a sentence each."""
    notes: list[str] = []
    counts = record.counts()
    n, ended, live = tail.requests, sum(counts.values()), record.meta.source.get("kind") == LIVE
    if record.partial:
        missing = max(record.unrecorded(), 0)
        notes.append(
            f"The run is partial ({record.meta.state}): {ended} requests were recorded and {missing} were not."
        )
        notes += [f"{message}." for message in _hangs(record)]
        if record.meta.failure and not notes[1:]:
            notes.append(f"{record.meta.failure}.")
    elif record.unrecorded() > 0:
        notes.append(f"{record.unrecorded()} scheduled requests have no record.")
    if not n:
        notes.append("No request ended ok: there is nothing to diagnose.")
    elif n < _FEW_REQUESTS or tail.inside < _FEW_IN_TAIL:
        notes.append(_too_few(tail.inside, n, percentile, live=live))
    lost = counts["ok"] - n
    if lost > 0:
        notes.append(f"{lost} requests that ended ok have no record of their batch and are not in these figures.")
    if ended > counts["ok"]:
        parts = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "ok" and count)
        notes.append(
            f"{parts}: percentiles count them as slower than they had waited; the mean, the stages and the causes "
            f"are of the {counts['ok']} requests that ended ok."
        )
    unexplained = next((cause.tail_ms for cause in causes if cause.cause == UNEXPLAINED), 0.0)
    if unexplained < -_MOST_UNEXPLAINED * max(tail.excess_ms, 0.0) - 0.1:
        notes.append(
            f"The causes claim {milliseconds(-unexplained)} more than slow requests exceed the reference by."
        )
    notes += [f"{note}." for note in record.meta.setup_notes]
    if n and evidence.setup.outside:
        return notes + _not_seen(evidence)
    first_use = sum(cause.tail_share for cause in causes if cause.cause.startswith(_FIRST_USE))
    if n and not live and not np.any(evidence.rows["warmup"]) and first_use >= _WORTH_A_NOTE:
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
            "No queue in front of a fixed number of servers is seen: waiting in line is not told apart from being "
            "served."
        )
    if parts := late_acknowledgements(evidence.rows, evidence.samples, evidence.ok):
        notes.append(
            f"The time {parts} of the answers is 40 to 45 ms, and hardly any a little less: as where a message is "
            "written in two pieces without TCP_NODELAY and its acknowledgement is put off."
        )
    return notes


def _too_few(inside: int, n: int, percentile: float, *, live: bool) -> str:
    """How few, how many would do, and the option that makes them; a service that runs makes them by itself."""
    enough = max(round(100 * _FEW_IN_TAIL / max(100 - percentile, 1e-7)), _FEW_REQUESTS)
    times = math.ceil(enough / max(n, 1))
    more = f"--repeat {times} or a longer --duration" if times > 1 else "a longer --duration"
    how = "" if live else f" ({more})"
    return f"p{percentile:g} rests on {inside} of {n} requests; about {enough:,} would do{how}."


def _hangs(record: RunRecord) -> list[str]:
    """What had not ended when the run was."""
    known = np.flatnonzero(record.events["kind"] == "hang")
    return [str(record.events["detail"][k].get("message", "")) for k in known.tolist()]


def _no_model(evidence: Evidence) -> str:
    samples = evidence.expected.models["compute"].samples
    if samples < _FEW_REQUESTS:
        return f"{samples} batches are too few to tell what inputs, batch size and padding cost."
    return "Compute time does not follow the inputs, batch size or padding: nothing is charged to them."
