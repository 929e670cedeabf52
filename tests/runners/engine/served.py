"""An engine in this process over a test's models, and the outcomes of its requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latfix.adapter_api import Workload
from latfix.profilers.probes.stage_recorder import EventLog, StageRecorder
from latfix.request import Request
from latfix.runners.engine.engine import Engine
from latfix.runners.engine.serving_thread import IDLE
from latfix.runners.engine.worker import ModelInstance, Outcome
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.stages import STAGES
from latfix.traffic.schedule import Traffic


class Numbers(Workload):
    """Prepares a request's number, repeated ``length`` times."""

    def prepare(self, request: Request) -> Any:
        return torch.full((int(request.features.get("length", 1)),), float(request.id))


def requests_of(lengths: int | Sequence[int], **more: Any) -> list[Request]:
    """Requests numbered from 0: a number of them, or one per length."""
    lengths = [1] * lengths if isinstance(lengths, int) else lengths
    return [Request(id=str(k), arrival_s=0.0, features={"length": n}, **more) for k, n in enumerate(lengths)]


def instance_of(model: Any, device: str = "cpu", adapter: Workload | None = None, **more: Any) -> ModelInstance:
    """A model as workers serve it."""
    adapter = adapter or Workload()
    return ModelInstance(adapter, model, device, None, adapter.collate, set(), **more)


def loaded_service(folder: Path, entry: str, *, warm: Traffic | None = None, **settings: Any) -> Service:
    """A service on the CPU, each operator on one thread, warmed up on the shapes of some traffic."""
    service = Service(folder, entry, RunnerSettings(device="cpu", **{"intra_op_threads": 1, **settings}))
    service.load()
    if warm is not None:
        service.warm_shapes(warm)
    return service


class Served:
    """A started engine.

    :param model: called with a batch by every worker; or a list with one per worker.
    :param instances: replace those made from ``model``.
    :param place: changes each model instance before the engine is made.
    :param more: of :class:`Engine`.
    :ivar order: slots in the order in which they ended.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        model: Any = lambda x: x,
        *,
        adapter: Workload | None = None,
        device: str = "cpu",
        instances: list[ModelInstance] | None = None,
        place: Callable[[ModelInstance], None] = lambda _: None,
        more: dict[str, Any] | None = None,
        start: bool = True,
        **settings: Any,
    ) -> None:
        self.requests = requests
        self.outcomes: dict[int, Outcome] = {}
        self.order: list[int] = []
        self.events, self.recorder = EventLog(), StageRecorder(len(requests))
        self.settings = RunnerSettings(**settings)
        adapter = adapter or Numbers()
        models = model if isinstance(model, list) else [model] * self.settings.workers
        self.instances = instances or [instance_of(each, device, adapter) for each in models]
        for instance in self.instances:
            place(instance)
        self.engine = Engine(
            adapter=self.instances[0].adapter,
            instances=self.instances,
            settings=self.settings,
            recorder=self.recorder,
            events=self.events,
            request_of=requests.__getitem__,
            on_done=self._done,
            **(more or {}),
        )
        if start:
            self.engine.start()

    def _done(self, slot: int, outcome: Outcome) -> None:
        assert slot not in self.outcomes, "a request ends once"
        self.outcomes[slot] = outcome
        self.order.append(slot)

    def send(self, *slots: int, gap_s: float = 0.0, wait: bool = False) -> None:
        """Hand requests over with gaps of ``gap_s``, or each after the previous one has ended."""
        for slot in slots:
            self.recorder.scheduled_ns[slot] = time.perf_counter_ns()
            self.engine.submit(slot)
            if gap_s:
                time.sleep(gap_s)
            if wait:
                assert self.engine.drain(timeout_s=20)

    def end(self) -> tuple[Any, Any]:
        """Wait for all requests; returns rows of requests and batches, whose stages must tile."""
        assert self.engine.drain(timeout_s=60), "requests never ended"
        self.series = self.engine.load()
        self.engine.shutdown()
        assert self.engine.in_flight == 0
        self.rows, self.batches = self.recorder.drain_requests(), self.recorder.drain_batches()
        self.rows.sort(order="index")
        self.batches.sort(order="batch_id")
        total = np.sum([self.rows[f"{stage}_ns"] for stage in STAGES], axis=0)
        assert np.array_equal(total, self.rows["latency_ns"]), "stages tile"
        assert all((self.rows[f"{stage}_ns"] >= 0).all() for stage in STAGES)
        return self.rows, self.batches

    def end_threads(self) -> None:
        """End the models' threads, which serve the next engine otherwise."""
        for instance in self.instances:
            instance.thread.end()

    def statuses(self) -> list[str]:
        """How each request ended, by slot."""
        return [self.outcomes[slot].status.name.lower() for slot in sorted(self.outcomes)]


class Gate:
    """A model that blocks request ``number`` until :meth:`served_behind` releases it.

    :param ms: how long a batch takes.
    """

    def __init__(self, number: int = 0, ms: Callable[[torch.Tensor], float] = lambda _: 0.0) -> None:
        self.number, self.ms = number, ms
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if (x == self.number).any():
            self.reached.set()
            assert self.go.wait(20)
        time.sleep(self.ms(x) / 1000)
        return x[:, :1]

    def served_behind(
        self, served: Served, *slots: int, wait_s: float = 0.05, before_release: Callable[[], None] = lambda: None
    ) -> tuple[Any, Any]:
        """Let requests wait behind the blocked one, each for ``wait_s``; then serve all."""
        served.send(self.number)
        assert self.reached.wait(20)
        served.send(*slots, gap_s=wait_s)
        before_release()
        self.go.set()
        return served.end()


def serve(requests: Sequence[Request], model: Any = lambda x: x, *, gap_s: float = 0.0, **more: Any) -> Served:
    """Send requests at once, or ``gap_s`` apart, and serve all."""
    served = Served(requests, model, **more)
    served.send(*range(len(requests)), gap_s=gap_s)
    served.end()
    return served


def engine_threads() -> set[str]:
    """Names of latfix's threads at work, without the one of ``latfix.record``, which ends with the process."""
    named = {thread.name for thread in threading.enumerate() if thread.name.startswith("latfix-")}
    return named - {"latfix-record", IDLE}
