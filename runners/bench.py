"""What a search measures with: live arms that take turns, the windows they replay, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latfix.record import RunRecord
from latfix.runners.arms import Arm, Watch
from latfix.runners.fixes import Fix
from latfix.runners.journal import SEARCH_FOLDER
from latfix.runners.pace import blend, compute_change, offered, typical_batches
from latfix.runners.steps import Pairs
from latfix.runners.windows import first_window, screening_windows
from latfix.settings import RunnerSettings
from latfix.spec import WorkloadSpec
from latfix.traffic.model import Traffic
from latfix.traffic.transform import scale_time

#: Pairs of fresh processes that a fix of a service's first requests is judged by.
RESTARTS = 2
#: Beyond its traffic, what a replay takes: the last requests, and the record.
DRAIN_S = 1.5
#: What some fixes take before their first replay, seen on the samples: compiling, converting and comparing. That of
#: TensorRT is a guess: it has not been seen yet.
_COMPILING_S = 90.0
_MAKING_S = {"fuse.compile": _COMPILING_S, "fuse.onnxruntime": 10.0, "fuse.openvino": 10.0, "fuse.tensorrt": 120.0}
#: Fixes that come compiled on a GPU.
_COMPILED_ON_GPU = ("quantize.int8_dynamic", "quantize.int8_excluded", "quantize.fp8_dynamic")
#: Most seconds for finding the layers that accuracy hangs on.
_SENSITIVITY_S = 60.0
#: How fast an arm is sent the windows that nobody times.
_SETTLING_SPEED = 2.0
#: One measurement of an arm's pace; four are made, two of each arm.
_PACE_S = 0.6


class Bench:
    """The arms of one search and how they are measured.

    :param out: where records go.
    :param budget_s: seconds for everything, from now.
    :ivar baseline: the record of the first settings, set by :meth:`begin`.
    :ivar replays: how many pairs of windows were replayed.
    """

    def __init__(
        self, spec: WorkloadSpec, traffic: Traffic, out: Path, *, watch: Watch, seed: int, budget_s: float
    ) -> None:
        self.spec = spec
        self.traffic = traffic
        self.out = out
        self.seed = seed
        self.watch = watch
        self.load_s = 0.0
        self.accuracy_s = 0.0
        self.replays = 0
        self.windows: list[Traffic] = []
        self.baseline: RunRecord
        self._typical: list[list[int]] = []
        self._arms: list[Arm] = []
        self._made_s: dict[str, float] = {}
        self._deadline = time.monotonic() + budget_s

    def left_s(self) -> float:
        """Seconds of the budget that are left; negative once it is spent."""
        return self._deadline - time.monotonic()

    def arm(self, label: str, settings: RunnerSettings, fixes: tuple[str, ...], accuracy: float | None = None) -> Arm:
        """A new arm; its process starts at its first use."""
        arm = Arm(label, self.spec, settings, fixes, self.out / "runner.log", accuracy)
        self._arms.append(arm)
        return arm

    def close(self) -> None:
        """End all processes."""
        for arm in self._arms:
            arm.close()

    def begin(self, baseline: RunRecord) -> None:
        """Take the baseline's record as what windows and batches are chosen by."""
        self.baseline = baseline
        self.windows = screening_windows(self.traffic, baseline)
        self._typical = typical_batches(baseline)

    def _typical_of(self, latest: RunRecord) -> list[list[int]]:
        """Batches of a replay of the windows, one or more times in a row, as positions in the whole schedule."""
        arrival = self.traffic.arrival_ns
        bounds = self.window_bounds or [(float(arrival[0]), float(arrival[-1]) + 1.0)]
        edges = [np.searchsorted(arrival, np.rint(each).astype(np.int64)) for each in bounds]
        places = np.concatenate([np.arange(first, last) for first, last in edges])
        return [[int(places[index % len(places)]) for index in batch] for batch in typical_batches(latest)]

    @property
    def window_bounds(self) -> list[tuple[float, float]]:
        """The stretches of the schedule that the windows are, in nanoseconds."""
        if len(self.windows) == 1 and self.windows[0] is self.traffic:
            return []
        return [window_bounds(window) for window in self.windows]

    def accuracy(self, arm: Arm, *, original: bool = False) -> Mapping[str, Any]:
        """Fields of :class:`latfix.runners.accuracy.Accuracy` of the arm's service, against the original's answers.

        :param original: the arm is the original; keep its answers for the others.
        """
        reference = str(self.reference)
        ways: dict[str, Any] = (
            {"save": reference} if original else {"reference": reference, "max_drop": self.max_drop}
        )
        answer: Mapping[str, Any] = arm.ask("evaluate", folder=str(self.baseline.folder), **ways)
        return {name: value for name, value in answer.items() if name not in ("event", "do")}

    @property
    def max_drop(self) -> float:
        """The largest loss of the score that the workload allows."""
        return self.spec.objective.max_accuracy_drop

    def sensitivity(self, settings: RunnerSettings, precision: str) -> Mapping[str, Any]:
        """Which layers must keep their precision, measured in a process of its own."""
        arm = self.arm("sensitivity", settings, ())
        budget_s = max(min(_SENSITIVITY_S, self.left_s() / 6), 5.0)
        try:
            told = arm.ask(
                "sensitivity",
                folder=str(self.baseline.folder),
                precision=precision,
                max_drop=self.max_drop,
                budget_s=budget_s,
            )
        finally:
            arm.close()
        found: Mapping[str, Any] = told["sensitivity"]
        return found

    @property
    def reference(self) -> Path:
        """The original's answers."""
        return self.out / "outputs.npz"

    def prime(self, *arms: Arm) -> None:
        """See that no timed request is an arm's first."""
        for arm in arms:
            if not arm.primed:
                arm.prime(self.out / "baseline")

    def settle(self, arm: Arm) -> None:
        """Let an arm's process serve the windows once, faster than recorded, if it has not yet.

        Kernels are made, and memory is laid out, at the first use of each shape. The service that a fix is tried on
        has that behind it; a comparison with one that has not would find the first use, not the fix.
        """
        if arm.settled:
            return
        self.prime(arm)
        for number, window in enumerate(self.windows):
            folder = self.out / SEARCH_FOLDER / f"{self.replays:03d}-{arm.label}-settling-{number}"
            arm.replay(folder, scale_time(window, _SETTLING_SPEED), self.watch, seed=self.seed)
        arm.settled = True

    def compute_change(self, base: Arm, candidate: Arm) -> tuple[float, float] | None:
        """How the compute of a batch changes from ``base`` to ``candidate``: see :func:`compute_change`."""
        batches = self._typical if base.latest is None else self._typical_of(base.latest)
        if not batches:
            return None
        self.prime(base, candidate)
        load = offered(self.baseline, self.window_bounds) if base.latest is None else base.load
        pace: dict[str, list[list[float]]] = {"base": [], "candidate": []}
        for name, arm in (("base", base), ("candidate", candidate), ("candidate", candidate), ("base", base)):
            told = arm.ask("pace", folder=str(self.baseline.folder), batches=batches, seconds=_PACE_S)
            alone, together = (
                [float("nan") if value is None else float(value) for value in told[kind]]
                for kind in ("alone", "together")
            )
            pace[name].append(blend(alone, together, load, arm.settings.workers))
        before, after = ([min(both) for both in zip(*pace[name], strict=True)] for name in ("base", "candidate"))
        return compute_change(before, after)

    def evidence(self, arm: Arm, record: RunRecord) -> Mapping[str, Any]:
        """What can be seen of the settings in the arm's service."""
        found: Mapping[str, Any] = arm.ask("evidence", folder=str(record.folder))["evidence"]
        return found

    def screen(self, base: Arm, candidate: Arm, earlier: Pairs, *, cold: bool) -> Pairs:
        """Replay the windows on both arms in turns: A B, B A, A B, …; returns all pairs, ``earlier`` first.

        :param cold: on fresh processes; otherwise both arms are in use already, for a service's first requests are
            no other fix's business.
        """
        pairs = list(earlier)
        for window in self.cold_windows() if cold else self.windows:
            order = (base, candidate) if len(pairs) % 2 == 0 else (candidate, base)
            self.replays += 1
            records = {}
            for arm in order:
                if cold:
                    arm.restart()
                else:
                    self.settle(arm)
                records[arm.label] = self._replay_window(arm, window)
            pairs.append((records[base.label], records[candidate.label]))
        return pairs

    def cold_windows(self) -> list[Traffic]:
        """The start of the traffic, once for each restart that a cold fix is judged by."""
        return [first_window(self.traffic)] * RESTARTS

    def _replay_window(self, arm: Arm, window: Traffic) -> RunRecord:
        folder = self.out / SEARCH_FOLDER / f"{self.replays:03d}-{arm.label}"
        return arm.replay(folder, window, self.watch, seed=self.seed)

    def step_s(self, fixes: list[Fix]) -> float:
        """About how long it takes to try some fixes together."""
        cold = bool(fixes) and all(fix.cold for fix in fixes)
        windows, loading = (self.cold_windows(), self.load_s) if cold else (self.windows, 0.0)
        replays = 2 * sum(window.duration_s + DRAIN_S + loading for window in windows)
        if not cold:
            replays += sum(window.duration_s / _SETTLING_SPEED + DRAIN_S for window in windows)
        scored = self.accuracy_s if any(fix.changes_outputs for fix in fixes) else 0.0
        made = sum(self._making_s(fix) for fix in fixes)
        return self.load_s + scored + made + replays + 4 * _PACE_S

    def scout_s(self, fix: Fix) -> float:
        """About how long it takes to measure what a fix does to compute."""
        return self.load_s + self._making_s(fix) + 4 * _PACE_S

    def learn(self, fix: Fix, scouted_s: float) -> None:
        """Take what scouting a fix took for what it takes to make: a model that is converted may be a large one."""
        self._made_s[fix.id] = max(scouted_s - self.load_s - 4 * _PACE_S, 0.0)

    def _making_s(self, fix: Fix) -> float:
        if fix.id in _COMPILED_ON_GPU and self.baseline.meta.get("device", "cpu") != "cpu":
            return self._made_s.get(fix.id, _COMPILING_S)
        return self._made_s.get(fix.id, _MAKING_S.get(fix.id, 0.0))

    def final_s(self, rounds: int) -> float:
        """About how long so many rounds of the final replay take."""
        replay = self.traffic.duration_s - self.traffic.start_s + DRAIN_S
        return rounds * 2 * (replay + self.load_s) + self.accuracy_s


def window_bounds(window: Traffic) -> tuple[float, float]:
    """Where in the original schedule a slice of it lies, in nanoseconds."""
    last = [entry for entry in window.metadata["transforms"] if entry["transform"] == "slice_time"][-1]
    return float(last["start_s"]) * 1e9, float(last["end_s"]) * 1e9
