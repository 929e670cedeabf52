"""The search: ways to run the model are measured, whole configurations are foretold, the best few are replayed.

What is decided, in this order:

1. how the model runs (precision, backend, compilation, workers and threads): every way that applies is measured on
   the same batches (:mod:`alternatives`);
2. everything that the forecast can simulate beside it (batch limit, window, order, causes that a fix takes away): for
   each way the best of many configurations (:mod:`planner`);
3. the answers of the best of all are scored, and it is replayed on the slow stretches of the traffic, beside what
   stands so far. What that shows corrects what was foretold, and the next best is replayed where it promises more;
4. what no forecast knows (allocators, pinning, collections, …) is added where it treats what is left of the tail, and
   kept where replays show a gain.

A fix's name is nowhere in here: each brings its preconditions, its settings and its proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from latfix.errors import LatfixError
from latfix.profilers.diagnose import diagnose
from latfix.results.comparison import Comparison
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import BUDGET, Candidate, Prediction
from latfix.results.optimization_step import KEYS, Step
from latfix.runners.fixes import Applied, Context, Fix
from latfix.runners.measure.accuracy_guard import judge
from latfix.runners.optimize.alternatives import Alternative, measure
from latfix.runners.optimize.configuration import Choice, Configuration, Obstacle, compose
from latfix.runners.optimize.measurement import Bench
from latfix.runners.optimize.planner import LEAST_GAIN, Goal, Planner, way
from latfix.runners.optimize.screening_decision import Pairs, compare_windows, decide, decide_cold
from latfix.runners.optimize.screening_windows import join
from latfix.runners.replay.arm import Arm
from latfix.settings import RunnerSettings

#: The share of what is left after the baseline that measuring ways to run the model may take.
_MEASURING = 0.5
#: Batches beyond these sizes are foretold from smaller ones.
_PROBED_SIZES = (2, 4, 8, 16)
#: Seconds that all of them may have computed once; they are computed half a dozen times for each way.
_PROBES_S = 0.7
#: A configuration must be foretold to gain this much on the best that was replayed, as a logarithm, to be replayed.
_WORTH_A_REPLAY = 0.03
#: Of the tail's excess, what a fix that no forecast knows must be expected to take away.
_WORTH_ADDING = 0.03
#: An undecided gain is taken where it and what was foretold are at least this, as a ratio: the final replay tells.
_LIKELY = 0.95
#: The share of the time for the final replay that may go into finding anything to prove.
_SHORTER_PROOF = 2 / 3
#: Where a configuration is foretold to gain so much on what stands, as a logarithm, a replay of it may take
_MUCH = 0.25
#: this share of the time for the final replay.
_FEWER_ROUNDS = 1 / 2
#: What nobody had time to replay is proved all the same where it is foretold to be at least this, as a ratio.
_FORETOLD = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A configuration that was replayed on the windows, beside what stood before it.

    :param score: its goal over the first settings, as a logarithm: what the replays showed, one over the other.
    :param latency_ms: on the windows.
    :param reason: what the replays showed, or why there are none.
    :param verified: by fix, the evidence that it took effect.
    :param paces: how much longer batches took than foretold, of what stood and of this one; empty where unknown.
    """

    configuration: Configuration
    status: str
    reason: str
    score: float = math.inf
    comparison: Comparison | None = None
    prediction: Prediction | None = None
    scored: Mapping[str, Any] = field(default_factory=dict)
    verified: Mapping[str, str] = field(default_factory=dict)
    paces: tuple[float, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()

    def prediction_error(self, key: str) -> float | None:
        """How far the predicted ratio of a statistic was from the one that was measured, as a share of this."""
        if self.prediction is None or self.comparison is None:
            return None
        measured = self.comparison.ratio[key]
        if measured.lost or not measured.value > 0:
            return None
        return abs(self.prediction.ratio[key] / measured.value - 1.0)


class Search:
    """Finds the best configuration on a bench.

    :ivar best: the configuration that stands; ``arm`` its service.
    :ivar alternatives: ways to run the model that were measured, in order.
    :ivar trials: configurations that were replayed, in order.

    :param fixes: those that may be chosen.
    :param planner: ``None`` where the baseline is too small, or too far from its simulation, to foretell others.
    :param original: the accuracy of the first settings.
    :param trials: most configurations to replay; ``None`` for no limit.
    :param reserved_s: seconds that must be left for the final replay.
    :param say: told what was found.
    :param note: called after everything that cost time.
    """

    def __init__(
        self,
        bench: Bench,
        base: Arm,
        diagnosis: Diagnosis,
        original: float,
        fixes: Sequence[Fix],
        make_planner: Callable[[Obstacle], Planner | None],
        *,
        goal: Goal,
        trials: int | None,
        reserved_s: Callable[[], float],
        say: Callable[[str], None],
        note: Callable[[], None] = lambda: None,
    ) -> None:
        self._bench = bench
        self._base = base
        self._diagnosis = diagnosis
        self._original = original
        self._fixes = list(fixes)
        self._goal = goal
        self._most_trials = trials
        self._reserved_s = reserved_s
        self._say = say
        self._note = note
        self.first = base.settings
        self.found: dict[str, Any] = {}
        self.best = Configuration(base.settings)
        self.best_score = 0.0
        self.arm = base
        self.alternatives: list[Alternative] = []
        self.trials: list[Trial] = []
        self._obstacles: dict[str, str] = {}
        self._skipped: dict[str, str] = {}
        self.ineffective: dict[str, str] = {}
        self._dropped: set[str] = set()
        # Asked once until something new is known, by settings: some fixes look at the whole record.
        self._contexts: dict[str, Context] = {}
        self._known: dict[tuple[str, str], str] = {}
        self._changes: dict[tuple[str, str], list[Choice]] = {}
        self.planner = make_planner(self._obstacle)

    @property
    def recorded(self) -> dict[str, Any]:
        """The findings of set-ups that the journal keeps."""
        kept = {fix.id for fix in self._fixes if fix.set_up is not None and fix.set_up.recorded}
        return {name: found for name, found in self.found.items() if name in kept}

    def restore(
        self,
        alternatives: Sequence[Alternative],
        trials: Sequence[Trial],
        found: Mapping[str, Any],
        ineffective: Mapping[str, str],
    ) -> None:
        """Go on from what an earlier search found."""
        self.alternatives, self.trials = list(alternatives), list(trials)
        self.found |= found
        self.ineffective |= ineffective
        for each in self.alternatives:
            if each.status == "ready" and self.planner is not None:
                self.planner.costs[tuple(choice.words for choice in each.choices)] = each.cost
        for trial in self.trials:
            if self.planner is not None:
                _refuse(self.planner, trial)
                for made, pace in zip((self.best, trial.configuration), trial.paces, strict=False):
                    self.planner.take(made, pace)
            if trial.status == "kept":
                self.best_score, self.best = trial.score, self._effective(trial.configuration)
        if self.best.choices:
            scored = next((trial.scored for trial in reversed(self.trials) if trial.status == "kept"), {})
            accuracy = float(scored["score"]) if scored else self._base.accuracy
            self.arm = self._bench.arm("so-far", self.best.settings, self.best.fixes, accuracy)
            self._bench.room.adopt(self.arm)

    def _effective(self, made: Configuration) -> Configuration:
        """Without the fixes that took no effect."""
        for fix in self.ineffective:
            made = made.without(fix)
        return made

    def run(self) -> None:
        """Decide, as far as the time reaches.

        :raises LatfixError: the service failed as it is.
        """
        spare = max(self._bench.left_s() - self._reserved_s(), 0.0)
        trials = int((1 - _MEASURING) * spare / self._bench.trial_s(self._scored_fixes()))
        count = "about 1 replay" if trials <= 1 else f"about {trials} replays"
        self._say(f"this traffic and budget leave time for {count} of candidates and for the final proof")
        if self.planner is not None:
            limit = max(self.first.max_batch_size, 8)
            batches = self.planner.forecast.probes([size for size in _PROBED_SIZES if size <= limit], _PROBES_S)
            if self._numbers() or any(choice.measured for choice in self._applicable()):
                self.planner.forecast.learn(batches, self._bench.base_pace(self._base, batches))
            self._measure_ways(self.planner, batches)
            self._replay_foretold(self.planner, batches)
            if self._measure_shares(self.planner, batches, self._reserved_s() + self._bench.trial_s([])):
                self._replay_foretold(self.planner, batches)
        self._replay_added()
        if self.planner is not None and not self.best.choices:
            self._take_foretold(self.planner)
        elif self.planner is not None:
            self._drop_needless(self.planner)

    def without(self, fix: str) -> Configuration | None:
        """The best configuration but for one fix; ``None`` if that is none, or others do not apply without it."""
        rest = self.best.without(fix)
        made = compose(self.first, rest.choices, self._obstacle)
        return made if made.choices and made.key == rest.key else None

    def _drop_needless(self, planner: Planner) -> None:
        """Leave out, one by one, what was kept beside others and gains nothing there by all that replays have shown.

        Nobody has scored what is left over, so it must answer as the whole did.
        """
        while planner.knows(self.best):
            known = planner.shares(self.best)
            rests = []
            for choice in self.best.choices:
                rest = self.without(choice.fix.id)
                if choice.fix.id in known and not choice.fix.changes_outputs and rest and planner.knows(rest):
                    rests.append((planner.score(rest), choice.fix.id, rest))
            score, fix, rest = min(rests, key=lambda each: each[:2], default=(math.inf, "", self.best))
            if score > planner.score(self.best) + LEAST_GAIN:
                return
            self._say(f"{fix} is left out: beside the others it is foretold to gain nothing")
            self._dropped.add(fix)
            self.best = rest

    # -- 1. ways to run the model

    def _measure_ways(self, planner: Planner, batches: Sequence[Sequence[int]]) -> None:
        """Measure what applies, quickest first; then other shares of the cores, for the best of it and as it is."""
        left = self._bench.left_s()
        spare = max(left - self._reserved_s(), 0.0)
        until = left - max(min(_MEASURING * spare, spare - self._bench.trial_s(self._scored_fixes())), 0.0)
        device = "cpu" if self._context(self.first).on_cpu else "cuda"
        for choice in sorted(
            self._models(), key=lambda one: (one.fix.seconds_to_make(device), one.fix.expected_compute)
        ):
            self._measure_way(planner, batches, until, [choice])
        self._measure_shares(planner, batches, until)

    def _measure_shares(self, planner: Planner, batches: Sequence[Sequence[int]], until: float) -> bool:
        """Measure other shares of the cores, as far as the time reaches; whether one was."""
        known = len(self.alternatives)
        shares = [choice for choice in self._applicable() if choice.measured and choice.fix.compute == 1.0]
        for share in shares:
            for model in self._ready(planner)[:1]:
                self._measure_way(planner, batches, until, [*model.choices, share])
            self._measure_way(planner, batches, until, [share])
        return len(self.alternatives) > known

    def _ready(self, planner: Planner) -> list[Alternative]:
        """Ways to run the model that may be chosen, best first."""
        ready = [each for each in self.alternatives if each.status == "ready"]
        ready = [each for each in ready if all(choice.fix.compute != 1.0 for choice in each.choices)]
        return sorted(ready, key=lambda each: self._expected(planner, self._numbered(planner, each.choices)))

    def _look_again(self, planner: Planner, batches: Sequence[Sequence[int]]) -> None:
        """A way was refused for its answers: measure what is to take its place."""
        self._set_up()
        for choice in self._models():
            if choice.fix.after:
                self._measure_way(planner, batches, self._reserved_s(), [choice])

    def _scored_fixes(self) -> list[Fix]:
        """For an estimate of the first trial, which changes answers."""
        return [fix for fix in self._fixes if fix.changes_outputs and not fix.making_s][:1]

    def _models(self) -> list[Choice]:
        return [choice for choice in self._applicable() if choice.fix.compute != 1.0]

    def _measure_way(
        self, planner: Planner, batches: Sequence[Sequence[int]], until: float, choices: Sequence[Choice]
    ) -> None:
        """Measure one way, unless it is known, contains one that is out, or there is no time before ``until``."""
        made = compose(self.first, choices, self._obstacle)
        if len(made.choices) < len(choices) or way(made) in planner.costs or self._refused(made):
            return
        fixes = [choice.fix for choice in choices]
        cost_s = self._bench.pace_s(fixes, planner.forecast.seconds(batches))
        left = self._bench.left_s()
        if left - cost_s < (until if self.alternatives else self._reserved_s()):
            spare = max(left - until, 0.0)
            reason = f"{BUDGET}measuring it takes about {cost_s:.0f} s, {spare:.0f} s were left for that"
            for fix in fixes:
                self._skipped.setdefault(fix.id, reason)
            return
        self._make_room(self.arm)
        found = measure(self._bench, self._base, made, batches, planner.forecast.cost)
        self.alternatives.append(found)
        if found.status == "ready":
            planner.costs[way(made)] = found.cost
        self._say(f"{made.words}: {'' if found.status == 'ready' else found.status + ', '}{found.reason}")
        self._learnt()

    def _set_up(self) -> None:
        """Measure, once each, what fixes must know before they can be decided, and look again what applies."""
        for fix in self._fixes:
            due = fix.set_up is not None and fix.id not in self.found and fix.set_up.due(self._context(self.first))
            if due and fix.set_up is not None and not self._out_of_time([]):
                found = self.found[fix.id] = fix.set_up.measure(self._bench, self._base)
                if words := fix.set_up.shown(found):
                    self._say(f"{fix.id}: {words}")
                self._learnt()
        list(self._applicable())

    # -- 2. and 3. whole configurations

    def _numbered(self, planner: Planner, measured: Sequence[Choice]) -> Configuration:
        return planner.best(measured, self._numbers())

    def _numbers(self) -> list[list[Choice]]:
        """What the forecast can simulate beside the way that the model runs: by fix, the choices."""
        now = Configuration(self.first).serving(None)
        groups: dict[str, list[Choice]] = {}
        for choice in self._applicable():
            if not choice.measured and Configuration(self.first, (choice,)).serving(None) != now:
                groups.setdefault(choice.fix.id, []).append(choice)
        return list(groups.values())

    def _ranked(self, planner: Planner) -> list[Configuration]:
        """The best configuration of each way to run the model, best first."""
        ways: list[tuple[Choice, ...]] = [(), *(each.choices for each in self.alternatives if each.status == "ready")]
        made = [self._numbered(planner, choices) for choices in ways]
        return sorted(made, key=partial(self._expected, planner))

    def _expected(self, planner: Planner, made: Configuration) -> float:
        """What a replay of it is expected to gain: answers that nobody has seen may not be good enough."""
        unseen = [choice.fix for choice in made.choices if choice.fix.id not in self.best.fixes]
        score = planner.score(made)
        return score * math.prod(fix.accepted for fix in unseen) if score < 0 else score

    def _replay_foretold(self, planner: Planner, batches: Sequence[Sequence[int]]) -> None:
        tried = {(), *(trial.configuration.key for trial in self.trials)}
        told = refused = False
        while True:
            ranked = [one for one in self._ranked(planner) if one.key not in tried]
            worth = (one for one in ranked if planner.score(one) <= self.best_score - _WORTH_A_REPLAY)
            best = next(worth, None)
            if refused and (self.best.choices or best is None):
                # What takes the place of a refused way is long to find: not before there is something to prove.
                refused = False
                self._look_again(planner, batches)
                continue
            if ranked and not told:
                told = True
                self._say(
                    f"{planner.looked_at} configurations simulated; the best: {ranked[0].words}, "
                    f"{_foretold(planner.predict(ranked[0]).ratio, self._goal.key)}"
                )
            if best is None:
                break
            tried.add(best.key)
            stands = min(self.best_score, planner.score(self.best)) if planner.knows(self.best) else self.best_score
            promise = stands - planner.score(best)
            if refusal := self._out_of_time([choice.fix for choice in best.choices], promise):
                # Another one may take less: nothing to convert, no answers to score.
                self._skipped = dict.fromkeys(best.fixes, refusal) | self._skipped
                continue
            self._replay(best, planner)
            refused |= self.trials[-1].status == "rejected"

    def _take_foretold(self, planner: Planner) -> None:
        """Leave the best that changes no answer, and that nothing spoke against, to the final replay to prove."""
        seen = {(), *(trial.configuration.key for trial in self.trials)}
        ranked = [one for one in self._ranked(planner) if one.key not in seen]
        best = next((one for one in ranked if not any(each.fix.changes_outputs for each in one.choices)), None)
        if best is None or self._bench.left_s() < self._bench.least_round_s:
            return
        if (score := planner.score(best)) > math.log(_FORETOLD):
            return
        told = planner.predict(best)
        reason = f"foretold {_foretold(told.ratio, self._goal.key)}; no time to try it: the final replay alone tells"
        self._say(f"{best.words}: {reason}")
        self.trials.append(Trial(configuration=best, status="kept", reason=reason, score=score))
        self.best, self.best_score, self.arm = best, score, self._bench.arm("foretold", best.settings, best.fixes)
        self.arm.accuracy = self._base.accuracy
        self._learnt()

    # -- 4. what no forecast knows

    def _replay_added(self) -> None:
        """Add what treats what is left of the tail: one by one what may change answers, then all else together."""
        refused = {fix for trial in self.trials for fix in trial.configuration.fixes}

        list(self._applicable())  # what stands against each is told in the end, also where time is up
        while True:
            left = self._left()
            groups = self._added(left, refused)
            if self.best.choices or not groups:
                self._set_up()
                groups = self._added(left, refused)
            if not groups:
                return
            group = groups[0]
            fixes = [choice.fix for choice in group]
            if refusal := self._out_of_time([*fixes, *(choice.fix for choice in self.best.choices)]):
                for choice in chain.from_iterable(groups):
                    self._skipped.setdefault(choice.fix.id, refusal)
                return
            refused |= {fix.id for fix in fixes}
            made = compose(self.first, [*self.best.choices, *group], self._obstacle)
            if not set(made.fixes) & {fix.id for fix in fixes}:
                made = compose(self.first, [*group, *self.best.choices], self._obstacle)
            if set(made.fixes) - set(self.best.fixes):
                self._replay(made, self.planner)

    def _left(self) -> Diagnosis:
        """Of what stands so far."""
        latest = self.arm.latest
        return self._diagnosis if latest is None else diagnose(latest, percentile=self._diagnosis.percentile)

    def _added(self, left: Diagnosis, refused: Collection[str]) -> list[list[Choice]]:
        """Groups of choices that are expected to take something of what is left, most promising first.

        :param refused: fixes that were tried; a group of them alone is left out.
        """
        excess = left.excess_ms / max(left.excess_ms + left.reference_ms, 1e-9)
        shares = {cause.cause: max(cause.tail_share, 0.0) for cause in left.causes}
        promise: list[tuple[float, Choice]] = []
        known = {choice.fix.id for group in self._numbers() for choice in group} if self.planner else set()
        for choice in self._applicable(self.best):
            fix = choice.fix
            if fix.id in known or (choice.measured and self.planner):
                continue
            expected = fix.relief * min(sum(shares.get(cause, 0.0) for cause in fix.treats), 1.0) * excess
            if expected >= _WORTH_ADDING:
                promise.append((expected, choice))
            else:
                owned = expected / max(fix.relief, 1e-9)
                self._skipped.setdefault(fix.id, f"what it treats is {owned:.1%} of what is left of the tail")
        promise.sort(key=lambda each: -each[0])
        gentle = [choice for _, choice in promise if choice.fix.gentle and not choice.fix.cold]
        groups = [[choice] for _, choice in promise if choice not in gentle]
        first = max((value for value, choice in promise if choice in gentle), default=0.0)
        place = sum(value > first for value, choice in promise if choice not in gentle)
        groups = [*groups[:place], *([gentle] if gentle else []), *groups[place:]]
        return [group for group in groups if not {choice.fix.id for choice in group} <= set(refused)]

    # -- replays

    def _replay(self, made: Configuration, planner: Planner | None) -> None:
        """Replay a configuration beside the one that stands, and take it where it is better."""
        bench, standing = self._bench, self.arm
        self._make_room(self._base)
        self._say(f"replaying {made.words}")
        added = [choice.fix for choice in made.choices if choice.fix.id not in self.best.fixes]
        label = added[0].id if len(added) == 1 else f"trial-{len(self.trials) + 1}"
        candidate = bench.arm(label, made.settings, made.fixes, alone=bench.room.alone_with(added))
        try:
            trial = bench.apart_if_need_be(candidate, lambda: self._measured(made, candidate, planner))
        except LatfixError as error:
            candidate.close()
            status, which = ("undecided", "without") if standing.failed else ("not_effective", "with")
            reason = f"the service did not run {which} it: {error.message}"
            trial = Trial(configuration=made, status=status, reason=reason)
        self.trials.append(trial)
        if planner is not None:
            _refuse(planner, trial)
        self._say(f"{made.words}: {trial.status}: {trial.reason}")
        if trial.status == "kept":
            effective = self._effective(made)
            bench.room.adopt(candidate)
            if standing is not self._base:
                standing.close()
            candidate.fixes = effective.fixes
            self.best, self.best_score, self.arm = effective, trial.score, candidate
        else:
            candidate.close()
        self._learnt()

    def _make_room(self, idle: Arm) -> None:
        """On a device no third service holds memory beside the two that are compared."""
        if self._bench.room.on_device and self.arm is not self._base:
            idle.close()

    def _measured(self, made: Configuration, candidate: Arm, planner: Planner | None) -> Trial:
        """Accuracy before speed, then the replays and the proof that each fix took effect."""
        bench, fixes = self._bench, [choice.fix for choice in made.choices]
        scored: Mapping[str, Any] = {}
        candidate.accuracy = self.arm.accuracy
        if any(fix.changes_outputs for fix in fixes):
            scored = bench.accuracy(candidate)
            candidate.accuracy = float(scored["score"])
            enough, said = judge(scored, self._original, bench.max_drop)
            if not enough:
                return Trial(configuration=made, status="rejected", reason=said, scored=scored)
        added = [choice for choice in made.choices if choice.fix.id not in self.best.fixes]
        cold = bool(added) and all(choice.fix.cold for choice in added)
        pairs = bench.screen(self.arm, candidate, [], cold=cold)
        comparison = compare_windows(pairs, bench.seed)
        status, reason = decide_cold(pairs) if cold else decide(comparison)
        gained = self._goal.score(comparison_ratios(comparison))
        prediction, paces = None, tuple[float, ...]()
        if planner is not None and not cold and planner.knows(self.best) and planner.knows(made):
            now, then = (planner.predict(each, bench.window_bounds).ratio for each in (self.best, made))
            prediction = Prediction(
                ratio={key: then[key] / now[key] if now[key] > 0 else 1.0 for key in then},
                compute=planner.predict(made, bench.window_bounds).compute,
            )
            if status == "undecided" and max(gained, self._goal.score(prediction.ratio)) < math.log(_LIKELY):
                status, reason = "kept", f"likely a gain, as foretold: {reason}"
            paces = self._learn(planner, made, pairs)
        verified, missing = self._verified(made, candidate, pairs)
        self.ineffective |= missing
        if status == "kept" and missing and not set(made.fixes) - set(self.best.fixes) - set(missing):
            status, reason = "not_effective", "; ".join(missing.values())
        if not cold:
            candidate.latest = join([record for _, record in pairs])
        return Trial(
            configuration=made,
            status=status,
            reason=reason,
            score=self.best_score + gained,
            comparison=comparison,
            prediction=prediction,
            scored=scored,
            verified=verified,
            paces=paces,
            pairs=tuple((one.folder.name, other.folder.name) for one, other in pairs),
        )

    def _learn(self, planner: Planner, made: Configuration, pairs: Pairs) -> tuple[float, ...]:
        """Have the planner take how long batches took on both sides, the one that stands first."""
        begins = [begin for begin, _ in self._bench.window_bounds] or [0.0]
        shown = [
            planner.learn(each, [(pair[k], begin) for pair, begin in zip(pairs, begins, strict=True)])
            for k, each in enumerate((self.best, made))
        ]
        return tuple(pace for pace in shown if pace is not None) if None not in shown else ()

    def _verified(self, made: Configuration, candidate: Arm, pairs: Pairs) -> tuple[dict[str, str], dict[str, str]]:
        """By fix, the evidence of those that took effect, and of those that did not."""
        evidence = self._bench.evidence(candidate, pairs[-1][1])
        without, record = (join(arm) for arm in zip(*pairs, strict=True))
        verified, missing = dict[str, str](), dict[str, str]()
        for choice in made.choices:
            if choice.fix.id in self.best.fixes:
                continue
            found = choice.fix.verify(Applied(evidence=evidence, record=record, without=without))
            (verified if found.effective else missing)[choice.fix.id] = found.evidence
        return verified, missing

    # -- what applies, and whether there is time

    def _applicable(self, made: Configuration | None = None) -> Iterator[Choice]:
        """Every change of every fix that applies to the first settings, or to a configuration."""
        context = self._context(self.first if made is None else made.settings)
        for fix in self._fixes:
            if fix.id in self.ineffective or (made is not None and fix.id in made.fixes):
                continue
            if obstacle := self._obstacle(fix, context.settings):
                if made is None:
                    self._obstacles[fix.id] = obstacle
                continue
            self._obstacles.pop(fix.id, None)
            key = (fix.id, repr(context.settings))
            if key not in self._changes:
                self._changes[key] = [Choice(fix, change) for change in fix.changes(context)]
            yield from self._changes[key]

    def _refused(self, made: Configuration) -> bool:
        """Whether a way of which this one is made was measured and is out."""
        words = set(way(made))
        out = [{choice.words for choice in each.choices} for each in self.alternatives if each.status != "ready"]
        return any(each <= words for each in out)

    def _obstacle(self, fix: Fix, settings: RunnerSettings) -> str:
        """Why a fix does not apply to settings."""
        key = (fix.id, repr(settings))
        if key not in self._known:
            self._known[key] = fix.obstacle(self._context(settings))
        return self._known[key]

    def _context(self, settings: RunnerSettings) -> Context:
        key, baseline = repr(settings), self._bench.baseline
        if key not in self._contexts:
            self._contexts[key] = Context(
                settings=settings,
                record=baseline,
                diagnosis=self._diagnosis,
                default_collate=bool(self._bench.ready(self._base)["default_collate"]),
                cores=int(baseline.meta.machine.get("cores", 1)),
                latest=self.arm.latest,
                steps=self.steps(ended=False),
                found=self.found,
            )
        return self._contexts[key]

    def _out_of_time(self, fixes: Sequence[Fix], promise: float = 0.0) -> str:
        """Why nothing more can be replayed; empty where it can.

        :param promise: what it is foretold to gain on what stands, as a logarithm.
        """
        if self._most_trials is not None and len(self.trials) >= self._most_trials:
            return f"{BUDGET}all {self._most_trials} trials are used"
        needed, left = self._bench.trial_s(fixes), self._bench.left_s() - self._reserved_s()
        if not self.best.choices:  # there is nothing to prove yet, and a shorter proof is better than none
            left += self._reserved_s() * _SHORTER_PROOF
        elif promise >= _MUCH:
            left += self._reserved_s() * _FEWER_ROUNDS
        if needed > left:
            return f"{BUDGET}it needs about {needed:.0f} s, {max(left, 0):.0f} s are left before the final replay"
        return ""

    def _learnt(self) -> None:
        """Something new is known, which preconditions may look at, and the journal keeps."""
        for each in (self._contexts, self._known, self._changes):
            each.clear()
        self._note()

    # -- what was found

    def candidates(self) -> list[Candidate]:
        """Whole configurations that were looked at closely: those that were replayed, and the best of each way."""
        found = [self._candidate(trial.configuration, trial.status, trial) for trial in self.trials]
        replayed = {trial.configuration.key for trial in self.trials}
        for each in self.alternatives:
            made = Configuration(self.first, each.choices)
            if each.status == "ready" and self.planner is not None:
                made = self._numbered(self.planner, each.choices)
            if made.key not in replayed:
                found.append(self._candidate(made, "foretold" if each.status == "ready" else each.status, each))
        return found

    def _candidate(self, made: Configuration, status: str, source: Trial | Alternative) -> Candidate:
        predicted = self.planner.predict(made) if self.planner is not None and self.planner.knows(made) else None
        comparison = source.comparison if isinstance(source, Trial) else None
        cost = source.cost if isinstance(source, Alternative) else None
        scale = cost.typical if cost is not None else (predicted.compute or (0.0, 1.0))[1] if predicted else None
        return Candidate(
            fixes=made.fixes,
            settings={name: value for choice in made.choices for name, value in choice.change.items()},
            status=status,
            compute=scale,
            accuracy=float(source.scored["score"]) if isinstance(source, Trial) and source.scored else None,
            predicted={} if predicted is None else predicted.ratio,
            replayed={} if comparison is None else comparison.ratio,
            throughput_rps=None if comparison is None else comparison.after.throughput_rps,
        )

    def floor_ms(self) -> dict[str, float]:
        """By statistic, the least over the ways known to be accurate of what requests take with an empty queue.

        Those are the way it runs now, the best one, and ways that change no answer: others were not scored.
        """
        if self.planner is None:
            return {}
        same = [
            each.choices for each in self.alternatives if not any(one.fix.changes_outputs for one in each.choices)
        ]
        known = {(), way(self.best), *(tuple(choice.words for choice in choices) for choices in same)}
        found = [self.planner.forecast.alone(cost) for each, cost in self.planner.costs.items() if each in known]
        return {key: min(each[key] for each in found) for key in KEYS}

    # -- what became of each fix

    def steps(self, *, ended: bool = True) -> list[Step]:
        """Every fix once, with what became of it.

        :param ended: the search was not broken off; otherwise fixes that nothing was found of are left out.
        """
        made = {fix.id: step for fix in self._fixes if (step := self._step(fix, ended)) is not None}
        kept = [made[fix] for fix in self.best.fixes if fix in made]
        return [*kept, *(step for fix, step in made.items() if fix not in self.best.fixes)]

    def _step(self, fix: Fix, ended: bool) -> Step | None:
        if fix.id in self.best.fixes:
            return self._kept(fix)
        if fix.id in self.ineffective:
            return fix.step("not_effective", f"it did not take effect: {self.ineffective[fix.id]}")
        if fix.id in self._dropped:
            return fix.step("no_gain", "replayed with the others; beside them it is foretold to gain nothing")
        for trial in reversed(self.trials):
            if fix.id in trial.configuration.fixes and trial.configuration.fixes != self.best.fixes:
                own = next(choice for choice in trial.configuration.choices if choice.fix.id == fix.id)
                words = trial.configuration.words
                return fix.step(
                    "no_gain" if trial.status == "kept" else trial.status,
                    trial.reason if words == fix.id else f"tried as {words}: {trial.reason}",
                    settings=dict(own.change),
                    comparison=trial.comparison,
                    prediction=trial.prediction,
                    scored=trial.scored,
                    accuracy=float(trial.scored["score"]) if trial.scored else None,
                    together=trial.configuration.fixes if len(trial.configuration.fixes) > 1 else (),
                    pairs=trial.pairs,
                )
        return self._measured_step(fix) or self._unmeasured_step(fix, ended)

    def _measured_step(self, fix: Fix) -> Step | None:
        alone = [each for each in self.alternatives if fix.id in {choice.fix.id for choice in each.choices}]
        for each in sorted(alone, key=lambda each: (each.status == "ready", len(each.choices))):
            own = next(choice for choice in each.choices if choice.fix.id == fix.id)
            status = "no_gain" if each.status == "ready" else each.status
            reason = f"{each.reason}; another way is foretold to be better" if each.status == "ready" else each.reason
            return fix.step(status, reason, settings=dict(own.change))
        return None

    def _unmeasured_step(self, fix: Fix, ended: bool) -> Step | None:
        reason = self._obstacles.get(fix.id) or self._skipped.get(fix.id)
        if reason is not None:
            return fix.step("skipped", reason)
        if not ended:
            return None
        return fix.step("no_gain", "the forecast on the recorded requests finds no gain, so it was not replayed")

    def _kept(self, fix: Fix) -> Step:
        own = next(choice for choice in self.best.choices if choice.fix.id == fix.id)
        first = next(trial for trial in self.trials if trial.status == "kept" and fix.id in trial.configuration.fixes)
        group = tuple(each for each in first.configuration.fixes if each in self.best.fixes)
        return fix.step(
            "kept",
            first.reason,
            settings=dict(own.change),
            comparison=first.comparison,
            prediction=first.prediction,
            scored=first.scored if fix.changes_outputs else {},
            accuracy=float(first.scored["score"]) if first.scored else None,
            verified=first.verified.get(fix.id, ""),
            together=group if len(group) > 1 else (),
            pairs=first.pairs,
        )


def _refuse(planner: Planner, trial: Trial) -> None:
    """Have no other configuration run the model as a trial that answered otherwise, or did not run."""
    if trial.comparison is None and trial.status in ("rejected", "not_effective"):
        # It answers otherwise, whatever cores it runs on.
        answers = {choice.words for choice in trial.configuration.measured if choice.fix.changes_outputs}
        out = answers if answers and trial.status == "rejected" else set(way(trial.configuration))
        planner.refused |= {each for each in planner.costs if out and out <= set(each)}


def comparison_ratios(comparison: Comparison) -> dict[str, float]:
    """After over before of every statistic of those that ended ``ok``, as forecasts are."""
    before, after = comparison.before.latency_ms_ok, comparison.after.latency_ms_ok
    return {key: after[key] / before[key] if before[key] > 0 else 1.0 for key in before}


def _foretold(ratio: Mapping[str, float], key: str) -> str:
    return ", ".join(f"{name} x{ratio[name]:.2f}" for name in dict.fromkeys((key, "mean")))
