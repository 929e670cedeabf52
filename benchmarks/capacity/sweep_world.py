"""A service in simulated time: traffic, replays as records, and processes that replay without waiting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.config.workload_toml import WorkloadSpec
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS
from latfix.runners.replay.arm import Arm, Watch
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic

#: Text columns of samples and events.
_TEXTS = ("kind", "detail", "series")


def make_traffic(n: int = 400, rate: float = 50.0, *, seed: int = 0, bursts: float = 1.0) -> Traffic:
    """Independent arrivals; ``bursts`` above 1 multiplies the rate in every fourth second and lowers it otherwise."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0 / rate, size=n)
    if bursts > 1:
        calm = (4 - bursts) / 3
        when = np.cumsum(gaps)
        gaps = gaps / np.where(when % 4 < 1, bursts, calm)
    arrival = np.cumsum(gaps)
    arrival_ns = np.rint((arrival - arrival[0]) * 1e9).astype(np.int64)
    return Traffic.plain(arrival_ns, features={"value": np.arange(n)}, metadata={"source": "simulated"})


def simulate(
    traffic: Traffic,
    *,
    fixed: float = 0.0,
    each: float = 0.01,
    noise: float = 0.0,
    settings: RunnerSettings | None = None,
    seed: int = 0,
    prepare: float = 1e-4,
    lost: float = 0.0,
    cut_s: float | None = None,
    folder: Path | None = None,
) -> RunRecord:
    """The runner's policy, one batch after the other, as a record.

    :param fixed: seconds per batch; ``each``: per member; ``noise``: squared coefficient of variation (gamma).
    :param lost: share of requests that end in error.
    :param cut_s: when the replay ends early; requests that have not ended then have no row.
    """
    settings = settings or RunnerSettings()
    rng = np.random.default_rng(seed)
    n, most, window = len(traffic), settings.max_batch_size, settings.batch_window_ms / 1e3
    arrival = traffic.arrival_ns / 1e9
    ready = (arrival + prepare).tolist()
    free = [0.0] * settings.workers
    batches: list[tuple[int, int, float, float, float, float]] = []
    i = 0
    while i < n:
        worker = free.index(min(free))
        begin = max(ready[i], free[worker])
        j = i + 1
        while j < n and j - i < most and ready[j] <= begin:
            j += 1
        close = begin
        if window > 0 and j - i < most and ready[i] + window > begin:
            due = ready[i] + window
            while j < n and j - i < most and ready[j] <= due:
                j += 1
            close = ready[j - 1] if j - i == most else due
        took = fixed + each * (j - i)
        end = close + (took * rng.gamma(1 / noise, noise) if noise > 0 else took)
        batches.append((worker, j - i, free[worker], begin, close, end))
        free[worker] = end
        i = j
    table = np.array(batches).reshape(-1, 6)
    batch_of = np.repeat(np.arange(len(table)), table[:, 1].astype(np.int64))
    opened, closed, ended = table[batch_of, 3:].T
    sent = n if cut_s is None else int(np.searchsorted(arrival, cut_s, side="right"))
    keep = np.flatnonzero((np.arange(n) < sent) & (ended <= (np.inf if cut_s is None else cut_s)))
    failed = rng.random(n) < lost
    rows: dict[str, Any] = {name: np.zeros(len(keep), np.int64) for name in REQUEST_DTYPE.names or ()}
    taken = np.maximum(opened, ready)

    def ns(seconds: Any) -> Any:
        return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)

    rows["index"], rows["arrival_ns"] = keep, traffic.arrival_ns[keep]
    rows["prepare_ns"] = ns(np.full(len(keep), prepare))
    rows["queue_ns"] = (ns(taken) - ns(ready))[keep]
    rows["batch_ns"] = (ns(closed) - ns(taken))[keep]
    rows["compute_ns"] = (ns(ended) - ns(closed))[keep]
    for stage in ("prepare", "queue", "batch", "compute"):
        rows["latency_ns"] = rows["latency_ns"] + rows[f"{stage}_ns"]
    rows["status"] = np.where(failed[keep], Status.ERROR, Status.OK).astype(np.int64)
    rows["batch_id"] = batch_of[keep]
    rows["input_elements"] = rows["input_length"] = np.ones(len(keep), np.int64)
    shown = table[table[:, 5] <= (np.inf if cut_s is None else cut_s)]
    columns: dict[str, Any] = {name: np.zeros(len(shown), np.int64) for name in BATCH_DTYPE.names or ()}
    columns["batch_id"] = np.arange(len(shown))
    columns["worker"], columns["size"] = shown[:, 0].astype(np.int64), shown[:, 1].astype(np.int64)
    columns["free_ns"], columns["open_ns"], columns["close_ns"] = ns(shown[:, 2]), ns(shown[:, 3]), ns(shown[:, 4])
    for name in ("collated_ns", "h2d_end_ns"):
        columns[name] = columns["close_ns"]
    for name in ("compute_end_ns", "d2h_end_ns", "finish_end_ns"):
        columns[name] = ns(shown[:, 5])
    columns["real_elements"] = columns["padded_elements"] = columns["size"]
    meta = RunMeta().updated(
        state="complete" if cut_s is None else "interrupted",
        workload="simulated",
        settings=settings,
        scheduled=n,
        sent=sent,
        machine={"cores": 2},
        versions={"latfix": "0"},
    )
    return RunRecord(
        folder=folder or Path("run"),
        meta=meta,
        requests=rows,
        batches=columns,
        events=_nothing(EVENT_FIELDS),
        samples=_nothing(SAMPLE_FIELDS),
        traffic=traffic,
        errors={int(k): "it failed" for k in keep[failed[keep]]},
        partial=cut_s is not None,
    )


def _nothing(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: np.zeros(0, object if name in _TEXTS else float if name == "value" else np.int64) for name in names}


@dataclass(kw_only=True)
class SweepWorld:
    """Time that passes while simulated services replay.

    :param fixed: seconds per batch; ``each``: per request; ``noise``: the squared coefficient of variation of both.
    :param drift: slowdown of the service when load grows by a factor of e.
    :param restart: standard deviation of the service's pace from process to process.
    :param start_s: start-up time of a process.
    :param recorded: requests per second of the recording.
    """

    fixed: float = 0.0
    each: float = 0.012
    noise: float = 0.3
    drift: float = 0.0
    restart: float = 0.0
    start_s: float = 2.0
    recorded: float = 50.0
    seed: int = 0
    now: float = 0.0
    replays: list[tuple[str, float]] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    most_alive: int = 0
    lost: float = 0.0

    def replay(
        self, traffic: Traffic, settings: RunnerSettings, pace: float, seed: int, cut_s: float | None = None
    ) -> RunRecord:
        """One replay in a process of this pace."""
        rate = (len(traffic) - 1) / traffic.duration_s
        slower = pace * math.exp(self.drift * math.log(rate / self.recorded))
        fixed, each = self.fixed * slower, self.each * slower
        more: dict[str, Any] = {"noise": self.noise, "lost": self.lost, "settings": settings, "cut_s": cut_s}
        return simulate(traffic, fixed=fixed, each=each, seed=seed, **more)

    def arm(self, label: str, spec: WorkloadSpec, settings: RunnerSettings, fixes: tuple[str, ...], log: Path) -> Arm:
        """A process of this world."""
        return SimulatedArm(self, label, spec, settings, fixes, log)


class SimulatedArm(Arm):
    """A process that replays in simulated time."""

    def __init__(
        self,
        world: SweepWorld,
        label: str,
        spec: WorkloadSpec,
        settings: RunnerSettings,
        fixes: tuple[str, ...],
        log: Path,
    ) -> None:
        super().__init__(label, spec, settings, fixes, log)
        self.world = world
        self.cut = False
        self.pace = 1.0

    def running(self) -> Any:
        """The object itself, which is interrupted instead of a process."""
        return self

    def interrupt(self) -> None:
        """End the replay here."""
        self.cut = True

    def prime(self, folder: Path) -> None:
        """Start with a random pace."""
        del folder
        world = self.world
        world.now += world.start_s
        world.starts.append(self.label)
        world.alive.add(self.label)
        world.most_alive = max(world.most_alive, len(world.alive))
        drawn = np.random.default_rng((world.seed, len(world.starts))).standard_normal()
        self.pace = math.exp(world.restart * drawn)
        self.primed = True

    def close(self) -> None:
        """End it."""
        self.primed = False
        self.world.alive.discard(self.label)

    def replay(self, folder: Path, traffic: Traffic, watch: Watch, *, seed: int) -> RunRecord:
        """Replay, with status lines four times a second until it is over or interrupted."""
        world = self.world
        assert self.primed
        self.cut, drawn = False, 10_000 * (world.seed + 1) + seed + len(world.replays)
        world.replays.append((self.label, (len(traffic) - 1) / traffic.duration_s))
        whole = world.replay(traffic, self.settings, self.pace, drawn)
        end = np.sort((whole.requests["arrival_ns"] + whole.requests["latency_ns"]) / 1e9)
        began = world.now
        with watch(self.label, traffic, folder) as on_event:
            for at in np.arange(0.25, float(end[-1]), 0.25).tolist():
                came = int(np.searchsorted(traffic.arrival_ns / 1e9, at, side="right"))
                world.now = began + at
                done = int(np.searchsorted(end, at, side="right"))
                draining = at > traffic.duration_s
                state = {"at_ns": at * 1e9, "done": done, "in_flight": came - done, "draining": draining}
                on_event({"event": "status", **state})
                if self.cut:
                    break
        world.now = began + (at if self.cut else float(end[-1]))
        if self.cut:
            whole = world.replay(traffic, self.settings, self.pace, drawn, at)
        return replace(whole, folder=folder)
