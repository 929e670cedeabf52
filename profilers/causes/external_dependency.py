"""``external.dependency``: waits for something outside, in a declared span or blocked in prepare or finish."""

from __future__ import annotations

import math

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.formatting import percent
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, median_and_p99, reads
from latfix.profilers.causes.repeated_sleeps import sleeps_in
from latfix.profilers.causes.service_waits import beyond_usual
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.evidence.outside.lock_waits import call_in
from latfix.profilers.evidence.outside.outside_view import piles_up, presence, serves
from latfix.profilers.evidence.outside.service_process import CPU, SLEEP, SURE, Counter, cumulative, series_names
from latfix.profilers.evidence.run_baselines import whole_median
from latfix.profilers.evidence.units import Evidence, span_cpu
from latfix.profilers.probes.control_groups import NEIGHBOR_SERIES

#: Least wait to look for a throttled neighbor, and the share of these waits that throttling must cover.
_LONG_NS, _MOSTLY = 2_000_000, 0.5
#: Threads sleep for this share of the waits or more.
_SLEPT = 0.6
#: Long waits, as a share of the 99th percentile. They are for each other with such a correlation at least, if no
#: more than such a share ends before the request ahead, and their gaps correlate with those of arrivals by less.
_TENTH, _CLOSELY, _OUT_OF_ORDER, _FOLLOWS = 0.1, 0.5, 0.1, 0.4


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {}
    for name in ("prepare", "finish"):
        unit = evidence.units[name]
        # An inherited finish waits for nothing; its counters are not read, so that all of it looks blocked.
        read = unit.cpu > 0
        waited = np.where(read, np.maximum(left.blocked[name] - evidence.stood_still(name), 0), 0)
        # Blocked time in the adapter's own code is a wait for something outside. Blocked time in compute is not:
        # nothing there is known to wait, so it stays unexplained.
        units[name] = Parts(cpu=span_cpu(unit, evidence.rows[f"{name}_span_ns"]), blocked=waited)
    return Claim(units=units, disturbance=False, expected=True)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    rows, ok = evidence.rows, evidence.ok
    span = (rows["prepare_span_ns"] + rows["finish_span_ns"])[ok]
    waited = (evidence.units["prepare"].blocked + evidence.units["finish"].blocked)[ok]
    shown, name = (span, "declared spans") if span.any() else (waited, "blocked time in prepare and finish")
    sleeps = sleeps_in(evidence, "prepare", "finish")
    return f"{name} took {median_and_p99(shown)}{sleeps}{_neighbor(evidence)}; {figures.parts}."


def _neighbor(evidence: Evidence) -> str:
    """A clause on another control group that was throttled for most of the waits; empty without one."""
    starts, ends = [], []
    for name in ("prepare", "finish"):
        unit = evidence.units[name]
        long = evidence.ok & (unit.blocked - evidence.usually_blocked(name) > _LONG_NS)
        starts.append(unit.start[long])
        ends.append(unit.end[long])
    start, end = np.concatenate(starts), np.concatenate(ends)
    for series in series_names(evidence.samples, NEIGHBOR_SERIES):
        grown = np.minimum(Counter.of(evidence.samples, series).grown(start, end), end - start)
        stopped = float(grown.sum()) / max(float((end - start).sum()), 1.0)
        if stopped > _MOSTLY:
            group = series[len(NEIGHBOR_SERIES) :]
            return f"; for {percent(stopped)} of the longer waits the control group {group} was throttled"
    return ""


def _outside(evidence: Evidence, left: Left) -> Claim:
    """Idle time of the request beyond the usual, as far as the counters show it.

    Standstills are excluded: if all requests wait together, the cause is not visible from outside. So is the prefill
    of a large input, during which the process may wait for a device. In a backlog whose queue is unknown, requests
    wait for each other, and nothing is claimed.
    """
    units: dict[str, Parts] = {}
    if "dependency" in evidence.told.parts:
        return beyond_usual(evidence, left, evidence.told.parts["dependency"], "told.dependency")
    at, end = presence(evidence.rows)
    if evidence.setup.servers == 0 and piles_up(at - evidence.moved("finish"), end - evidence.moved("finish")):
        return Claim(units=units)
    if evidence.setup.behind and not serves(evidence.rows, evidence.process):
        return Claim(units=units)
    for name in ("compute", "finish"):
        claimed = np.minimum(_idle_waits(evidence, name), left.cpu_excess(name))
        if not _each_other(evidence, evidence.of_batch(claimed) if name == "compute" else claimed):
            units[name] = Parts(cpu=claimed)
    return Claim(units=units)


def _idle_waits(evidence: Evidence, name: str) -> Ints:
    """Idle nanoseconds of each unit beyond the usual, as far as the counters show them."""
    unit, idle, least = evidence.units[name], evidence.process_idle(name), evidence.least_idle(name)
    # A request that holds the lock for which the others wait may wait for something itself.
    stood, by_one = evidence.standstills.everyone, evidence.locks.by_one
    still = np.minimum(stood.covered(unit.start, unit.end) - by_one.covered(unit.start, unit.end), idle)
    # Beside others, a request may be idle for longer than their process.
    usual = evidence.norms.of(f"idle waits.{name}", lambda: max(whole_median(idle), whole_median(least)))
    waited = least * (1 - still / np.maximum(idle, 1)) - usual - evidence.not_waited(name)
    if name == "compute":
        waited -= evidence.own_prefill[evidence.head]
    return np.asarray(np.rint(np.maximum(waited, 0)), dtype=np.int64)


def waits_for_each_other(evidence: Evidence) -> str:
    """A clause on idle waits of requests for each other; empty if none show."""
    waited = (evidence.of_batch(_idle_waits(evidence, "compute")), _idle_waits(evidence, "finish"))
    return next(filter(None, (_each_other(evidence, each) for each in waited)), "")


def _each_other(evidence: Evidence, waited: Ints) -> str:
    """What requests wait for if they do so for longer the more others are there, as a clause; else empty.

    Streams wait for the steps that they share, or a place in them. Others wait for a place in a pool, or for a
    dependency that serves one after the other, if their queue is unknown, and those that wait end in their order of
    arrival, but not in its rhythm: a dependency that is slow for all alike adds requests in flight, too.

    :param waited: ``(n,)`` idle nanoseconds beyond the usual.
    """
    at, end = presence(evidence.rows)
    ok = evidence.ok
    chosen = ok & (evidence.rows["chunks"] > 1)
    streamed = np.count_nonzero(chosen) > _MOSTLY * np.count_nonzero(ok)
    if not streamed:
        chosen = ok & (waited > max(_LONG_NS, _TENTH * float(np.quantile(waited[ok], 0.99))))
    if not waited[chosen].any():
        return ""
    met = _met(at, end)
    related = _correlation(waited[chosen], met[chosen])
    if related * math.sqrt(np.count_nonzero(chosen)) <= SURE:
        return ""
    if streamed:
        return (
            "streams waited for longer the more others were there: for the steps that they share, or a place in them"
        )
    if evidence.setup.behind:
        return (
            f"requests waited for longer the more others were there: in a queue of {evidence.setup.behind}, or a pool"
        )
    if evidence.setup.servers or related < _CLOSELY or not _in_turn(at[chosen], end[chosen]):
        return ""
    return (
        "requests that waited meanwhile ended in their order of arrival, and waited for longer the more others were "
        "there: for a place in a pool (connections, threads), or for what serves one after the other"
    )


def _met(at: Ints, end: Ints) -> Ints:
    """``(n,)`` how many others were there when each request came."""
    return np.searchsorted(np.sort(at), at) - np.searchsorted(np.sort(end), at, side="right")


def _hardly_alone(evidence: Evidence, long: Bools) -> str:
    """A clause if requests that waited long came while no other was there far less often than the rest did."""
    alone, rest = _met(*presence(evidence.rows)) == 0, evidence.ok & ~long
    many, share = np.count_nonzero(long), float(np.mean(alone[rest])) if rest.any() else 0.0
    if np.count_nonzero(alone & long) >= many * share - SURE * math.sqrt(many * share * (1 - share)):
        return ""
    return (
        f", or for each other: {percent(float(np.mean(alone[long])))} of these requests came while no other was "
        f"there, of the rest {percent(share)}, as if they needed a place in a pool (connections, threads) or a lock"
    )


def _in_turn(at: Ints, end: Ints) -> bool:
    """True if requests end in their order of arrival, and not as long after each other as they arrived.

    Those are compared of which the second arrives midway in the stay of the first: a little scatter counts less then.
    """
    order = np.argsort(at, kind="stable")
    came, went = at[order], end[order]
    met = np.searchsorted(came, went) - np.arange(len(came)) - 1
    lag = max(int(np.median(met)) // 2, 1)
    both = came[lag:] < went[:-lag]
    between, after = (went[lag:] - went[:-lag])[both], (came[lag:] - came[:-lag])[both]
    return bool(both.any() and np.mean(between < 0) <= _OUT_OF_ORDER and _correlation(after, between) < _FOLLOWS)


def _correlation(one: Ints, other: Ints) -> float:
    """Pearson's; 0 if one of them is constant."""
    return float(np.corrcoef(one, other)[0, 1]) if len(one) > 1 and np.ptp(one) and np.ptp(other) else 0.0


def _waited_in(evidence: Evidence) -> str:
    """A clause on the longer idle waits: the call that an event loop's thread was in, or whether threads slept."""
    sleeping, polls = Counter.of(evidence.samples, SLEEP), evidence.process.cpu.at_ns
    waited = evidence.of_batch(_idle_waits(evidence, "compute")) + _idle_waits(evidence, "finish")
    long = evidence.ok & (waited > max(_LONG_NS, _TENTH * float(np.quantile(waited[evidence.ok], 0.99))))
    at, end = presence(evidence.rows)
    at = at + evidence.rows["queue_ns"] + evidence.rows["batch_ns"]
    if call := call_in(evidence.samples, polls, Intervals.merged(at[long], (end - at)[long])):
        return f"waited, its event loop's thread mostly in the system call {call}"
    elsewhere = "waited for something outside, or slept (a pause before a retry, a timer)"
    elsewhere += _hardly_alone(evidence, long)
    if not (sleeping.known and long.any()):
        return elsewhere
    count = np.zeros(len(polls))
    count[np.minimum(np.searchsorted(polls, sleeping.at_ns), len(polls) - 1)] = sleeping.value
    there = np.searchsorted(np.sort(at), polls, side="right") - np.searchsorted(np.sort(end), polls, side="right")
    usual = float(np.median(count[there == 0])) if (there == 0).any() else float(count.min())
    sleep = cumulative(polls, (np.clip(count - usual, 0, there) / np.maximum(there, 1))[:-1] * np.diff(polls))
    asleep = sleep.grown(at, end)
    beyond = np.maximum(asleep - np.median(asleep[evidence.ok]), 0)[long]
    asleep_in = "mostly slept in threads (a pause before a retry, SQLite's wait for a lock, a timer)"
    return asleep_in if beyond.sum() >= _SLEPT * waited[long].sum() else elsewhere


def _told_sentence(evidence: Evidence, figures: TailFigures) -> str:
    """What the service itself recorded."""
    told, ok = evidence.told, evidence.ok
    spent = {name: taken[ok] for name, taken in told.dependencies.items()}
    largest = max(spent, key=lambda name: float(np.quantile(spent[name], 0.99) - np.median(spent[name])))
    most = f", the most variable of {len(spent)}" if len(spent) > 1 else ""
    return (
        f"the service recorded waits of {median_and_p99(spent[largest])} for {largest}{most}, measured by "
        f"request ({told.sources['dependency']}); {figures.parts}."
    )


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    if evidence.told.dependencies:
        return _told_sentence(evidence, figures)
    idle = (evidence.process_idle("finish") + evidence.of_batch(evidence.process_idle("compute")))[evidence.ok]
    return (
        f"while a request was at the service, the service's process was idle for {median_and_p99(idle)}: it "
        f"{_waited_in(evidence)}; {figures.parts}."
    )


CAUSE = Cause(
    id="external.dependency",
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
    outside_needs=lambda evidence: reads(CPU)(evidence) or "dependency" in evidence.told.parts,
)
