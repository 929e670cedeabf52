"""Comparison of runs, or of rounds of two or more arms: what changed, and with what confidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints
from latfix.files.json_documents import HIDDEN, Document, json_key
from latfix.formatting import count, counted, finite, html_table, interval, key_label, ratio, significant, visible
from latfix.gates.evaluate import MOST_LOST, GateResult
from latfix.gates.latency_change import LatencyChange
from latfix.gates.subject import GateSubject
from latfix.lower_bound import AtLeast
from latfix.run_record.dispatch_lag import is_on_time
from latfix.run_record.run_record import RunRecord, throughput_rps
from latfix.stages import STATUS_NAMES, Status, status_counts
from latfix.statistics.bootstrap_ratio import arm_ratios
from latfix.statistics.censored import Outcomes, beyond_any
from latfix.statistics.decision import FINAL, RatioEstimate, Rule, Verdict, judge
from latfix.statistics.group_sequential import Need, needed
from latfix.statistics.score_bounds import FREE_OF_ALLOWANCE, allowance

RATIO_KEYS: tuple[str, ...] = ("mean", "p50", "p90", "p95", "p99")
_UNDECIDED = "undecided: about"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Document):
    """One arm.

    :param latency_ms: by :data:`latfix.statistics.latency_summary.LATENCY_KEYS`: percentiles of all that arrived,
        ``null`` with ``p99_at_least`` if lost, and the mean of those that ended ``ok``.
    :param latency_ms_ok: the same over the requests that ended ``ok`` alone.
    :param requests: how many ended in each status.
    :param accuracy: the workload's score; ``None`` if it was not measured.
    :param trustworthy: false if the replay was too late for its latencies to mean anything.
    :param partial: one of its replays did not reach its end.
    :param memory_bytes: peak resident memory of the process in any replay; ``None`` if not recorded.
    :param device_memory_bytes: peak reserved memory on all devices together; ``None`` likewise.
    :param start_s: seconds to load the model and to warm up, the median of the replays' processes.
    """

    latency_ms: Mapping[str, float]
    latency_ms_ok: Mapping[str, float] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    latency_ci95_ms: Mapping[str, tuple[float, float]]
    throughput_rps: float
    requests: Mapping[str, int]
    accuracy: float | None = None
    trustworthy: bool = True
    partial: bool = field(default=False, metadata=json_key(omit_empty=True))
    memory_bytes: int | None = field(default=None, metadata=json_key(omit_empty=True))
    device_memory_bytes: int | None = field(default=None, metadata=json_key(omit_empty=True))
    start_s: float | None = field(default=None, metadata=json_key(omit_empty=True))

    @property
    def success(self) -> float:
        """Share of requests that ended ``ok``; 0 if none ended."""
        total = sum(self.requests.values())
        return self.requests.get("ok", 0) / total if total else 0.0

    def gate_subject(self) -> GateSubject:
        """The input of gates on this arm alone."""
        return GateSubject(
            latency_ms=self.latency_ms,
            requests=self.requests,
            latency_ci95_ms=self.latency_ci95_ms,
            throughput_rps=self.throughput_rps,
            accuracy=self.accuracy,
            trustworthy=self.trustworthy,
            partial=self.partial,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Document):
    """What changed from ``before`` to ``after``: ``comparison.json``.

    :param ratio: after over before by ``RATIO_KEYS``, with 95 % intervals and the decision bounds.
    :param judged: the key of ``ratio`` that the verdict is about.
    :param paired: the same traffic was replayed, so that what both arms share cancels.
    :param rounds: the number of pairs of replays.
    :param more_rounds: about how many more would decide it; ``None`` if decided, or beyond estimation.
    :param only_before_ok: paired requests that ended ``ok`` in the first arm only; the other likewise.
    :param notes: what a reader must know, one sentence each.
    :param gates: gates that the comparison was evaluated against.
    :param why: which stages and causes account for the difference of the judged and the gated latencies.
    :param same_run: every request took the same time in both, to the nanosecond: one run, compared with itself.
    :param disturbed: how other processes disturbed the replays; empty if none is known.
    :param records: folders of the runs that pages draw, ``base`` and ``new``.
    :param more_by: the option that replays more rounds, ``--rounds`` or ``--budget``; empty for recorded runs.
    :param round_s: seconds that a round of replays took, with the starts; ``None`` if unknown.
    :param smallest: the smallest relevant difference; not in the document.
    """

    SCHEMA: ClassVar[str] = "latfix.comparison/1"

    verdict: Verdict
    judged: str = "p99"
    before: Summary
    after: Summary
    ratio: Mapping[str, RatioEstimate]
    paired: bool = True
    rounds: int = 1
    more_rounds: int | None = None
    only_before_ok: int = 0
    only_after_ok: int = 0
    notes: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = field(default=(), metadata=json_key(omit_empty=True))
    why: tuple[LatencyChange, ...] = field(default=(), metadata=json_key(omit_empty=True))
    same_run: bool = field(default=False, metadata=json_key(omit_empty=True))
    disturbed: str = field(default="", metadata=json_key(omit_empty=True))
    records: Mapping[str, str] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    more_by: str = field(default="", metadata=json_key(omit_empty=True))
    round_s: float | None = field(default=None, metadata=json_key(omit_empty=True))
    smallest: float = field(default=0.05, metadata=HIDDEN)

    @property
    def answered_more(self) -> bool:
        """True if the new arm answered more of the requests, slow ones too: a higher mean is not against it."""
        return self.after.success > self.before.success + MOST_LOST

    @property
    def rounds_to_decide(self) -> int | None:
        """How many more rounds decide: the most that an undecided gate needs; for the verdict without gates."""
        if not self.gates:
            return self.more_rounds
        total = max(sum(self.after.requests.values()), 1)
        requests = [gate.more_requests for gate in self.gates if gate.passed is None and gate.more_requests]
        return max((max(round(more * self.rounds / total), 1) for more in requests), default=None)

    def gated(self, gates: Sequence[GateResult]) -> Comparison:
        """With gates; how much more data would decide is then stated for them, not for the verdict."""
        if not gates:
            return self
        notes = tuple(note for note in self.notes if not note.startswith(_UNDECIDED))
        return replace(self, gates=tuple(gates), notes=notes)

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, and both arms' latencies with their ratios."""
        verdict = f"{self.verdict.replace('_', ' ')}, by {key_label(self.judged)}"
        columns = ("", "base", "new", "ratio", "95 % interval")
        return html_table(verdict, self.notes, columns, latency_rows(self.before, self.after, self.ratio))

    def gate_subjects(self) -> tuple[GateSubject, GateSubject]:
        """The input of gates: the new arm, which carries the ratio, and the baseline."""
        return replace(self.after.gate_subject(), ratio=self.ratio), self.before.gate_subject()


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedIdea(Document):
    """One arm of a trial: the unmodified workload, or one with changes.

    :param name: as on the command line.
    :param settings: differences from the unmodified workload, by key.
    :param fixes: ids of the plan's fixes, if it is a plan.
    :param failure: why it did not run, in which case it has no comparison; empty if it did.
    :param comparison: with the unmodified workload, over the rounds that both completed; ``None`` for that itself.
    :param accuracy: its score; ``None`` if it was not measured.
    :param accurate: within the objective's limit; ``None`` likewise, or if the requests are too few to tell.
        ``accuracy_reason`` has the figures.
    :param memory_bytes: peak resident memory of its process; ``device_memory_bytes`` reserved on one device.
    :param start_s: seconds until its process could serve, the median of its starts.
    :param record: folder of its last replay, relative to the trial's; empty without one.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fixes: tuple[str, ...] = ()
    failure: str = ""
    comparison: Comparison | None = None
    accuracy: float | None = None
    accurate: bool | None = None
    accuracy_reason: str = ""
    memory_bytes: int = 0
    device_memory_bytes: int = 0
    start_s: float | None = None
    record: str = field(default="", metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Document):
    """Ideas side by side on the same traffic: ``trial.json``.

    :param base: the unmodified workload; ``summary`` has its latencies over all rounds, ``None`` before the first.
    :param judged: the key of the ratios that verdicts are about.
    :param rounds: complete ones.
    :param from_s: where in the traffic the replayed stretch begins, and ``to_s`` where it ends.
    :param requests: in one replay.
    :param whole: all of the traffic was replayed.
    :param accuracy_limit: the lowest score that an idea may have; ``None`` before one was measured.
    :param interrupted: Ctrl-C ended it; completed rounds are included.
    :param failure: why the unmodified workload could not be run any more; empty if it could.
    :param disturbed: how other processes disturbed the replays; empty if none is known.
    :param origin: ``started``, ``host``, ``command``, ``commit`` and ``branch``, if known.
    """

    SCHEMA: ClassVar[str] = "latfix.trial/1"
    COMPUTED: ClassVar[tuple[str, ...]] = ("best",)

    workload: str
    device: str
    base: TriedIdea
    summary: Summary | None
    ideas: tuple[TriedIdea, ...]
    judged: str = "p99"
    rounds: int
    from_s: float
    to_s: float
    requests: int
    whole: bool
    accuracy_limit: float | None = None
    interrupted: bool = False
    failure: str = ""
    disturbed: str = field(default="", metadata=json_key(omit_empty=True))
    notes: tuple[str, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict, metadata=json_key(omit_empty=True))

    @property
    def best(self) -> str:
        """The decisively better idea within the limit of accuracy with the least ratio; empty if there is none."""
        found = [
            (idea.comparison.ratio[self.judged].value, idea.name)
            for idea in self.ideas
            if idea.comparison is not None and idea.comparison.verdict == "better" and idea.accurate
        ]
        return min(found, default=(1.0, ""))[1]

    @property
    def leading(self) -> TriedIdea | None:
        """The idea with the least ratio, of those within the accuracy limit, proved better or not."""
        known = [
            (estimate.value, place, idea)
            for place, idea in enumerate(self.ideas)
            if idea.comparison is not None
            and idea.accurate is not False
            and (estimate := idea.comparison.ratio.get(self.judged)) is not None
            and not math.isnan(estimate.value)
        ]
        return min(known)[2] if known else None

    @property
    def leader(self) -> TriedIdea | None:
        """The best idea; without one, :attr:`leading`."""
        return next((idea for idea in self.ideas if idea.name == self.best), None) or self.leading


def latency_rows(before: Summary, after: Summary, ratios: Mapping[str, RatioEstimate]) -> Iterator[tuple[str, ...]]:
    """Both arms' latencies with their ratios and intervals, as text."""
    for key, step in ratios.items():
        both = (significant(arm.latency_ms.get(key)) for arm in (before, after))
        yield (f"{key_label(key)}, ms", *both, ratio(step.value), interval((step.lo, step.hi)))


def summarize(records: Sequence[RunRecord], *, seed: int = 0, accuracy: float | None = None) -> Summary:
    """Summarize the replays of one arm."""
    return _summary(records, [_arm(record, _size(record)) for record in records], seed, accuracy)


def compare_records(base: RunRecord, new: RunRecord, *, seed: int = 0) -> Comparison:
    """Compare two runs, complete or not; see :func:`compare_rounds`."""
    return compare_rounds([base], [new], seed=seed)


def compare_rounds(
    base: Sequence[RunRecord],
    new: Sequence[RunRecord],
    *,
    seed: int = 0,
    smallest: float = 0.05,
    accuracy: tuple[float | None, float | None] | None = None,
    rule: Rule = FINAL,
    judged: str | None = None,
    control: npt.ArrayLike | None = None,
) -> Comparison:
    """Compare rounds of two arms, replayed in turns.

    If the two runs of a round replayed the same traffic, they are paired request by request, over those
    that both recorded (a partial run lacks the rest). The verdict is about the objective's
    percentile, for which lost requests count as slower than any other. It is not ``better`` or
    ``no_difference`` if the new arm lost more than one request in a hundred more than the base (losses unload the
    service), if it lost any more and the mean is judged, or if a run is partial.

    :param base: one record per round, in order.
    :param smallest: see :func:`latfix.statistics.decision.judge`.
    :param accuracy: of the two arms; ``None`` for that in the records' ``run.json``.
    :param judged: the key of ``RATIO_KEYS`` that the verdict is about; by default the workload's percentile.
    :param rule: the confidence that the verdict needs; the level of a look if the comparison goes on
        (:func:`latfix.statistics.group_sequential.look_level`).
    :param control: see :func:`latfix.statistics.bootstrap_ratio.arm_ratios`.
    :raises ValueError: no rounds, or not equally many.
    """
    pairs = [_Pair.of(first, second) for first, second in zip(base, new, strict=True)]
    if not pairs:
        raise ValueError("no rounds to compare")
    paired = all(pair.same_traffic for pair in pairs)
    scores = accuracy or (_accuracy(base), _accuracy(new))
    before = _summary(base, [pair.base for pair in pairs], seed, scores[0])
    after = _summary(new, [pair.new for pair in pairs], seed, scores[1])
    ratio = _ratios(pairs, before, after, seed=seed, rule=rule, paired=paired, control=control)
    judged = judged or objective_key(new[0])
    verdict, verdict_notes = _judged(before, after, ratio[judged], smallest, mean=judged == "mean")
    need = None
    if verdict == "undecided" and before.trustworthy and after.trustworthy:
        need = needed(ratio[judged], sum(after.requests.values()), smallest=smallest)
        verdict_notes += _undecided_notes(ratio[judged], need, rule)
    return Comparison(
        before=before,
        after=after,
        ratio=ratio,
        verdict=verdict,
        judged=judged,
        smallest=smallest,
        paired=paired,
        rounds=len(pairs),
        more_rounds=None if need is None else need.rounds,
        only_before_ok=sum(pair.ok_only(pair.base, pair.new) for pair in pairs),
        only_after_ok=sum(pair.ok_only(pair.new, pair.base) for pair in pairs),
        same_run=all(pair.same_run for pair in pairs),
        notes=(*verdict_notes, *_pair_notes(pairs, paired), *_differences(base, new)),
    )


@dataclass(frozen=True, slots=True)
class _Arm:
    """One run's requests by position in its schedule.

    ``waited`` is nanoseconds until they ended in any status; ``status`` is -1 if not recorded or not compared.
    """

    waited: Floats
    status: Ints

    def limited(self, keep: Bools) -> _Arm:
        return _Arm(self.waited, np.where(keep, self.status, -1))

    @property
    def answers(self) -> Floats:
        """Latencies; NaN if not ``ok``."""
        return np.where(self.status == Status.OK, self.waited, math.nan)

    @property
    def series(self) -> Floats:
        """Latencies; infinite if lost, NaN if not recorded."""
        return np.where(self.recorded, np.where(self.status == Status.OK, self.waited, math.inf), math.nan)

    @property
    def outcomes(self) -> Outcomes:
        """Outcomes of the recorded requests."""
        return Outcomes.of(self.waited[self.recorded], self.status[self.recorded])

    @property
    def recorded(self) -> Bools:
        return np.asarray(self.status >= 0)


@dataclass(frozen=True, slots=True)
class _Pair:
    base: _Arm
    new: _Arm
    same_traffic: bool
    left_out: int

    @classmethod
    def of(cls, first: RunRecord, second: RunRecord) -> _Pair:
        digests = [record.meta.traffic_sha256 for record in (first, second)]
        same = digests[0] is not None and digests[0] == digests[1]
        size = max(_size(first), _size(second))
        base, new = _arm(first, size if same else _size(first)), _arm(second, size if same else _size(second))
        if not same:
            return cls(base, new, False, 0)
        both = base.recorded & new.recorded
        left_out = int(np.count_nonzero(base.recorded != new.recorded))
        return cls(base.limited(both), new.limited(both), True, left_out)

    @property
    def same_run(self) -> bool:
        base, new = (arm.waited[arm.recorded] for arm in (self.base, self.new))
        return len(base) > 0 and np.array_equal(base, new)

    def ok_only(self, one: _Arm, other: _Arm) -> int:
        if not self.same_traffic:
            return 0
        return int(np.count_nonzero((one.status == Status.OK) & (other.status != Status.OK)))


def _size(record: RunRecord) -> int:
    index = record.requests["index"][record.measured]
    return int(index.max()) + 1 if len(index) else 0


def _arm(record: RunRecord, size: int) -> _Arm:
    measured = record.measured
    index = record.requests["index"][measured]
    status = np.full(size, -1, dtype=np.int64)
    status[index] = record.requests["status"][measured]
    waited = np.zeros(size)
    waited[index] = record.requests["latency_ns"][measured]
    return _Arm(waited, status)


def _ratios(
    pairs: Sequence[_Pair],
    before: Summary,
    after: Summary,
    *,
    seed: int,
    rule: Rule,
    paired: bool,
    control: npt.ArrayLike | None,
) -> dict[str, RatioEstimate]:
    """New over base. Lost requests count as slower than any answer, but are not part of the mean."""
    answers = ([pair.base.answers for pair in pairs], [pair.new.answers for pair in pairs])
    found = arm_ratios(*answers, seed=seed, keys=RATIO_KEYS, rule=rule, paired=paired, control=control)
    if before.success == after.success == 1.0:
        return found
    arms = beyond_any([pair.base.series for pair in pairs], [pair.new.series for pair in pairs])
    # A lost request has no latency that could be averaged over rounds: blocks count it.
    every = arm_ratios(*arms, seed=seed, keys=RATIO_KEYS, rule=rule, paired=paired)
    lost = {key for arm in (before, after) for key, value in arm.latency_ms.items() if isinstance(value, AtLeast)}
    return {key: found[key] if key == "mean" else replace(every[key], lost=key in lost) for key in found}


def _summary(records: Sequence[RunRecord], arms: Sequence[_Arm], seed: int, accuracy: float | None) -> Summary:
    status = np.concatenate([arm.status for arm in arms])
    outcomes = Outcomes.joined([arm.outcomes for arm in arms])
    return Summary(
        latency_ms=outcomes.summary_ms(),
        latency_ms_ok=Outcomes.answers(outcomes.ok_ns).summary_ms(),
        latency_ci95_ms=outcomes.intervals_ms(seed=seed),
        throughput_rps=throughput_rps(records),
        requests=status_counts(np.bincount(status[status >= 0], minlength=len(STATUS_NAMES)).tolist()),
        accuracy=accuracy,
        trustworthy=all(is_on_time(record) for record in records),
        partial=any(record.partial for record in records),
        **costs(records),
    )


def costs(records: Sequence[RunRecord]) -> dict[str, Any]:
    """The cost of one arm's replays besides time: ``memory_bytes``, ``device_memory_bytes``, ``start_s``.

    Each is ``None`` if no record has it.
    """
    starts = [record.meta.load_s for record in records]
    warm = [finite(record.meta.warmup.get("seconds")) or 0.0 for record in records]
    known = [start + more for start, more in zip(starts, warm, strict=True) if start]  # 0 behind an address
    return {
        "memory_bytes": max((record.meta.memory.peak_bytes for record in records), default=0) or None,
        "device_memory_bytes": max(map(_reserved_bytes, records), default=0) or None,
        "start_s": float(np.median(known)) if known else None,
    }


def _reserved_bytes(record: RunRecord) -> int:
    first = record.meta.device_memory
    return sum(int(known.get("reserved_peak_bytes") or 0) for known in (first, *first.get("others", {}).values()))


def _accuracy(records: Sequence[RunRecord]) -> float | None:
    scores = (record.meta.accuracy for record in records)
    return next((score for score in scores if score is not None and math.isfinite(score)), None)


def objective_key(record: RunRecord) -> str:
    """The key of ``RATIO_KEYS`` for the workload's objective; p99 where that is not among them."""
    key = f"p{record.meta.objective.percentile:g}"
    return key if key in RATIO_KEYS else "p99"


def _judged(
    before: Summary, after: Summary, estimate: RatioEstimate, smallest: float, *, mean: bool
) -> tuple[Verdict, list[str]]:
    verdict, notes = judge(estimate, smallest=smallest), []
    lost = before.success - after.success
    ended = (
        f"{100 * after.success:.1f} % of the new run's requests ended ok, {100 * before.success:.1f} % of the base's"
    )
    if lost > (0.0 if mean else MOST_LOST):
        if verdict in ("better", "no_difference"):
            verdict = "undecided"
        notes.append(f"{ended}: losses unload the service, so latencies cannot show that it is better")
    elif abs(lost) > MOST_LOST:
        notes.append(f"{ended}: percentiles count lost requests as slower, the mean is of the others")
    partial = [name for name, arm in (("base", before), ("new", after)) if arm.partial]
    if partial and verdict in ("better", "no_difference"):
        verdict = "undecided"
        notes.append(f"{' and '.join(partial)} did not reach its end: a part of the traffic decides nothing")
    late = [name for name, arm in (("base", before), ("new", after)) if not arm.trustworthy]
    if late:
        verdict = "undecided"
        notes.append(f"the replay of {' and '.join(late)} was too late for its latencies to mean anything")
    return verdict, notes


def _undecided_notes(estimate: RatioEstimate, need: Need | None, rule: Rule) -> Iterator[str]:
    """Notes on a difference that a restart alone may have caused, and on how much more data would decide."""
    if estimate.rounds < FREE_OF_ALLOWANCE and not estimate.lo <= 1.0 <= estimate.hi:
        rounds = "one round" if estimate.rounds == 1 else f"{estimate.rounds} rounds"
        least = math.expm1(allowance(np.zeros(estimate.rounds), rule))
        yield (
            f"{rounds} cannot distinguish a difference below about {100 * least:.0f} % from the effect of a restart "
            "on a whole replay"
        )
    if need is not None:
        requests = counted(need.requests, "more request")
        more = counted(need.rounds, "more round")
        yield f"{_UNDECIDED} {more} on fresh processes ({requests} of each) would decide it"


def _pair_notes(pairs: Sequence[_Pair], paired: bool) -> Iterator[str]:
    if not paired:
        yield "the traffic differs: the runs are compared as wholes, not request by request"
        return
    base = sum(pair.ok_only(pair.base, pair.new) for pair in pairs)
    new = sum(pair.ok_only(pair.new, pair.base) for pair in pairs)
    if base or new:
        yield f"{counted(base, 'request')} ended ok in the base only, {count(new)} in the new run only"
    left_out = sum(pair.left_out for pair in pairs)
    if left_out:
        yield f"left out: {counted(left_out, 'request')} that only one of the runs recorded"


def _differences(base: Sequence[RunRecord], new: Sequence[RunRecord]) -> Iterator[str]:
    for name, records in (("base", base), ("new", new)):
        partial = [record for record in records if record.partial]
        if partial:
            missing = sum(record.unrecorded() for record in partial)
            yield f"{name} is partial: {counted(missing, 'scheduled request')} without a record"
        if behind := [record.meta.behind_s for record in records if record.meta.behind_s is not None]:
            yield (
                f"requests arrive faster than {name} serves them: its replay was ended after {min(behind):.0f} s, "
                "and requests without an answer by then count as lost"
            )
    first, second = base[0].meta, new[0].meta
    # Two services may have any names; the same traffic was sent to both.
    if first.workload != second.workload and first.traffic_sha256 != second.traffic_sha256:
        yield f"the workload differs: {first.workload} -> {second.workload}"
    if first.device != second.device:
        yield f"the device differs: {first.device} -> {second.device}"
    for words, table, others in (
        ("the machine differs", first.machine, second.machine),
        ("versions differ", first.versions, second.versions),
        ("settings", first.settings.to_json(), second.settings.to_json()),
    ):
        if changes := list(_changes(table, others)):
            yield f"{words}: {', '.join(changes)}"


def _table(value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {} if value is None else {"": value}


def _changes(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """``key old -> new`` for every value that differs; nested tables key by key."""
    for key in dict.fromkeys((*first, *second)):
        old, new = first.get(key), second.get(key)
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            yield from _changes(_table(old), _table(new), f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key} {_short(old)} -> {_short(new)}".strip()


def _short(value: Any) -> str:
    return "unset" if value is None else visible(value, limit=60)
