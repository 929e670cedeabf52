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
from latfix.runners.session import Interrupted
from latfix.runners.windows import join, screening_windows
from latfix.settings import RunnerSettings
from latfix.spec import WorkloadSpec
from latfix.statistics import RatioEstimate
from latfix.traffic.model import Traffic

#: A step whose ratios both lie within this of 1 makes no difference worth a setting.
_SMALLEST = 0.05
#: What screening decides by, beside the mean. The windows lie where the tail is, so that a percentile of
#: theirs stands for a higher one of the whole traffic, and rests on enough requests.
_SCREENED = "p95"
#: An undecided step is replayed once more where it looks at least this good.
_PROMISING = 0.97
_MOST_ROUNDS = 5
_DRAIN_S = 1.5


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One fix that was considered, and what became of it."""

    fix: str
    status: str
    reason: str
    comparison: Comparison | None = None
    predicted_p99_ms: float | None = None
    accuracy: float | None = None
    verified: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The entry of ``steps`` in ``optimization.json``."""
        compared = self.comparison
        ratio = compared.ratio if compared is not None else {}
        return {
            "fix": self.fix,
            "status": self.status,
            "reason": self.reason,
            "ratio": {key: estimate.to_json() for key, estimate in ratio.items()},
            "predicted_p99_ms": self.predicted_p99_ms,
            "p99_ms": compared.after.latency_ms["p99"] if compared is not None else None,
            "accuracy": self.accuracy,
            "verified": self.verified,
            "settings": self.settings,
        }


@dataclass(slots=True)
class Outcome:
    """What an optimization found.

    :param final: the interleaved replay of the first and the last settings; ``None`` where no fix was kept,
        or the search was interrupted before it.
    :param after: the last of the final replays with the fixes; ``None`` likewise.
    """

    baseline: RunRecord
    diagnosis: Diagnosis
    accuracy: float
    accuracy_kind: str
    steps: list[Step] = field(default_factory=list)
    kept: list[Step] = field(default_factory=list)
    settings: RunnerSettings = field(default_factory=RunnerSettings)
    final: Comparison | None = None
    before: RunRecord | None = None
    after: RunRecord | None = None
    after_diagnosis: Diagnosis | None = None
    final_accuracy: float | None = None
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """``improved``, ``no_gain`` or ``inconclusive``, by the final replay alone."""
        if self.final is None:
            return "inconclusive" if self.interrupted else "no_gain"
        return {"better": "improved", "undecided": "inconclusive"}.get(self.final.verdict, "no_gain")


class Optimizer:
    """Searches fixes for one workload on one schedule.

    :param out: a new folder for all records.
    :param watch: shows replays.
    :param say: shows a line.
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
    ) -> None:
        self._spec = spec
        self._traffic = traffic
        self._first_settings = settings
        self._out = out
        self._options = options
        self._watch = watch
        self._say = say
        self._deadline = time.monotonic() + options.budget_s
        self._key = f"p{spec.objective.percentile:g}".replace(".", "_")
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
                base = self._ladder(base, outcome)
                self._final(outcome)
            except (Interrupted, KeyboardInterrupt):
                outcome.interrupted = True
                outcome.notes.append("Interrupted: what had been found until then is kept; there is no final replay.")
            return outcome
        finally:
            for arm in self._arms:
                arm.close()

    def _arm(self, label: str, settings: RunnerSettings, fixes: tuple[str, ...]) -> Arm:
        arm = Arm(label, self._spec, settings, fixes, self._out / "runner.log")
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
        return Outcome(
            baseline=record, diagnosis=diagnosis, accuracy=score, accuracy_kind=kind, settings=self._first_settings
        )

    @property
    def _reference(self) -> Path:
        return self._out / "outputs.npz"

    def _ladder(self, base: Arm, outcome: Outcome) -> Arm:
        for fix in self._order(outcome.diagnosis):
            context = self._context(base, outcome)
            step, candidate = self._try(fix, context, base, outcome)
            outcome.steps.append(step)
            self._say(f"{fix.id}: {step.status} — {step.reason}")
            if step.status == "kept" and candidate is not None:
                base.close()
                base = candidate
                outcome.kept.append(step)
                outcome.settings = candidate.settings
            elif candidate is not None:
                candidate.close()
        return base

    def _order(self, diagnosis: Diagnosis) -> list[Fix]:
        """Fixes by the tail milliseconds of the causes they treat; warm-up before all others."""
        tail = {cause.cause: max(cause.tail_ms, 0.0) for cause in diagnosis.causes}
        wanted = [fix for fix in FIXES if fix.id not in self._options.exclude]
        if self._options.only:
            wanted = [fix for fix in wanted if fix.id in self._options.only]
        warm = [fix for fix in wanted if fix.id == "warmup.shapes"]
        rest = [fix for fix in wanted if fix.id != "warmup.shapes"]
        rest.sort(key=lambda fix: -sum(tail.get(cause, 0.0) for cause in fix.treats))
        return warm + rest

    def _context(self, base: Arm, outcome: Outcome) -> Context:
        machine = outcome.baseline.meta.get("machine", {})
        return Context(
            settings=base.settings,
            record=outcome.baseline,
            diagnosis=outcome.diagnosis,
            default_collate=bool(base.ready["default_collate"]),
            cores=int(machine.get("cores", 1)),
        )

    def _try(self, fix: Fix, context: Context, base: Arm, outcome: Outcome) -> tuple[Step, Arm | None]:
        obstacle = fix.obstacle(context)
        if obstacle:
            return Step(fix=fix.id, status="skipped", reason=obstacle), None
        if (needed := self._step_s(fix)) > (left := self._left_s() - self._final_s(1)):
            reason = f"budget: it needs about {needed:.0f} s, {max(left, 0):.0f} s are left before the final replay"
            return Step(fix=fix.id, status="skipped", reason=reason), None
        change = fix.change(context)
        candidate = self._arm(fix.id, base.settings.with_overrides(change), (*base.fixes, fix.id))
        try:
            return self._measure(fix, change, candidate, base, outcome), candidate
        except LatfixError as error:
            candidate.close()
            reason = f"the service did not run with it: {error.message}"
            return Step(fix=fix.id, status="not_effective", reason=reason, settings=change), None

    def _measure(self, fix: Fix, change: dict[str, Any], candidate: Arm, base: Arm, outcome: Outcome) -> Step:
        def step(status: str, reason: str, **more: Any) -> Step:
            return Step(
                fix=fix.id, status=status, reason=reason, accuracy=candidate.accuracy, settings=change, **more
            )

        candidate.accuracy = base.accuracy
        if fix.changes_outputs:
            candidate.accuracy = self._accuracy(candidate, outcome)
            limit = outcome.accuracy - self._spec.objective.max_accuracy_drop
            if candidate.accuracy < limit:
                reason = f"accuracy {outcome.accuracy:.4g} -> {candidate.accuracy:.4g}, limit {limit:.4g}"
                return step("rejected", reason)
        pairs = self._screen(fix, base, candidate, [])
        comparison = self._compare(pairs)
        status, reason = self._decide(comparison)
        if (
            status == "undecided"
            and not fix.cold
            and comparison.ratio[_SCREENED].value < _PROMISING
            and self._left_s() - self._final_s(1) > self._screen_s(fix)
        ):
            pairs = self._screen(fix, base, candidate, pairs)
            comparison = self._compare(pairs)
            status, reason = self._decide(comparison)
        evidence = candidate.ask("evidence", folder=str(pairs[-1][1].folder))["evidence"]
        without, record = (join(arm) for arm in zip(*pairs, strict=True))
        verified = fix.verify(Applied(evidence=evidence, record=record, without=without))
        more = {
            "comparison": comparison,
            "verified": verified.evidence,
            "predicted_p99_ms": self._predicted(fix, outcome.diagnosis, comparison),
        }
        if not verified.effective:
            return step("not_effective", f"it did not take effect: {verified.evidence}", **more)
        return step(status, reason, **more)

    def _accuracy(self, arm: Arm, outcome: Outcome) -> float:
        """The arm's accuracy."""
        reference = None if outcome.accuracy_kind == "evaluate" else str(self._reference)
        measured = arm.ask("evaluate", folder=str(outcome.baseline.folder), reference=reference)
        return float(measured["score"])

    def _screen(
        self, fix: Fix, base: Arm, candidate: Arm, earlier: list[tuple[RunRecord, RunRecord]]
    ) -> list[tuple[RunRecord, RunRecord]]:
        """Replay the windows on both arms in turns: A B, B A, A B, …; returns all pairs, ``earlier`` first.

        A service's first requests are one fix's business; for the others both arms are in use already.
        """
        pairs = list(earlier)
        for window in self._windows:
            order = (base, candidate) if len(pairs) % 2 == 0 else (candidate, base)
            self._replays += 1
            records = {}
            for arm in order:
                if fix.cold:
                    arm.restart()
                elif not arm.primed:
                    arm.prime(self._out / "baseline")
                records[arm.label] = self._replay_window(arm, window)
            pairs.append((records[base.label], records[candidate.label]))
        return pairs

    def _compare(self, pairs: list[tuple[RunRecord, RunRecord]]) -> Comparison:
        """All windows as one round: they differ by their traffic, not by the chance that rounds measure."""
        without, record = (join(arm) for arm in zip(*pairs, strict=True))
        return compare_rounds([without], [record], seed=self._options.seed, smallest=_SMALLEST)

    def _replay_window(self, arm: Arm, window: Traffic) -> RunRecord:
        folder = self._out / "search" / f"{self._replays:03d}-{arm.label}"
        return arm.replay(folder, window, self._watch, seed=self._options.seed)

    def _decide(self, comparison: Comparison) -> tuple[str, str]:
        """Status and reason of a step, by the ratios of the windows' tail and of the mean."""
        tail, mean = comparison.ratio[_SCREENED], comparison.ratio["mean"]
        said = f"{_SCREENED} {_shown(tail)}, mean {_shown(mean)}"
        lost = comparison.before.success - comparison.after.success
        if lost > 0.01:
            return "rejected", f"{lost:.1%} more of the requests did not end ok; {said}"
        if tail.lo > 1 or (mean.lo > 1 and not tail.hi < 1):
            return "rejected", f"worse: {said}"
        if tail.hi < 1 or (mean.hi < 1 and tail.value <= 1):
            return "kept", said
        if all(1 - _SMALLEST <= end <= 1 + _SMALLEST for ratio in (tail, mean) for end in (ratio.lo, ratio.hi)):
            return "no_gain", f"no difference larger than {_SMALLEST:.0%}: {said}"
        return "undecided", f"the data cannot tell: {said}"

    def _predicted(self, fix: Fix, diagnosis: Diagnosis, comparison: Comparison) -> float | None:
        """p99 on the windows with the causes removed that the fix removes whole; ``None`` for other fixes."""
        whole = [cause for cause in diagnosis.causes if cause.cause in _REMOVED.get(fix.id, ())]
        p99 = diagnosis.latency_ms["p99"]
        if not whole or p99 <= 0:
            return None
        return comparison.before.latency_ms["p99"] * min(cause.whatif_ms["p99"] for cause in whole) / p99

    def _final(self, outcome: Outcome) -> None:
        """Replay the first and the last settings in turns, each round on fresh processes."""
        for arm in self._arms:
            arm.close()
        if not outcome.kept:
            return
        fixes = tuple(step.fix for step in outcome.kept)
        before = self._arm("before", self._first_settings, ())
        after = self._arm("after", outcome.settings, fixes)
        records: dict[str, list[RunRecord]] = {"before": [], "after": []}
        while len(records["before"]) < _MOST_ROUNDS:
            number = len(records["before"]) + 1
            if number > 1 and self._left_s() < self._final_s(1):
                break
            for arm in (before, after) if number % 2 else (after, before):
                folder = self._out / "final" / f"{arm.label}-{number}"
                record = arm.replay(folder, self._traffic, self._watch, seed=self._options.seed)
                records[arm.label].append(record)
                if arm is after and number == 1:
                    outcome.final_accuracy = self._accuracy(after, outcome)
                arm.restart()
        outcome.before, outcome.after = records["before"][-1], records["after"][-1]
        outcome.final = compare_rounds(
            records["before"],
            records["after"],
            seed=self._options.seed,
            accuracy=(outcome.accuracy, outcome.final_accuracy),
        )
        outcome.after_diagnosis = diagnose(
            outcome.after, percentile=self._spec.objective.percentile, seed=self._options.seed
        )

    def _screen_s(self, fix: Fix) -> float:
        cold = self._load_s if fix.cold else 0.0
        return 2 * sum(window.duration_s + _DRAIN_S + cold for window in self._windows)

    def _step_s(self, fix: Fix) -> float:
        loads = self._load_s + (self._accuracy_s if fix.changes_outputs else 0.0)
        compiling = 90.0 if fix.id == "fuse.compile" else 0.0
        return self._screen_s(fix) + loads + compiling

    def _final_s(self, rounds: int) -> float:
        first = float(self._traffic.arrival_ns[0]) / 1e9
        replay = self._traffic.duration_s - (first if first > 1 else 0.0) + _DRAIN_S
        return rounds * 2 * (replay + self._load_s) + self._accuracy_s


#: Causes that a fix removes whole, so that the what-if predicts its outcome. Other fixes shrink theirs.
_REMOVED: dict[str, tuple[str, ...]] = {
    "batch.window": ("batching.window",),
    "batch.bucket": ("batching.padding",),
    "gc.freeze": ("python.gc",),
    "warmup.shapes": ("cold.start",),
    "memory.allocator": ("memory.page_faults",),
}


def _shown(ratio: RatioEstimate) -> str:
    return f"x{ratio.value:.2f} [{ratio.lo:.2f}, {ratio.hi:.2f}]"
