"""One trial: some fixes on the best service so far, against it: accuracy first, then replays, then the proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from latfix.errors import LatfixError
from latfix.results.comparison import Comparison
from latfix.results.optimization import Prediction
from latfix.results.optimization_step import Step
from latfix.runners.fixes import Applied, Fix
from latfix.runners.measure.accuracy_guard import judge
from latfix.runners.measure.compute_pace import offered
from latfix.runners.optimize.fix_prediction import Predictor, Standing
from latfix.runners.optimize.measurement import Bench
from latfix.runners.optimize.screening_decision import SCREENED, Pairs, compare_windows, decide, decide_cold
from latfix.runners.optimize.screening_windows import join
from latfix.runners.replay.arm import Arm
from latfix.settings import RunnerSettings

#: An undecided step is replayed once more where it looks at least this good.
_PROMISING = 0.97
#: A fix that the forecast says leaves more than this of both the tail and the mean is not replayed, for a replay
#: would not tell: of settings that it knows, and of compute that was measured.
KNOWN_GAIN, _COMPUTE_GAIN = 0.99, 0.98

Change = dict[str, Any]


class Trials:
    """Tries fixes on a bench.

    :param original: the accuracy of the first settings.
    :param room: whether there is time to try some fixes once more.
    """

    def __init__(
        self, bench: Bench, predictor: Predictor, original: float, room: Callable[[list[Fix]], bool]
    ) -> None:
        self._bench = bench
        self._predictor = predictor
        self._original = original
        self._room = room

    def run(
        self, applied: list[tuple[Fix, Change]], settings: RunnerSettings, base: Arm, now: Standing
    ) -> tuple[list[Step], Arm | None]:
        """A step for each fix, and the arm with those that were kept; ``None`` where none was.

        :param settings: with all of ``applied``.
        :param now: how the forecast knows ``base``.
        """
        ids = tuple(fix.id for fix, _ in applied)
        label = ids[0] if len(ids) == 1 else "together"
        bench = self._bench
        if failure := bench.broken.get((*base.fixes, *ids)):
            return _did_not_run(applied, "not_effective", f"the service did not run with it: {failure}"), None
        alone = bench.room.alone_with([fix for fix, _ in applied])
        candidate = bench.arm(label, settings, (*base.fixes, *ids), alone=alone)
        try:
            steps = bench.apart_if_need_be(candidate, lambda: self._measure(applied, candidate, base, now))
        except LatfixError as error:
            itself = ", with the device to itself" if candidate.alone else ""
            status, reason = "not_effective", f"the service did not run with it{itself}: {error.message}"
            if base.failed:
                status, reason = "undecided", f"the service did not run without it: {error.message}"
            steps = _did_not_run(applied, status, reason)
        kept = [step for step in steps if step.status == "kept"]
        if kept and len(kept) == len(steps):
            bench.room.adopt(candidate)
            return steps, candidate
        candidate.close()
        if not kept:
            return steps, None
        left = base.settings
        for step in kept:  # without those of the group that had no effect
            left = left.with_overrides(step.settings)
        fixes = (*base.fixes, *(step.fix for step in kept))
        arm = bench.arm(label, left, fixes, candidate.accuracy)
        arm.latest, arm.load, arm.told = candidate.latest, candidate.load, candidate.told
        bench.room.adopt(arm)
        return steps, arm

    def _measure(self, applied: list[tuple[Fix, Change]], candidate: Arm, base: Arm, now: Standing) -> list[Step]:
        """Accuracy before speed, then the forecast, the replays, and the proof that it took effect."""
        fixes = [fix for fix, _ in applied]
        together = tuple(fix.id for fix in fixes) if len(fixes) > 1 else ()
        candidate.accuracy = base.accuracy
        scored: Mapping[str, Any] = {}
        if any(fix.changes_outputs for fix in fixes):
            scored = self._bench.accuracy(candidate)
            candidate.accuracy = float(scored["score"])
        same: dict[str, Any] = {"accuracy": candidate.accuracy, "together": together, "scored": scored}
        enough, said = judge(scored, self._original, self._bench.max_drop) if scored else (True, "")
        if not enough:
            return [fix.step("rejected", said, settings=way, **same) for fix, way in applied]
        prediction = self._foretold(applied, base, candidate, now)
        if fixes[0].compute != 1.0 and (no_gain := no_gain_by_forecast(prediction, _COMPUTE_GAIN)):
            # What it is meant to change is the compute, and that was measured.
            scale = "" if prediction is None or prediction.compute is None else f"x{prediction.compute[1]:.2f}"
            reason = f"the same batches take {scale} as long; {no_gain}" if scale else no_gain
            (fix, way), *_ = applied
            return [fix.step("no_gain", reason, settings=way, prediction=prediction, **same)]
        pairs, comparison, status, reason = self._screened(fixes, base, candidate)
        if scored:
            reason = f"{reason}; {said}"
        if candidate.alone:
            reason = f"{reason}; {candidate.alone}: each ran alone, started anew"
        if together:
            reason = f"in a group of {len(fixes)}: {reason}"
        replayed = {"comparison": comparison, "prediction": prediction, **same}
        return self._verified(applied, candidate, pairs, (status, reason), replayed)

    def _verified(
        self,
        applied: list[tuple[Fix, Change]],
        candidate: Arm,
        pairs: Pairs,
        judged: tuple[str, str],
        replayed: Mapping[str, Any],
    ) -> list[Step]:
        """The steps of fixes that were replayed: as judged, unless a fix did not take effect."""
        evidence = self._bench.evidence(candidate, pairs[-1][1])
        without, record = (join(arm) for arm in zip(*pairs, strict=True))
        if not all(fix.cold for fix, _ in applied):  # those replay the start of the traffic, not the windows
            candidate.latest, candidate.load = record, fmean(offered(each) for _, each in pairs)
        folders = tuple((one.folder.name, other.folder.name) for one, other in pairs)
        steps = []
        for fix, way in applied:
            found = fix.verify(Applied(evidence=evidence, record=record, without=without))
            no_effect = ("not_effective", f"it did not take effect: {found.evidence}")
            status, reason = judged if found.effective else no_effect
            step = fix.step(status, reason, settings=way, verified=found.evidence, pairs=folders, **replayed)
            steps.append(step)
        return steps

    def _foretold(
        self, applied: list[tuple[Fix, Change]], base: Arm, candidate: Arm, now: Standing
    ) -> Prediction | None:
        """What the forecast says, with the compute as it was measured on both arms; nothing for a group."""
        if self._predictor.forecast is None or len(applied) > 1 or all(fix.cold for fix, _ in applied):
            return None
        compute = self._bench.compute_change(base, candidate)
        fix, change = applied[0]
        predicted = self._predictor.predict(now, now.with_fix(fix, change, compute), self._bench.window_bounds)
        return None if predicted is None else replace(predicted, compute=compute)

    def _screened(self, fixes: list[Fix], base: Arm, candidate: Arm) -> tuple[Pairs, Comparison, str, str]:
        """The replays, what they show together, and the status and reason that follow."""
        if all(fix.cold for fix in fixes):
            pairs = self._bench.screen(base, candidate, [], cold=True)
            return pairs, compare_windows(pairs, self._bench.seed), *decide_cold(pairs)
        pairs = self._bench.screen(base, candidate, [], cold=False)
        comparison = compare_windows(pairs, self._bench.seed)
        status, reason = decide(comparison)
        promising = status == "undecided" and comparison.ratio[SCREENED].value < _PROMISING
        if promising and self._room(fixes):
            pairs = self._bench.screen(base, candidate, pairs, cold=False)
            comparison = compare_windows(pairs, self._bench.seed)
            status, reason = decide(comparison)
        return pairs, comparison, status, reason


def _did_not_run(applied: list[tuple[Fix, Change]], status: str, reason: str) -> list[Step]:
    group = tuple(fix.id for fix, _ in applied) if len(applied) > 1 else ()
    return [fix.step(status, reason, settings=way, together=group) for fix, way in applied]


def no_gain_by_forecast(predicted: Prediction | None, enough: float) -> str:
    """Why the forecast alone speaks against a fix; empty where it does not, or nothing was foretold.

    :param enough: the ratio of the tail or the mean from which on there is no gain.
    """
    if predicted is None or min(predicted.ratio[SCREENED], predicted.ratio["mean"]) < enough:
        return ""
    told = ", ".join(f"{key} x{predicted.ratio[key]:.2f}" for key in (SCREENED, "mean"))
    return f"the forecast on the recorded requests finds no gain ({told}), so it was not replayed"
