"""``latfix sweep``: replays the recorded traffic at several loads under several settings, and decides which next."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from latfix.capacity.max_load import largest_load
from latfix.capacity.measured_load import Cell, load_point
from latfix.capacity.next_load import Kind, Proposal, ceiling, propose
from latfix.capacity.sweep_traffic import POINT_OVERHEAD_S, Part
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import LatfixError
from latfix.results.sweep import Measured, Options, Outcome, Setting, SkippedLoad
from latfix.run_record.run_record import SCHEDULE, RunRecord
from latfix.runners.replay.arm import Arm, Watch
from latfix.runners.replay.run_session import Interrupted
from latfix.runners.replay.runner_process import OnEvent
from latfix.runners.sweep.early_stop import BacklogWatch
from latfix.traffic.io.stored_schedule import save_schedule
from latfix.traffic.schedule import Traffic

#: Processes that are kept alive at once: each holds a model, or several.
_MOST_ALIVE = 6
#: Points that are decided on together in the search, and replayed in random order.
_TOGETHER = 3
_RANK: Mapping[Kind, int] = {"grid": 0, "largest": 1, "knee": 2, "repeat": 3}
#: A setting that is surely below the best one is looked at last.
_BEHIND = 10


class Sweep:
    """Measures points until nothing is left to find out or the budget ends.

    :param out: a new folder for all records.
    :param watch: shows replays.
    :param say: shows a line.
    :param keep: called after each replay, to write down what there is.
    :param clock: seconds, for tests on simulated time.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        part: Part,
        settings: Sequence[Setting],
        out: Path,
        options: Options,
        *,
        watch: Watch,
        say: Callable[[str], None],
        keep: Callable[[Outcome], None],
        fixes: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._out = out
        self._options = options
        self._watch = watch
        self._say = say
        self._keep = keep
        self._fixes = fixes
        self._random = random.Random(options.seed)
        self._arms: dict[int, Arm] = {}
        self._used: dict[int, bool] = {}
        self._load_s = 3.0
        self._clock = clock
        self._began = clock()
        self._outcome = Outcome(settings=list(settings), part=part, target=options.target)
        self._first_error: LatfixError | None = None
        self._best = 0.0
        self._tight = False
        self._behind: set[int] = set()

    def run(self) -> Outcome:
        """All of it; what was measured is returned on Ctrl-C, too.

        :raises LatfixError: no setting could be replayed at all.
        """
        outcome = self._outcome
        self._began = self._clock()
        schedule = self._out / "schedule"
        schedule.mkdir(parents=True, exist_ok=True)
        save_schedule(outcome.part.traffic, schedule / SCHEDULE)
        try:
            self._grid()
            for arm in self._arms.values():  # what a restart changes belongs to the spread between replays
                arm.restart()
            self._search()
        except (Interrupted, KeyboardInterrupt):
            outcome.interrupted = True
            outcome.notes.append("Interrupted: what had been replayed is kept; the point under way is not.")
        finally:
            for arm in self._arms.values():
                arm.close()
            outcome.seconds = self._clock() - self._began
        if not outcome.measured and self._first_error is not None:
            raise self._first_error
        return outcome

    def _left_s(self) -> float:
        return self._options.budget_s - (self._clock() - self._began)

    def _active(self) -> list[Setting]:
        return [setting for setting in self._outcome.settings if not setting.failure]

    def _cost_s(self, setting: int, load: float) -> float:
        started = setting in self._arms and self._arms[setting].primed
        return self._outcome.part.seconds(load) + POINT_OVERHEAD_S + (0.0 if started else self._load_s)

    def _grid(self) -> None:
        """The loads asked for: settings in turns, each with its loads in an order of its own."""
        pending = {setting.number: self._ordered() for setting in self._active()}
        round_s = sum(self._cost_s(number, load) for number, loads in pending.items() for load in loads)
        self._tight = round_s > self._left_s()
        while any(pending.values()):
            turn = [setting for setting in self._active() if pending[setting.number]]
            self._random.shuffle(turn)
            for setting in turn:
                load = self._next_of(setting.number, pending[setting.number])
                if load is not None and not self._measure(setting, load, "grid"):
                    pending[setting.number].clear()
            for setting in self._outcome.settings:
                if setting.failure:
                    pending[setting.number] = []

    def _ordered(self) -> list[float]:
        """The middle load first, because what it shows spares others; the rest in random order."""
        loads = list(self._options.loads)
        middle = loads.pop(len(loads) // 2)
        self._random.shuffle(loads)
        return [middle, *loads]

    def _next_of(self, setting: int, pending: list[float]) -> float | None:
        """Takes the next load that is worth it and fits; the others are noted as skipped."""
        while pending:
            if self._tight:
                pending.sort(key=lambda load: self._distance(setting, load))
            load = pending.pop(0)
            if not self._outcome.measured and self._cost_s(setting, load) > self._left_s():
                pending.append(load)
                load = pending.pop(pending.index(max(pending)))  # one point there is, and this one is the shortest
            past = ceiling(self._outcome.cells()[setting], self._options.target)
            if load > past:
                self._skip(setting, load, f"past saturation: load {past:.3g} is saturated, or far beyond the limit")
            elif self._outcome.measured and self._cost_s(setting, load) > self._left_s():
                left = max(self._left_s(), 0.0)
                self._skip(
                    setting, load, f"budget: it takes {self._cost_s(setting, load):.0f} s, {left:.0f} s are left"
                )
            else:
                return load
        return None

    def _distance(self, setting: int, load: float) -> tuple[bool, float]:
        """How far a load is from where the objective seems to be crossed, on the side that has to be looked at first.

        Where not all loads fit, those near the crossing answer more than the rest.
        """
        limit, cells = self._options.target.limit, self._outcome.cells()[setting]
        if limit is None or not cells:
            return (False, 0.0)
        under = [cell.load for cell in cells if cell.percentile.value <= limit]
        over = [cell.load for cell in cells if cell.percentile.value > limit]
        if not over:
            return (load < max(under), abs(math.log(load / max(under))))
        return (load > min(over), abs(math.log(load / min(over))))

    def _skip(self, setting: int, load: float, reason: str) -> None:
        self._outcome.skipped.append(SkippedLoad(setting=setting, load=load, reason=reason))

    def _search(self) -> None:
        """Loads that the measured ones ask for, the most telling first, a few at a time in random order."""
        while True:
            wanted = self._proposals()
            fitting = [pair for pair in wanted if self._cost_s(pair[0].number, pair[1].load) <= self._left_s()]
            if not fitting:
                if wanted:
                    self._outcome.notes.append(
                        f"The budget of {self._options.budget_s:.0f} s ended the search: more time narrows the "
                        "intervals (--budget)."
                    )
                return
            first = self._rank(fitting[0])
            together = [pair for pair in fitting if self._rank(pair) == first][:_TOGETHER]
            self._random.shuffle(together)
            for setting, proposal in together:
                if not setting.failure and self._cost_s(setting.number, proposal.load) <= self._left_s():
                    self._measure(setting, proposal.load, proposal.kind)

    def _proposals(self) -> list[tuple[Setting, Proposal]]:
        """What each setting would have replayed next, most urgent first."""
        cells = self._outcome.cells()
        self._best = self._surely_best(cells)
        wanted = []
        for setting in self._active():
            if cells[setting.number]:
                proposal = propose(cells[setting.number], self._options.target, grid=self._options.loads)
                if proposal is not None:
                    wanted.append((setting, proposal))
        self._behind = {setting.number for setting, _ in wanted if self._is_behind(cells[setting.number])}
        return sorted(wanted, key=lambda pair: (self._rank(pair), pair[1].urgency))

    def _rank(self, pair: tuple[Setting, Proposal]) -> int:
        return _RANK[pair[1].kind] + (_BEHIND if pair[0].number in self._behind else 0)

    def _surely_best(self, cells: Mapping[int, Sequence[Cell]]) -> float:
        """The largest load that some setting surely bears."""
        found = [largest_load(own, self._options.target) for own in cells.values()]
        return max((one.lo for one in found if one is not None and one.lo is not None), default=0.0)

    def _is_behind(self, cells: Sequence[Cell]) -> bool:
        found = largest_load(cells, self._options.target)
        return found is not None and found.hi is not None and found.hi < self._best

    def _measure(self, setting: Setting, load: float, kind: Kind) -> bool:
        """Replay one point; ``False`` where the setting failed."""
        outcome = self._outcome
        schedule = outcome.part.at(load)
        folder = self._out / "points" / f"{len(outcome.measured):03d}-s{setting.number}-x{load:.4g}"
        began = self._clock() - self._began
        try:
            arm = self._arm(setting)
            if not arm.primed:
                started = self._clock()
                arm.prime(self._out / "schedule")
                self._load_s = self._clock() - started
                self._used[setting.number] = False
            record, cut_s = self._replay(arm, folder, schedule, load)
        except LatfixError as error:
            setting.failure = error.message
            self._first_error = self._first_error or error
            self._say(f"{setting.label}: failed, and is left out: {error.message}")
            return False
        if cut_s is not None:
            arm.restart()  # its workers still have the backlog
        outcome.meta = record.meta
        point = load_point(record, cut_s=cut_s)
        measured = Measured(
            setting=setting.number,
            load=load,
            folder=folder,
            point=point,
            kind=kind,
            began_s=began,
            fresh=not self._used[setting.number],
        )
        self._used[setting.number] = True
        outcome.measured.append(measured)
        outcome.seconds = self._clock() - self._began
        self._keep(outcome)
        return True

    def _arm(self, setting: Setting) -> Arm:
        """The setting's process, the one used longest ago ended where there are too many."""
        arm = self._arms.pop(setting.number, None)
        if arm is None:
            log = self._out / f"runner-s{setting.number}.log"
            arm = Arm(setting.label, self._spec, setting.settings, self._fixes, log)
        self._arms[setting.number] = arm
        alive = [number for number, other in self._arms.items() if other.primed and number != setting.number]
        for number in alive[: max(0, len(alive) - _MOST_ALIVE + 1)]:
            self._arms[number].restart()
        return arm

    def _replay(self, arm: Arm, folder: Path, schedule: Traffic, load: float) -> tuple[RunRecord, float | None]:
        """A replay, ended early where its backlog tells nothing more; and when it was, in seconds of the schedule."""
        settings = arm.settings
        backlog = BacklogWatch(
            requests=len(schedule),
            scheduled_s=schedule.duration_s,
            at_once=settings.max_batch_size * settings.workers,
            limit_s=self._options.target.limit,
        )
        process, cut_s = arm.running(), [math.inf]

        @contextmanager
        def watching(label: str, traffic: Traffic, where: Path) -> Iterator[OnEvent]:
            with self._watch(f"load {load:.3g}, {label}", traffic, where) as shown:

                def on_event(event: Mapping[str, Any]) -> None:
                    shown(event)
                    if event["event"] != "status" or math.isfinite(cut_s[0]):
                        return
                    at_s, inside = float(event["at_ns"]) / 1e9, int(event["in_flight"])
                    done = max(int(event["done"]), 0)
                    enough = (
                        backlog.drained_enough(at_s, inside)
                        if event["draining"]
                        else backlog.hopeless(at_s, inside, done)
                    )
                    if enough:
                        cut_s[0] = at_s
                        process.interrupt()

                yield on_event

        record = arm.replay(folder, schedule, watching, seed=self._options.seed)
        return record, cut_s[0] if record.partial and math.isfinite(cut_s[0]) else None
