"""``latfix optimize``: baseline, diagnosis, the search, and the interleaved replay that proves the plan."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import LatfixError, RunnerError
from latfix.profilers.diagnose import diagnose
from latfix.profilers.forecast.settings_forecast import Forecast
from latfix.results.answer_check import AnswerCheck
from latfix.results.comparison import RATIO_KEYS, Comparison
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import BUDGET, Candidate
from latfix.results.optimization_step import KEYS, Shares, Step
from latfix.run_record.run_meta import write_meta
from latfix.run_record.run_record import RunRecord
from latfix.runners.answers import plain_archive
from latfix.runners.fixes import FIXES, Applied, Fix
from latfix.runners.fixes.shared.conditions import need
from latfix.runners.optimize.configuration import Obstacle
from latfix.runners.optimize.final_replay import Proof, prove
from latfix.runners.optimize.findings import Trial
from latfix.runners.optimize.journal import Journal, entries_of
from latfix.runners.optimize.measurement import Bench, lead_in_s
from latfix.runners.optimize.predicted_configurations import Bounds, Planner, trusted
from latfix.runners.optimize.screening_decision import SMALLEST
from latfix.runners.optimize.screening_decision import shown as words
from latfix.runners.optimize.screening_windows import busiest_stretch, lead_in, served_part, window_bounds
from latfix.runners.optimize.search import Search
from latfix.runners.replay.arm import Arm, Watch, start_at_once
from latfix.runners.replay.run_session import Interrupted, new_folder, schedule_digest
from latfix.settings import RunnerSettings
from latfix.statistics.decision import RatioEstimate
from latfix.statistics.latency_summary import QUANTILES
from latfix.traffic.schedule import Traffic

#: Share of the budget for the final replay.
_FINAL_SHARE = 1 / 3
#: Maximum length of the baseline, as a share of the budget: longer traffic is cut to its busiest stretch.
_BASELINE_SHARE = 0.25
#: Time for what follows the final replay (comparison, diagnosis, report), as a multiple of one diagnosis.
_REPORTS = 3.0
#: Number of fixes, those with the largest predicted part, whose gain is also measured by replays of the plan without.
_LEFT_OUT = 2
#: If none of at least this many answers differs between a batch and alone, all are taken to be the same.
_COMPARED = 16
#: Minimum number of requests in a run for a forecast.
_FORECAST_FROM = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long to search, and with which fixes.

    :param budget_s: seconds for everything, including the baseline and the final replay.
    :param only: ids of the fixes to try; empty for all.
    :param exclude: ids of fixes not to try.
    :param trials: maximum number of candidates to replay; ``None`` for no limit.
    :param goal: the statistic of latency to minimize; ``None`` for the workload's percentile.
    :param throughput: send requests faster than the service can serve them (:mod:`offered_load`).
    :param started: :func:`time.monotonic` at which the budget starts; ``None`` for now.
    :param undecided: true for a comparison of the final replay that decides not every gate; ``None`` without gates.
    """

    budget_s: float = 300.0
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    seed: int = 0
    trials: int | None = None
    goal: str | None = None
    throughput: bool = False
    started: float | None = None
    undecided: Callable[[Comparison], bool] | None = None


@dataclass(slots=True)
class Outcome:
    """Result of an optimization.

    :param accuracy: of the first settings.
    :param accuracy_limit: minimum that the workload's objective allows.
    :param final: interleaved replay of the first and the last settings; ``None`` if no fix was kept, or the search
        was interrupted before it.
    :param before: last final replay without the fixes, ``after`` with them; ``None`` if there is none.
    :param failure: why the service stopped working after the baseline; empty if it did not.
    :param layers: measured sensitivity of layers, if quantizing all of them cost too much accuracy.
    :param answers: how answers are compared, and whether the baseline answers differently in a batch.
    :param proved: ids of the fixes that the final replay tested together.
    :param predicted: by statistic, the predicted ratio over the traffic of the final replay for all kept fixes
        together, with measured compute; empty without a forecast. ``at_pace`` is the same at the pace of that
        replay's batches.
    :param shares: by kept fix, its part of the prediction (:meth:`Planner.shares`).
    :param adds: by fix, the measured ratio of the whole plan over the plan without it.
    :param trials: replayed configurations; ``candidates`` also holds those that were only measured.
    :param floor_ms: see :class:`latfix.results.optimization.Optimization`.
    :param forecast_error: error of the forecast for the settings that ran, as a share; ``None`` without a forecast.
    """

    baseline: RunRecord
    diagnosis: Diagnosis
    accuracy: float
    accuracy_kind: str
    accuracy_limit: float
    steps: list[Step] = field(default_factory=list)
    settings: RunnerSettings = field(default_factory=RunnerSettings)
    final: Comparison | None = None
    before: RunRecord | None = None
    after: RunRecord | None = None
    after_diagnosis: Diagnosis | None = None
    final_accuracy: float | None = None
    interrupted: bool = False
    failure: str = ""
    notes: list[str] = field(default_factory=list)
    forecast_error: float | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    at_pace: Mapping[str, float] = field(default_factory=dict)
    shares: Shares = field(default_factory=dict)
    adds: Mapping[str, Mapping[str, RatioEstimate]] = field(default_factory=dict)
    trials: Sequence[Trial] = ()
    candidates: Sequence[Candidate] = ()
    floor_ms: Mapping[str, float] = field(default_factory=dict)
    layers: Mapping[str, Any] = field(default_factory=dict)
    answers: AnswerCheck | None = None
    proved: Sequence[str] = ()

    @property
    def kept(self) -> list[Step]:
        """Steps with status ``kept``."""
        return [step for step in self.steps if step.status == "kept"]

    @property
    def incomparable(self) -> bool:
        """True if neither answers nor a score of the workload show what a fix does to answers."""
        return self.answers is not None and self.answers.incomparable and self.accuracy_kind != "evaluate"

    @property
    def accuracies(self) -> tuple[float | None, float | None]:
        """Of the first and the last settings; ``None`` if answers cannot be compared."""
        return (None, None) if self.incomparable else (self.accuracy, self.final_accuracy)

    @property
    def verdict(self) -> str:
        """``improved``, ``no_gain`` or ``inconclusive``; the final replay alone decides."""
        if self.final is None:
            return "inconclusive" if self.interrupted or self.failure or self.nothing_tried else "no_gain"
        better = "improved" if self.kept else "no_gain"  # what took no effect improved nothing
        return {"better": better, "undecided": "inconclusive"}.get(self.final.verdict, "no_gain")

    @property
    def for_time(self) -> list[str]:
        """Ids of fixes that apply but did not fit into the budget."""
        return [step.fix for step in self.steps if step.status == "skipped" and step.reason.startswith(BUDGET)]

    @property
    def nothing_tried(self) -> bool:
        """True if there was no time to try any fix, so that the result says nothing about the service."""
        return bool(self.for_time) and all(step.status == "skipped" for step in self.steps)

    @property
    def refuted(self) -> bool:
        """True if the final replay shows that the kept fixes are slower.

        Fixes that no replay of the search tested are refuted by a figure that is not lower.
        """
        final = self.final
        if final is None or final.verdict == "better":
            return False
        judged, mean = final.ratio[final.judged], final.ratio["mean"]
        slower = judged.lo > 1 or (mean.lo > 1 and not final.answered_more)
        untested = any(step.comparison is None for step in self.kept)
        return final.verdict == "worse" or slower or (untested and judged.value > 1)

    def reject(self) -> str:
        """Take the kept fixes out of the plan, with the figures of the final replay as the reason; returns it."""
        assert self.final is not None, "only the final replay refutes"
        judged, kept = self.final.judged, tuple(step.fix for step in self.kept)
        figures = ", ".join(f"{key} {words(self.final.ratio[key])}" for key in dict.fromkeys((judged, "mean")))
        reason = f"slower in the final replay: {figures}"
        self.steps = [
            replace(step, status="rejected", reason=reason) if step.fix in kept else step for step in self.steps
        ]
        self.candidates = [
            replace(each, status="rejected") if set(kept) <= set(each.fixes) and each.status == "kept" else each
            for each in self.candidates
        ]
        return reason

    def divided(self) -> Shares:
        """``shares``; empty if the final replay contradicts the forecast, which then cannot divide its ratio.

        So it is if the share of a kept fix points the other way: then those of others are larger than the whole.
        """
        if self.final is None:
            return self.shares
        for key in KEYS:
            parts = [share[key][0] for share in self.shares.values()]
            measured = math.log(max(self.final.ratio[key].value, 1e-9))
            against = [part for part in parts if part * measured < 0 and abs(part) > math.log1p(SMALLEST)]
            if against or (sum(parts) * measured < 0 and abs(sum(parts) - measured) > math.log1p(SMALLEST)):
                return {}
        return self.shares

    def prediction_errors(self) -> dict[str, Any]:
        """Errors of predicted ratios: by statistic, their median, the number of steps, and the final replay's."""
        found: dict[str, Any] = {"simulation": self.forecast_error}
        names = {key: key for key in KEYS}
        if self.final is not None and self.final.judged not in KEYS:
            names[self.final.judged] = "judged"
        for key, name in names.items():
            errors = [error for trial in self.trials if (error := trial.prediction_error(key)) is not None]
            found[name] = {"median": statistics.median(errors) if errors else None, "steps": len(errors)}
            if self.final is not None and key in self.predicted and not self.final.ratio[key].lost:
                final, measured = self.predicted[key], self.final.ratio[key].value
                found[name] |= {"final": final, "final_error": abs(final / measured - 1.0)}
                found[name] |= {"at_pace": self.at_pace.get(key)}
        return found


@dataclass
class Optimizer:
    """Searches for fixes of one workload on one schedule.

    :param out: a new folder for all records; with ``resume`` the folder of an earlier optimization, to continue it.
    :param watch: shows replays.
    :param say: shows a line.
    :param show: shows the diagnosis of the baseline as soon as it is known.
    """

    spec: WorkloadSpec
    traffic: Traffic
    settings: RunnerSettings
    out: Path
    options: Options
    _: KW_ONLY
    watch: Watch
    say: Callable[[str], None]
    show: Callable[[Diagnosis], None]
    resume: InitVar[bool] = False

    def __post_init__(self, resume: bool) -> None:
        options, self._whole, self._behind = self.options, len(self.traffic), ""
        self._journal = Journal.read(self.out) if resume else None
        self._most_s = _BASELINE_SHARE * options.budget_s if self._journal is None else self._journal.stretch_s
        self.traffic = busiest_stretch(self.traffic, self._most_s)
        started = time.monotonic() if options.started is None else options.started
        left_s = started + options.budget_s - time.monotonic()
        self._bench = Bench(self.spec, self.traffic, self.out, watch=self.watch, seed=options.seed, budget_s=left_s)

    def run(self) -> Outcome:
        """Run the whole optimization within the budget; on Ctrl-C return the results so far.

        :raises LatfixError: the workload itself fails, or there is nothing to resume.
        """
        try:
            base = self._bench.arm("before", self.settings, ())
            outcome, journal = self._baseline(base) if self._journal is None else self._resumed(self._journal)
            base.accuracy = outcome.accuracy
            search = self._search(outcome, base, journal)
            try:
                search.run()
                self._conclude(outcome, search, ended=True)
                self._final(outcome, search)
            except (Interrupted, KeyboardInterrupt):
                self._conclude(outcome, search)
                outcome.interrupted = True
                outcome.notes.append(
                    "Interrupted: results up to this point are kept, but there was no final replay. "
                    "To continue, run the same command with --resume and this folder."
                )
            except LatfixError as error:
                self._conclude(outcome, search)
                outcome.failure = error.message
                outcome.notes.append(f"The search ended because the service failed: {error.message}")
            return outcome
        finally:
            self._bench.close()

    def _conclude(self, outcome: Outcome, search: Search, *, ended: bool = False) -> None:
        """Fill in the results of the search, complete or not."""
        outcome.steps, outcome.settings = search.known.steps(search.best, ended=ended), search.best.settings
        outcome.layers = next(iter(search.recorded.values()), {})
        outcome.final_accuracy, outcome.trials = search.arm.accuracy, search.known.trials
        outcome.candidates, outcome.floor_ms = search.candidates(), search.floor_ms()
        if search.planner is not None:
            outcome.shares = search.planner.shares(search.best)
        room = self._bench.room
        if (why := room.alone) and not any(why in note for note in outcome.notes):
            outcome.notes.append(
                f"The search held one service {'on the device ' if room.on_device else ''}at a time: {why}. Each was "
                "restarted before its replays, which takes longer."
            )

    def _baseline(self, base: Arm) -> tuple[Outcome, Journal]:
        bench, options = self._bench, self.options
        if len(self.traffic) < self._whole:
            self.say(
                f"replaying the busiest {self._most_s:.0f} s of the traffic, {len(self.traffic)} of {self._whole} "
                "requests, which take a quarter of the budget: a larger --budget replays more"
            )
        started = time.monotonic()
        self.say("before: loading the model")
        base.running()
        bench.first_load_s = time.monotonic() - started
        base.most_s = self._most_s
        record = base.replay(self.out / "baseline", self.traffic, self.watch, seed=options.seed)
        if not record.counts()["ok"]:
            first = next(iter(record.errors.values()), "no request ended in time")
            raise RunnerError(f"{self.spec.name}: no request of the baseline ended ok; the first one: {first}")
        facts = base.ask("facts", folder=str(record.folder))["facts"]
        record = replace(record, meta=record.meta.updated(model=facts, **base.profile(record)))
        write_meta(record.folder, record.meta)
        sha256 = schedule_digest(self.traffic)
        record = self._served_part(record)
        diagnosis = self._diagnose(record)
        bench.begin(record)
        scored = bench.accuracy(base, original=True)
        score, kind = float(scored["score"]), str(scored["kind"])
        base.restart()  # no candidate will have served the whole traffic when it is compared with the baseline
        journal = Journal(
            settings=self.settings.to_json(),
            traffic_sha256=sha256,
            stretch_s=self._most_s,
            seed=options.seed,
            accuracy=score,
            accuracy_kind=kind,
            load_s=bench.load_s,
            accuracy_s=bench.accuracy_s,
            answers=scored.get("answers", {}),
        )
        journal.write(self.out)
        return self._outcome(record, diagnosis, journal), journal

    def _served_part(self, record: RunRecord) -> RunRecord:
        """The part of the baseline that was served before it was ended; candidates replay its requests only."""
        served = served_part(record)
        if served is not record:
            count = f"{len(served.traffic)} of {len(record.traffic)}"
            self._behind = (
                "Requests arrive faster than the service serves them. The baseline was ended when its share of the "
                f"budget was over; the search uses the first {count} requests, which it had served by then."
            )
            self.say(self._behind)
            self.traffic = self._bench.traffic = served.traffic
        return served

    def _resumed(self, journal: Journal) -> tuple[Outcome, Journal]:
        bench = self._bench
        plain_archive.check(bench.reference)
        journal.check(self.out, self.settings.to_json(), schedule_digest(self.traffic), self.options.seed)
        record = self._served_part(RunRecord.load(self.out / "baseline"))
        diagnosis = self._diagnose(record)
        bench.first_load_s, bench.accuracy_s, bench.replays = journal.load_s, journal.accuracy_s, journal.replays
        bench.begin(record)
        done = f"{len(journal.ways)} ways to run the model measured, {len(journal.trials)} configurations replayed"
        self.say(f"resumed from {self.out}: {done}")
        return self._outcome(record, diagnosis, journal), journal

    def _diagnose(self, record: RunRecord) -> Diagnosis:
        """Diagnose and show the baseline, and reserve time to diagnose the final replay."""
        started = time.monotonic()
        found = diagnose(record, percentile=self.spec.objective.percentile, seed=self.options.seed)
        self._bench.reserve(_REPORTS * (time.monotonic() - started))
        self.show(found)
        return found

    def _outcome(self, record: RunRecord, diagnosis: Diagnosis, journal: Journal) -> Outcome:
        answers = AnswerCheck.from_json(journal.answers) if journal.answers else None
        faults = () if answers is None else answers.faults()
        judged = "" if answers is None or journal.accuracy_kind == "evaluate" else answers.judged()
        for line in (*faults, judged):
            if line:
                self.say(line)
        return Outcome(
            baseline=record,
            diagnosis=diagnosis,
            accuracy=journal.accuracy,
            accuracy_kind=journal.accuracy_kind,
            accuracy_limit=journal.accuracy - self.spec.objective.max_accuracy_drop,
            settings=self.settings,
            notes=[*([self._behind] if self._behind else []), *faults],
            answers=answers,
        )

    def _search(self, outcome: Outcome, base: Arm, journal: Journal) -> Search:
        options, record = self.options, outcome.baseline
        forecast = Forecast(record) if record.counts()["ok"] >= _FORECAST_FROM else None
        outcome.forecast_error = None if forecast is None else forecast.error
        if forecast is not None and trusted(forecast):
            self._bench.choose_windows(forecast.repeated())
        percentile = self.spec.objective.percentile / 100
        goal = options.goal or min(QUANTILES, key=lambda key: abs(QUANTILES[key] - percentile))
        fixes = _fixes(outcome, throughput=options.throughput)
        known = {fix.id: fix for fix in fixes}

        def planner(obstacle: Obstacle) -> Planner | None:
            if forecast is None or not trusted(forecast):
                return None
            return Planner(forecast, goal, self.settings, obstacle)

        def note() -> None:
            replace(journal, replays=self._bench.replays, **entries_of(search)).write(self.out)

        search = Search(
            bench=self._bench,
            base=base,
            diagnosis=outcome.diagnosis,
            original=outcome.accuracy,
            fixes=[fix for fix in fixes if fix.id in (options.only or known) and fix.id not in options.exclude],
            make_planner=planner,
            goal=goal,
            most_trials=options.trials,
            reserved_s=lambda: _FINAL_SHARE * options.budget_s,
            say=lambda text: self.say(f"{text} ({max(self._bench.left_s(), 0):.0f} s left)"),
            note=note,
        )
        journal.restore(self.out, search, known)
        return search

    def _final(self, outcome: Outcome, search: Search) -> None:
        """Replay the kept fixes together against the first settings."""
        bench, kept = self._bench, outcome.kept
        bench.close()
        if not kept:
            return
        seconds, began = min(_FINAL_SHARE * self.options.budget_s, bench.left_s()), time.monotonic()
        before = bench.arm("before", self.settings, ())
        after = bench.arm("after", outcome.settings, tuple(step.fix for step in kept))
        outcome.proved = after.fixes
        at_once = not (bench.room.on_device or bench.room.alone)
        if at_once:  # how long that takes now decides how much traffic a round may replay
            start_at_once(before, after)
        traffic = bench.final_traffic(seconds, time.monotonic() - began if at_once else None)
        bounds = [] if traffic is self.traffic else [window_bounds(traffic)]
        outcome.predicted = _predicted(search, bounds, ())
        for begin, end in bounds:
            outcome.notes.append(
                f"The final replay covers the slowest stretch of the traffic, {begin / 1e9:.1f} to {end / 1e9:.1f} s "
                f"({len(traffic)} of {len(self.traffic)} requests): the budget holds too few rounds of all of it."
            )
        # A cold fix acts on the first requests of a process: no lead-in may take their place.
        cold = {step.fix for step in kept} <= {fix.id for fix in FIXES if fix.cold}
        replay = partial(
            prove,
            after=after,
            traffic=traffic,
            watch=self.watch,
            seed=self.options.seed,
            at_once=at_once,
            lead_in=None if cold else lead_in(self.traffic, bench.baseline, traffic, lead_in_s(seconds)),
        )
        unseen = [step for step in kept if not step.verified]
        seen: list[Mapping[str, Any]] = []
        proof = replay(
            before,
            out=new_folder(self.out / "final"),
            began=began,
            left_s=bench.left_s,
            judged=self.options.goal if self.options.goal in RATIO_KEYS else None,
            look=(lambda record: seen.append(bench.evidence(after, record))) if unseen else None,
            undecided=self.options.undecided,
        )
        outcome.notes += proof.notes
        if proof.interrupted:
            outcome.interrupted = True
            outcome.notes.append(f"Interrupted: {len(proof.rounds)} rounds of the final replay were complete.")
        if not proof.rounds:
            return
        if unseen and seen:
            one, other = proof.rounds[0]
            applied, known = Applied(evidence=seen[0], record=other, without=one), {fix.id: fix for fix in FIXES}
            search.verify({step.fix: known[step.fix].verify(applied) for step in unseen})
            self._conclude(outcome, search, ended=True)
        outcome.before, outcome.after = proof.rounds[-1]
        outcome.at_pace = _predicted(search, bounds, proof.rounds)
        outcome.final = proof.compare(seed=self.options.seed, accuracy=outcome.accuracies)
        outcome.after_diagnosis = diagnose(
            outcome.after, percentile=self.spec.objective.percentile, seed=self.options.seed
        )
        if outcome.refuted:
            self._fall_back(outcome, search, outcome.reject(), proof.round_s)
        elif outcome.final.verdict == "better" and not proof.interrupted:
            outcome.adds = self._leave_out(outcome, outcome.final.judged, search, replay, proof.round_s)
        outcome.shares = outcome.divided()

    def _fall_back(self, outcome: Outcome, search: Search, reason: str, round_s: float) -> None:
        """After a refuted plan: prove the next best one, if there is time for a round of that."""
        if outcome.interrupted or self._bench.left_s() < round_s or not search.fall_back(reason):
            return
        self.say(f"the plan was {reason}; the next best is proved: {search.best.words}")
        outcome.notes.append(f"A first plan was {reason}. This one is the next best.")
        outcome.final = outcome.after_diagnosis = None
        self._conclude(outcome, search, ended=True)
        self._final(outcome, search)

    def _leave_out(
        self, outcome: Outcome, judged: str, search: Search, replay: Callable[..., Proof], round_s: float
    ) -> dict[str, Mapping[str, RatioEstimate]]:
        """By fix, the ratios of the plan over the plan without it: for the largest parts, while time allows."""
        bench, found = self._bench, dict[str, Mapping[str, RatioEstimate]]()
        key = "mean" if judged == "mean" else "p99"
        most = sorted(outcome.shares, key=lambda fix: outcome.shares[fix][key][0])[:_LEFT_OUT]
        for place, fix in enumerate(most):
            rest, left = search.without(fix), bench.left_s()
            if rest is None or left < round_s:
                continue
            spare_s = max(left / (len(most) - place), round_s)
            self.say(f"replaying the plan without {fix}, to measure what it adds to the other fixes")

            def left_s(until_s: float = left - spare_s) -> float:
                return bench.left_s() - until_s

            try:
                proof = replay(
                    bench.arm("without", rest.settings, rest.fixes),
                    out=new_folder(self.out / f"final-without-{fix}"),
                    left_s=left_s,
                    judged=judged,
                )
            except LatfixError as error:  # the plan itself ran in every round
                outcome.notes.append(f"What {fix} adds is not known: the service failed without it: {error.message}")
                bench.close()
                continue
            if proof.interrupted:
                outcome.interrupted = True
                return found
            found[fix] = proof.compare(seed=self.options.seed).ratio
        return found


def _predicted(search: Search, within: Bounds, rounds: Sequence[tuple[RunRecord, RunRecord]]) -> Mapping[str, float]:
    """Ratios of the best configuration over the first settings, with ``rounds`` at the pace of their batches.

    Empty if the forecast does not know the best configuration.
    """
    planner, best = search.planner, search.best
    if planner is None or not planner.knows(best):
        return {}
    return planner.in_hindsight(best, rounds, within) if rounds else planner.predict(best, within).ratio


def _fixes(outcome: Outcome, *, throughput: bool) -> list[Fix]:
    """All fixes; those whose effect could not be judged have a precondition that is not met.

    Those that only regroup batches count as changing no answer if answers did not depend on batches; those for models
    without state may change answers if the model keeps some.
    """
    answers = outcome.answers
    same = answers is not None and answers.compared >= _COMPARED and not answers.differing
    fixes = [replace(fix, changes_outputs=False) if same and fix.mates_only else fix for fix in FIXES]
    if answers is not None and answers.stateful:
        fixes = [replace(fix, changes_outputs=True) if fix.stateless or fix.reorders else fix for fix in fixes]

    def unjudged(fix: Fix) -> str:
        if outcome.incomparable and fix.changes_outputs:
            return "it may change answers, and this service's cannot be compared"
        return "it changes the order of requests, not how many are served" if throughput and fix.reorders else ""

    return [
        replace(fix, needs=(*fix.needs, need(lambda _: False, why))) if (why := unjudged(fix)) else fix
        for fix in fixes
    ]
