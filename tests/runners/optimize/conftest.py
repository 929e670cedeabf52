"""The search on simulated services and simulated time: no process starts, and nothing waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import InputError, RunnerError
from latfix.formatting import LATENCY_KEYS
from latfix.profilers.forecast.batch_cost import BatchCost, columns, fit_cost
from latfix.profilers.forecast.settings_forecast import Pace, Serving
from latfix.results.optimization_step import Step
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.runners.answers import plain_archive
from latfix.runners.fixes import Applied, Context, Fix, Verified
from latfix.runners.optimize.optimizer import Optimizer, Options, Outcome
from latfix.runners.replay.run_session import schedule_digest
from latfix.settings import Objective, RunnerSettings
from latfix.stages import Status
from latfix.statistics.bootstrap_ratio import arm_ratios
from latfix.traffic.schedule import Traffic
from tests.profilers.conftest import simulate  # noqa: F401  a fixture
from tests.records import build_record, zeros
from tests.runners.fixes.conftest import diagnosis_of

LOAD_S = 2.0
#: Slowdown of a process after a profile was taken in it.
PROFILED = 1.15
#: Slowdown of a service that finds too little memory on the device.
STALLING = 1.6
#: Latency of each request of the traffic with the first settings, in nanoseconds.
LATENCY_NS = np.random.default_rng(3).gamma(9.0, 2e6, 10_000)


@dataclass
class Device:
    """A device of limited memory, in GiB. A process keeps its memory until it ends, also while it is stopped.

    :param model: memory of a loaded service; ``work`` is what it also takes in its first replay, and keeps.
    :param more: by variable, additional memory of a service with it.
    :ivar most: maximum number of services on it at once; ``starts`` of processes by arm.
    """

    total: float = 80.0
    model: float = 10.0
    work: float = 5.0
    more: dict[str, float] = field(default_factory=dict)
    most: int = 0
    starts: list[str] = field(default_factory=list)

    def left(self, arms: list[FakeArm]) -> float:
        """Free memory."""
        return self.total - sum(arm.holds for arm in arms)

    def reported(self, arms: list[FakeArm], arm: FakeArm, stalls: int) -> dict[str, Any]:
        """``device_memory`` of a run."""
        gib = 1 << 30
        return {
            "total_bytes": int(self.total * gib),
            "left_bytes": int(self.left(arms) * gib),
            "reserved_end_bytes": int(arm.holds * gib),
            "reserved_peak_bytes": int(arm.holds * gib),
            "retries": stalls,
            "allocs": 8 * stalls,
            "frees": 8 * stalls,
            "share": 1.0,
            "backend": "native",
            "settings": {},
        }


@dataclass
class World:
    """The services: each variable in ``settings.env`` is a factor of the latency.

    :param scores: accuracy of a service with that variable.
    :param broken: variables with which the service does not start.
    :param silent: variables that take no effect.
    :param on_replay: called before every replay, with the arm.
    :param first_load_s: seconds that the first process takes to load; all others take ``LOAD_S``.
    :param warm_s: seconds that a process takes before its first replay, in addition to loading.
    :param paces: by variable, the ratio of a batch's compute, if it differs from the factor.
    :param shown: by variable, how much longer batches take in replays than predicted.
    :param limits: by ``max_batch_size``, a factor of the latency; ``shares``: by workers, also of compute.
    :param mixing: by ``max_batch_size``, the accuracy of answers in such batches.
    :param keep: layers that must keep their precision.
    :param first_use: factor of the latency of a request that a process has not served before.
    :param behind: requests of the baseline that are answered when its time is over; 0 if all are in time.
    :param memory: of a service on the host, and what is left; empty if unknown.
    :param device: that the services run on; ``None`` for the host.
    :ivar most: largest number of services that were loaded at the same time.
    """

    scores: dict[str, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    on_replay: Callable[[FakeArm, str], None] = lambda *_: None
    evaluates: bool = True
    answers: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.002
    warm_s: float = 0.0
    first_load_s: float = LOAD_S
    now: float = 0.0
    paces: dict[str, float] = field(default_factory=dict)
    new_shape_ns: dict[str, float] = field(default_factory=dict)
    together: dict[str, float] = field(default_factory=dict)
    shown: dict[str, float] = field(default_factory=dict)
    limits: dict[int, float] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    mixing: dict[int, float] = field(default_factory=dict)
    keep: dict[str, float] = field(default_factory=dict)
    first_use: float = 1.0
    behind: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    most: int = 0
    device: Device | None = None
    records: dict[Path, RunRecord] = field(default_factory=dict)
    replays: list[tuple[str, str, bool]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    paced: list[tuple[str, list[list[int]]]] = field(default_factory=list)
    arms: list[FakeArm] = field(default_factory=list)

    @property
    def arm_class(self) -> type[FakeArm]:
        """For tests that change what an arm does."""
        return FakeArm

    def load(self, folder: Path) -> RunRecord:
        """A record that was replayed."""
        if folder not in self.records:
            raise InputError(f"{folder}: found no record")
        return self.records[folder]

    @property
    def windows(self) -> list[str]:
        """Folders of the search's timed replays, in order."""
        return [name for _, name, _ in self.replays if name[0].isdigit() and "-settling-" not in name]

    def on_device(self, total: float = 80.0, **more: Any) -> Device:
        """Run the services on a device from now on; by default it has room for several."""
        self.device = Device(total=total, **more)
        return self.device

    @staticmethod
    def traffic(seconds: float = 60.0) -> Traffic:
        """A schedule of twenty requests a second."""
        return traffic_of(seconds)

    def simulated(
        self, folder: Path, traffic: Traffic, factor: float, number: int, settings: RunnerSettings
    ) -> RunRecord:
        """A replay whose latencies are ``factor`` times what they are with the first settings."""
        return simulated(self, folder, traffic, factor, number, settings)

    @staticmethod
    def fix(name: str, factor: float = 1.0, **more: Any) -> Fix:
        """A fix ``a.NAME``; see :func:`make_fix`."""
        return make_fix(name, factor, **more)

    @staticmethod
    def statuses(outcome: Outcome) -> dict[str, str]:
        """Status of each fix."""
        assert len({step.fix for step in outcome.steps}) == len(outcome.steps), "each fix once"
        return {step.fix: step.status for step in outcome.steps}

    @staticmethod
    def step(outcome: Outcome, name: str) -> Step:
        """The step of ``a.NAME``."""
        return next(step for step in outcome.steps if step.fix == f"a.{name}")


class FakeArm:
    """As :class:`latfix.runners.replay.arm.Arm`, without a process."""

    world: World

    def __init__(
        self,
        label: str,
        spec: WorkloadSpec,
        settings: RunnerSettings,
        fixes: tuple[str, ...],
        log: Path,
        accuracy: float | None = None,
    ) -> None:
        self.label, self.spec, self.settings, self.fixes, self.log = label, spec, settings, fixes, log
        self.accuracy, self.primed, self.settled, self.failed, self.alive = accuracy, False, False, False, False
        self.latest: RunRecord | None = None
        self.start_s, self.most_s = 0.0, math.inf
        self.served: set[int] = set()
        self.ready_message: Mapping[str, Any] = {}
        self.alone, self.profiled, self.worn, self.last, self.refused = "", False, False, "", False
        self.holds = self.needs = 0.0
        self.world.arms.append(self)

    @property
    def loaded(self) -> bool:
        return self.alive

    @property
    def ready(self) -> Mapping[str, Any]:
        self.running()
        return self.ready_message

    def running(self) -> None:
        if not self.alive:
            device = self.world.device
            if self.world.broken & set(self.settings.env):
                self.failed = True
                raise RunnerError("it does not load")
            if device is not None:
                self.needs = device.model + sum(device.more.get(name, 0.0) for name in self.settings.env)
                if self.needs > device.left(self.world.arms):
                    self.failed = self.refused = True
                    raise RunnerError("CUDA out of memory")
                self.holds = self.needs
                device.starts.append(self.label)
                device.most = max(device.most, 1 + sum(arm.alive for arm in self.world.arms))
            self.alive, self.failed = True, False
            self.world.most = max(self.world.most, sum(arm.alive for arm in self.world.arms))
            self.ready_message = {"evaluates": self.world.evaluates, "default_collate": True}
            self.start_s = self.world.first_load_s if len(self.world.replays) == 0 else LOAD_S
            self.world.now += self.start_s

    def launch(self) -> None:
        pass

    def start(self) -> None:
        self.running()

    def restart(self) -> None:
        self.close()

    def close(self) -> None:
        self.alive = self.primed = self.settled = self.profiled = self.worn = False
        self.holds, self.last = 0.0, ""
        self.served.clear()

    def prime(self, _folder: Path) -> None:
        self.running()
        self.primed = True

    def profile(self, record: RunRecord) -> dict[str, Any]:
        del record
        self.profiled = self.world.device is not None
        return {}

    def ask(self, do: str, **_more: Any) -> Any:
        self.running()
        self.world.asked.append((self.label, do))
        if do in ("evidence", "facts"):
            self.profiled = self.world.device is not None
        if do == "pace":
            self.world.paced.append((self.label, _more["batches"]))
            paces, env = self.world.paces, self.settings.env
            pace = float(np.prod([paces.get(name, float(env[name])) for name in env]))
            pace *= self.world.shares.get(self.settings.workers, 1.0) * (PROFILED if self.profiled else 1.0)
            if math.isnan(pace):
                none = [None] * len(_more["batches"])
                failures = ["TypeError: no such layer"]
                return {"alone": none, "together": none, "beside": none, "failures": failures, "new_shape": 0.0}
            each = [pace * 1e6 * (k + 1) for k in range(len(_more["batches"]))]
            new_shape = max((self.world.new_shape_ns.get(name, 0.0) for name in env), default=0.0)
            slower = max((self.world.together.get(name, 1.0) for name in env), default=1.0)
            together = [slower * ns for ns in each]
            return {"alone": each, "together": together, "beside": each, "failures": [], "new_shape": new_shape}
        if do == "evaluate":
            if "save" in _more:
                plain_archive.save(Path(_more["save"]), None)
            own = [self.world.scores.get(name, 1.0) for name in self.settings.env]
            score = min([self.world.mixing.get(self.settings.max_batch_size, 1.0), *own])
            return {
                "score": score,
                "kind": "evaluate" if self.world.evaluates else "agreement",
                "samples": 256,
                "again_s": 0.0,
                "answers": self.world.answers,
            }
        if do == "facts":
            return {"facts": {}}
        if do == "sensitivity":
            return {"sensitivity": {"keep": dict(self.world.keep)}}
        return {"evidence": {"env": dict(self.settings.env), "of": self.last}}

    def replay(self, folder: Path, traffic: Traffic, _watch: Any, **_seed: int) -> RunRecord:
        cold = not (self.alive and (self.primed or self.served))
        self.running()
        self.world.on_replay(self, folder.name)
        self.world.replays.append((self.label, folder.name, cold))
        self.world.now += traffic.duration_s + (self.world.warm_s if cold else 0.0)
        env = self.settings.env
        factor = float(np.prod([float(env[k]) for k in env if k not in self.world.silent]))
        factor *= self.world.limits.get(self.settings.max_batch_size, 1.0) * (PROFILED if self.profiled else 1.0)
        factor *= self.world.shares.get(self.settings.workers, 1.0)
        stalls, meta = self._work(), dict[str, Any](memory=self.world.memory)
        factor *= STALLING if stalls else 1.0
        if device := self.world.device:
            meta |= {"device": "cuda:0", "device_memory": device.reported(self.world.arms, self, stalls)}
        record = simulated(self.world, folder, traffic, factor, len(self.world.replays), self.settings, **meta)
        self.last = folder.name
        numbers = traffic.features["number"].astype(int)
        new = [number not in self.served for number in numbers.tolist()]
        record.requests["latency_ns"][new] = (record.requests["latency_ns"][new] * self.world.first_use).astype(int)
        self.served.update(numbers.tolist())
        folder.mkdir(parents=True, exist_ok=True)
        self.world.records[folder] = record
        if self.world.behind and folder.name == "baseline":
            assert self.most_s < 100.0, "the search has to know when to end it"
            end_ns, rows = 1 << 50, record.requests
            rows["status"][[3, *range(self.world.behind, len(traffic))]] = Status.TIMEOUT  # 3 by its own deadline
            rows["latency_ns"][self.world.behind :] = (end_ns - rows["arrival_ns"])[self.world.behind :]
            record = replace(record, meta=record.meta.updated(behind_s=60.0))
            self.world.records[folder] = record
        return record

    def _work(self) -> int:
        """Take the memory that requests need, as far as it is free; returns how often the service stalls."""
        device = self.world.device
        if device is None:
            return 0
        wanted, left = self.needs + device.work - self.holds, device.left(self.world.arms)
        self.holds += min(wanted, left)
        return 5 if wanted > left else 0


class Known:
    """As :class:`latfix.profilers.forecast.settings_forecast.Forecast`: predicts what is in this world."""

    error = 0.0

    def __init__(self, world: World) -> None:
        self.world = world

    def error_of(self, _key: str) -> float:
        return self.error

    def statistics(self, serving: Serving, _within: object = ()) -> dict[str, float]:
        factor = serving.pace.batches * (1.0 if serving.cost is None else serving.cost.typical)
        return dict.fromkeys(LATENCY_KEYS, 10.0 * factor * self.world.limits.get(serving.max_batch, 1.0))

    def pace_of(self, record: RunRecord, _serving: Serving) -> Pace:
        return Pace(math.prod(self.world.shown.get(name, 1.0) for name in record.meta.settings.env))

    def alone(self, cost: BatchCost | None) -> dict[str, float]:
        return dict.fromkeys(LATENCY_KEYS, 10.0 if cost is None else 10.0 * cost.typical)

    def probes(self, _sizes: object, _most_s: float) -> list[list[int]]:
        return [[0], [1], [0, 1]]

    def repeated(self) -> np.ndarray:
        return np.zeros(10**6)

    def learn(self, batches: list[list[int]], took: list[float], new_shape_ns: float) -> None:
        assert new_shape_ns >= 0.0
        assert len(took) == len(batches)

    def seconds(self, batches: list[list[int]]) -> float:
        return 0.01 * len(batches)

    def cost(self, batches: list[list[int]], before: list[float], after: list[float]) -> BatchCost | None:
        return fit_cost([columns(len(batch), 1.0, 1.0, ()) for batch in batches], before, after)


def simulated(
    world: World,
    folder: Path,
    traffic: Traffic,
    factor: float,
    number: int,
    settings: RunnerSettings,
    **meta: Any,
) -> RunRecord:
    n = len(traffic)
    own = LATENCY_NS[traffic.features["number"]]
    rows = zeros(REQUEST_DTYPE, n)
    rows["index"], rows["arrival_ns"] = np.arange(n), traffic.arrival_ns.copy()
    chance = np.random.default_rng(number).normal(1.0, world.noise, n)
    rows["latency_ns"] = (own * factor * chance).astype(np.int64)
    batches = zeros(BATCH_DTYPE, n)
    batches["batch_id"] = rows["batch_id"] = np.arange(n)
    return build_record(
        rows,
        batches,
        traffic=traffic,
        folder=folder,
        traffic_sha256=schedule_digest(traffic),
        scheduled=n,
        machine={"cores": 2},
        settings=settings,
        **meta,
    )


def traffic_of(seconds: float = 60.0, rate: float = 20.0) -> Traffic:
    n = int(seconds * rate)
    return Traffic.plain((np.arange(n) / rate * 1e9).astype(np.int64), features={"number": np.arange(n)})


def make_fix(
    name: str, factor: float = 1.0, *, treats: str = "x", obstacle: str = "", combines: bool = False, **more: Any
) -> Fix:
    """A fix ``a.NAME`` that multiplies the latency; verified by whether the service saw its variable.

    :param combines: of the ways to run the model, it is compatible with others.
    """
    world = FakeArm.world
    slot = {} if combines or more.get("compute", 1.0) == 1.0 else {"memory_format": "channels_last"}

    def verify(applied: Applied) -> Verified:
        return Verified(name in applied.evidence["env"] and name not in world.silent, f"{name} was looked for")

    def change(context: Context) -> dict[str, Any]:
        assert name not in context.settings.env
        return {"env": {name: str(factor)}, **slot}

    options = {"relief": 0.5, "risk": "none", "title": name, **more}
    return Fix(
        id=f"a.{name}",
        treats=(treats,),
        needs=(lambda _: obstacle,),
        sets=change,
        variables=(name,),
        verify=verify,
        **options,
    )


Search = Callable[..., Outcome]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A new world that the optimizer's arms and clock belong to."""
    made = World()
    monkeypatch.setattr(FakeArm, "world", made, raising=False)
    monkeypatch.setattr("latfix.runners.optimize.measurement.Arm", FakeArm)
    # Effects here are clear or none: fewer resamples tell them apart.
    monkeypatch.setattr("latfix.results.comparison.arm_ratios", partial(arm_ratios, replicates=100))
    monkeypatch.setattr("latfix.runners.optimize.optimizer.Forecast", lambda _: None)
    for module in ("optimizer", "journal"):
        disk = SimpleNamespace(load=made.load)
        monkeypatch.setattr(f"latfix.runners.optimize.{module}.RunRecord", disk)
    for module in ("optimizer", "measurement", "final_replay"):
        monkeypatch.setattr(f"latfix.runners.optimize.{module}.time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def forecast(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forecast that knows the world; without it all fixes are tried one by one."""
    monkeypatch.setattr("latfix.runners.optimize.optimizer.Forecast", lambda _: Known(world))


@pytest.fixture
def search(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Search:
    """Runs the optimizer with the given fixes on a diagnosis of the given tail."""

    def run(
        *fixes: Fix,
        tail: Mapping[str, float] | None = None,
        unnamed: str = "",
        budget_s: float = 3600.0,
        traffic: Traffic | None = None,
        settings: RunnerSettings | None = None,
        folder: str = "out",
        resume: bool = False,
        **options: Any,
    ) -> Outcome:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.setattr("latfix.runners.optimize.optimizer.FIXES", fixes)
        for module in ("optimizer", "search"):
            shares = {cause: percent / 100 for cause, percent in (tail or {"x": 80.0}).items()}
            found = replace(diagnosis_of(shares), excess_ms=1.0, reference_ms=1.0)
            causes = [replace(each, named=each.cause != unnamed) for each in found.causes]
            found = replace(found, causes=tuple(causes))
            monkeypatch.setattr(f"latfix.runners.optimize.{module}.diagnose", lambda *_, found=found, **__: found)
        spec = WorkloadSpec(
            name="w",
            folder=tmp_path,
            entry="adapter:W",
            traffic=tmp_path / "t",
            objective=Objective(max_accuracy_drop=0.01),
        )
        optimizer = Optimizer(
            spec,
            traffic or traffic_of(),
            settings or RunnerSettings(),
            tmp_path / folder,
            Options(budget_s=budget_s, **options),
            watch=lambda *_: nullcontext(lambda *_: None),
            say=lambda *_: None,
            show=lambda _: None,
            resume=resume,
        )
        outcome = optimizer.run()
        assert not any(arm.alive for arm in world.arms), "every process is gone at the end"
        return outcome

    return run
