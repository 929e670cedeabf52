"""A loaded service: model instances with the settings applied, warmed up, ready to replay or predict."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import RunnerError
from latfix.profilers.compile_events import CompileEvents
from latfix.profilers.recorder import EventLog, StageRecorder
from latfix.request import Request
from latfix.runners.adapter import USER_ERRORS, call_model, describe, elements_and_length, move, tensors_of
from latfix.runners.collector import IdleCollector
from latfix.runners.engine import Engine, OnDone
from latfix.runners.model import KernelCensus, LoadedModels, census, load_models
from latfix.runners.worker import Outcome
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.model import Traffic

#: Requests looked at to find the shapes that traffic has, for warming up.
_SHAPE_SAMPLE = 96


@dataclass(slots=True)
class Warmup:
    """What warming up did: batches run, shapes seen, seconds, and compilations among them."""

    batches: int = 0
    shapes: int = 0
    seconds: float = 0.0
    compilations: int = 0
    compile_s: float = 0.0


@dataclass(slots=True)
class Service:
    """Loads a workload's model instances and builds engines over them.

    :param folder: the workload's folder.
    :param entry: ``file:Class`` of its adapter.
    """

    folder: Path
    entry: str
    settings: RunnerSettings
    models: LoadedModels = field(init=False)
    events: EventLog = field(default_factory=EventLog)
    compiles: CompileEvents = field(init=False)
    collector: IdleCollector | None = None
    warmup: Warmup = field(default_factory=Warmup)

    def load(self) -> None:
        """Load the model instances.

        :raises RunnerError: the adapter or its model failed.
        """
        self.compiles = CompileEvents(self.events)
        self.models = load_models(self.folder, self.entry, self.settings)
        self.compiles.attach()

    def warm_shapes(self, traffic: Traffic) -> None:
        """Run every model instance on the shapes that traffic will bring, smallest to largest.

        Shapes are the quantiles of the inputs' size in a sample of the traffic, its largest included, each at
        batch sizes 1, 2, 4, … up to the largest allowed.

        :raises RunnerError: the model failed on one of them.
        """
        wanted = self.settings.warmup_shapes
        if not wanted or not len(traffic):
            return
        import torch

        started = time.perf_counter()
        inputs = self._representative(traffic, wanted)
        sizes = _doubling(self.settings.max_batch_size)
        for instance in _distinct(self.models.instances):
            with torch.no_grad():
                for value in inputs:
                    for size in sizes:
                        batch = instance.collate([value] * size)
                        instance.first_time(tensors_of(batch))
                        try:
                            call_model(instance.model, move(batch, instance.device, instance.dtype))
                        except USER_ERRORS as error:
                            raise RunnerError(
                                f"warming up with a batch of {size} raised {describe(error)}"
                            ) from error
                        self.compiles.attach()
                        self.warmup.batches += 1
        self.warmup.shapes += len(inputs)
        self.warmup.seconds += time.perf_counter() - started

    def _representative(self, traffic: Traffic, wanted: int) -> list[Any]:
        """Prepared inputs at the quantiles of size in a sample of the traffic."""
        picks = np.unique(np.linspace(0, len(traffic) - 1, min(_SHAPE_SAMPLE, len(traffic))).astype(int))
        prepared: list[tuple[int, Any]] = []
        for pick in picks:
            try:
                value = self.models.adapter.prepare(traffic.request(int(pick)))
            except USER_ERRORS:  # a request that fails is reported when it is replayed
                continue
            prepared.append((elements_and_length(tensors_of(value), 0)[0], value))
        prepared.sort(key=lambda pair: pair[0])
        if not prepared:
            return []
        ranks = np.unique(np.linspace(0, len(prepared) - 1, wanted).round().astype(int))
        return [prepared[rank][1] for rank in ranks]

    def protect(self) -> None:
        """After warm-up: no compilation in a request's path from here on; an unseen shape runs uncompiled."""
        self.warmup.compilations = self.compiles.count
        self.warmup.compile_s = self.compiles.total_ns / 1e9
        if self.settings.compile != "off":
            import torch

            torch.compiler.set_stance("eager_on_recompile")
        if self.settings.gc == "freeze" and self.collector is None:
            self.collector = IdleCollector()
            self.collector.install()

    def engine(
        self,
        recorder: StageRecorder,
        request_of: Callable[[int], Request],
        on_done: OnDone | None = None,
        settings: RunnerSettings | None = None,
    ) -> Engine:
        """A new engine over the loaded instances, with the service's own settings unless others are given."""
        return Engine(
            adapter=self.models.adapter,
            instances=self.models.instances,
            settings=settings or self.settings,
            recorder=recorder,
            events=self.events,
            request_of=request_of,
            on_done=on_done,
            collector=self.collector,
        )

    def predict(self, requests: Sequence[Request], *, in_flight: int | None = None) -> list[Outcome]:
        """Run requests through the engine as fast as it takes them; outcomes in the same order.

        Nobody waits for these answers: deadlines and the limit of the queue do not apply.

        :param in_flight: how many to keep inside at once; by default two batches a worker.
        """
        recorder = StageRecorder(len(requests))
        outcomes = [Outcome(Status.ERROR)] * len(requests)
        room = threading.Semaphore(in_flight or 2 * self.settings.max_batch_size * self.settings.workers)

        def on_done(slot: int, outcome: Outcome) -> None:
            outcomes[slot] = outcome
            room.release()

        patient = [replace(request, deadline_ms=None) for request in requests]
        unlimited = self.settings.with_overrides({"timeout_ms": 0.0, "max_queue": 0})
        engine = self.engine(recorder, patient.__getitem__, on_done, unlimited)
        engine.start()
        for slot in range(len(requests)):
            room.acquire()
            recorder.scheduled_ns[slot] = time.perf_counter_ns()
            engine.submit(slot)
        engine.drain()
        engine.shutdown()
        return outcomes

    def evidence(self, traffic: Traffic) -> dict[str, Any]:
        """What can be seen of the settings in the loaded service, for ``verify`` of the fixes."""
        import torch

        found: dict[str, Any] = {
            "device": self.models.device,
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "load_s": round(self.models.load_s, 3),
            "warmup_batches": self.warmup.batches,
            "warmup_shapes": self.warmup.shapes,
            "warmup_s": round(self.warmup.seconds, 3),
            "compilations": self.warmup.compilations,
            "compile_s": round(self.warmup.compile_s, 3),
            "gc_enabled": gc.isenabled(),
            "gc_frozen": gc.get_freeze_count(),
            "evaluates": self.models.adapter.has_evaluate(),
        }
        counted = self._census(traffic)
        if counted is not None:
            found["modules"] = dict(counted.modules)
            found["dtypes"] = dict(counted.dtypes)
        return found

    def _census(self, traffic: Traffic) -> KernelCensus | None:
        if self.settings.compile != "off" or not len(traffic):
            return None  # hooks on a compiled model would recompile it
        inputs = self._representative(traffic, 1)
        if not inputs:
            return None
        instance = self.models.instances[0]
        try:
            return census(instance, instance.collate(inputs[:1]))
        except USER_ERRORS:  # the replay reports the failure with its request
            return None


def _distinct(instances: list[Any]) -> list[Any]:
    seen: dict[int, Any] = {}
    for instance in instances:
        seen.setdefault(id(instance.model), instance)
    return list(seen.values())


def _doubling(most: int) -> list[int]:
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] != most:
        sizes.append(most)
    return sizes
