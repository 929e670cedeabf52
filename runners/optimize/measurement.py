"""The bench of a search: live arms that take turns, the windows that they replay, and the remaining time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latfix.arrays import Floats
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import InputError, LatfixError, RunnerError
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import Fix
from latfix.runners.fixes.shared.device_memory_facts import calls
from latfix.runners.measure.compute_pace import blend, offered, passes_s, preparing_share
from latfix.runners.optimize.co_residency import FAILED, STALLED, DeviceRoom
from latfix.runners.optimize.screening_decision import Pairs
from latfix.runners.optimize.screening_windows import (
    LEAD_IN_S,
    SHORTEST_S,
    first_window,
    replay_s,
    screening_windows,
    settling_part,
    slowest_stretch,
    window_bounds,
)
from latfix.runners.replay.arm import Arm, Watch, patience_s
from latfix.runners.replay.run_session import new_folder
from latfix.settings import RunnerSettings
from latfix.statistics.group_sequential import FIRST_LOOK
from latfix.statistics.score_bounds import VARIES_FROM
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import scale_time

#: Folder of the search's records, next to its journal.
SEARCH_FOLDER = "search"
#: Pairs of fresh processes on which a cold fix (one that acts on a service's first requests) is judged.
RESTARTS = 2
#: Rounds on fresh processes that it takes to see the effect of a restart (:mod:`latfix.statistics.score_bounds`).
WANTED_ROUNDS = FIRST_LOOK
#: Final replays that may not take longer than this have no lead-in.
_SHORT_REPLAY_S = 8.0
#: Time of a replay beyond its traffic: the last requests, and the record.
DRAIN_S = 1.5
#: Speed, relative to the recording, at which an arm serves the untimed part of a window.
_SETTLING_SPEED = 2.0
#: Seconds of work in that part.
_SETTLING_S = 2.0
#: The machine drifts: the base's pace is measured again after this many seconds, and this many times its duration.
_BASE_AGAIN_S, _BASE_AGAIN = 15.0, 4.0
#: Below this share of the batches' time, concurrent preparation of requests is neglected.
_LEAST_PREPARED = 0.05
#: Minimum duration of one measurement of an arm's pace.
_PACE_S = 0.6

_Found = TypeVar("_Found")


def lead_in_s(seconds: float) -> float:
    """Length of the lead-in before each final replay; 0 if rounds are short, because more rounds are worth more.

    :param seconds: for all rounds together.
    """
    return min(max(seconds / (2 * WANTED_ROUNDS) - _SHORT_REPLAY_S, 0.0), LEAD_IN_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """How long some batches take on two services, in nanoseconds; NaN for a batch that failed.

    :param before: on the base, as often next to other workers as in the baseline.
    :param after: on the other service, next to none.
    :param together: factor of the other service's times while all its workers compute.
    :param new_shape_ns: how much longer the first batch of a new shape takes on the other service.
    """

    before: Sequence[float]
    after: Sequence[float]
    together: float
    new_shape_ns: float


@dataclass
class Bench:
    """The arms of one search and how they are measured.

    :param out: folder for records.
    :param budget_s: seconds for everything, from now.
    :ivar baseline: the record of the first settings, set by :meth:`begin`.
    :ivar first_load_s: seconds that the first settings took to load; ``accuracy_s`` to score.
    :ivar search_folder: folder of the search's records; ``reference`` is the file with the original's answers.
    :ivar replays: number of replayed pairs of windows.
    :ivar room: which arms may be loaded together; of two that may not, the idle one is ended instead of stopped.
    :ivar windows: slices of the traffic on which candidates are replayed.
    """

    spec: WorkloadSpec
    traffic: Traffic
    out: Path
    watch: Watch
    seed: int
    budget_s: InitVar[float]
    baseline: RunRecord = field(init=False)
    first_load_s: float = 0.0
    accuracy_s: float = 0.0
    replays: int = 0
    room: DeviceRoom = field(default_factory=DeviceRoom)
    windows: list[Traffic] = field(default_factory=list)
    _settling: list[Traffic] = field(default_factory=list)
    _budget_s: float = 0.0
    _latency: Floats | None = None
    _arms: list[Arm] = field(default_factory=list)
    _restart_s: float = 0.0
    _base_pace: tuple[float, Mapping[str, Floats]] | None = None
    _base_pace_s: float = 0.0
    _prepared: float = 0.0
    _seen: tuple[Path, Mapping[str, Any]] | None = None

    def __post_init__(self, budget_s: float) -> None:
        self._budget_s, self._deadline = budget_s, time.monotonic() + budget_s
        self.search_folder, self.reference = self.out / SEARCH_FOLDER, self.out / "outputs.npz"

    @property
    def load_s(self) -> float:
        """Seconds to load a service: the median of the arms' last starts; the first one reads packages from disk."""
        again = [arm.start_s for arm in self._arms if arm.start_s]
        return min(statistics.median(again), self.first_load_s) if again else self.first_load_s

    def left_s(self) -> float:
        """Remaining seconds of the budget; negative once it is spent."""
        return self._deadline - time.monotonic()

    def patience_s(self) -> float | None:
        """:func:`patience_s`; ``None`` before the first settings have shown how long they take to load and score."""
        usual_s = max(self.load_s, self.accuracy_s)
        return patience_s(self._budget_s / 2, self.left_s(), usual_s) if self.accuracy_s else None

    def reserve(self, seconds: float) -> None:
        """Reserve seconds of the budget for what follows the replays."""
        self._deadline -= seconds

    def arm(
        self,
        label: str,
        settings: RunnerSettings,
        fixes: tuple[str, ...],
        accuracy: float | None = None,
        *,
        alone: str = "",
    ) -> Arm:
        """A new arm; its process starts at its first use.

        :param alone: why it must have the device to itself; empty if it may share it.
        """
        arm = Arm(label, self.spec, settings, fixes, self.out / "runner.log", accuracy)
        arm.alone, arm.patience_s = alone, self.patience_s
        self._arms.append(arm)
        return arm

    def lone_arm(self, label: str, settings: RunnerSettings, fixes: tuple[str, ...]) -> Arm:
        """An arm that is not compared with another one; on a device, all others are closed first."""
        arm = self.arm(label, settings, fixes, alone=self.room.alone_uncompared())
        self.room.close_others(arm, self._arms)
        return arm

    def ready(self, arm: Arm) -> Mapping[str, Any]:
        """What an arm's process reported when it started; one that has ended does not restart for that."""
        if arm.ready_message and not arm.failed:
            return arm.ready_message
        self.room.close_others(arm, self._arms)
        return arm.ready

    def retry_alone(self, arm: Arm, run: Callable[[], _Found]) -> _Found:
        """Call ``run()``; if a service fails that shared the device, repeat it with each service alone.

        This tells a service that found no memory next to another one from a service that fails by itself.

        :param run: compares ``arm``, which was made for it, with the current best.
        """
        try:
            return run()
        except LatfixError as error:
            # More memory would not help against wrong input.
            if arm.alone or not self.room.on_device or isinstance(error, InputError):
                raise
        arm.close()
        arm.alone = FAILED
        found = run()
        self.room.crowd(arm, FAILED)
        return found

    def close(self) -> None:
        """End all processes."""
        for arm in self._arms:
            arm.close()

    def begin(self, baseline: RunRecord) -> None:
        """Choose windows and batches by the baseline's record."""
        self.baseline = baseline
        prepared = preparing_share(baseline)
        self._prepared = prepared if prepared >= _LEAST_PREPARED else 0.0
        self.room.begin(baseline)
        self.choose_windows(None)

    def choose_windows(self, latency: Floats | None) -> None:
        """Choose the windows, and later the stretch of the final replay, where requests are slow.

        :param latency: nanoseconds by position in the schedule, 0 if unknown; ``None`` for the measured latency.
        """
        self._latency, baseline = latency, self.baseline
        self.windows = screening_windows(self.traffic, baseline, latency)
        self._settling = [
            scale_time(settling_part(self.traffic, baseline, window, _SETTLING_S), _SETTLING_SPEED)
            for window in self.windows
        ]

    @property
    def window_bounds(self) -> list[tuple[float, float]]:
        """Bounds of the windows in the schedule, in nanoseconds; empty if the whole traffic is the only window."""
        if len(self.windows) == 1 and self.windows[0] is self.traffic:
            return []
        return [window_bounds(window) for window in self.windows]

    def accuracy(self, arm: Arm, *, original: bool = False) -> Mapping[str, Any]:
        """Fields of :class:`accuracy.Accuracy` of the arm's service, compared with the original's answers.

        :param original: the arm is the original; save its answers as the reference.
        """
        self.room.close_others(arm, self._arms)
        reference = str(self.reference)
        ways: dict[str, Any] = (
            {"save": reference} if original else {"reference": reference, "max_drop": self.max_drop}
        )
        answer: Mapping[str, Any] = arm.ask("evaluate", folder=str(self.baseline.folder), **ways)
        if original:
            self.accuracy_s = float(answer["again_s"])
        return {name: value for name, value in answer.items() if name not in ("event", "do", "again_s")}

    @property
    def max_drop(self) -> float:
        """Maximum loss of the score that the workload allows."""
        return self.spec.objective.max_accuracy_drop

    def prime(self, arm: Arm) -> None:
        """Make sure that no timed request is an arm's first, or served by a process that was profiled."""
        if arm.profiled:
            arm.restart()
        if arm.primed:
            return
        self.room.close_others(arm, self._arms)
        again, started = bool(arm.ready_message) and not arm.loaded, time.monotonic()
        arm.prime(self.out / "baseline")
        if again and self.room.tight:  # otherwise arms restart only for cold fixes
            self._restart_s = time.monotonic() - started

    def settle(self, arm: Arm) -> None:
        """Let an arm's process serve a part of each window once, faster than recorded, if it has not yet.

        The first use of each shape builds kernels and lays out memory. The current best has done that already, so a
        new candidate would be slower for that reason alone. An arm that has served far more (:attr:`Arm.worn`)
        restarts.
        """
        if arm.worn:
            arm.restart()
        self.prime(arm)
        if arm.settled:
            return
        for number, part in enumerate(self._settling):
            folder = self._window_folder(f"{self.replays:03d}-{arm.label}-settling-{number}")
            arm.replay(folder, part, self.watch, seed=self.seed)
        arm.settled = True

    def paces(self, base: Arm, other: Arm, batches: Sequence[Sequence[int]]) -> Paces:
        """How long some batches take on both services.

        The base is measured before the other service, and again after it if its measurement is old. Batches share
        cores with the preparation of requests, and on the base with other workers; the result is weighted by how
        often they do.

        :param batches: positions in the schedule, the same at every call.
        """
        taken_at, before = self._first_pace(base, batches)
        after = self._pace(other, batches)
        again = before
        if time.monotonic() - taken_at > max(_BASE_AGAIN_S, _BASE_AGAIN * self._base_pace_s):
            self._base_pace = None
            _, again = self._first_pace(base, batches)
        mean = {name: (one + again[name]) / 2 for name, one in before.items()}
        slower = after["together"] / after["alone"]
        return Paces(
            before=self._blended(base, mean),
            after=blend(after, 0.0, other.settings.workers, self._prepared),
            together=max(float(np.nanmedian(slower)), 1.0) if np.isfinite(slower).any() else 1.0,
            new_shape_ns=after["new_shape"].item(),
        )

    def base_pace(self, base: Arm, batches: Sequence[Sequence[int]]) -> tuple[list[float], float]:
        """Nanoseconds of some batches with the first settings, NaN for a batch that failed, and of a new shape.

        See :meth:`paces`.
        """
        found = self._first_pace(base, batches)[1]
        return self._blended(base, found), found["new_shape"].item()

    def _blended(self, base: Arm, paces: Mapping[str, Floats]) -> list[float]:
        return blend(paces, offered(self.baseline), base.settings.workers, self._prepared)

    def _first_pace(self, base: Arm, batches: Sequence[Sequence[int]]) -> tuple[float, Mapping[str, Floats]]:
        if self._base_pace is None:
            started = time.monotonic()
            self._base_pace = started, self._pace(base, batches)
            self._base_pace_s = time.monotonic() - started
        return self._base_pace

    def _pace(self, arm: Arm, batches: Sequence[Sequence[int]]) -> Mapping[str, Floats]:
        self.prime(arm)
        answer = arm.ask(
            "pace",
            folder=str(self.baseline.folder),
            batches=batches,
            seconds=_PACE_S,
            preparing=bool(self._prepared),
        )
        if not any(answer["alone"]):
            raise RunnerError(next(iter(answer["failures"]), "none of its batches was computed"))
        arm.worn = arm.worn or bool(self._prepared)
        names = ("alone", "together", "beside", "new_shape")
        return {name: np.array(answer[name], dtype=np.float64) for name in names}

    def evidence(self, arm: Arm, record: RunRecord) -> Mapping[str, Any]:
        """Evidence in the arm's service that its settings took effect.

        :param record: the last replay of the arm's process, whose batches the evidence counts.
        """
        if self._seen is not None and self._seen[0] == record.folder:
            return self._seen[1]
        assert arm.loaded, "only the process that served the replay has evidence of it"
        found: Mapping[str, Any] = arm.ask("evidence", folder=str(record.folder))["evidence"]
        return found

    def screen(self, base: Arm, candidate: Arm, *, cold: bool) -> Pairs:
        """Replay the windows on both arms in turns: A B, B A, A B, …; returns all pairs.

        If the two cannot share the device, each replay has its own process, which serves the windows once before, so
        that neither service has a longer past than the other.

        :param cold: replay on fresh processes; otherwise both arms have served requests before.
        """
        pairs: list[tuple[RunRecord, RunRecord]] = []
        windows = self.cold_windows() if cold else self.windows
        apart = bool(base.alone or candidate.alone)
        for number, window in enumerate(windows, 1):
            order = (base, candidate) if len(pairs) % 2 == 0 else (candidate, base)
            self.replays += 1
            records = {}
            for arm in order:
                if cold or apart:
                    arm.restart()
                if not cold:
                    self.settle(arm)
                self.room.close_others(arm, self._arms)
                folder = self._window_folder(f"{self.replays:03d}-{arm.label}")
                records[arm.label] = record = arm.replay(folder, window, self.watch, seed=self.seed)
                if apart and arm is candidate and number == len(windows):
                    # Its process ends before the comparison does.
                    self._seen = (record.folder, self.evidence(arm, record))
            pairs.append((records[base.label], records[candidate.label]))
            if self.room.on_device and not apart and any(calls(record).retries for record in pairs[-1]):
                self.room.crowd(candidate, STALLED)
                return self.screen(base, candidate, cold=cold)
        return pairs

    def cold_windows(self) -> list[Traffic]:
        """The start of the traffic, once for each restart on which a cold fix is judged."""
        return [first_window(self.traffic)] * RESTARTS

    def _window_folder(self, name: str) -> Path:
        # A search that was killed may have left an incomplete window with this number: numbers come from the journal.
        return new_folder(self.search_folder / name)

    def trial_s(self, fixes: Sequence[Fix]) -> float:
        """Estimated time to replay a configuration in turns with the current best."""
        cold = bool(fixes) and all(fix.cold for fix in fixes)
        windows = self.cold_windows() if cold else self.windows
        own = sum(replay_s(self.traffic, self.baseline, window) + DRAIN_S for window in windows)
        settling = sum(max(part.duration_s - part.start_s, _SETTLING_S) + DRAIN_S for part in self._settling)
        fixed = self.scoring_s(fixes) + 2 * own
        fixed += self._start_s if any(arm.worn for arm in self._arms) else 0.0
        if cold:
            return fixed + 2 * len(windows) * self._start_s
        if self.room.alone_with(fixes):
            return fixed + 2 * len(windows) * (self._start_s + settling) + 2 * self._start_s
        if self._profiled:
            return fixed + 2 * settling + self._start_s
        # The current best has settled, except before the first trial.
        return fixed + (1 if any(arm.settled for arm in self._arms) else 2) * settling

    def scoring_s(self, fixes: Sequence[Fix]) -> float:
        """Estimated time to make a service with some fixes and, if they change answers, to score them."""
        scoring = self.accuracy_s if any(fix.changes_outputs for fix in fixes) else 0.0
        return self.load_s + scoring + self._making_of(fixes)

    def pace_s(self, fixes: Sequence[Fix], batches_s: float) -> float:
        """Estimated time to measure a way to run the model.

        :param batches_s: seconds that the batches take once.
        """
        restart = self._start_s if self.room.alone_with(fixes) or self._profiled else 0.0
        preparing = 1.5 if self._prepared else 1.0
        return self.load_s + self._making_of(fixes) + 2 * preparing * passes_s(_PACE_S, batches_s) + restart

    def _making_of(self, fixes: Sequence[Fix]) -> float:
        return sum(fix.seconds_to_make(self.baseline.meta) for fix in fixes)

    @property
    def _start_s(self) -> float:
        """Estimated time to restart a service; on a device with its warm-up, as last measured."""
        return max(self.load_s, self._restart_s)

    @property
    def _profiled(self) -> bool:
        """True if a service has to restart before it is compared again."""
        return any(arm.profiled for arm in self._arms)

    def least_round_s(self, fixes: Sequence[Fix] = ()) -> float:
        """Estimated minimum time of a final round: both arms on fresh processes, one of them with some fixes."""
        lead_in = lead_in_s(self.left_s())
        return 2 * (self._start_s + lead_in + SHORTEST_S + DRAIN_S) + self._making_of(fixes)

    def final_traffic(self, seconds: float, started_s: float | None = None) -> Traffic:
        """Traffic of the final replay: all of it, or its slowest stretch such that :data:`WANTED_ROUNDS` rounds fit.

        :param seconds: for all rounds together.
        :param started_s: seconds that both services took to start at once; ``None`` if they start one by one.
        """
        start_s = self._start_s if started_s is None else started_s / 2
        fixed = start_s + lead_in_s(seconds) + DRAIN_S
        wanted, most = (seconds / (2 * rounds) - fixed for rounds in (WANTED_ROUNDS, VARIES_FROM))
        return slowest_stretch(self.traffic, self.baseline, wanted, self._latency, most_s=most)
