"""``latfix optimize``: baseline, diagnosis, a ladder of fixes, and the interleaved replay that proves the plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.comparison import Comparison, compare_rounds
from latfix.diagnosis import Diagnosis
from latfix.errors import LatfixError, RunnerError
from latfix.profilers.attribution import diagnose
from latfix.record import RunRecord
from latfix.runners.arms import Arm, Watch
from latfix.runners.fixes import FIXES, Applied, Context, Fix
from latfix.runners.proof import WANTED_ROUNDS, prove
from latfix.runners.session import Interrupted
from latfix.runners.steps import SCREENED, Pairs, Step, compare_windows, decide, decide_cold
from latfix.runners.windows import first_window, join, screening_windows
from latfix.settings import RunnerSettings
from latfix.spec import WorkloadSpec
from latfix.traffic.model import Traffic

#: An undecided step is replayed once more where it looks at least this good.
_PROMISING = 0.97
#: The share of the budget that is kept free for the final replay, where it takes that much.
_FINAL_SHARE = 0.5
#: Pairs of fresh processes that a fix of a service's first requests is judged by.
_RESTARTS = 2
_DRAIN_S = 1.5
_COMPILING_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long and with what to search.

    :param budget_s: seconds for everything, the baseline and the final replay included.
    :param only: ids of the fixes to try; all where empty.
    :param exclude: ids of fixes not to try.
    """

    budget_s: float = 300.0
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """What an optimization found.

    :param accuracy: of the first settings.
    :param accuracy_limit: the least that the workload's objective allows.
    :param final: the interleaved replay of the first and the last settings; ``None`` where no fix was kept,
        or the search was interrupted before it.
    :param after: the last of the final replays with the fixes; ``None`` likewise.
    :param failure: why the service could not be run any more after the baseline; empty where it could.
    """

    baseline: RunRecord
    diagnosis: Diagnosis
    accuracy: float
    accuracy_kind: str
    accuracy_limit: float
    steps: list[Step] = field(default_factory=list)
    kept: list[Step] = field(default_factory=list)
    settings: RunnerSettings = field(default_factory=RunnerSettings)
    final: Comparison | None = None
    before: RunRecord | None = None
    after: RunRecord | None = None
    after_diagnosis: Diagnosis | None = None
    final_accuracy: float | None = None
    interrupted: bool = False
    failure: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """``improved``, ``no_gain`` or ``inconclusive``, by the final replay alone."""
        if self.final is None:
            return "inconclusive" if self.interrupted or self.failure else "no_gain"
        if not self.accurate:
            return "no_gain"
        return {"better": "improved", "undecided": "inconclusive"}.get(self.final.verdict, "no_gain")

    @property
    def accurate(self) -> bool:
        """Whether the last settings keep to the limit of accuracy; each fix alone does, all together may not."""
        return self.final_accuracy is None or self.final_accuracy >= self.accuracy_limit

    @property
    def planned(self) -> list[Step]:
        """The steps that the plan holds: those kept, none where the final replay speaks against them."""
        worse = self.final is not None and self.final.verdict == "worse"
        return [] if worse or not self.accurate else self.kept


class Optimizer:
    """Searches fixes for one workload on one schedule.

    :param out: a new folder for all records.
    :param watch: shows replays.
    :param say: shows a line.
    :param show: shows the diagnosis of the baseline as soon as it is known.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        traffic: Traffic,
        settings: RunnerSettings,
        out: Path,
        options: Options,
        *,
        watch: Watch,
        say: Callable[[str], None],
        show: Callable[[Diagnosis], None],
    ) -> None:
        self._spec = spec
        self._traffic = traffic
        self._first_settings = settings
        self._out = out
        self._options = options
        self._watch = watch
        self._say = say
        self._show = show
        self._deadline = time.monotonic() + options.budget_s
        self._load_s = 0.0
        self._accuracy_s = 0.0
        self._windows: list[Traffic] = []
        self._arms: list[Arm] = []
        self._replays = 0

    def run(self) -> Outcome:
        """Everything, within the budget; whatever was found is returned on Ctrl-C, too.

        :raises LatfixError: the workload itself fails.
        """
        base = self._arm("before", self._first_settings, ())
        try:
            outcome = self._baseline(base)
            try:
                self._ladder(base, outcome)
                self._final(outcome)
            except (Interrupted, KeyboardInterrupt):
                outcome.interrupted = True
                outcome.notes.append("Interrupted: what had been found until then is kept; there is no final replay.")
            except LatfixError as error:
                outcome.failure = error.message
                outcome.notes.append(f"The service failed, and the search ended there: {error.message}")
            return outcome
        finally:
            for arm in self._arms:
                arm.close()

    def _arm(
        self, label: str, settings: RunnerSettings, fixes: tuple[str, ...], accuracy: float | None = None
    ) -> Arm:
        arm = Arm(label, self._spec, settings, fixes, self._out / "runner.log", accuracy)
        self._arms.append(arm)
        return arm

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    def _baseline(self, base: Arm) -> Outcome:
        started = time.monotonic()
        base.running()
        self._load_s = time.monotonic() - started
        record = base.replay(self._out / "baseline", self._traffic, self._watch, seed=self._options.seed)
        counts = record.counts()
        if not counts["ok"]:
            first = next(iter(record.errors.values()), "no request ended in time")
            raise RunnerError(f"{self._spec.name}: no request of the baseline ended ok; the first one: {first}")
        diagnosis = diagnose(record, percentile=self._spec.objective.percentile, seed=self._options.seed)
        self._show(diagnosis)
        started = time.monotonic()
        if base.ready["evaluates"]:
            measured = base.ask("evaluate", folder=str(record.folder))
            score, kind = float(measured["score"]), "evaluate"
        else:
            base.ask("outputs", folder=str(record.folder), file=str(self._reference))
            score, kind = 1.0, "agreement"
        self._accuracy_s = time.monotonic() - started
        base.accuracy = score
        self._windows = screening_windows(self._traffic, record)
        base.restart()  # it has served the whole traffic, which no candidate will have when they are compared
        return Outcome(
            baseline=record,
            diagnosis=diagnosis,
            accuracy=score,
            accuracy_kind=kind,
            accuracy_limit=score - self._spec.objective.max_accuracy_drop,
            settings=self._first_settings,
        )

    @property
    def _reference(self) -> Path:
        return self._out / "outputs.npz"

    def _ladder(self, base: Arm, outcome: Outcome) -> None:
        """Try fixes in groups, most promising first; a group that is better is kept whole."""
        groups = self._groups(outcome.diagnosis)
        while groups:
            group = groups.pop(0)
            steps, candidate = self._try(group, base, outcome)
            if len(group) > 1 and candidate is None:
                # Together they are no gain: one may hide another, so each is tried on its own in the end.
                apart = {step.fix for step in steps if _worth_trying_alone(step)}
                groups += [[fix] for fix in group if fix.id in apart]
                steps = [step for step in steps if step.fix not in apart]
            for step in steps:
                outcome.steps.append(step)
                self._say(f"{step.fix}: {step.status} — {step.reason}")
            if candidate is not None:
                base.close()
                base = candidate
                outcome.kept += [step for step in steps if step.status == "kept"]
                outcome.settings = candidate.settings

    def _groups(self, diagnosis: Diagnosis) -> list[list[Fix]]:
        """Fixes by what they promise: tail milliseconds of the causes they treat, times the share they relieve.

        Those that change neither answers nor capacity form one group, unless there is time for each alone. One
        that acts on a service's first requests stays out of it: its own replays are on fresh processes, and in
        those of the group it would be credited with what the others did.
        """
        tail = {cause.cause: max(cause.tail_ms, 0.0) for cause in diagnosis.causes}
        wanted = [fix for fix in FIXES if fix.id not in self._options.exclude]
        if self._options.only:
            wanted = [fix for fix in wanted if fix.id in self._options.only]
        wanted.sort(key=lambda fix: -fix.relief * sum(tail.get(cause, 0.0) for cause in fix.treats))
        if sum(self._step_s([fix]) for fix in wanted) <= self._left_s() - self._reserved_s():
            return [[fix] for fix in wanted]
        gentle = [fix for fix in wanted if fix.gentle and not fix.cold]
        cold = [[fix] for fix in wanted if fix.cold]
        return [*([gentle] if gentle else []), *cold, *([fix] for fix in wanted if not fix.gentle and not fix.cold)]

    def _context(self, settings: RunnerSettings, base: Arm, outcome: Outcome) -> Context:
        machine = outcome.baseline.meta.get("machine", {})
        return Context(
            settings=settings,
            record=outcome.baseline,
            diagnosis=outcome.diagnosis,
            default_collate=bool(base.ready["default_collate"]),
            cores=int(machine.get("cores", 1)),
        )

    def _try(self, group: list[Fix], base: Arm, outcome: Outcome) -> tuple[list[Step], Arm | None]:
        """Try fixes together; returns a step for each, and the arm with those that were kept."""
        settings, applied, steps = base.settings, list[tuple[Fix, dict[str, Any]]](), dict[str, Step]()
        for fix in group:
            context = self._context(settings, base, outcome)
            if obstacle := fix.obstacle(context):
                steps[fix.id] = Step(fix=fix.id, status="skipped", reason=obstacle)
                continue
            change = fix.change(context)
            settings = settings.with_overrides(change)
            applied.append((fix, change))
        candidate = None
        if applied:
            needed, left = self._step_s([fix for fix, _ in applied]), self._left_s() - self._reserved_s()
            if needed > left:
                reason = (
                    f"budget: it needs about {needed:.0f} s, {max(left, 0):.0f} s are left before the final replay"
                )
                tried = [Step(fix=fix.id, status="skipped", reason=reason) for fix, _ in applied]
            else:
                tried, candidate = self._try_applied(applied, settings, base, outcome)
            steps.update({step.fix: step for step in tried})
        return [steps[fix.id] for fix in group], candidate

    def _try_applied(
        self, applied: list[tuple[Fix, dict[str, Any]]], settings: RunnerSettings, base: Arm, outcome: Outcome
    ) -> tuple[list[Step], Arm | None]:
        ids = tuple(fix.id for fix, _ in applied)
        label = ids[0] if len(ids) == 1 else "together"
        candidate = self._arm(label, settings, (*base.fixes, *ids))
        try:
            steps = self._measure(applied, candidate, base, outcome)
        except LatfixError as error:
            status, reason = "not_effective", f"the service did not run with it: {error.message}"
            if base.failed:
                status, reason = "undecided", f"the service did not run without it: {error.message}"
            group = ids if len(ids) > 1 else ()
            steps = [
                Step(fix=fix.id, status=status, reason=reason, settings=way, together=group) for fix, way in applied
            ]
        kept = [step for step in steps if step.status == "kept"]
        if kept and len(kept) == len(steps):
            return steps, candidate
        candidate.close()
        if not kept:
            return steps, None
        left = base.settings
        for step in kept:  # without those of the group that had no effect
            left = left.with_overrides(step.settings)
        return steps, self._arm(label, left, (*base.fixes, *(step.fix for step in kept)), candidate.accuracy)

    def _measure(
        self, applied: list[tuple[Fix, dict[str, Any]]], candidate: Arm, base: Arm, outcome: Outcome
    ) -> list[Step]:
        fixes = [fix for fix, _ in applied]
        together = tuple(fix.id for fix in fixes) if len(fixes) > 1 else ()

        def step(fix: Fix, way: dict[str, Any], status: str, reason: str, **more: Any) -> Step:
            same: dict[str, Any] = {"accuracy": candidate.accuracy, "settings": way, "together": together}
            return Step(fix=fix.id, status=status, reason=reason, **same, **more)

        candidate.accuracy = base.accuracy
        if any(fix.changes_outputs for fix in fixes):
            candidate.accuracy = self._accuracy(candidate, outcome)
            limit = outcome.accuracy_limit
            if candidate.accuracy < limit:
                reason = f"accuracy {outcome.accuracy:.4g} -> {candidate.accuracy:.4g}, limit {limit:.4g}"
                return [step(fix, way, "rejected", reason) for fix, way in applied]
        pairs, comparison, status, reason = self._screened(fixes, base, candidate)
        evidence = candidate.ask("evidence", folder=str(pairs[-1][1].folder))["evidence"]
        without, record = (join(arm) for arm in zip(*pairs, strict=True))
        seen = Applied(evidence=evidence, record=record, without=without)
        if together:
            reason = f"in a group of {len(fixes)}: {reason}"
        steps = []
        for fix, way in applied:
            verified = fix.verify(seen)
            predicted = None if together else self._predicted(fix, outcome.diagnosis, comparison)
            more = {"comparison": comparison, "verified": verified.evidence, "predicted_p99_ms": predicted}
            if verified.effective:
                steps.append(step(fix, way, status, reason, **more))
            else:
                steps.append(step(fix, way, "not_effective", f"it did not take effect: {verified.evidence}", **more))
        return steps

    def _screened(self, fixes: list[Fix], base: Arm, candidate: Arm) -> tuple[Pairs, Comparison, str, str]:
        if all(fix.cold for fix in fixes):
            pairs = self._screen(base, candidate, [], cold=True)
            return pairs, compare_windows(pairs, self._options.seed), *decide_cold(pairs)
        pairs = self._screen(base, candidate, [], cold=False)
        comparison = compare_windows(pairs, self._options.seed)
        status, reason = decide(comparison)
        promising = status == "undecided" and comparison.ratio[SCREENED].value < _PROMISING
        if promising and self._left_s() - self._reserved_s() > self._step_s(fixes):
            pairs = self._screen(base, candidate, pairs, cold=False)
            comparison = compare_windows(pairs, self._options.seed)
            status, reason = decide(comparison)
        return pairs, comparison, status, reason

    def _accuracy(self, arm: Arm, outcome: Outcome) -> float:
        """The arm's accuracy."""
        reference = None if outcome.accuracy_kind == "evaluate" else str(self._reference)
        measured = arm.ask("evaluate", folder=str(outcome.baseline.folder), reference=reference)
        return float(measured["score"])

    def _screen(self, base: Arm, candidate: Arm, earlier: Pairs, *, cold: bool) -> Pairs:
        """Replay the windows on both arms in turns: A B, B A, A B, …; returns all pairs, ``earlier`` first.

        :param cold: on fresh processes; otherwise both arms are in use already, for a service's first
            requests are no other fix's business.
        """
        pairs = list(earlier)
        for window in self._cold_windows() if cold else self._windows:
            order = (base, candidate) if len(pairs) % 2 == 0 else (candidate, base)
            self._replays += 1
            records = {}
            for arm in order:
                if cold:
                    arm.restart()
                elif not arm.primed:
                    arm.prime(self._out / "baseline")
                records[arm.label] = self._replay_window(arm, window)
            pairs.append((records[base.label], records[candidate.label]))
        return pairs

    def _cold_windows(self) -> list[Traffic]:
        """The start of the traffic, once for each restart that a cold fix is judged by."""
        return [first_window(self._traffic)] * _RESTARTS

    def _replay_window(self, arm: Arm, window: Traffic) -> RunRecord:
        folder = self._out / "search" / f"{self._replays:03d}-{arm.label}"
        return arm.replay(folder, window, self._watch, seed=self._options.seed)

    def _predicted(self, fix: Fix, diagnosis: Diagnosis, comparison: Comparison) -> float | None:
        """p99 on the windows with the causes removed that the fix removes whole; ``None`` for other fixes."""
        whole = [cause for cause in diagnosis.causes if cause.cause in _REMOVED.get(fix.id, ())]
        p99 = diagnosis.latency_ms["p99"]
        if not whole or p99 <= 0:
            return None
        return comparison.before.latency_ms["p99"] * min(cause.whatif_ms["p99"] for cause in whole) / p99

    def _final(self, outcome: Outcome) -> None:
        """Prove the kept fixes together, on the whole traffic."""
        for arm in self._arms:
            arm.close()
        if not outcome.kept:
            return
        proof = prove(
            self._arm("before", self._first_settings, ()),
            self._arm("after", outcome.settings, tuple(step.fix for step in outcome.kept)),
            self._traffic,
            self._out / "final",
            watch=self._watch,
            seed=self._options.seed,
            left_s=self._left_s,
            round_s=self._final_s(1),
            accuracy=lambda arm: self._accuracy(arm, outcome),
        )
        outcome.notes += proof.notes
        outcome.final_accuracy = proof.accuracy
        if proof.interrupted:
            outcome.interrupted = True
            outcome.notes.append(f"Interrupted: {len(proof.rounds)} final rounds were complete.")
        if not proof.rounds:
            return
        outcome.before, outcome.after = proof.rounds[-1]
        outcome.final = compare_rounds(
            [before for before, _ in proof.rounds],
            [after for _, after in proof.rounds],
            seed=self._options.seed,
            accuracy=(outcome.accuracy, outcome.final_accuracy),
        )
        outcome.after_diagnosis = diagnose(
            outcome.after, percentile=self._spec.objective.percentile, seed=self._options.seed
        )

    def _step_s(self, fixes: list[Fix]) -> float:
        """About how long it takes to try some fixes together."""
        cold = all(fix.cold for fix in fixes)
        windows, loading = (self._cold_windows(), self._load_s) if cold else (self._windows, 0.0)
        replays = 2 * sum(window.duration_s + _DRAIN_S + loading for window in windows)
        scored = self._accuracy_s if any(fix.changes_outputs for fix in fixes) else 0.0
        compiled = _COMPILING_S if any(fix.id == "fuse.compile" for fix in fixes) else 0.0
        return self._load_s + scored + compiled + replays

    def _reserved_s(self) -> float:
        """Time that the search leaves to the final replay."""
        fitting = int(_FINAL_SHARE * self._options.budget_s / self._final_s(1))
        return self._final_s(min(max(fitting, 1), WANTED_ROUNDS))

    def _final_s(self, rounds: int) -> float:
        replay = self._traffic.duration_s - self._traffic.start_s + _DRAIN_S
        return rounds * 2 * (replay + self._load_s) + self._accuracy_s


def _worth_trying_alone(step: Step) -> bool:
    """Whether a member of a group that was not kept may do better on its own, or was not judged at all."""
    never_ran = step.status == "not_effective" and step.comparison is None
    return never_ran or step.status in ("undecided", "no_gain", "rejected")


#: Causes that a fix removes whole, so that the what-if predicts its outcome. Other fixes shrink theirs.
_REMOVED: dict[str, tuple[str, ...]] = {
    "batch.window": ("batching.window",),
    "batch.bucket": ("batching.padding",),
    "gc.freeze": ("python.gc",),
    "warmup.shapes": ("cold.start",),
    "memory.allocator": ("memory.page_faults",),
}
