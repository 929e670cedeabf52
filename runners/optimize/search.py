"""The search: fixes in the order of what they promise, each tried on the best so far and kept if decisive."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from latfix.errors import LatfixError
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import BUDGET
from latfix.results.optimization_step import Step
from latfix.runners.fixes import Context, Fix
from latfix.runners.optimize.compute_scout import Scout
from latfix.runners.optimize.fix_prediction import Predictor, Standing
from latfix.runners.optimize.measurement import Bench
from latfix.runners.optimize.screening_decision import SCREENED, compare_windows, decide
from latfix.runners.optimize.trial import KNOWN_GAIN, Change, Trials, no_gain_by_forecast
from latfix.runners.replay.arm import Arm
from latfix.settings import RunnerSettings


class Search:
    """Tries fixes on a bench.

    :ivar found: by fix, what its set-up or the last of its proposals found.

    :param original: the accuracy of the first settings.
    :param fixes: those that may be tried, of ``catalogue``.
    :param trials: most candidates to replay; ``None`` for no limit.
    :param reserved_s: seconds that must be left for the final replay.
    :param note: called with every step as soon as it is decided; ``say`` with what else was found.
    :param steps: those of an earlier search that goes on; ``layers`` likewise.
    """

    def __init__(
        self,
        bench: Bench,
        diagnosis: Diagnosis,
        original: float,
        predictor: Predictor,
        fixes: Sequence[Fix],
        *,
        catalogue: Sequence[Fix],
        trials: int | None,
        reserved_s: Callable[[], float],
        note: Callable[[Step], None],
        say: Callable[[str], None] = lambda _: None,
        steps: Sequence[Step] = (),
        layers: Mapping[str, Any] | None = None,
    ) -> None:
        self._bench = bench
        self._diagnosis = diagnosis
        self._catalogue = {fix.id: fix for fix in catalogue}
        self._recorded = next((fix.id for fix in catalogue if fix.set_up is not None and fix.set_up.recorded), "")
        self.found: dict[str, Any] = {self._recorded: layers} if layers else {}
        self._predictor = predictor
        self._fixes = list(fixes)
        self._trials = trials
        self._reserved_s = reserved_s
        self._note = note
        self._say = say
        self._scout = Scout(bench, say)
        self._run = Trials(bench, predictor, original, lambda fixes: not self._out_of_budget(fixes)).run
        self.first = Standing(settings=bench_settings(bench))
        self.steps = list(steps)
        alone = sum(step.comparison is not None and not step.together for step in self.steps)
        self._replayed = alone + len({step.together for step in self.steps if step.together})

    @property
    def layers(self) -> Mapping[str, Any]:
        """The finding that the journal keeps (:class:`latfix.runners.fixes.fix.SetUp`); empty without one."""
        found: Mapping[str, Any] = self.found.get(self._recorded, {})
        return found

    @property
    def kept(self) -> list[Step]:
        """The steps that stand, in the order in which they were taken."""
        return [step for step in self.steps if step.status == "kept"]

    def standing(self, kept: Sequence[Step]) -> Standing:
        """The first settings with some kept steps."""
        standing = self.first
        for step in kept:
            compute = None if step.prediction is None else step.prediction.compute
            standing = standing.with_fix(self._catalogue[step.fix], step.settings, compute)
        return standing

    def foretold(self, last: Standing) -> Mapping[str, float]:
        """Ratios over the first settings that the forecast gives for the whole traffic; empty without one."""
        predicted = self._predictor.predict(self.first, last)
        return {} if predicted is None else predicted.ratio

    def ladder(self, base: Arm) -> Arm:
        """Try fixes in groups, most promising first; a group that is better is kept whole. Returns the last arm.

        The order is made anew whenever something was kept.
        """
        tried = {step.fix for step in self.steps}
        self._set_up(base)
        left = [fix for fix in self._fixes if fix.id not in tried and fix.proposals is None]
        alone: set[str] = set()
        self._look(left, base)
        groups = self._groups(left, alone, base)
        while groups:
            group = groups.pop(0)
            steps, candidate = self._try(group, base)
            decided = {step.fix for step in steps}
            alone |= {fix.id for fix in group if fix.id not in decided}  # they do not go with others of the group
            if len(group) > 1 and candidate is None:
                # Together they are no gain: one may hide another, so each is tried on its own.
                apart = {step.fix for step in steps if _worth_trying_alone(step)}
                alone |= apart
                steps = [step for step in steps if step.fix not in apart]
            for step in steps:
                self.steps.append(step)
                self._note(step)
            self._set_up(base)
            if candidate is not None:
                base.close()
                base = candidate
            noted = {step.fix for step in steps}
            left = [fix for fix in left if fix.id not in noted]
            if candidate is not None or len(group) > 1:
                groups = self._groups(left, alone, base)
        return base

    def _look(self, fixes: Sequence[Fix], base: Arm) -> None:
        """Measure what fixes do to compute, where the forecast can make use of it."""
        if self._predictor.forecast is None:
            return
        context = self._context(base)
        applicable = [(fix, fix.change(context)) for fix in fixes if not fix.obstacle(context)]
        self._scout.look(applicable, base, self._bench.left_s() - self._reserved_s())

    def propose(self, base: Arm) -> Arm:
        """Try the fixes that follow all others: each of their proposals that a replay refuses leads to another.

        Returns the last arm.
        """
        tried = {step.fix for step in self.steps}
        for fix in self._fixes:
            if fix.proposals is not None and fix.id not in tried:
                base = self._first_kept(fix, base)
        return base

    def _first_kept(self, fix: Fix, base: Arm) -> Arm:
        assert fix.proposals is not None
        earlier: Step | None = None
        for found in fix.proposals(self._bench, base, self._context(base), not self._out_of_budget([])):
            self.found[fix.id] = found
            (step,), candidate = self._try([fix], base)
            if step.status == "skipped" and earlier is not None:
                break
            if words := ", ".join(f"{name} = {value:g}" for name, value in step.settings.items()):
                step = replace(step, reason=f"{words}: {step.reason}")
            if earlier is not None:
                step = replace(step, reason=f"{step.reason}; before that, {earlier.reason}")
                self.steps.remove(earlier)
            self.steps.append(step)
            self._note(step)
            if candidate is not None:
                base.close()
                return candidate
            if step.status == "skipped":
                break
            earlier = step
        return base

    def _set_up(self, base: Arm) -> None:
        """Measure, once each, what fixes must know before they can be decided."""
        decided = {step.fix for step in self.steps}
        for fix in self._fixes:
            set_up = fix.set_up
            if set_up is None or fix.id in decided or fix.id in self.found or self._out_of_budget([]):
                continue
            if set_up.due(self._context(base)):
                found = self.found[fix.id] = set_up.measure(self._bench, base)
                if words := set_up.shown(found):
                    self._say(f"{fix.id}: {words}")

    def leave_one_out(self, base: Arm) -> Arm:
        """Take each kept fix out once: what does the service with all of them gain by it, beside the others?

        One that adds nothing any more, or harms, is dropped. Returns the arm with those that are left.
        """
        for step in sorted(self.kept, key=lambda each: -_realized(each)):
            if len(self.kept) < 2 or self._out_of_budget([]):
                break
            others = [each for each in self.kept if each.fix != step.fix]
            if self._catalogue[step.fix].cold:  # what it does is seen on fresh processes only, where it was judged
                continue
            settings = self.standing(others).settings
            self._replayed += 1
            ids, alone = tuple(each.fix for each in others), self._bench.room.alone_with([self._catalogue[step.fix]])
            without = self._bench.arm(f"without-{step.fix}", settings, ids, alone=alone)
            run = partial(self._bench.screen, without, base, [], cold=False, look=False, made=without)
            try:
                pairs = self._bench.apart_if_need_be(without, run)
            except LatfixError as error:
                without.close()
                if base.failed:
                    raise
                self._replace(step, replace(step, reason=f"{step.reason}; without it: {error.message}"))
                continue
            adds = compare_windows(pairs, self._bench.seed)
            status, reason = decide(adds)
            if status in ("no_gain", "rejected"):
                self._bench.room.adopt(without)
                dropped = replace(
                    step, status="no_gain", reason=f"beside the others it adds nothing: {reason}", adds=adds
                )
                self._replace(step, dropped)
                base.close()
                base = without
            else:
                without.close()
                self._replace(step, replace(step, adds=adds))
        return base

    def _replace(self, old: Step, new: Step) -> None:
        self.steps[self.steps.index(old)] = new
        self._note(new)

    def _groups(self, fixes: list[Fix], alone: Collection[str], base: Arm) -> list[list[Fix]]:
        """Fixes by what they promise.

        Those that change neither answers nor capacity form one group, unless there is time for each alone. One that
        acts on a service's first requests stays out of it: its own replays are on fresh processes, and in those of
        the group it would be credited with what the others did.

        :param alone: ids of fixes that do not go into the group.
        """
        now = self.standing(self.kept)
        promise: dict[str, float] = {}
        for fix in fixes:
            context = self._context(base)
            change = {} if fix.obstacle(context) else fix.change(context)
            compute = self._scout.found.get(fix.id)
            promise[fix.id] = self._predictor.promise(now, fix, change, self._diagnosis, compute) if change else 0.0
        for fix in fixes:
            if fix.after in promise:
                promise[fix.id] = promise[fix.after] - 1e-9
        wanted = sorted(fixes, key=lambda fix: -promise[fix.id])
        room = self._bench.left_s() - self._reserved_s()
        if self._trials is None and sum(self._bench.step_s([fix]) for fix in wanted) <= room:
            return [[fix] for fix in wanted]
        gentle = [fix for fix in wanted if fix.gentle and not fix.cold and fix.id not in alone]
        groups = [[fix] for fix in wanted if fix not in gentle] + ([gentle] if gentle else [])
        left = {id(group): math.prod(1.0 - min(max(promise[fix.id], 0.0), 1.0) for fix in group) for group in groups}
        return sorted(groups, key=lambda group: left[id(group)])

    def _context(self, base: Arm, settings: RunnerSettings | None = None) -> Context:
        baseline = self._bench.baseline
        return Context(
            settings=base.settings if settings is None else settings,
            record=baseline,
            diagnosis=self._diagnosis,
            default_collate=bool(self._bench.ready(base)["default_collate"]),
            cores=int(baseline.meta.machine.get("cores", 1)),
            forecast=self._predictor.forecast,
            serving=self.standing(self.kept).serving,
            latest=base.latest,
            steps=self.steps,
            found=self.found,
        )

    def _out_of_budget(self, fixes: list[Fix]) -> str:
        """Why nothing more can be tried; empty where it can."""
        if self._trials is not None and self._replayed >= self._trials:
            return f"{BUDGET}all {self._trials} trials are used"
        needed, left = self._bench.step_s(fixes), self._bench.left_s() - self._reserved_s()
        if not self.kept:  # a round that proves something is better than two of nothing
            left = max(left, self._bench.left_s() - self._bench.final_s(1))
        if needed > left:
            return f"{BUDGET}it needs about {needed:.0f} s, {max(left, 0):.0f} s are left before the final replay"
        return ""

    def _try(self, group: list[Fix], base: Arm) -> tuple[list[Step], Arm | None]:
        """Try fixes together; returns their steps, and the arm with those that were kept.

        There is no step for one that applies but not beside the others.
        """
        settings, applied, steps = base.settings, list[tuple[Fix, Change]](), list[Step]()
        for fix in group:
            if obstacle := fix.obstacle(self._context(base)):
                steps.append(fix.step("skipped", obstacle))
                continue
            context = self._context(base, settings)
            if applied and fix.obstacle(context):
                continue
            change = fix.change(context)
            settings = settings.with_overrides(change)
            applied.append((fix, change))
        if not applied:
            return steps, None
        refusal = self._out_of_budget([fix for fix, _ in applied]) or self._hopeless(applied)
        if refusal:
            return [*steps, *(fix.step("skipped", refusal) for fix, _ in applied)], None
        tried, candidate = self._run(applied, settings, base, self.standing(self.kept))
        # A group counts once; steps are replaced and taken apart, so that they do not tell afterwards.
        self._replayed += any(step.comparison is not None for step in tried)
        return [*steps, *tried], candidate

    def _hopeless(self, applied: list[tuple[Fix, Change]]) -> str:
        """Why the forecast alone speaks against a fix; empty where it does not, or knows too little."""
        if len(applied) > 1 or applied[0][0].compute != 1.0:
            return ""
        now = self.standing(self.kept)
        then = now.with_fix(*applied[0])
        if then.serving == now.serving:  # it acts on nothing that the forecast knows
            return ""
        return no_gain_by_forecast(self._predictor.predict(now, then, self._bench.window_bounds), KNOWN_GAIN)


def bench_settings(bench: Bench) -> RunnerSettings:
    """The settings that the baseline ran with."""
    return bench.baseline.meta.settings


def _realized(step: Step) -> float:
    """The ratio that a kept step showed: those that gave least are taken out first."""
    return 1.0 if step.comparison is None else step.comparison.ratio[SCREENED].value


def _worth_trying_alone(step: Step) -> bool:
    """Whether a member of a group that was not kept may do better on its own, or was not judged at all."""
    never_ran = step.status == "not_effective" and step.comparison is None
    return never_ran or step.status in ("undecided", "no_gain", "rejected")
