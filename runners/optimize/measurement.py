"""What a search measures with: live arms that take turns, the windows they replay, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latfix.arrays import Floats
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import InputError, LatfixError, RunnerError
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import Fix
from latfix.runners.fixes.shared.device_memory_facts import calls
from latfix.runners.measure.compute_pace import blend, offered, passes_s, prepared_beside
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
from latfix.runners.replay.arm import Arm, Watch
from latfix.runners.replay.run_session import new_folder
from latfix.settings import RunnerSettings
from latfix.statistics.group_sequential import FIRST_LOOK
from latfix.statistics.score_bounds import VARIES_FROM
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import scale_time

#: Where the records of the search lie, beside its journal.
SEARCH_FOLDER = "search"
#: Pairs of fresh processes that a fix of a service's first requests is judged by.
RESTARTS = 2
#: Fewer rounds on fresh processes cannot show what a restart does (:mod:`latfix.statistics.score_bounds`).
WANTED_ROUNDS = FIRST_LOOK
#: A replay of the final rounds that may take no longer has nothing to spare for what leads to it.
_SHORT_REPLAY_S = 8.0
#: Beyond its traffic, what a replay takes: the last requests, and the record.
DRAIN_S = 1.5
#: How fast an arm is sent the windows that nobody times.
_SETTLING_SPEED = 2.0
#: Seconds of work that a window is sent of for that.
_SETTLING_S = 2.0
#: What the base computes in is measured again after so many seconds, and so many times what that takes: the machine
#: drifts.
_BASE_AGAIN_S, _BASE_AGAIN = 15.0, 4.0
#: Requests that are prepared beside batches for a smaller share of their time hold nothing up.
_LEAST_PREPARED = 0.05
#: One measurement of an arm's pace, at least.
_PACE_S = 0.6

_Found = TypeVar("_Found")


def lead_in_s(seconds: float) -> float:
    """Seconds of requests before each replay of the final rounds, which may all take so many together.

    None where rounds are short: fewer of them would tell less than what leads to them adds.
    """
    return min(max(seconds / (2 * WANTED_ROUNDS) - _SHORT_REPLAY_S, 0.0), LEAD_IN_S)


class Bench:
    """The arms of one search and how they are measured.

    :param out: where records go.
    :param budget_s: seconds for everything, from now.
    :ivar baseline: the record of the first settings, set by :meth:`begin`.
    :ivar replays: how many pairs of windows were replayed.
    :ivar room: which arms may be on one device together; of two that may not, the idle one is ended, not stopped.
    :ivar broken: by the fixes of a service that did not run with them, what it died of.
    """

    def __init__(
        self, spec: WorkloadSpec, traffic: Traffic, out: Path, *, watch: Watch, seed: int, budget_s: float
    ) -> None:
        self.spec = spec
        self.traffic = traffic
        self.out = out
        self.seed = seed
        self.watch = watch
        self._first_load_s = 0.0
        self.accuracy_s = 0.0
        self.replays = 0
        self.room = DeviceRoom()
        self.broken: dict[tuple[str, ...], str] = {}
        self.windows: list[Traffic] = []
        self._settling: list[Traffic] = []
        self._latency: Floats | None = None
        self.baseline: RunRecord
        self._arms: list[Arm] = []
        self._restart_s = 0.0
        self._base_pace: tuple[float, Mapping[str, Floats]] | None = None
        self._base_pace_s = 0.0
        self._prepared = 0.0
        self._seen: tuple[Path, Mapping[str, Any]] | None = None
        self._deadline = time.monotonic() + budget_s

    @property
    def load_s(self) -> float:
        """Seconds that a service takes to load, at its quickest: the first one reads its packages from the disk."""
        return min([self._first_load_s, *(arm.start_s for arm in self._arms if arm.start_s)])

    @load_s.setter
    def load_s(self, seconds: float) -> None:
        self._first_load_s = seconds

    def left_s(self) -> float:
        """Seconds of the budget that are left; negative once it is spent."""
        return self._deadline - time.monotonic()

    def keep(self, seconds: float) -> None:
        """Leave so much of the budget for what follows the replays."""
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

        :param alone: why no other is to be on the device with it; empty where one may.
        """
        arm = Arm(label, self.spec, settings, fixes, self.out / "runner.log", accuracy)
        arm.alone = alone
        self._arms.append(arm)
        return arm

    def lone_arm(self, label: str, settings: RunnerSettings, fixes: tuple[str, ...]) -> Arm:
        """An arm that is compared with no other: on a device, what else is loaded there ends first."""
        arm = self.arm(label, settings, fixes, alone=self.room.alone_at_all())
        self.room.make(arm, self._arms)
        return arm

    def ready(self, arm: Arm) -> Mapping[str, Any]:
        """What an arm's process said of itself; on a device none is started again to be asked."""
        if self.room.on_device and arm.told and not arm.failed:
            return arm.told
        self.room.make(arm, self._arms)
        return arm.ready

    def apart_if_need_be(self, arm: Arm, run: Callable[[], _Found]) -> _Found:
        """``run()``, once more with each service alone where one failed that shared the device.

        A service that finds no memory beside another one would otherwise be told to fail by itself. One that failed
        so, too, is :attr:`broken`: whoever is about to try the same fixes on the same service need not.

        :param run: compares ``arm``, which was made for it, with the one that stands.
        """
        try:
            return run()
        except LatfixError as error:
            # What the workload or the settings are wrong about, no memory would change.
            if arm.alone or not self.room.on_device or isinstance(error, InputError):
                self._take_note(arm, error)
                raise
        arm.close()
        arm.alone = FAILED
        try:
            found = run()
        except LatfixError as error:
            self._take_note(arm, error)
            raise
        self.room.crowd(arm, FAILED)
        return found

    def _take_note(self, arm: Arm, error: LatfixError) -> None:
        if arm.failed:
            self.broken[arm.fixes] = error.message

    def close(self) -> None:
        """End all processes."""
        for arm in self._arms:
            arm.close()

    def begin(self, baseline: RunRecord) -> None:
        """Take the baseline's record as what windows and batches are chosen by."""
        self.baseline = baseline
        prepared = prepared_beside(baseline)
        self._prepared = prepared if prepared >= _LEAST_PREPARED else 0.0
        self.room.begin(baseline)
        self.choose_windows(None)

    def choose_windows(self, latency: Floats | None) -> None:
        """Choose the windows, and later the stretch of the final replay, by what makes requests slow.

        :param latency: nanoseconds by position in the schedule, 0 where not known; as measured where there is none.
        """
        self._latency, baseline = latency, self.baseline
        self.windows = screening_windows(self.traffic, baseline, latency)
        self._settling = [
            scale_time(settling_part(self.traffic, baseline, window, _SETTLING_S), _SETTLING_SPEED)
            for window in self.windows
        ]

    @property
    def window_bounds(self) -> list[tuple[float, float]]:
        """The stretches of the schedule that the windows are, in nanoseconds."""
        if len(self.windows) == 1 and self.windows[0] is self.traffic:
            return []
        return [window_bounds(window) for window in self.windows]

    def accuracy(self, arm: Arm, *, original: bool = False) -> Mapping[str, Any]:
        """Fields of :class:`accuracy.Accuracy` of the arm's service, against the original's answers.

        :param original: the arm is the original; keep its answers for the others.
        """
        self.room.make(arm, self._arms)
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
        """The largest loss of the score that the workload allows."""
        return self.spec.objective.max_accuracy_drop

    @property
    def search_folder(self) -> Path:
        """Where the records of the search lie."""
        return self.out / SEARCH_FOLDER

    @property
    def reference(self) -> Path:
        """The original's answers."""
        return self.out / "outputs.npz"

    def prime(self, arm: Arm) -> None:
        """See that no timed request is an arm's first, and none is timed in a process that was profiled."""
        if arm.profiled:
            arm.restart()
        if arm.primed:
            return
        self.room.make(arm, self._arms)
        again, started = bool(arm.told) and not arm.loaded, time.monotonic()
        arm.prime(self.out / "baseline")
        if again and self.room.on_device:  # on the host arms do not start again, but for fixes of the first requests
            self._restart_s = time.monotonic() - started

    def settle(self, arm: Arm) -> None:
        """Let an arm's process serve some of the windows once, faster than recorded, if it has not yet.

        Kernels are made, and memory is laid out, at the first use of each shape. The service that a fix is tried on
        has that behind it; a comparison with one that has not would find the first use, not the fix. One that has
        far more behind it (:attr:`Arm.worn`) begins anew.
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

    def paces(self, base: Arm, other: Arm, batches: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
        """Nanoseconds of some batches on both services; NaN where one failed.

        They take turns: the base is measured before an other one, and after it unless that was just now. Workers
        share cores with each other and with requests that are prepared; how much that costs each follows from how
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
        ratio = after["alone"] / mean["alone"]
        quicker = float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else 1.0
        return self._blended(base, mean), self._blended(other, after, min(quicker, 1.0))

    def base_pace(self, base: Arm, batches: Sequence[Sequence[int]]) -> list[float]:
        """Nanoseconds of some batches on the first settings; NaN for one that failed. See :meth:`paces`."""
        return self._blended(base, self._first_pace(base, batches)[1])

    def _blended(self, arm: Arm, paces: Mapping[str, Floats], quicker: float = 1.0) -> list[float]:
        return blend(paces, offered(self.baseline) * quicker, arm.settings.workers, self._prepared)

    def _first_pace(self, base: Arm, batches: Sequence[Sequence[int]]) -> tuple[float, Mapping[str, Floats]]:
        if self._base_pace is None:
            started = time.monotonic()
            self._base_pace = started, self._pace(base, batches)
            self._base_pace_s = time.monotonic() - started
        return self._base_pace

    def _pace(self, arm: Arm, batches: Sequence[Sequence[int]]) -> Mapping[str, Floats]:
        self.prime(arm)
        told = arm.ask(
            "pace",
            folder=str(self.baseline.folder),
            batches=batches,
            seconds=_PACE_S,
            preparing=bool(self._prepared),
        )
        if not any(told["alone"]):
            raise RunnerError(next(iter(told["failures"]), "none of its batches was computed"))
        arm.worn = arm.worn or bool(self._prepared)
        return {name: np.array(told[name], dtype=np.float64) for name in ("alone", "together", "beside")}

    def evidence(self, arm: Arm, record: RunRecord) -> Mapping[str, Any]:
        """What can be seen of the settings in the arm's service.

        :param record: the last replay of the arm's process, whose batches the evidence counts.
        """
        if self._seen is not None and self._seen[0] == record.folder:
            return self._seen[1]
        assert arm.loaded, "a process that has not served the replay has nothing to show of it"
        found: Mapping[str, Any] = arm.ask("evidence", folder=str(record.folder))["evidence"]
        return found

    def screen(
        self,
        base: Arm,
        candidate: Arm,
        earlier: Pairs,
        *,
        cold: bool,
        look: bool = True,
        made: Arm | None = None,
    ) -> Pairs:
        """Replay the windows on both arms in turns: A B, B A, A B, …; returns all pairs, ``earlier`` first.

        Where the two cannot be on the device together, each replay is of a process of its own that has served the
        windows before, so that neither service has a longer past than the other.

        :param cold: on fresh processes; otherwise both arms are in use already, for a service's first requests are
            no other fix's business.
        :param look: :meth:`evidence` of the candidate is going to be asked for.
        :param made: the arm that was made for the comparison, where it is not the candidate: the one to learn from.
        """
        made = made or candidate
        pairs = list(earlier)
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
                records[arm.label] = record = self._replay_window(arm, window)
                if look and apart and arm is candidate and number == len(windows):
                    # Now, while the process is there that has served it.
                    self._seen = (record.folder, self.evidence(arm, record))
            pairs.append((records[base.label], records[candidate.label]))
            if self.room.on_device and not apart and any(calls(record).retries for record in pairs[-1]):
                self.room.crowd(made, STALLED)
                return self.screen(base, candidate, earlier, cold=cold, look=look, made=made)
        return pairs

    def cold_windows(self) -> list[Traffic]:
        """The start of the traffic, once for each restart that a cold fix is judged by."""
        return [first_window(self.traffic)] * RESTARTS

    def _replay_window(self, arm: Arm, window: Traffic) -> RunRecord:
        self.room.make(arm, self._arms)
        return arm.replay(self._window_folder(f"{self.replays:03d}-{arm.label}"), window, self.watch, seed=self.seed)

    def _window_folder(self, name: str) -> Path:
        # A search that was killed and goes on counts from its journal: a window of that number may lie there, half.
        return new_folder(self.search_folder / name)

    def trial_s(self, fixes: Sequence[Fix]) -> float:
        """About how long it takes to replay a configuration beside the one that stands."""
        cold = bool(fixes) and all(fix.cold for fix in fixes)
        windows = self.cold_windows() if cold else self.windows
        own = sum(replay_s(self.traffic, self.baseline, window) + DRAIN_S for window in windows)
        settling = sum(max(part.duration_s - part.start_s, _SETTLING_S) + DRAIN_S for part in self._settling)
        fixed = self.load_s + self._accuracy_of(fixes) + self._making_of(fixes) + 2 * own
        fixed += self._start_s if any(arm.worn for arm in self._arms) else 0.0
        if cold:
            return fixed + 2 * len(windows) * self._start_s
        if self.room.alone_with(fixes):
            return fixed + 2 * len(windows) * (self._start_s + settling) + 2 * self._start_s
        if self._profiled:
            return fixed + 2 * settling + self._start_s
        # The one that stands has settled, but before the first trial.
        return fixed + (1 if any(arm.settled for arm in self._arms) else 2) * settling

    def pace_s(self, fixes: Sequence[Fix], batches_s: float) -> float:
        """About how long it takes to measure a way to run the model.

        :param batches_s: seconds that the batches take once.
        """
        again = self._start_s if self.room.alone_with(fixes) or self._profiled else 0.0
        company = 1.5 if self._prepared else 1.0
        return self.load_s + self._making_of(fixes) + 2 * company * passes_s(_PACE_S, batches_s) + again

    def _accuracy_of(self, fixes: Sequence[Fix]) -> float:
        return self.accuracy_s if any(fix.changes_outputs for fix in fixes) else 0.0

    def _making_of(self, fixes: Sequence[Fix]) -> float:
        device = self.baseline.meta.device
        return sum(fix.seconds_to_make(device) for fix in fixes)

    @property
    def _start_s(self) -> float:
        """About how long it takes to start a service again: on a device with its warm-up, as it was last seen."""
        return max(self.load_s, self._restart_s)

    @property
    def _profiled(self) -> bool:
        """Whether a service that is to go on being compared has to start again first."""
        return any(arm.profiled for arm in self._arms)

    @property
    def least_round_s(self) -> float:
        """About how long a round of the final replay takes at least: both arms, each on a fresh process."""
        return 2 * (self._start_s + LEAD_IN_S + SHORTEST_S + DRAIN_S)

    def final_traffic(self, seconds: float) -> Traffic:
        """What the final replay is of: the whole traffic, where :data:`WANTED_ROUNDS` of it fit, or its slowest
        stretch that they fit with.

        :param seconds: for all rounds.
        """
        fixed = self._start_s + lead_in_s(seconds) + DRAIN_S
        wanted, most = (seconds / (2 * rounds) - fixed for rounds in (WANTED_ROUNDS, VARIES_FROM))
        return slowest_stretch(self.traffic, self.baseline, wanted, self._latency, most_s=most)
