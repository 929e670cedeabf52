"""Arms that replay the same traffic in turns (A B C, C B A, …), always on a fresh process, within a budget."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any

from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import LatfixError, RunnerError
from latfix.formatting import counted, significant
from latfix.profilers.causes.host.core_takers import disturbance, disturbed_replays
from latfix.profilers.fair_rounds import FairRounds
from latfix.profilers.latency_causes import explained
from latfix.results.answer_check import AnswerCheck
from latfix.results.comparison import Comparison, Trial, TriedIdea, compare_rounds, summarize
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.shared.device_memory_facts import by_device
from latfix.runners.measure.accuracy_guard import judge, score_of
from latfix.runners.optimize.screening_windows import LEAD_IN_S, SHORTEST_S, lead_in, slowest_stretch
from latfix.runners.replay.arm import Arm, Watch, patience_s
from latfix.runners.replay.run_session import Interrupted, new_folder, plain_name
from latfix.runners.side_by_side.ideas import Idea
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import slice_time

#: Rounds that must fit into the budget: if the whole traffic is too long for them, a stretch of it is replayed.
WANTED_ROUNDS = 3
#: Maximum number of rounds, unless more are requested.
MOST_ROUNDS = 15
#: Time of a replay beyond its traffic: the last requests, and the record.
_DRAIN_S = 1.5
#: Share of the budget that the first replay may take if the whole traffic does not fit.
_LOOK_SHARE = 0.25


@dataclass(slots=True)
class _Tried:
    """An arm and its results so far.

    :param records: of complete replays, by the number of their round.
    :param scored: fields of :class:`latfix.runners.measure.accuracy.Accuracy`; ``None`` before it is measured.
    """

    idea: Idea
    arm: Arm
    records: dict[int, RunRecord] = field(default_factory=dict)
    scored: Mapping[str, Any] | None = None
    starts_s: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def score(self) -> float | None:
        """Score of its answers; ``None`` before they are scored, or if none could be."""
        return None if self.scored is None else score_of(self.scored)


@dataclass
class SideBySide:
    """Ideas compared with the unmodified workload.

    :param ideas: the unmodified workload first.
    :param out: folder for the records.
    :param budget_s: seconds for everything; at least one round is replayed.
    :param rounds: number of rounds, if the budget allows; ``None`` for as many as fit.
    :param watch: shows a replay.
    :param say: shows a line.
    :param make_arm: makes an arm; tests replace it.
    :param clock: seconds of a monotonic clock.
    """

    ideas: InitVar[Sequence[Idea]]
    traffic: Traffic
    out: Path
    _: KW_ONLY
    budget_s: float = math.inf
    rounds: int | None = None
    seed: int = 0
    watch: Watch
    say: Callable[[str], None]
    make_arm: InitVar[Callable[[str, WorkloadSpec, Any, tuple[str, ...], Path], Arm]] = Arm
    clock: Callable[[], float] = time.monotonic
    _lead_in: Traffic | None = field(default=None, init=False)
    _looked: RunRecord | None = field(default=None, init=False)
    _notes: list[str] = field(default_factory=list, init=False)

    def __post_init__(self, ideas: Sequence[Idea], make_arm: Callable[..., Arm]) -> None:
        self._stretch, self._offset_s = self.traffic, 0.0
        self._scoring_s = self._scored_s = 0.0
        self._took_s: float | None = None
        self._deadline = self.clock() + self.budget_s
        log = self.out / "runner.log"
        arms = [_Tried(idea, make_arm(idea.name, idea.spec, idea.settings, idea.fixes, log)) for idea in ideas]
        self._base, self._ideas = arms[0], arms[1:]
        for tried in self._ideas:
            tried.arm.patience_s = self._patience_s
        for tried in arms:
            tried.arm.most_s = self.budget_s / (self._wanted * len(arms))

    def run(self) -> Trial:
        """Replay within the budget; on Ctrl-C return the complete rounds.

        :raises LatfixError: the unmodified workload does not run.
        """
        interrupted = False
        try:
            self._look()
            self._replay_rounds()
        except (Interrupted, KeyboardInterrupt):
            interrupted = True
        finally:
            for tried in (self._base, *self._ideas):
                tried.arm.close()
        return self._result(interrupted)

    @property
    def _wanted(self) -> int:
        return self.rounds or WANTED_ROUNDS

    def _left_s(self) -> float:
        return self._deadline - self.clock()

    def _patience_s(self) -> float:
        share_s = self.budget_s / (1 + len(self._ideas))
        return patience_s(share_s, self._left_s(), max(self._base.starts_s[0], self._scoring_s))

    def _look(self) -> None:
        """First replay of the unmodified workload: saves its answers, and decides how much traffic fits."""
        base, replays = self._base, self._wanted * (1 + len(self._ideas))
        self.say(f"{base.idea.name}: loading the model")
        base.arm.running()
        whole_s = self.traffic.duration_s - self.traffic.start_s
        fits = replays * (whole_s + _DRAIN_S + base.arm.start_s) <= self._left_s()
        looked_at, look_s = self.traffic, _LOOK_SHARE * self.budget_s
        if not fits and look_s < whole_s:
            self._offset_s = self.traffic.start_s
            first_s = float(self.traffic.arrival_ns[0]) / 1e9
            looked_at = slice_time(self.traffic, self._offset_s, max(self._offset_s + look_s, first_s + SHORTEST_S))
        self._stretch = looked_at
        self._measure(base, 1)
        if answers := (base.scored or {}).get("answers"):
            self._notes += AnswerCheck.from_json(answers).faults()
        if fits:
            return
        self._stretch = slowest_stretch(looked_at, base.records[1], self._each_s())
        if self._stretch is not looked_at:
            self._lead_in = lead_in(looked_at, base.records[1], self._stretch)
            del base.records[1]
            self._offset_s += float(self._stretch.metadata["transforms"][-1]["start_s"])
        if self._stretch is not self.traffic:
            self._notes.append(self._stretch_words(looked_at, whole_s))
            self.say(self._notes[-1])

    def _each_s(self) -> float:
        """Seconds of traffic in a replay, so that the rounds fill the budget.

        If that is too little for the wanted number of rounds, fewer and longer ones fill it.
        """
        left_s = self._left_s() - len(self._ideas) * self._scoring_s
        beyond_s = LEAD_IN_S + _DRAIN_S + self._base.starts_s[0]
        found = -beyond_s
        for rounds in range(self._wanted, 0, -1):
            found = left_s / (rounds * (1 + len(self._ideas))) - beyond_s
            if found >= SHORTEST_S:
                break
        return found

    def _stretch_words(self, looked_at: Traffic, whole_s: float) -> str:
        """Which part of the traffic is replayed, and why not all of it."""
        to_s = self._offset_s + self._stretch.duration_s
        chosen, unseen = f"the first {significant(to_s - self.traffic.start_s)} s of the traffic", ""
        if self._stretch is not looked_at:
            bounds = f"{significant(self._offset_s)} to {significant(to_s)}"
            chosen = f"seconds {bounds} of the traffic, with the most slow requests"
        if looked_at is not self.traffic:
            unseen = f"; only its first {significant(looked_at.duration_s)} s were searched for slow requests"
        arms = 1 + len(self._ideas)
        return (
            f"Replayed: {chosen}. The budget is too short to replay all {significant(whole_s)} s {self._wanted} "
            f"times for {arms} arms{unseen}."
        )

    def _replay_s(self) -> float:
        """About how long a replay takes on a fresh process."""
        return self._stretch.duration_s - self._stretch.start_s + _DRAIN_S + self._base.starts_s[0]

    def _round_s(self) -> float:
        """About how long the first round takes from now on."""
        lead_in_s = self._lead_in.duration_s if self._lead_in is not None else 0.0
        replays = len(self._ideas) + (1 not in self._base.records)
        return replays * (lead_in_s + self._replay_s()) + len(self._ideas) * self._scoring_s

    def _replay_rounds(self) -> None:
        arms = [self._base, *self._ideas]
        round_s = self._round_s()
        if round_s > max(self._left_s(), 0.0):
            enough = math.ceil(self._wanted * round_s / 60) + 1
            self._notes.append(
                f"The rest of the budget is too short for one round of {len(arms)} arms, about "
                f"{significant(round_s)} s, which is completed anyway: --budget {enough}m holds {self._wanted}."
            )
            self.say(self._notes[-1])
        for number in range(1, (self.rounds or MOST_ROUNDS) + 1):
            started, scored_s = self.clock(), self._scored_s
            for tried in arms if number % 2 else arms[::-1]:
                if not tried.failure and number not in tried.records:
                    self._try(tried, number)
            # Answers are scored only once. The first arm's first replay may have been before the round.
            took_s = self.clock() - started - (self._scored_s - scored_s)
            if number == 1 and self._looked is self._base.records.get(1):
                took_s += self._replay_s()
            self._took_s = took_s
            if self._base.failure or all(tried.failure for tried in self._ideas) or self._left_s() < took_s:
                return

    def _try(self, tried: _Tried, number: int) -> None:
        """One replay; an arm that fails is not replayed again."""
        try:
            self._measure(tried, number)
        except LatfixError as error:
            tried.failure = error.message
            self.say(f"{tried.idea.name}: failed: {error.message}")

    def _measure(self, tried: _Tried, number: int) -> None:
        """One replay on a fresh process; the arm's first one is scored."""
        folder = new_folder(self.out / f"{plain_name(tried.idea.name[:80], 'idea')}-{number}")
        try:
            if self._lead_in is not None:
                earlier = folder.with_name(f"{folder.name}-lead-in")
                tried.arm.replay(earlier, self._lead_in, self.watch, seed=self.seed)
            record = tried.arm.replay(folder, self._stretch, self.watch, seed=self.seed)
            tried.starts_s.append(tried.arm.start_s)
            if not record.counts()["ok"]:
                first = next(iter(record.errors.values()), "none ended in time")
                raise RunnerError(f"no request ended ok; the first one: {first}")
            tried.records[number] = record
            if tried.scored is None:
                started = self.clock()
                tried.scored = self._score(tried.arm, record)
                self._scoring_s = self.clock() - started
                self._scored_s += self._scoring_s
        finally:
            tried.arm.close()

    def _score(self, arm: Arm, record: RunRecord) -> Mapping[str, Any]:
        """The accuracy, on the requests of the first replay: the first arm saves its answers as the reference."""
        reference = str(self.out / "outputs.npz")
        ways: dict[str, Any] = {"reference": reference, "max_drop": self._max_drop}
        if self._looked is None:
            self._looked, ways = record, {"save": reference}
        found: Mapping[str, Any] = arm.ask("evaluate", folder=str(self._looked.folder), **ways)
        return found

    @property
    def _max_drop(self) -> float:
        return self._base.idea.spec.objective.max_accuracy_drop

    def _result(self, interrupted: bool) -> Trial:
        base, seed = self._base, self.seed
        records = list(base.records.values())
        replays = [record for tried in (base, *self._ideas) for record in tried.records.values()]
        found = [self._idea_result(tried) for tried in self._ideas]
        compared = [idea.comparison for idea in found if idea.comparison is not None]
        running = [tried for tried in self._ideas if not tried.failure]
        trial = Trial(
            workload=base.idea.spec.name,
            device=self._looked.meta.device if self._looked else base.idea.settings.device,
            base=self._idea_result(base),
            summary=summarize(records, seed=seed, accuracy=base.score) if records else None,
            ideas=tuple(found),
            judged=compared[0].judged if compared else "p99",
            rounds=len(set.intersection(*(set(tried.records) for tried in (base, *running)))),
            from_s=self._offset_s + self._stretch.start_s,
            to_s=self._offset_s + self._stretch.duration_s,
            requests=len(self._stretch),
            whole=self._stretch is self.traffic,
            accuracy_limit=None if base.score is None else base.score - self._max_drop,
            interrupted=interrupted,
            failure=base.failure,
            disturbed=disturbed_replays([disturbance(record.samples) for record in replays]),
            notes=(*self._failed_requests(), *self._not_in_effect(), *self._notes),
        )
        return self._explained(trial)

    def _failed_requests(self) -> Iterator[str]:
        """Why requests failed; what failed in the same way in an earlier arm is left out."""
        seen = set[str]()
        for tried in (self._base, *self._ideas):
            for errors in (record.errors for record in tried.records.values() if record.errors):
                if (first := errors[min(errors)]) not in seen:
                    seen.add(first)
                    count = counted(len(errors), "request")
                    yield f"{tried.idea.name}: {count} of a replay failed; the first: {first}."

    def _not_in_effect(self) -> Iterator[str]:
        """Settings of ideas that the machine or the model did not allow."""
        known = {note for record in self._base.records.values() for note in record.meta.setup_notes}
        for tried in self._ideas:
            notes = (note for record in tried.records.values() for note in record.meta.setup_notes)
            yield from (f"{tried.idea.name}: {note}." for note in dict.fromkeys(notes) if note not in known)

    def _explained(self, trial: Trial) -> Trial:
        """The trial, with the reason for the difference of its leading idea."""
        leading = trial.leading
        if leading is None or leading.comparison is None:
            return trial
        tried = next(each for each in self._ideas if each.idea.name == leading.name)
        before, after = zip(*self._counted(tried)[0], strict=True)
        idea = replace(leading, comparison=explained(leading.comparison, before, after, seed=self.seed))
        return replace(trial, ideas=tuple(idea if each is leading else each for each in trial.ideas))

    def _idea_result(self, tried: _Tried) -> TriedIdea:
        before, original = self._base.idea.settings.to_json(), self._base.score
        after = tried.idea.settings.to_json()
        accurate, reason = None, ""
        if tried.scored is not None and original is not None and tried is not self._base:
            accurate, reason = judge(tried.scored, original, self._max_drop)
        replays = list(tried.records.values())
        reserved = [
            int(known.get("reserved_peak_bytes") or 0) for record in replays for known in by_device(record).values()
        ]
        return TriedIdea(
            name=tried.idea.name,
            settings={key: value for key, value in after.items() if value != before[key]},
            fixes=tried.idea.fixes,
            failure=tried.failure,
            comparison=None if tried is self._base or tried.failure else self._compared(tried),
            accuracy=tried.score,
            accurate=accurate,
            accuracy_reason=reason,
            memory_bytes=max((record.meta.memory.peak_bytes for record in replays), default=0),
            device_memory_bytes=max(reserved, default=0),
            start_s=statistics.median(tried.starts_s) if tried.starts_s else None,
            record=replays[-1].folder.name if replays else "",
        )

    def _counted(self, tried: _Tried) -> tuple[list[tuple[RunRecord, RunRecord]], list[str]]:
        """The rounds that both completed and that count, and what was left out. If all were late, all count."""
        base, fair = self._base, FairRounds()
        pairs = [(base.records[k], tried.records[k]) for k in sorted(base.records.keys() & tried.records.keys())]
        for pair in pairs:
            fair.add(*pair)
        some = [pairs[k] for k in fair.counted]
        return some or pairs, list(fair.notes()) if some else []

    def _compared(self, tried: _Tried) -> Comparison | None:
        pairs, left_out = self._counted(tried)
        if not pairs:
            return None
        self._notes += [f"{tried.idea.name}: {each}." for each in left_out]
        before, after = zip(*pairs, strict=True)
        scores = (self._base.score, tried.score)
        compared = compare_rounds(before, after, seed=self.seed, accuracy=scores)
        return replace(compared, more_by="--budget", round_s=self._took_s)
