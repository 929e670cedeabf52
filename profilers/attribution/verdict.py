"""The verdict in one sentence, and the warnings that a reader needs with it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED, KnownCause
from latfix.formatting import counted, milliseconds, percent, share
from latfix.lower_bound import AtLeast
from latfix.profilers.attribution.naming_rule import MACHINE_CAUSES
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.evidence.device_idle import idle_ns
from latfix.profilers.evidence.outside.outside_view import serves
from latfix.profilers.evidence.units import Evidence, first_uses_slow, late_shapes
from latfix.results.diagnosis import HARDLY_ABOVE, MOST_UNEXPLAINED, CauseSummary, Losses
from latfix.run_record.dispatch_lag import is_late
from latfix.run_record.live_record import LIVE
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.run_record import RunRecord
from latfix.statistics.percentiles import percentile_key

STEADY, INCONCLUSIVE, LOSING = "steady", "inconclusive", "losing"
#: A median that is this many times the reference is not steady.
_MOSTLY_WAITING = 2.0
#: Error of the milliseconds attributed to one request.
_NOISE_MS = 0.1
#: A tail whose mean is more than this many times the percentile is not described by the percentile alone.
_FAR_BEYOND = 1.5
#: If no cause is named, a tail up to this many times the median, apart from waits by chance, is steady.
_NEAR = 2.0
#: More than half: of a wait, of the tail's excess, of a batch's time.
_MOSTLY = 0.5
#: The sentence also mentions an uncertain cause that is this many times larger than the named one.
_MUCH_LARGER = 2.0
#: An excess up to this many times the median is little.
_LITTLE = 3.0
_CHANCE = "traffic.burst"
#: With fewer requests, in all or in the tail, a percentile rests on single requests.
_FEW_REQUESTS, _FEW_IN_TAIL = 100, 10
#: Prefix of causes of first use, and the share of the tail from which a missing warm-up is worth a warning.
_FIRST_USE = "cold."
_WORTH_A_NOTE = 0.05
#: Share of the new shapes in the run's second half from which warm-up would not have run most.
_KEPT_COMING = 1 / 3
#: By status, what requests did; follows their number.
_DID = {
    "error": "failed",
    "timeout": "timed out",
    "shed": "were shed",
    "unfinished": "were in flight when the run ended",
}
#: What lost requests waited for, other than a cause.
_WAITED_FOR = {
    "work": "ordinary work ahead of them",
    "hang": "a batch that never ended",
    "unrecorded": "something that is not recorded",
    UNEXPLAINED: "work ahead of them that took longer than any probe explains",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Requests that did not end ``ok``.

    :param cut: the run was stopped early; requests in flight then are not losses of the service.
    :param hung: the run ended because the service failed or hung.
    """

    every: tuple[Losses, ...] = ()
    cut: bool = False
    hung: bool = False

    @classmethod
    def of(cls, every: tuple[Losses, ...], state: str) -> Loss:
        """The losses of a run with this ``state`` of ``run.json``."""
        return cls(every=every, cut=state in ("interrupted", "running"), hung=state == "failed" and bool(every))

    @property
    def attributed(self) -> tuple[Losses, ...]:
        """The losses that are the service's."""
        return tuple(one for one in self.every if not (self.cut and one.status == "unfinished"))

    def beyond(self, percentile: float) -> bool:
        """True if the service lost a larger share than the percentile leaves above it."""
        return sum(one.share for one in self.attributed) > 1.0 - percentile / 100

    @property
    def words(self) -> str:
        """``76 of 600 requests (12.7 %) did not end ok: 76 timed out after 12.0 ms, 60 of them in queue; …``."""
        lost = sum(one.requests for one in self.attributed)
        share_lost = sum(one.share for one in self.attributed)
        return (
            f"{lost:,} of {round(lost / share_lost):,} requests ({share(share_lost)}) did not end ok: "
            + "; ".join(map(_lost_words, self.attributed))
        )


def judge(
    causes: tuple[CauseSummary, ...],
    tail: Tail,
    ok_ms: Mapping[str, float],
    percentile: float,
    at_ms: float,
    loss: Loss = Loss(),
    *,
    at_once: bool = False,
    chance_ms: float = math.inf,
) -> tuple[str, str]:
    """The verdict on a run (the id of a cause, ``steady``, ``inconclusive`` or ``losing``), and a sentence on it.

    :param ok_ms: latency summary of the requests that ended ``ok``.
    :param at_ms: latency at ``percentile`` of all requests that arrived.
    :param at_once: all requests of the tail share one incident.
    :param chance_ms: the most that requests in the tail wait for each other by chance.
    """
    name = f"p{percentile:g}"
    if loss.attributed and isinstance(at_ms, AtLeast) and (loss.beyond(percentile) or not loss.cut):
        about = (
            f"{name} is more than {milliseconds(at_ms.bound)}"
            if at_ms.bound > 0
            else f"{name} falls on lost requests"
        )
        return LOSING, f"{about}: losing, {loss.words}."
    if loss.hung and any(one.status == "unfinished" for one in loss.every):
        return LOSING, (
            f"{name} of the recorded requests is {milliseconds(at_ms)}, but the run failed: losing, {loss.words}."
        )
    if not tail.requests:
        return INCONCLUSIVE, "No request ended ok, so there is no latency to explain."
    if isinstance(at_ms, AtLeast):
        return INCONCLUSIVE, (
            f"{name} is unknown, because it falls on requests that were in flight when the run was stopped; "
            f"of the requests that ended ok it is {milliseconds(ok_ms.get(percentile_key(percentile)))}."
        )
    opening = f"{name} is {milliseconds(at_ms)}"
    if ok_ms["p50"] > 0:
        opening += f", {at_ms / ok_ms['p50']:.1f}x the median"
    if tail.mean_ms > _FAR_BEYOND * at_ms:
        opening += f"; the slowest {100 - percentile:g} % take {milliseconds(tail.mean_ms)} on average"
    verdict, sentence = _of_the_tail(causes, tail, ok_ms["p50"], opening, at_ms, at_once, chance_ms)
    if verdict == STEADY and loss.attributed:
        sentence = f"{sentence.removesuffix('.')}, but {loss.words}."
        return INCONCLUSIVE, sentence.replace(": steady,", ":", 1)
    return verdict, sentence


def _lost_words(one: Losses) -> str:
    stage, most = max(one.in_stage.items(), key=lambda entry: entry[1])
    where = {"admission": "on arrival", "unknown": "where is not recorded"}.get(stage, f"in {stage}")
    words = f"{one.requests:,} {_DID[one.status]}"
    if one.waited_ms["max"] > 0:
        words += f" after {milliseconds(one.waited_ms['p50'])}"
    words += f", {where}" if most == one.requests else f", {most:,} of them {where}"
    if one.outage_s:
        words += f", nearly all that arrived from {one.outage_s[0]:.3g} to {one.outage_s[1]:.3g} s of the run"
    cause, spent = next(iter(one.waited_for_ms.items()), ("", 0.0))
    wait = sum(one.waited_for_ms.values())
    if spent > _MOSTLY * wait > 0 and wait >= _MOSTLY * sum(one.stages_ms.values()):
        words += f"; {percent(min(spent / wait, 1.0))} of their wait was {_spent_on(cause)}"
    return words


def _spent_on(cause: str) -> str:
    """``behind a request whose core was taken``, ``for a batch that never ended``."""
    if cause in _WAITED_FOR:
        return f"for {_WAITED_FOR[cause]}"
    behind = CATALOGUE[cause].behind
    return f"behind {'a request' + behind.removeprefix('one') if behind.startswith('one ') else behind}"


def _of_the_tail(
    causes: tuple[CauseSummary, ...],
    tail: Tail,
    median: float,
    opening: str,
    at_ms: float,
    at_once: bool,
    chance_ms: float,
) -> tuple[str, str]:
    top = max((cause for cause in causes if cause.named), key=lambda cause: cause.tail_ms, default=None)
    longer = tail.mean_ms - median
    close = longer <= max(HARDLY_ABOVE * median, _NOISE_MS)
    # Requests that are all alike may still all be late: a queue that never empties, a timer for every batch.
    if close and (top is None or median <= _MOSTLY_WAITING * (tail.mean_ms - tail.excess_ms)):
        extra = ""
        if top is not None and (shared := top.tail_ms - longer) > longer:  # typical requests have that, too
            extra = f"; {milliseconds(shared)} of every request is {CATALOGUE[top.cause].happened}"
        much = "hardly" if longer <= HARDLY_ABOVE * median else f"{milliseconds(longer)}"
        return STEADY, f"{opening}: steady, slow requests take {much} longer than typical ones{extra}."
    unexplained = _tail_ms(causes, UNEXPLAINED)
    if abs(unexplained) > max(MOST_UNEXPLAINED * tail.excess_ms, _NOISE_MS):
        return INCONCLUSIVE, f"{opening}; {_doubt(unexplained, tail, top)}"
    # Waits by chance belong to the requested load.
    waited = max(_tail_ms(causes, _CHANCE), 0.0)
    noise = partial(_noise, causes, tail, median, at_once, by_chance=waited <= chance_ms)
    if top is None and at_ms - min(waited, chance_ms) <= _NEAR * median:
        return STEADY, f"{opening}: steady, {noise()}."
    if top is None:
        return INCONCLUSIVE, f"{opening}; {noise()}."
    part = describe_part(CATALOGUE[top.cause], top, tail.excess_ms)
    return top.cause, f"{opening}: {part}{_larger(causes, top)}."


def _tail_ms(causes: tuple[CauseSummary, ...], cause_id: str) -> float:
    return next((cause.tail_ms for cause in causes if cause.cause == cause_id), 0.0)


def _of_excess(ms: float, tail: Tail) -> str:
    return f"{milliseconds(ms)} of the {milliseconds(tail.excess_ms)} by which slow requests exceed normal ones"


def _larger(causes: tuple[CauseSummary, ...], top: CauseSummary) -> str:
    """A clause about an uncertain cause that is much larger than the named one; empty without one."""
    largest = max((cause for cause in causes if cause.cause != UNEXPLAINED), key=lambda cause: cause.tail_ms)
    if largest.tail_ms <= _MUCH_LARGER * top.tail_ms:
        return ""
    return f"; a larger part, {percent(largest.tail_share)}, {_uncertain(largest)}"


def _uncertain(cause: CauseSummary) -> str:
    """The predicate of a clause about a part of the excess that cannot be named."""
    low, high = (milliseconds(max(end, 0.0)) for end in cause.ci95_ms)
    return f"may be {CATALOGUE[cause.cause].happened}, but its interval, {low} to {high}, is too wide to name it"


def _doubt(unexplained: float, tail: Tail, top: CauseSummary | None) -> str:
    """Why the causes' claims do not add up to the excess."""
    known = f" The largest known part: {describe_part(CATALOGUE[top.cause], top, tail.excess_ms)}." if top else ""
    if unexplained < 0:
        return (
            f"the causes claim {milliseconds(-unexplained)} more than the {milliseconds(tail.excess_ms)} by which "
            f"slow requests exceed normal ones, too much to name one.{known}"
        )
    return f"no probe accounts for {_of_excess(unexplained, tail)}, too much to name a cause.{known}"


def _noise(causes: tuple[CauseSummary, ...], tail: Tail, median: float, at_once: bool, *, by_chance: bool) -> str:
    """The makeup of slow requests without a named cause."""
    chance = next((cause for cause in causes if cause.cause == _CHANCE), None)
    if chance is not None and by_chance and chance.tail_share > _MOSTLY:
        return (
            f"{_of_excess(chance.tail_ms, tail)} is no more than the wait that independent callers at this load "
            "cause each other by chance"
        )
    largest = max(causes, key=lambda cause: cause.tail_ms, default=None)
    if largest is not None and largest.tail_share > MOST_UNEXPLAINED and largest.cause in MACHINE_CAUSES:
        how = ""
        if at_once:
            how = f", in one moment that all {counted(tail.inside, 'slow request')} share"
        elif tail.inside >= _FEW_IN_TAIL and tail.excess_ms <= _LITTLE * median:
            how = ", by a little in many requests, as on any machine with neighbors"
        return f"no fault stands out; {_of_excess(largest.tail_ms, tail)} is {CATALOGUE[largest.cause].happened}{how}"
    if largest is not None and largest.tail_share > _MOSTLY and largest.cause != UNEXPLAINED:
        return f"{_of_excess(largest.tail_ms, tail)} {_uncertain(largest)}"
    return "no cause of the slow requests stands out from the run's own noise"


def describe_part(known: KnownCause, cause: CauseSummary, excess_ms: float) -> str:
    """A cause's part of the excess, and what happened."""
    waits = cause.propagated_ms > cause.own_ms
    what = f"requests waiting behind {known.behind}" if waits else known.happened
    figures = f"{milliseconds(cause.tail_ms)} of {milliseconds(excess_ms)}"
    return f"{percent(cause.tail_share)} of the excess ({figures}) is {what}"


def late_words(lag_ms: float, median_ms: float) -> str | None:
    """A warning if the replay was too late for its percentiles to be meaningful, else ``None``.

    :param lag_ms: p99 of the replayer's lag.
    """
    if not is_late(lag_ms, median_ms):
        return None
    return (
        f"The replay sent requests up to {milliseconds(lag_ms)} late (p99; the median latency is "
        f"{milliseconds(median_ms)}): it was too slow for these percentiles to be meaningful."
    )


def _ended_early(record: RunRecord, ended: int) -> Iterator[str]:
    """Why some of the schedule has no record, or no answer."""
    if record.partial:
        missing = max(record.unrecorded(), 0)
        yield f"The run is partial ({record.meta.state}): {ended} requests were recorded and {missing} were not."
        hangs = [f"{message}." for message in _hangs(record)]
        yield from hangs or ([f"{record.meta.failure}."] if record.meta.failure else [])
    elif record.unrecorded() > 0:
        yield f"{record.unrecorded()} scheduled requests have no record."
    if record.meta.behind_s is not None:
        yield (
            f"Requests arrive faster than they are served: the replay was ended after {record.meta.behind_s:.0f} s, "
            "and requests without an answer by then count as lost."
        )


def warnings(
    record: RunRecord, evidence: Evidence, tail: Tail, causes: tuple[CauseSummary, ...], percentile: float
) -> list[str]:
    """What a reader must know before trusting the figures, one sentence each."""
    counts = record.counts()
    n, ended, live = tail.requests, sum(counts.values()), record.meta.source.get("kind") == LIVE
    notes = list(_ended_early(record, ended))
    if not n:
        notes.append("No request ended ok: there is nothing to diagnose.")
    elif n < _FEW_REQUESTS or tail.inside < _FEW_IN_TAIL:
        notes.append(_too_few(tail.inside, n, percentile, live=live))
    lost = counts["ok"] - n
    if lost > 0:
        notes.append(
            f"{counted(lost, 'request')} that ended ok have no record of their batch and are not in these figures."
        )
    if ended > counts["ok"]:
        parts = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "ok" and count)
        notes.append(
            f"{parts}: percentiles count them as slower than they had waited; the mean, the stages and the causes "
            f"cover the {counted(counts['ok'], 'request')} that ended ok."
        )
    notes += _failed_batches(record, n)
    unexplained = _tail_ms(causes, UNEXPLAINED)
    if unexplained < -MOST_UNEXPLAINED * max(tail.excess_ms, 0.0) - 0.1:
        notes.append(
            f"The causes claim {milliseconds(-unexplained)} more than the excess of slow requests over the reference."
        )
    notes += [f"{note}." for note in record.meta.setup_notes]
    if n and evidence.setup.outside:
        return notes + _invisible(evidence, record.meta, causes)
    first_use = sum(cause.tail_share for cause in causes if cause.cause.startswith(_FIRST_USE))
    if n and first_use >= _WORTH_A_NOTE:
        warm = live or bool(np.any(evidence.rows["warmup"])) or record.meta.warmup.get("batches", 0) > 0
        notes += _first_uses(evidence, first_use, warm=warm)
    if n:
        notes += _waiting_device(evidence)
    if n and not evidence.expected.models["compute"].accepted:
        notes.append(_no_model(evidence))
    return notes


def _first_uses(evidence: Evidence, share: float, *, warm: bool) -> list[str]:
    """What to do about first uses that make up a share of the tail.

    :param warm: there was a warm-up, or the service ran before.
    """
    late, every = late_shapes(evidence.batches)
    if first_uses_slow(evidence.norms) and late > _KEPT_COMING * every:
        padded = ", or with cuda_graphs = true" if evidence.setup.on_device else ""
        return [
            f"First use is {percent(share)} of the tail, and new shapes kept coming ({late} of {every} in the second "
            "half): warm-up cannot run them all, but batches can be padded to fewer shapes: in the adapter's "
            f"collate(){padded}."
        ]
    if warm:
        return []
    return [
        f"No warm-up requests were sent, and first use is {percent(share)} of the tail: "
        "warmup_requests = 10 in workload.toml excludes it."
    ]


def _waiting_device(evidence: Evidence) -> list[str]:
    """A device that mostly waits for the host, in typical batches: no cause of slow ones, but of them all."""
    profile, idle, quiet = evidence.setup.device_profile, idle_ns(evidence), evidence.quiet_batch
    if profile is None or idle is None or not quiet.any():
        return []
    waiting = float(np.median(idle[quiet]) / np.median(evidence.batches["device_ns"][quiet]))
    if waiting < _MOSTLY or profile.sync_share > _MOSTLY:
        return []
    return [
        f"In a typical batch the device waits for the host for {percent(waiting)} of the time, because it issues "
        f"{profile.launches:.0f} operators one by one: cuda_graphs = true issues them at once (fuse.cudagraph)."
    ]


def _invisible(evidence: Evidence, meta: RunMeta, causes: tuple[CauseSummary, ...]) -> list[str]:
    """What is not visible of a service behind an address."""
    notes, http = list[str](), meta.http
    if not evidence.process.cpu.known:
        pid, name = next(iter(http.get("listening", {}).items()), ("", ""))
        how = f"pass --pid; {pid} ({name}) listens there" if pid else "pass --pid if it runs on this machine"
        notes.append(f"The service's process was not watched: {how}.")
    elif beside := [f"{pid} ({http['listening'][str(pid)]})" for pid in http.get("beside", ())]:
        notes.append(
            f"Process {http['pid']} shares its connections with {', '.join(beside)}: all of them were watched."
        )
    elif evidence.setup.behind:
        todo, wrong = "its own queue is not seen", ""
        if not serves(evidence.rows, evidence.process):
            todo, wrong = (
                "pass the pid of the service behind it",
                ", and does not work when requests come: --pid is wrong",
            )
        notes.append(
            f"Process {http['pid']} ({http['program']}) does not listen at this address{wrong}. "
            f"{evidence.setup.behind} does; if that is a proxy, {todo}."
        )
    if evidence.setup.unknown_process:
        notes.append(evidence.setup.unknown_process)
    if evidence.told.note:
        notes.append(evidence.told.note)
    if evidence.setup.servers == 0 and "queue" not in evidence.told.parts:
        told = "waiting and being served cannot be told apart"
        if evidence.shared.cores:
            source = "its process's counters" if evidence.shared.watched else "how requests slow each other down"
            told = f"waits for the work of other requests are inferred from {source}"
        notes.append(f"The service does not behave as one queue in front of a fixed number of servers: {told}.")
    if (late := evidence.late_acks.get("compute")) is not None:
        notes.append(
            f"The time to the first byte of {percent(late.sum() / evidence.ok.sum())} of the answers is 40 to 45 ms "
            "and hardly ever slightly less: typical of a pause of fixed length, or of a message of the service to "
            "another that is written in two pieces without TCP_NODELAY, whose acknowledgment is delayed."
        )
    # Answers may wait that are not in the tail.
    acks = (cause for cause in causes if cause.cause == "network.delayed_ack" and not cause.named)
    notes += [f"{cause.evidence.partition('; ')[0]}." for cause in acks]
    return notes


def _too_few(inside: int, n: int, percentile: float, *, live: bool) -> str:
    """A warning with the number of requests needed and, for a replay, the option that produces them."""
    enough = max(round(100 * _FEW_IN_TAIL / max(100 - percentile, 1e-7)), _FEW_REQUESTS)
    times = math.ceil(enough / max(n, 1))
    more = f"--repeat {times} or a longer --duration" if times > 1 else "a longer --duration"
    how = "" if live else f" ({more})"
    return f"p{percentile:g} rests on {inside} of {counted(n, 'request')}; about {enough:,} would do{how}."


def _hangs(record: RunRecord) -> list[str]:
    """The hangs at the end of the run."""
    known = np.flatnonzero(record.events["kind"] == "hang")
    return [str(record.events["detail"][k].get("message", "")) for k in known.tolist()]


def _failed_batches(record: RunRecord, ok: int) -> list[str]:
    """A warning if batches of several requests failed, and requests ended ``ok`` all the same, alone."""
    several = record.batches["size"] > 1
    failed = int(np.count_nonzero(several & (record.batches["retried"] != 0)))
    if not failed or not ok:
        return []
    details = (detail for detail in record.events["detail"] if isinstance(detail, dict) and detail.get("retried"))
    why = "".join(f": {detail['message']}" for detail in itertools.islice(details, 1))
    batches = counted(int(np.count_nonzero(several)), "batch")
    return [f"{failed} of {batches} of several requests failed, and their members were served again one by one{why}."]


def _no_model(evidence: Evidence) -> str:
    samples = evidence.expected.models["compute"].samples
    if samples < _FEW_REQUESTS:
        return f"{samples} batches are too few to learn what inputs, batch size and padding cost."
    return "Compute time does not follow the inputs, batch size or padding: no time is attributed to them."
