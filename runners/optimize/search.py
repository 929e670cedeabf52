"""The search: ways to run the model are measured, whole configurations are predicted, the best few are replayed.

It decides in this order:

1. How the model runs (precision, backend, compilation, workers and threads): every way that applies is measured on
   the same batches (:mod:`configuration`).
2. What the forecast can simulate on top of that (batch limit, window, order, causes that a fix removes): the best of
   many configurations for each way (:mod:`predicted_configurations`).
3. The answers of the best configuration are scored, and it is replayed on the slow stretches of the traffic, in turns
   with the current best. The replay corrects the predictions, and the next configuration is replayed if it promises
   more.
4. Fixes that the forecast cannot simulate (allocators, pinning, garbage collection, …) are added if they treat the
   remaining tail, and kept if replays show a gain.

No fix is mentioned by name: each one brings its preconditions, its settings and its proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from latfix.errors import LatfixError
from latfix.formatting import counted, percent
from latfix.formatting import ratio as ratio_words
from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import BUDGET, Candidate, Prediction
from latfix.results.optimization_step import KEYS
from latfix.runners.fixes import Applied, Context, Fix, Verified
from latfix.runners.measure.accuracy_guard import judge, score_of
from latfix.runners.optimize.configuration import (
    Alternative,
    Choice,
    Configuration,
    Obstacle,
    compose,
    counted_new_shape,
    measure,
)
from latfix.runners.optimize.findings import Findings, Trial
from latfix.runners.optimize.measurement import Bench
from latfix.runners.optimize.predicted_configurations import LEAST_GAIN, Planner, goal_score, ratios, way
from latfix.runners.optimize.screening_decision import (
    Pairs,
    compare_windows,
    counted_windows,
    decide,
    decide_cold,
    joined,
    waited_ms,
)
from latfix.runners.replay.arm import Arm
from latfix.settings import RunnerSettings

#: Share of the time between the baseline and the final replay that measuring ways to run the model may take.
_MEASURING = 0.5
#: Sizes of the batches that are measured; the time of larger ones is extrapolated.
_PROBED_SIZES = (2, 4, 8, 16)
#: Seconds that one pass over these batches may take; each way computes them about six times.
_PROBES_S = 0.7
#: Predicted gain over the best replayed configuration that is worth a replay, as a logarithm.
_WORTH_A_REPLAY = 0.03
#: How much worse than measured a configuration may be predicted that leaves a replayed fix out, as a logarithm.
_AS_MEASURED = 0.2
#: Minimum expected gain, as a share of the tail latency, for a fix that the forecast cannot simulate.
_WORTH_ADDING = 0.03
#: An undecided gain is kept if measured and predicted ratios are both below this; the final replay tests it.
_LIKELY = 0.95
#: Share of the time for the final replay that the search may use while it has nothing to prove yet.
_SHORTER_PROOF = 2 / 3
#: Predicted gain over the current best, as a logarithm, for which a replay may use time of the final replay.
_MUCH = 0.25
#: Share of the final replay's time that remains after such a replay.
_FEWER_ROUNDS = 1 / 2
#: Rounds of the final replay that remain, too: fewer seldom decide even a large difference.
_LEAST_ROUNDS = 3
#: If there was no time for any replay, a configuration with at most this predicted ratio goes to the final replay.
_UNTRIED = 0.9


@dataclass(slots=True, kw_only=True)
class Search:
    """Finds the best configuration on a bench.

    :param fixes: the fixes to choose from.
    :param make_planner: returns ``None`` if the baseline is too short, or its simulation too inaccurate, to predict
        other settings.
    :param original: accuracy of the first settings.
    :param most_trials: maximum number of replayed configurations; ``None`` for no limit.
    :param reserved_s: seconds that must remain for the final replay.
    :param say: shows a line of progress.
    :param note: called after every step that took time.
    :ivar best: the current best configuration; ``arm`` is its service, ``best_score`` its measured goal.
    :ivar known: what it has found.
    """

    bench: Bench
    base: Arm
    diagnosis: Diagnosis
    original: float
    fixes: Sequence[Fix]
    make_planner: InitVar[Callable[[Obstacle], Planner | None]]
    goal: str
    most_trials: int | None
    reserved_s: Callable[[], float]
    say: Callable[[str], None]
    note: Callable[[], None]
    planner: Planner | None = field(init=False)
    first: RunnerSettings = field(init=False)
    best: Configuration = field(init=False)
    arm: Arm = field(init=False)
    best_score: float = 0.0
    known: Findings = field(init=False)
    _batches: Sequence[Sequence[int]] = ()
    # How much longer than estimated a way took to measure, at most: a busy machine delays the next one as well.
    _overrun_s: float = 0.0
    # Caches by settings, valid until the next result: some preconditions read the whole record.
    _contexts: dict[str, Context] = field(default_factory=dict)
    _obstacle_cache: dict[tuple[str, str], str] = field(default_factory=dict)
    _choice_cache: dict[tuple[str, str], list[Choice]] = field(default_factory=dict)

    def __post_init__(self, make_planner: Callable[[Obstacle], Planner | None]) -> None:
        self.first, self.arm = self.base.settings, self.base
        self.best, self.known = Configuration(self.first), Findings(self.fixes, self.first)
        self.planner = make_planner(self._obstacle)

    @property
    def recorded(self) -> dict[str, Any]:
        """Results of set-ups that the journal keeps."""
        kept = {fix.id for fix in self.fixes if fix.set_up is not None and fix.set_up.recorded}
        return {name: found for name, found in self.known.set_ups.items() if name in kept}

    def restore(
        self,
        alternatives: Sequence[Alternative],
        trials: Sequence[tuple[Trial, Pairs]],
        found: Mapping[str, Any],
        ineffective: Mapping[str, str],
    ) -> None:
        """Continue from the results of an earlier search.

        :param trials: with their records.
        """
        self.known.alternatives, self.known.trials = list(alternatives), [trial for trial, _ in trials]
        self.known.set_ups |= found
        self.known.ineffective |= ineffective
        if self.planner is not None:
            self.planner.costs |= {way(each): each.cost for each in self.known.ready}
        kept: Trial | None = None
        for trial, pairs in trials:
            if self.planner is not None:
                _refuse(self.planner, trial)
                self._learn(self.planner, trial.configuration, pairs)
            if trial.status == "kept":
                kept, self.best = trial, self.known.effective(trial.configuration)
        if kept is not None:
            self._return_to(kept)
            self.bench.room.adopt(self.arm)

    def run(self) -> None:
        """Search while time allows.

        :raises LatfixError: the service failed with its first settings.
        """
        self._note_obstacles()
        spare = max(self.bench.left_s() - self.reserved_s(), 0.0)
        trials = int((1 - _MEASURING) * spare / self.bench.trial_s(self._scored_fixes()))
        time = f"time for about {counted(trials, 'replay')}" if trials else "hardly time for replays"
        self.say(f"this traffic and budget leave {time} of candidates before the final replay")
        if self.planner is not None:
            limit = max(self.first.max_batch_size, 8)
            self._batches = self.planner.forecast.probes([size for size in _PROBED_SIZES if size <= limit], _PROBES_S)
            if self._simulated_choices() or any(choice.measured for choice in self._applicable()):
                took, new_shape_ns = self.bench.base_pace(self.base, self._batches)
                self.planner.forecast.learn(self._batches, took, counted_new_shape(new_shape_ns, took))
            self._measure_ways(self.planner, self._measuring_until())
            self._replay_predicted(self.planner)
            if self._measure_core_shares(self.planner, self.reserved_s() + self.bench.trial_s([])):
                self._replay_predicted(self.planner)
            if not self.best.choices and self._trials_left:
                # There was no time to replay any: the final replay does, before what nobody predicts uses its time.
                self._keep_untried(self.planner)
        self._replay_additions()
        if not self.best.choices:
            self._use_rest()
        elif self.planner is not None:
            self._drop_needless(self.planner)

    def without(self, fix: str) -> Configuration | None:
        """The best configuration minus one fix; ``None`` if nothing remains, or others do not apply without it."""
        rest = self.best.without(fix)
        composed = compose(self.first, rest.choices, self._obstacle)
        return composed if composed.choices and composed.key == rest.key else None

    def verify(self, found: Mapping[str, Verified]) -> None:
        """Take over what the final replay showed of kept fixes; those without effect leave the best configuration."""
        effective = {fix: each.evidence for fix, each in found.items() if each.effective}
        self.known.ineffective |= {fix: each.evidence for fix, each in found.items() if fix not in effective}
        self.known.trials = [
            replace(trial, verified={**trial.verified, **effective}) if trial.status == "kept" else trial
            for trial in self.known.trials
        ]
        self.best = self.known.effective(self.best)
        self._record_progress()

    def fall_back(self, reason: str) -> bool:
        """Return to the best configuration before the current one, which the final replay refuted.

        Without one that a replay of the search showed to be better, it is the most promising untried one.

        :param reason: what the final replay showed.
        :returns: False if there is none.
        """
        self.known.trials = [
            replace(trial, status="rejected", reason=reason)
            if trial.status == "kept" and set(self.best.fixes) <= set(trial.configuration.fixes)
            else trial
            for trial in self.known.trials
        ]
        self.best, self.best_score, self.arm = Configuration(self.first), 0.0, self.base
        if known := self.known.improvements:
            self._return_to(known[-1])
        elif self.planner is not None:
            self._keep_untried(self.planner)
        self._record_progress()
        return bool(self.best.choices)

    def _return_to(self, trial: Trial) -> None:
        """Make a configuration that was replayed before the current best."""
        self.best, self.best_score = self.known.effective(trial.configuration), trial.score
        accuracy = self.base.accuracy if trial.accuracy is None else trial.accuracy
        self.arm = self.bench.arm("so-far", self.best.settings, self.best.fixes, accuracy)

    # -- 1. ways to run the model

    def _measuring_until(self) -> float:
        """Seconds of the budget that must remain when ways are measured before the replays."""
        left = self.bench.left_s()
        spare = max(left - self.reserved_s(), 0.0)
        scored, half = self._scored_fixes(), _MEASURING * spare
        # What is not measured cannot be chosen: if no trial fits beside it, the best way is only scored before the
        # final replay.
        fits = half + self.bench.trial_s(scored) <= spare + self._lent_s(scored)
        most = half if fits else max(spare - self.bench.scoring_s(scored), 0.0)
        return left - most

    def _measure_ways(self, planner: Planner, until: float) -> None:
        """Measure the ways that apply, combinations of them, then other worker/thread splits on top of the best one.

        Those come first that treat most of the tail for the time that measuring them takes. Only named causes count:
        others may be chance.

        :param until: seconds of the budget that must remain.
        """
        shares = {cause.cause: cause.tail_share for cause in self.diagnosis.causes if cause.named}
        batches_s, meta = planner.forecast.seconds(self._batches), self.bench.baseline.meta

        def order(choice: Choice) -> tuple[float, float, float]:
            fix = choice.fix
            treated = min(sum(shares.get(cause, 0.0) for cause in fix.treats), 1.0)
            rate = treated / self.bench.pace_s([fix], batches_s)
            return -rate, fix.seconds_to_make(meta), fix.expected_compute(meta)

        for choice in sorted((one for one in self._applicable() if one.measured), key=order):
            # A split of the cores matters most with the best way to run the model so far.
            best = self._ready(planner)[:1] if choice.splits_cores else []
            self._measure_way(planner, until, [*(one for each in best for one in each.choices), choice])
        self._measure_combined(planner, until)
        self._measure_core_shares(planner, until)

    def _measure_combined(self, planner: Planner, until: float) -> None:
        """Measure the best way together with others that gain and are compatible with it, best first."""
        for other in self._ready(planner)[1:]:
            best, known = self._ready(planner)[0], len(self.known.alternatives)
            if planner.score(Configuration(self.first, other.choices)) > -_WORTH_A_REPLAY:
                continue
            for choices in ([*best.choices, *other.choices], [*other.choices, *best.choices]):
                if len(self.known.alternatives) == known:  # the preconditions of one may depend on the other
                    self._measure_way(planner, until, choices)

    def _measure_core_shares(self, planner: Planner, until: float) -> bool:
        """Measure other worker/thread splits while time allows: with the best way, and with the first settings.

        :returns: True if any was measured.
        """
        known = len(self.known.alternatives)
        shares = [choice for choice in self._applicable() if choice.splits_cores]
        for share in shares:
            for model in self._ready(planner)[:1]:
                self._measure_way(planner, until, [*model.choices, share])
            self._measure_way(planner, until, [share])
        return len(self.known.alternatives) > known

    def _ready(self, planner: Planner) -> list[Alternative]:
        """Ways to run the model that may be chosen, best first."""
        ready = [each for each in self.known.ready if all(choice.changes_model for choice in each.choices)]
        return sorted(ready, key=lambda each: self._expected(planner, self._completed(planner, each.choices)))

    def _measure_substitutes(self, planner: Planner) -> None:
        """Measure what can replace a way whose answers were rejected, and splits of the cores without it."""
        self._set_up()
        for choice in list(self._applicable()):
            if choice.changes_model and choice.fix.after:
                self._measure_way(planner, self.reserved_s(), [choice])
        self._measure_combined(planner, self.reserved_s())
        self._measure_core_shares(planner, self.reserved_s())

    def _scored_fixes(self) -> list[Fix]:
        """A fix that changes answers, if there is one: to estimate how long the first trial takes."""
        return [fix for fix in self.fixes if fix.changes_outputs and not fix.making_s][:1]

    def _measure_way(self, planner: Planner, until: float, choices: Sequence[Choice]) -> None:
        """Measure one way, unless it is known, contains a failed one, or would end after ``until``.

        :param until: seconds of the budget that must remain.
        """
        configuration = compose(self.first, choices, self._obstacle)
        known = way(configuration) in planner.costs or self._contains_failed_way(configuration)
        if known or len(configuration.choices) < len(choices):
            return
        fixes = [choice.fix for choice in choices]
        estimate_s = self.bench.pace_s(fixes, planner.forecast.seconds(self._batches))
        cost_s, left = estimate_s + self._overrun_s, self.bench.left_s()
        # The first way treats the main cause: one round of the final replay is enough to leave for it.
        if left - cost_s < (until if self.known.alternatives else min(until, self.bench.least_round_s(fixes))):
            spare = max(left - until, 0.0)
            reason = f"{BUDGET}measuring it takes about {cost_s:.0f} s, and {spare:.0f} s were left for measuring"
            for fix in fixes:
                self.known.skipped.setdefault(fix.id, reason)
            return
        self._make_room(self.arm)
        measured = measure(self.bench, self.base, configuration, self._batches, planner.forecast)
        self._overrun_s = max(self._overrun_s, left - self.bench.left_s() - estimate_s)
        self.known.alternatives.append(measured)
        if measured.status == "ready":
            planner.costs[way(configuration)] = measured.cost
        status = "" if measured.status == "ready" else f"{measured.status}, "
        self.say(f"{configuration.words}: {status}{measured.reason}")
        self._record_progress()

    def _contains_failed_way(self, configuration: Configuration) -> bool:
        """True if all choices of a way that is out are also in this configuration."""
        known = set(way(configuration))
        return any(set(way(each)) <= known for each in self.known.alternatives if each.status != "ready")

    def _set_up(self) -> None:
        """Measure, once each, what fixes need to know before they can be decided."""
        for fix in self.fixes:
            set_up = fix.set_up
            if set_up is None or fix.id in self.known.set_ups or not set_up.due(self._context(self.first)):
                continue
            if not self._out_of_time([]):
                found = self.known.set_ups[fix.id] = set_up.measure(self.bench, self.base)
                if words := set_up.shown(found):
                    self.say(f"{fix.id}: {words}")
                self._record_progress()
        self._note_obstacles()

    # -- 2. and 3. whole configurations

    def _completed(self, planner: Planner, measured: Sequence[Choice]) -> Configuration:
        """The best configuration that runs the model this way."""
        return planner.best(measured, self._simulated_choices())

    def _simulated_choices(self) -> list[list[Choice]]:
        """By fix, the choices that the forecast can simulate without measuring batches."""
        now = Configuration(self.first).serving(None)
        groups: dict[str, list[Choice]] = {}
        for choice in self._applicable():
            if not choice.measured and Configuration(self.first, (choice,)).serving(None) != now:
                groups.setdefault(choice.fix.id, []).append(choice)
        return list(groups.values())

    def _ranked(self, planner: Planner, seen: Collection[tuple[str, ...]]) -> list[Configuration]:
        """The best configuration of each way to run the model, best first, without those that were seen."""
        completed = [
            self._completed(planner, choices) for choices in [(), *(each.choices for each in self.known.ready)]
        ]
        return [one for one in sorted(completed, key=partial(self._expected, planner)) if one.key not in seen]

    def _expected(self, planner: Planner, configuration: Configuration) -> float:
        """Predicted score, weighted by the chance that answers which were not scored yet are accurate enough."""
        unseen = [choice.fix for choice in configuration.choices if choice.fix.id not in self.best.fixes]
        score = planner.score(configuration)
        return score * math.prod(fix.accepted for fix in unseen) if score < 0 else score

    def _promise(self, planner: Planner, configuration: Configuration) -> float:
        """Predicted gain over the current best, as a logarithm.

        The current best was measured in the windows, where requests are slow and gains are large: so the prediction
        is for the windows, too. It is compared with what is measured there, and with what is predicted by now: if
        that is less than was measured, the same may be true of the other.
        """
        known = self.best.choices and planner.knows(self.best)
        now = planner.score(self.best, self.bench.window_bounds) if known else self.best_score
        return max(self.best_score, now) - planner.score(configuration, self.bench.window_bounds)

    def _replay_predicted(self, planner: Planner) -> None:
        """Replay the best predicted configurations while they promise more than the current best."""
        tried = self.known.seen
        reported = rejected = False
        least = _WORTH_A_REPLAY
        while True:
            ranked = self._ranked(planner, tried)
            best = next((one for one in ranked if self._promise(planner, one) >= least), None)
            if rejected and (self.best.choices or best is None):
                # A substitute takes long to find: look for one only after there is something to prove.
                rejected = False
                self._measure_substitutes(planner)
                continue
            if ranked and not reported:
                reported = True
                words = f"{ranked[0].words}, {_ratio_words(planner.predict(ranked[0]).ratio, self.goal)}"
                better = planner.score(ranked[0]) < 0
                found = f"the best: {words}" if better else f"none is predicted to be better, not even {words}"
                self.say(f"{planner.simulations} configurations simulated; {found}")
            if best is None:
                break
            tried.add(best.key)
            promise = self._promise(planner, best)
            if refusal := self._out_of_time([choice.fix for choice in best.choices], promise):
                # Another one may take less: no conversion, no answers to score. But what gains much less would use
                # the time in which the final replay can test this one.
                self.known.skipped = dict.fromkeys(best.fixes, refusal) | self.known.skipped
                least = least if self.best.choices else max(least, promise - _MUCH)
                continue
            self._replay(best, planner)
            rejected |= self.known.trials[-1].status == "rejected"

    def _use_rest(self) -> None:
        """Nothing is kept, so the time of the final replay is free: let it test the most promising configuration."""
        self._keep_undecided()
        if self.best.choices or not self._trials_left:
            return
        if self.planner is not None:
            self._keep_untried(self.planner)
            if not self.best.choices:
                self._measure_ways(self.planner, max(self.bench.left_s() / 2, 2 * self.bench.least_round_s()))
                self._keep_untried(self.planner)
        if not self.best.choices:
            self._keep_addition()

    def _keep_undecided(self) -> None:
        """Leave the undecided configuration with the largest measured gain to the final replay."""
        likely = [each for each in self.known.trials if each.status == "undecided" and each.score < math.log(_LIKELY)]
        for trial in sorted(likely, key=lambda each: each.score):
            fixes = [choice.fix for choice in self.known.effective(trial.configuration).choices]
            if not fixes or self.bench.left_s() < self.bench.least_round_s(fixes):
                continue
            kept = replace(trial, status="kept", reason=f"likely a gain; the final replay tests it: {trial.reason}")
            self.known.trials = [kept if each is trial else each for each in self.known.trials]
            self._return_to(kept)
            self.say(f"{kept.configuration.words}: {kept.reason}")
            self._record_progress()
            return

    def _keep_untried(self, planner: Planner) -> None:
        """Leave the best untried configuration to the final replay, if it is predicted to gain enough."""
        seen, key = self.known.seen, self.goal
        while not self.best.choices:
            # The score also counts the mean: it alone must not speak for a plan.
            found = (
                each
                for each in self._ranked(planner, seen)
                if planner.score(each) <= math.log(_UNTRIED) and planner.expected(each)[key] <= _UNTRIED
            )
            if (best := next(found, None)) is None:
                return
            seen.add(best.key)
            predicted = _ratio_words(planner.predict(best).ratio, key)
            self._keep_unproven(best, planner.score(best), f"predicted {predicted}")

    def _keep_addition(self) -> None:
        """Leave the most promising fix that the forecast cannot simulate to the final replay."""
        tried = self.known.tried
        for group in self._additions(self._current_diagnosis(), tried):
            configuration = compose(self.first, group, self._obstacle)
            self._keep_unproven(configuration, 0.0, "it treats the remaining tail")
            if self.best.choices:
                return

    def _keep_unproven(self, configuration: Configuration, score: float, why: str) -> None:
        """Leave a configuration to the final replay, if there is time and its answers are accurate enough."""
        fixes = [choice.fix for choice in configuration.choices]
        changes = any(fix.changes_outputs for fix in fixes)
        needed_s = self.bench.least_round_s(fixes) + (self.bench.scoring_s(fixes) if changes else 0.0)
        if self.bench.left_s() < needed_s:
            return
        self._make_room(self.arm)
        arm = self.bench.arm(
            "predicted", configuration.settings, configuration.fixes, alone=self.bench.room.alone_with(fixes)
        )
        reason = f"{why}; there was no time to try it, so only the final replay tests it"
        trial = Trial(configuration=configuration, status="kept", reason=reason, score=score)
        try:
            scored, refusal = self._scored(configuration, arm)
            trial = replace(trial, scored=scored)
            if refusal:
                trial = replace(trial, status="rejected", reason=refusal, score=math.inf)
        except LatfixError as error:
            reason = f"the service did not run with it: {error.message}"
            trial = replace(trial, status="not_effective", reason=reason, score=math.inf)
        arm.close()
        self.say(f"{configuration.words}: {trial.reason}")
        self.known.trials.append(trial)
        if trial.status == "kept":
            self.best, self.best_score, self.arm = configuration, score, arm
        elif self.planner is not None:
            _refuse(self.planner, trial)
        self._record_progress()

    def _drop_needless(self, planner: Planner) -> None:
        """Remove, one by one, fixes that gain nothing next to the others according to all replays.

        The remaining configuration is neither scored nor replayed again, so fixes that change answers stay, and so
        does a way to run the model, if the remaining one is not that of the first settings: no replay has tested its
        batch times. It must be predicted to be about as good as what was measured: a forecast that does not foresee
        the measured gain does not know either what it comes from.
        """
        most = self.best_score + _AS_MEASURED if self.known.improvements else math.inf
        while planner.knows(self.best):
            known = planner.shares(self.best)
            rests = []
            for choice in self.best.choices:
                rest = self.without(choice.fix.id)
                if (
                    not rest
                    or choice.fix.changes_outputs
                    or (choice.measured and any(x.measured for x in rest.choices))
                ):
                    continue
                if choice.fix.id in known and planner.knows(rest):
                    rests.append((planner.score(rest), choice.fix.id, rest))
            score, fix, rest = min(rests, key=lambda each: each[:2], default=(math.inf, "", self.best))
            if score > planner.score(self.best) + LEAST_GAIN or planner.score(rest, self.bench.window_bounds) > most:
                return
            self.say(f"{fix} is left out of the plan: next to the other fixes it is predicted to gain nothing")
            self.known.dropped.add(fix)
            self.best = rest

    # -- 4. what the forecast cannot simulate

    def _replay_additions(self) -> None:
        """Add fixes that treat the remaining tail: one by one, except for gentle ones, which are added together."""
        tried = self.known.tried
        self._note_obstacles()  # also if there is no time to try any
        while True:
            diagnosis = self._current_diagnosis()
            groups = self._additions(diagnosis, tried)
            if self.best.choices or not groups:
                self._set_up()
                groups = self._additions(diagnosis, tried)
            if not groups:
                return
            group = groups[0]
            fixes = [choice.fix for choice in group]
            if refusal := self._out_of_time([*fixes, *(choice.fix for choice in self.best.choices)]):
                for choice in chain.from_iterable(groups):
                    self.known.skipped.setdefault(choice.fix.id, refusal)
                return
            tried |= {fix.id for fix in fixes}
            configuration = compose(self.first, [*self.best.choices, *group], self._obstacle)
            if not set(configuration.fixes) & {fix.id for fix in fixes}:
                configuration = compose(self.first, [*group, *self.best.choices], self._obstacle)
            if set(configuration.fixes) - set(self.best.fixes):
                self._replay(configuration, self.planner)

    def _current_diagnosis(self) -> Diagnosis:
        """Diagnosis of the current best configuration."""
        latest = self.arm.latest
        return self.diagnosis if latest is None else diagnose(latest, percentile=self.diagnosis.percentile)

    def _additions(self, diagnosis: Diagnosis, tried: Collection[str]) -> list[list[Choice]]:
        """Groups of choices that are expected to reduce the remaining tail, most promising first.

        :param diagnosis: of the current best configuration.
        :param tried: fixes that were tried; a group of only those is left out.
        """
        excess = diagnosis.excess_ms / max(diagnosis.excess_ms + diagnosis.reference_ms, 1e-9)
        shares = {cause.cause: max(cause.tail_share, 0.0) for cause in diagnosis.causes}
        promise: list[tuple[float, Choice]] = []
        simulated = {choice.fix.id for group in self._simulated_choices() for choice in group} if self.planner else ()
        for choice in self._applicable(self.best):
            fix = choice.fix
            if fix.id in simulated or (choice.measured and self.planner):
                continue
            expected = fix.relief * min(sum(shares.get(cause, 0.0) for cause in fix.treats), 1.0) * excess
            if expected >= _WORTH_ADDING:
                promise.append((expected, choice))
            else:
                treated = expected / max(fix.relief, 1e-9)
                self.known.skipped.setdefault(
                    fix.id,
                    f"the causes that it treats make up {100 * treated:.1f} % of the remaining tail latency, and it "
                    f"usually removes {percent(fix.relief)} of their time",
                )
        promise.sort(key=lambda each: -each[0])
        gentle = [choice for _, choice in promise if choice.fix.gentle and not choice.fix.cold]
        groups = [[choice] for _, choice in promise if choice not in gentle]
        first = max((value for value, choice in promise if choice in gentle), default=0.0)
        place = sum(value > first for value, choice in promise if choice not in gentle)
        groups = [*groups[:place], *([gentle] if gentle else []), *groups[place:]]
        return [group for group in groups if not {choice.fix.id for choice in group} <= set(tried)]

    # -- replays

    def _replay(self, configuration: Configuration, planner: Planner | None) -> None:
        """Replay a configuration in turns with the current best, and keep it if it is better."""
        bench, current = self.bench, self.arm
        self._make_room(self.base)
        self.say(f"replaying {configuration.words}")
        added = [choice.fix for choice in configuration.choices if choice.fix.id not in self.best.fixes]
        label = added[0].id if len(added) == 1 else f"trial-{len(self.known.trials) + 1}"
        candidate = bench.arm(label, configuration.settings, configuration.fixes, alone=bench.room.alone_with(added))
        try:
            trial = bench.retry_alone(candidate, lambda: self._try(configuration, candidate, planner))
        except LatfixError as error:
            candidate.close()
            status, which = ("undecided", "without") if current.failed else ("not_effective", "with")
            reason = f"the service did not run {which} it: {error.message}"
            trial = Trial(configuration=configuration, status=status, reason=reason)
        self.known.trials.append(trial)
        if planner is not None:
            _refuse(planner, trial)
        self.say(f"{configuration.words}: {trial.status}: {trial.reason}")
        if trial.status == "kept":
            effective = self.known.effective(configuration)
            bench.room.adopt(candidate)
            if current is not self.base:
                current.close()
            candidate.fixes = effective.fixes
            self.best, self.best_score, self.arm = effective, trial.score, candidate
        else:
            candidate.close()
        self._record_progress()

    def _make_room(self, idle: Arm) -> None:
        """Close an idle service if there is only memory for the two that are compared."""
        if self.bench.room.tight and self.arm is not self.base:
            idle.close()

    def _scored(self, configuration: Configuration, candidate: Arm) -> tuple[Mapping[str, Any], str]:
        """Scores of its answers, empty if they cannot differ; and why they are not accurate enough, or empty."""
        candidate.accuracy = self.arm.accuracy
        if not any(choice.fix.changes_outputs for choice in configuration.choices):
            return {}, ""
        scored = self.bench.accuracy(candidate)
        candidate.accuracy = score_of(scored)
        enough, reason = judge(scored, self.original, self.bench.max_drop)
        return scored, "" if enough else reason

    def _try(self, configuration: Configuration, candidate: Arm, planner: Planner | None) -> Trial:
        """Score the answers, then replay, then verify that each fix took effect."""
        bench = self.bench
        scored, refusal = self._scored(configuration, candidate)
        if refusal:
            return Trial(configuration=configuration, status="rejected", reason=refusal, scored=scored)
        cold = self._adds_cold(configuration)
        replayed = bench.screen(self.arm, candidate, cold=cold)
        pairs, left_out = (replayed, "") if cold else counted_windows(replayed)
        without, record = joined(pairs)
        comparison = compare_windows(without, record, bench.seed)
        status, reason = decide_cold(pairs) if cold else decide(comparison, self.goal)
        gained = goal_score(self.goal, ratios(waited_ms(without), waited_ms(record)))
        prediction = None
        if planner is not None and self._foretells(planner, configuration):
            now, then = (planner.predict(each, bench.window_bounds) for each in (self.best, configuration))
            prediction = Prediction(ratio=ratios(now.ratio, then.ratio), compute=then.compute)
            if status == "undecided" and max(gained, goal_score(self.goal, prediction.ratio)) < math.log(_LIKELY):
                status, reason = "kept", f"likely a gain, as predicted: {reason}"
            self._learn(planner, configuration, pairs)
        evidence = bench.evidence(candidate, replayed[-1][1])
        verified, missing = self._verify(configuration, Applied(evidence=evidence, record=record, without=without))
        self.known.ineffective |= missing
        if status == "kept" and missing and not set(configuration.fixes) - set(self.best.fixes) - set(missing):
            status, reason = "not_effective", "; ".join(missing.values())
        # A few first requests show no remaining tail.
        candidate.latest = self.arm.latest if cold else record
        return Trial(
            configuration=configuration,
            status=status,
            reason="; ".join(filter(None, (reason, left_out))),
            score=self.best_score + (0.0 if cold else gained),  # few of the traffic's requests are first ones
            comparison=comparison,
            prediction=prediction,
            scored=scored,
            verified=verified,
            pairs=tuple((one.folder.name, other.folder.name) for one, other in pairs),
        )

    def _adds_cold(self, configuration: Configuration) -> bool:
        """True if all that it adds to the current best acts on a service's first requests."""
        added = [choice.fix for choice in configuration.choices if choice.fix.id not in self.best.fixes]
        return bool(added) and all(fix.cold for fix in added)

    def _foretells(self, planner: Planner, configuration: Configuration) -> bool:
        """True if replays of it beside the current best can be compared with their prediction."""
        return not self._adds_cold(configuration) and planner.knows(self.best) and planner.knows(configuration)

    def _learn(self, planner: Planner, configuration: Configuration, pairs: Pairs) -> None:
        """Tell the planner how long both sides took, the current best first."""
        if pairs and self._foretells(planner, configuration):
            for each, records in zip((self.best, configuration), zip(*pairs, strict=True), strict=True):
                planner.learn(each, records)

    def _verify(self, configuration: Configuration, applied: Applied) -> tuple[dict[str, str], dict[str, str]]:
        """Evidence by fix: of the fixes that took effect, and of those that did not."""
        verified, missing = dict[str, str](), dict[str, str]()
        for choice in configuration.choices:
            if choice.fix.id in self.best.fixes:
                continue
            # What another fix of the best one so far sets as well is not missing there, but in the first settings.
            alike = self.best.settings.with_overrides(choice.change) == self.best.settings
            found = choice.fix.verify(replace(applied, without=self.bench.baseline) if alike else applied)
            (verified if found.effective else missing)[choice.fix.id] = found.evidence
        return verified, missing

    # -- preconditions and time

    def _applicable(self, configuration: Configuration | None = None) -> Iterator[Choice]:
        """Every change of every fix that applies to a configuration, by default to the first settings."""
        context = self._context(self.first if configuration is None else configuration.settings)
        for fix in self.fixes:
            if fix.id in self.known.ineffective or (configuration is not None and fix.id in configuration.fixes):
                continue
            if self._obstacle(fix, context.settings):
                continue
            key = (fix.id, repr(context.settings))
            if key not in self._choice_cache:
                self._choice_cache[key] = [Choice(fix, change) for change in fix.changes(context)]
            yield from self._choice_cache[key]

    def _note_obstacles(self) -> None:
        """Note for each fix why it applies neither to the first settings nor to the current best."""
        for fix in self.fixes:
            why = [self._obstacle(fix, settings) for settings in (self.first, self.best.settings)]
            if fix.id not in self.known.ineffective:
                self.known.obstacles[fix.id] = why[0] if all(why) else ""

    def _obstacle(self, fix: Fix, settings: RunnerSettings) -> str:
        """Why a fix does not apply to settings."""
        key = (fix.id, repr(settings))
        if key not in self._obstacle_cache:
            self._obstacle_cache[key] = fix.obstacle(self._context(settings))
        return self._obstacle_cache[key]

    def _context(self, settings: RunnerSettings) -> Context:
        key, baseline = repr(settings), self.bench.baseline
        if key not in self._contexts:
            self._contexts[key] = Context(
                settings=settings,
                record=baseline,
                diagnosis=self.diagnosis,
                default_collate=bool(self.bench.ready(self.base)["default_collate"]),
                cores=int(baseline.meta.machine.get("cores", 1)),
                latest=self.arm.latest,
                steps=self.known.steps(self.best, ended=False),
                found=self.known.set_ups,
            )
        return self._contexts[key]

    @property
    def _trials_left(self) -> bool:
        return self.most_trials is None or len(self.known.trials) < self.most_trials

    def _out_of_time(self, fixes: Sequence[Fix], promise: float = 0.0) -> str:
        """Why no further replay is possible; empty if one is.

        :param promise: predicted gain over the current best, as a logarithm.
        """
        if not self._trials_left:
            return f"{BUDGET}all {self.most_trials} trials are used"
        reserved = self.reserved_s()
        needed, left = self.bench.trial_s(fixes), self.bench.left_s() - reserved
        if not self.best.choices:  # nothing to prove yet, and a shorter proof is better than none
            left += reserved * _SHORTER_PROOF
        elif promise >= _MUCH:
            left += self._lent_s(fixes)
        if needed > left:
            return f"{BUDGET}it needs about {needed:.0f} s, {max(left, 0):.0f} s are left before the final replay"
        return ""

    def _lent_s(self, fixes: Sequence[Fix]) -> float:
        """Seconds of the final replay's time that the search may use for a large gain."""
        reserved = self.reserved_s()
        proof_s = max(reserved * _FEWER_ROUNDS, _LEAST_ROUNDS * self.bench.least_round_s(fixes))
        return max(reserved - proof_s, 0.0)

    def _record_progress(self) -> None:
        """Write the journal, and forget what preconditions made of earlier results."""
        for cache in (self._contexts, self._obstacle_cache, self._choice_cache):
            cache.clear()
        self.note()

    # -- results

    def candidates(self) -> list[Candidate]:
        """All replayed configurations, and the best one of each measured way."""
        known, trials = self.known, self.known.trials
        last = next((trial for trial in reversed(trials) if trial.status == "kept"), None)
        # What took no effect, or was left out of the plan, is not what was measured.
        named = [self.best if each is last else known.effective(each.configuration) for each in trials]
        found = [self._candidate(one, each.status, each) for one, each in zip(named, trials, strict=True)]
        replayed = {each.key for each in (*named, *(trial.configuration for trial in trials))}
        for each in self.known.alternatives:
            configuration = Configuration(self.first, each.choices)
            if each.status == "ready" and self.planner is not None:
                configuration = self._completed(self.planner, each.choices)
            if configuration.key not in replayed:
                status = "foretold" if each.status == "ready" else each.status
                found.append(self._candidate(configuration, status, each))
        return found

    def _candidate(self, configuration: Configuration, status: str, source: Trial | Alternative) -> Candidate:
        known = self.planner is not None and self.planner.knows(configuration)
        predicted = self.planner.predict(configuration) if self.planner is not None and known else None
        comparison, accuracy = (source.comparison, source.accuracy) if isinstance(source, Trial) else (None, None)
        cost = source.cost if isinstance(source, Alternative) else None
        scale = cost.typical if cost is not None else (predicted.compute or (0.0, 1.0))[1] if predicted else None
        return Candidate(
            fixes=configuration.fixes,
            settings={name: value for choice in configuration.choices for name, value in choice.change.items()},
            status=status,
            compute=scale,
            accuracy=accuracy,
            predicted={} if predicted is None else predicted.ratio,
            replayed={} if comparison is None else comparison.ratio,
            throughput_rps=None if comparison is None else comparison.after.throughput_rps,
        )

    def floor_ms(self) -> dict[str, float]:
        """By statistic, the least latency with an empty queue over the ways that are known to be accurate.

        Those are the first settings, the current best, and ways that change no answer: others were not scored.
        """
        if self.planner is None:
            return {}
        same = [each for each in self.known.alternatives if not any(one.fix.changes_outputs for one in each.choices)]
        known = {(), way(self.best), *map(way, same)}
        found = [self.planner.forecast.alone(cost) for each, cost in self.planner.costs.items() if each in known]
        return {key: min(each[key] for each in found) for key in KEYS}


def _refuse(planner: Planner, trial: Trial) -> None:
    """Rule out all configurations with what may be the reason that a trial was rejected or did not run.

    Of several choices it is not known which one, so each remains possible without the others. Answers differ on any
    number of cores and in batches of any size, but a service may run with smaller ones.
    """
    if trial.comparison is not None or trial.status not in ("rejected", "not_effective"):
        return
    choices = trial.configuration.choices
    if trial.status == "rejected":
        likely = {each.suspect for each in choices if each.fix.changes_outputs}
    else:
        likely = {each.words for each in choices if each.measured or each.fix.changes_outputs or each.fix.mates_only}
    planner.refused.add(frozenset(likely or trial.configuration.key))


def _ratio_words(ratio: Mapping[str, float], key: str) -> str:
    return ", ".join(f"{name} {ratio_words(ratio[name])}" for name in dict.fromkeys((key, "mean")))
