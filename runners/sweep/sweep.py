"""``latfix sweep``: replays recorded traffic at a few loads, simulates the others, and chooses the next load."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from latfix.capacity.load_crossing import LoadErrors, quantiles
from latfix.capacity.max_load import load_answer
from latfix.capacity.measured_load import load_point
from latfix.capacity.next_load import Kind, next_load
from latfix.capacity.objective import TAIL_REQUESTS
from latfix.capacity.sweep_traffic import POINT_OVERHEAD_S, Part
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import InputError, LatfixError
from latfix.formatting import counted, percent
from latfix.profilers.causes.host.core_takers import disturbance
from latfix.results.comparison import costs
from latfix.results.sweep import SkippedLoad
from latfix.run_record.run_record import SCHEDULE, RunRecord
from latfix.runners.replay.arm import Arm, Watch
from latfix.runners.replay.run_session import Interrupted, new_folder
from latfix.runners.replay.runner_process import OnEvent
from latfix.runners.sweep.early_stop import BacklogWatch
from latfix.runners.sweep.load_forecast import Simulated, load_errors_of
from latfix.runners.sweep.sweep_state import Measured, Options, Outcome, Setting
from latfix.runners.sweep.theory import theory_of
from latfix.settings import RunnerSettings
from latfix.traffic.io.stored_schedule import save_schedule
from latfix.traffic.schedule import Traffic

#: Maximum number of processes alive at once: each holds one model or more. Only one if one fails next to others.
_MOST_ALIVE = 6
#: Maximum share of the budget for the first load; a rate above the recorded one takes less.
_FIRST_SHARE = 0.25
#: Processes restart before each replay if that takes at most this share of it: the errors then include restarts.
_RESTART_SHARE = 0.25
#: Reasons for a wide answer: errors this many times the usual ones, waits for a core that exceed this share of the
#: service, a percentile whose slope over load is below this.
_NOISY, _WAITING, _FLAT = 1.3, 0.1, 0.7


@dataclass
class Sweep:
    """Measures points until every setting is decided or the budget ends.

    :param out: a new folder for all records.
    :param watch: shows replays.
    :param say: shows a line.
    :param keep: called after each replay, to save the results so far.
    :param new_arm: makes a service, ``clock`` returns seconds; tests replace both.
    """

    spec: WorkloadSpec
    part: InitVar[Part]
    settings: InitVar[Sequence[Setting]]
    out: Path
    options: Options
    _: KW_ONLY
    watch: Watch
    say: Callable[[str], None]
    keep: Callable[[Outcome], None]
    fixes: tuple[str, ...] = ()
    new_arm: Callable[[str, WorkloadSpec, RunnerSettings, tuple[str, ...], Path], Arm] = Arm
    clock: Callable[[], float] = time.monotonic
    _arms: dict[int, Arm] = field(default_factory=dict, init=False)
    _used: dict[int, bool] = field(default_factory=dict, init=False)
    _load_s: float = field(default=3.0, init=False)
    _most_alive: int = field(default=_MOST_ALIVE, init=False)
    _first_error: LatfixError | None = field(default=None, init=False)
    _errors: dict[int, LoadErrors | None] = field(default_factory=dict, init=False)
    _guesses: dict[int, float] = field(default_factory=dict, init=False)

    def __post_init__(self, part: Part, settings: Sequence[Setting]) -> None:
        self._random = random.Random(self.options.seed)
        self._outcome = Outcome(settings=list(settings), part=part, target=self.options.target)
        self._replays: dict[int, list[Simulated]] = {setting.number: [] for setting in settings}
        self._began = self.clock()

    def run(self) -> Outcome:
        """Run the sweep; on Ctrl-C return the points so far.

        :raises LatfixError: no setting could be replayed at all.
        """
        outcome = self._outcome
        self._began = self.clock()
        schedule = self.out / "schedule"
        schedule.mkdir(parents=True, exist_ok=True)
        save_schedule(outcome.part.traffic, schedule / SCHEDULE)
        try:
            self._calibrate()
            self._search()
        except (Interrupted, KeyboardInterrupt):
            outcome.interrupted = True
            outcome.notes.append("Interrupted: complete points are kept; the current one is not.")
        finally:
            for arm in self._arms.values():
                arm.close()
            self._explain()
            outcome.seconds = self.clock() - self._began
        if not outcome.measured and self._first_error is not None:
            raise self._first_error
        return outcome

    def _explain(self) -> None:
        """Predictions of queueing theory, from the first replay of each load."""
        part, target = self._outcome.part, self._outcome.target
        more = {"seed": self.options.seed, "points": max(len(self._outcome.measured), 1)}
        for setting in self._outcome.settings:
            first: dict[float, Simulated] = {}
            for one in sorted(self._replays[setting.number], key=lambda each: each.load):
                first.setdefault(one.load, one)
            found = theory_of(list(first.values()), setting.settings, part, target, **more)
            if found is not None:
                self._outcome.theory[setting.number] = found

    def _left_s(self) -> float:
        return self.options.budget_s - (self.clock() - self._began)

    def _active(self) -> list[Setting]:
        return [setting for setting in self._outcome.settings if not setting.failure]

    def _cost_s(self, setting: int, load: float) -> float:
        started = setting in self._arms and self._arms[setting].primed
        return self._outcome.part.seconds(load) + POINT_OVERHEAD_S + (0.0 if started else self._load_s)

    def _calibrate(self) -> None:
        """Replay the requested loads, or one to begin with: settings in turns, each in its own order of loads."""
        pending = {setting.number: self._ordered() for setting in self._active()}
        while any(pending.values()):
            turn = [setting for setting in self._active() if pending[setting.number]]
            self._random.shuffle(turn)
            for setting in turn:
                load = self._next_of(setting.number, pending[setting.number])
                if load is not None:
                    self._measure(setting, load, "grid")
                if setting.failure:
                    pending[setting.number].clear()

    def _ordered(self) -> list[float]:
        """The middle load first, because its result may make others unnecessary; the rest in random order."""
        loads = list(self._loads())
        middle = loads.pop(len(loads) // 2)
        self._random.shuffle(loads)
        return [middle, *loads]

    def _loads(self) -> tuple[float, ...]:
        """The requested loads; by default the recorded rate, or a higher one that fits a fair share of the budget."""
        part, most = self._outcome.part, _FIRST_SHARE * self.options.budget_s / len(self._outcome.settings)
        return self.options.loads or (max(1.0, part.seconds(1.0) / most),)

    def _next_of(self, setting: int, pending: list[float]) -> float | None:
        """Take the next load that is useful and fits; others before it are recorded as skipped."""
        measured = self._outcome.measured
        while pending:
            load = pending.pop(0)
            if not measured and self._cost_s(setting, load) > self._left_s():
                pending.append(load)
                load = pending.pop(pending.index(max(pending)))  # at least one point is replayed: the shortest
            past = min((one.load for one in measured if one.setting == setting and one.point.cut), default=math.inf)
            cost, left = self._cost_s(setting, load), max(self._left_s(), 0.0)
            if load > past:
                reason = f"past saturation: the replay of load {past:.3g} ended early"
            elif measured and cost > left:
                reason = f"budget: it takes {cost:.0f} s, {left:.0f} s are left"
            else:
                return load
            self._outcome.skipped.append(SkippedLoad(setting=setting, load=load, reason=reason))
        return None

    def _search(self) -> None:
        """Replay load after load, until every setting is decided, cannot be the best, or has no load left."""
        while wanted := self._wanted():
            fitting = [pair for pair in wanted if self._cost_s(pair[0].number, pair[1]) <= self._left_s()]
            if not fitting:
                self._outcome.notes.append(
                    f"The budget of {self.options.budget_s:.0f} s ended the search: a larger --budget narrows the "
                    "intervals."
                )
                return
            setting, load = fitting[0]
            self._measure(setting, load, "knee" if self.options.target.limit is None else "largest")

    def _wanted(self) -> list[tuple[Setting, float]]:
        """The next load of each setting, the setting with the fewest replays first."""
        answers = self._outcome.answers
        found = [one.largest for one in answers.values() if one.largest is not None]
        best = max((one.lo for one in found if one.lo is not None), default=0.0)
        wanted = []
        for setting in self._active():
            number = setting.number
            answer = answers.get(number)
            if answer is None or answer.decided(self.options.gate_rps) or answer.below(best):
                continue
            load = next_load(
                self._errors[number],
                [one.load for one in self._replays[number]],
                self.options.target.limit,
                partial(self._cost_s, number),
                first=min(self._loads()),
                guess=self._guesses.get(number),
            )
            if load is not None:
                wanted.append((setting, load))
        return sorted(wanted, key=lambda pair: len(self._replays[pair[0].number]))

    def _learn(self, setting: Setting, record: RunRecord, measured: Measured) -> None:
        """Update the setting's answer after a replay."""
        outcome, number = self._outcome, setting.number
        replays = self._replays[number]
        replays.append(Simulated.of(record, measured.load, measured.point))
        part, target = outcome.part, outcome.target
        found = load_errors_of(replays, part, target, seed=self.options.seed)
        whole = sum(one.whole for one in replays)
        errors = self._errors[number] = found if whole else None
        if found is not None:
            self._guesses[number] = math.exp(quantiles(found.wanted(target.limit))[0])
        outcome.answers[number] = load_answer(
            errors,
            outcome.cells()[number],
            target,
            part.recorded,
            whole=whole,
            why_wide=self._why_wide(number, errors),
            why_none=self._why_none(number, errors),
        )

    def _why_none(self, number: int, errors: LoadErrors | None) -> str:
        """Why a service meets the objective at no load, as far as that is known."""
        point = min(self._replays[number], key=lambda one: one.load).point
        if point.lost > self._outcome.target.allowed * sum(point.requests.values()):
            first = f", the first: {point.error}" if point.error else ""
            return f"{counted(point.lost, 'request')} of {sum(point.requests.values()):,} were lost there{first}"
        waiting, percentile = self._waiting(number), self._outcome.target.percentile
        cores = f"batches wait for a core {percent(waiting)} of their time" if waiting > _WAITING else ""
        least = "" if errors is None else f"{1e3 * math.exp(errors.curve.level[0]):.3g} ms"
        floor = f"however low the load, p{percentile:g} is simulated to stay at {least}" if least else ""
        return ", and ".join(filter(None, (floor, cores)))

    def _waiting(self, number: int) -> float:
        """Share of the batches' service time in which they were ready to run, but no core was free."""
        batches = [one.point.batches for one in self._replays[number]]
        served = sum(float(each.service.sum()) for each in batches)
        return sum(float(each.run_delay.sum()) for each in batches) / max(served, 1e-9)

    def _why_wide(self, number: int, errors: LoadErrors | None) -> str:
        """Why an answer is not narrower: the first of the likely reasons."""
        replays, target = self._replays[number], self.options.target
        points = [one.point for one in replays]
        requests = min(len(point.latency) for point in points)
        middle = math.nan if errors is None else quantiles(errors.wanted(target.limit))[0]
        if errors is not None and errors.scale > _NOISY:
            waiting = self._waiting(number)
            cores = f" (batches wait for a core {percent(waiting)} of their time)"
            return "replays of this machine differ so much" + (cores if waiting > _WAITING else "")
        if errors is not None and math.isfinite(middle) and errors.curve.slope(middle) < _FLAT:
            return f"p{target.percentile:g} hardly grows with load"
        if not target.enough(requests):
            return (
                f"a replay holds {counted(requests, 'request')}, and fewer than {TAIL_REQUESTS} of them are beyond "
                f"p{target.percentile:g}"
            )
        return f"only {counted(len(replays), 'replay')} fitted into the budget"

    def _predicted(self, setting: int, load: float) -> tuple[float, float, float] | None:
        """The predicted percentile at a load, in seconds, with its 95 % interval."""
        errors = self._errors.get(setting)
        if errors is None:
            return None
        value, lo, hi = np.exp(quantiles(errors.percentiles(math.log(load)))).tolist()
        return value, lo, hi

    def _measure(self, setting: Setting, load: float, kind: Kind) -> None:
        """Replay one point; a setting that fails is left out."""
        outcome = self._outcome
        schedule = outcome.part.at(load)
        folder = new_folder(self.out / "points" / f"{len(outcome.measured):03d}-s{setting.number}-x{load:.4g}")
        began = self.clock() - self._began
        try:
            arm = self._arm(setting)
            if not arm.primed:
                started = self.clock()
                arm.prime(self.out / "schedule")
                self._load_s = self.clock() - started
                self._used[setting.number] = False
            record, cut_s, hopeless = self._replay(arm, folder, schedule, load)
        except LatfixError as error:
            others = [arm for number, arm in self._arms.items() if arm.primed and number != setting.number]
            if others and not isinstance(error, InputError):  # memory may not hold them all
                for other in others:
                    other.restart()
                before, self._most_alive = self._most_alive, 1
                self._measure(setting, load, kind)
                if setting.failure:
                    self._most_alive = before
                return
            setting.failure = error.message
            self._first_error = self._first_error or error
            self.say(f"{setting.label}: failed, and is left out: {error.message}")
            return
        if cut_s is not None or self._load_s < _RESTART_SHARE * outcome.part.seconds(load):
            arm.restart()  # after an early end the workers still have the backlog
        outcome.meta = record.meta
        point = load_point(record, cut_s=cut_s, hopeless=hopeless)
        measured = Measured(
            setting=setting.number,
            load=load,
            folder=folder,
            point=point,
            kind=kind,
            began_s=began,
            fresh=not self._used[setting.number],
            predicted=self._predicted(setting.number, load),
            costs=costs([record]),
            disturbed=disturbance(record.samples),
        )
        self._used[setting.number] = True
        outcome.measured.append(measured)
        self._learn(setting, record, measured)
        outcome.seconds = self.clock() - self._began
        self.keep(outcome)

    def _arm(self, setting: Setting) -> Arm:
        """The setting's process; if there are too many, the least recently used one ends."""
        arm = self._arms.pop(setting.number, None)
        if arm is None:
            log = self.out / f"runner-s{setting.number}.log"
            arm = self.new_arm(setting.label, self.spec, setting.settings, self.fixes, log)
        self._arms[setting.number] = arm
        alive = [number for number, other in self._arms.items() if other.primed and number != setting.number]
        for number in alive[: max(0, len(alive) - self._most_alive + 1)]:
            self._arms[number].restart()
        return arm

    def _replay(self, arm: Arm, folder: Path, schedule: Traffic, load: float) -> tuple[RunRecord, float | None, bool]:
        """Replay; end early if the backlog shows nothing new, or with the budget.

        :returns: the record, when it ended early in seconds of the schedule, and True if the backlog was the reason.
        """
        settings = arm.settings
        backlog = BacklogWatch(
            requests=len(schedule),
            scheduled_s=schedule.duration_s,
            at_once=settings.max_batch_size * settings.workers,
            limit_s=self.options.target.limit,
        )
        process, cut_s, hopeless = arm.running(), [math.inf], [False]
        first = not self._outcome.measured  # at least one point is replayed, even beyond the budget

        @contextmanager
        def watching(label: str, traffic: Traffic, where: Path) -> Iterator[OnEvent]:
            with self.watch(f"load {load:.3g}, {label}", traffic, where) as shown:

                def on_event(event: Mapping[str, Any]) -> None:
                    shown(event)
                    if event["event"] != "status" or math.isfinite(cut_s[0]):
                        return
                    at_s, inside = float(event["at_ns"]) / 1e9, int(event["in_flight"])
                    done = max(int(event["done"]), 0)
                    hopeless[0] = (
                        backlog.drained_enough(at_s, inside)
                        if event["draining"]
                        else backlog.hopeless(at_s, inside, done)
                    )
                    if hopeless[0] or (self._left_s() <= 0 and not first):
                        cut_s[0] = at_s
                        process.interrupt()

                yield on_event

        record = arm.replay(folder, schedule, watching, seed=self.options.seed)
        return record, cut_s[0] if record.partial and math.isfinite(cut_s[0]) else None, hopeless[0]
