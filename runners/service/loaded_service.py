"""A loaded service: warmed-up model instances with the settings applied, ready to replay or predict."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from latfix.errors import RunnerError
from latfix.profilers.probes.pause_probes import CompileEvents
from latfix.profilers.probes.stage_recorder import EventLog, StageRecorder
from latfix.request import Request
from latfix.runners.calls.call_counters import summary
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe, raised_by
from latfix.runners.calls.tensor_tree import elements_of
from latfix.runners.engine.engine import Engine, OnDone
from latfix.runners.engine.idle_gc import IdleCollector
from latfix.runners.engine.worker import ModelInstance, Outcome
from latfix.runners.gpu.kernel_profile import profile_batch, waits_in
from latfix.runners.gpu_memory.caching_allocator import allocators_of, limit_memory
from latfix.runners.host.process_setup import ProcessSetup
from latfix.runners.model_files.file_workload import FileWorkload
from latfix.runners.model_transforms.embedding_rows import attach_hot_rows
from latfix.runners.model_transforms.layer_times import few_row_products, linear_ms
from latfix.runners.model_transforms.precision_support import device_capability
from latfix.runners.model_transforms.torch_compile import compiler_evidence
from latfix.runners.scheduling.control import check_key, check_policies
from latfix.runners.service.forward_census import census, weight_kinds
from latfix.runners.service.load import LoadedModels, convert_models, load_models, pool_applies, unused_on_host
from latfix.runners.service.model_makeup import makeup
from latfix.runners.service.numa_weights import bring_home
from latfix.runners.service.warm_up import (
    Warmup,
    as_worker,
    prepared_sample,
    rehearsal,
    representative,
    sizes_to_run,
    traffic_shapes,
)
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

#: Number of input sizes that a model is converted with and compared on.
_CONVERTED_SIZES = 4
#: Number of input sizes to warm up a compiled model on, unless the settings set one.
_COMPILED_SIZES = 4
#: Number of input sizes whose batches are profiled on a device.
_PROFILED_SIZES = 4
#: How long to record lookups of embedding tables before the first request.
_LEARNING_S = 5.0
#: How often to check for threads that died, and how long to wait for the others then.
_WATCH_S, _STOP_S = 0.5, 5.0
#: Batch window for offline predictions: the maximum that settings allow, so that batches fill.
_UNTIL_FULL_MS = 60_000.0


@dataclass(slots=True)
class Service:
    """Loads a workload's model instances and builds engines over them.

    :param folder: the workload's folder.
    :param entry: ``file:Class`` of its adapter.
    :raises InputError: settings that contradict each other.
    """

    folder: Path
    entry: str
    settings: RunnerSettings
    models: LoadedModels = field(init=False)
    events: EventLog = field(default_factory=EventLog)
    compiles: CompileEvents = field(init=False)
    collector: IdleCollector | None = None
    warmup: Warmup = field(default_factory=Warmup)
    process: ProcessSetup = field(init=False)

    def __post_init__(self) -> None:
        check_policies(self.settings)
        self.process = ProcessSetup(self.settings)

    def load(self) -> None:
        """Load the model instances; a RunnerError if the adapter or its model failed."""
        self.compiles = CompileEvents(self.events)
        self.process.before_load()
        self.models = load_models(self.folder, self.entry, self.settings)
        self.process.notes += unused_on_host(self.settings, self.models.device)
        allocators = allocators_of(each.device for each in self.models.instances)
        self.process.notes += limit_memory(self.settings.device_memory_share, allocators)
        if self.settings.pin == "locality":
            bring_home(self.models.instances, self.settings)
        attach_hot_rows(self.models.instances, self.settings)
        self.compiles.attach()

    def warm_shapes(self, traffic: Traffic) -> None:
        """Run every model instance on the shapes that the traffic brings, smallest to largest.

        Shapes come from a sample of the traffic, including the smallest and the largest. If there are more than the
        settings allow, they are spread evenly over the sizes. Each runs at batch sizes 1, 2, 4, … up to the largest,
        and at those in between if they are few, while time allows.

        A model for another backend is first converted, with batches of the traffic's inputs.

        :raises InputError: the traffic lacks a value that the settings or a model file need.
        :raises RunnerError: the model failed on a shape, or cannot be converted.
        """
        if not len(traffic):
            return
        started = time.perf_counter()
        check_key(self.settings, traffic)
        if isinstance(self.models.adapter, FileWorkload):
            notes = self.models.adapter.check_traffic(traffic)
            self.models.notes += [note for note in notes if note not in self.models.notes]
        self._convert(traffic)
        self._learn_rows(traffic)
        self._capture(traffic)
        # Whatever is not compiled now never will be: requests must not wait for a compiler.
        # Capturing releases memory that batches need in addition to their graphs.
        made = self.settings.compile != "off" or bool(self.models.graphed())
        wanted = self.settings.warmup_shapes or (_COMPILED_SIZES if made else 0)
        if wanted or self.settings.keep_warm_ms:
            inputs = representative(self.models.adapter, traffic, wanted or 1)
            for instance in self.models.instances:  # inputs are sorted by size
                instance.resident = inputs[0] if inputs else None
        if wanted:
            # On a device each worker has its own streams and buffers, even with a shared model; on the host a thread
            # that shares one has only its operator threads and its heap to make.
            on_device = self.models.instances[0].accelerator is not None
            own = {id(instance) for instance in (self.models.instances if on_device else self.models.distinct())}
            for number, instance in enumerate(self.models.instances):
                run = inputs if id(instance) in own else inputs[:1]
                as_worker(instance, self.settings, partial(self._run_sizes, instance, run), number)
            self.warmup.shapes += len(inputs)
        self.warmup.seconds += time.perf_counter() - started

    def _run_sizes(self, instance: ModelInstance, inputs: Sequence[Any]) -> None:
        with instance.guard():
            once = rehearsal(instance, self.settings)
            for value, size in sizes_to_run(inputs, self.settings.max_batch_size):
                before = self.models.tally.runs
                batches = once(value, size)
                runs, least = (self.models.tally.runs - before) / batches, self.warmup.least_runs
                self.warmup.least_runs = runs if least is None else min(runs, least)
                self.compiles.attach()
                self.warmup.batches += batches

    def _convert(self, traffic: Traffic) -> None:
        """Convert the models unless the backend is torch or they are converted already."""
        if self.settings.backend == "torch" or self.models.conversions:
            return
        inputs = representative(self.models.adapter, traffic, _CONVERTED_SIZES)
        if not inputs:
            raise RunnerError(f"backend = {self.settings.backend!r}: no request could be prepared to convert with")
        most, adapter = self.settings.max_batch_size, self.models.adapter
        if len(inputs) == 1:  # of one shape: other values show what a conversion takes for a constant
            inputs += [value for _, value in prepared_sample(adapter, traffic)[-1:]]
        sizes = sorted({1, min(2, most), most})
        try:
            # Distinct requests, so that a conversion that mixes the rows of a batch is detected.
            batches = [
                adapter.collate([inputs[(k + other) % len(inputs)] for other in range(size)])
                for k in range(len(inputs))
                for size in sizes
            ]
            seen: Sequence[Any] = ()
            if self.settings.backend == "tensorrt":  # an engine is built for a range of shapes
                seen, full = traffic_shapes(adapter, traffic, most)
                batches.append(full)
        except RunnerError:
            raise
        except USER_ERRORS as error:
            raise RunnerError(raised_by(f"{type(adapter).__name__}.collate", error)) from error
        convert_models(self.models, batches, self.settings, seen)

    def _capture(self, traffic: Traffic) -> None:
        """Capture the models' graphs if the settings require it and there is a device."""
        models = self.models
        if not self.settings.captures or models.instances[0].accelerator is None or models.graphed():
            return
        from latfix.runners.service.graph_capture import capture_graphs

        capture_graphs(models, traffic, self.settings, pads=pool_applies(models.adapter))

    def _learn_rows(self, traffic: Traffic) -> None:
        """Record which rows of embedding tables a sample of the traffic looks up."""
        if not any(instance.hot is not None for instance in self.models.instances):
            return
        inputs = [value for _, value in prepared_sample(self.models.adapter, traffic)]

        def learn(instance: ModelInstance) -> None:
            hot, until = instance.hot, time.perf_counter() + _LEARNING_S
            assert hot is not None, "filtered below"
            with instance.guard(), hot.learning():
                for value in inputs:
                    try:
                        batch = instance.collate([value])  # held until the device has read it
                        with instance.working():
                            call_model(hot.model, instance.on_device(batch))
                    except USER_ERRORS:  # a request that fails is reported when it is replayed
                        continue
                    if time.perf_counter() > until:
                        return

        for instance in self.models.distinct():
            if instance.hot is not None:
                as_worker(instance, self.settings, partial(learn, instance))

    def protect(self) -> None:
        """Finish the warm-up: from here on requests trigger no compilation; an unseen shape runs uncompiled.

        Memory settings are applied last, when everything that stays is allocated.
        """
        self.warmup.compilations = self.compiles.count
        self.warmup.compile_s = self.compiles.total_ns / 1e9
        if self.settings.compile != "off":
            import torch

            torch.compiler.set_stance("eager_on_recompile")
        if self.settings.gc == "freeze" and self.collector is None:
            self.collector = IdleCollector()
            self.collector.install()
        if self.settings.compile == "off":
            for instance in self.models.distinct():
                if instance.hot is not None:
                    instance.hot.watch()  # without traffic, learn from the first requests
        self.process.before_requests()

    def engine(
        self,
        recorder: StageRecorder,
        request_of: Callable[[int], Request],
        on_done: OnDone | None = None,
        settings: RunnerSettings | None = None,
        given_up: Callable[[int], bool] | None = None,
    ) -> Engine:
        """A new engine over the loaded instances, with the service's own settings by default.

        :raises RunnerError: another backend must run the models, but they are not converted.
        """
        if self.settings.backend != "torch" and not self.models.conversions:
            raise RunnerError(
                f"backend = {self.settings.backend!r}: the model is not converted yet; call warm_shapes() first"
            )
        accelerator = self.models.instances[0].accelerator
        if accelerator is not None:  # of threads that did other work
            accelerator.free_workspaces()
        for instance in self.models.instances:
            instance.calls.reset()
        for graphed in self.models.graphed():
            graphed.facts.begin()
        self.models.outside.reset()
        return Engine(
            adapter=self.models.adapter,
            instances=self.models.instances,
            settings=settings or self.settings,
            recorder=recorder,
            events=self.events,
            request_of=request_of,
            on_done=on_done,
            collector=self.collector,
            given_up=given_up,
        )

    def release(self) -> None:
        """End the workers' threads; undo process-wide changes: the garbage collector and the compiler's stance."""
        for instance in self.models.instances:
            instance.thread.end()
        self.compiles.detach()
        if self.settings.compile != "off":
            import torch

            torch.compiler.set_stance("default")
        if self.collector is not None:
            self.collector.remove()
            self.collector = None

    def predict(
        self,
        requests: Sequence[Request],
        *,
        in_flight: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Outcome]:
        """Run requests through the engine at full speed; returns the outcomes in the same order.

        No caller waits for these answers, so deadlines and the queue limit do not apply, and batches are always full,
        on a busy machine too. Answers that depend on the other members of a batch therefore stay comparable.

        :param in_flight: number of requests to keep inside, batches then forming as requests arrive; by default two
            full batches per worker.
        :param settings: overrides for this engine.
        :raises RunnerError: a thread of the engine died, so that some requests have no answer.
        """
        recorder = StageRecorder(len(requests))
        outcomes: list[Outcome | None] = [None] * len(requests)
        room = threading.Semaphore(in_flight or 2 * self.settings.max_batch_size * self.settings.workers)

        def on_done(slot: int, outcome: Outcome) -> None:
            outcomes[slot] = outcome
            room.release()

        patient = [replace(request, deadline_ms=None) for request in requests]
        neutral = {"timeout_ms": 0.0, "max_queue": 0, "admission": "all", "keep_warm_ms": 0.0, "warmup_shapes": 0}
        if in_flight is None:
            neutral["batch_window_ms"] = _UNTIL_FULL_MS
            if self.settings.batching == "adaptive":
                neutral["batching"] = "fixed"
        unlimited = self.settings.with_overrides({**neutral, **(settings or {})})
        engine = self.engine(recorder, patient.__getitem__, on_done, unlimited)
        engine.start()
        for slot in range(len(requests)):
            while not room.acquire(timeout=_WATCH_S):
                if dead := engine.ended_threads():
                    engine.abandon(_STOP_S)
                    raise _died(dead[0])
            recorder.scheduled_ns[slot] = time.perf_counter_ns()
            engine.submit(slot)
        dead = engine.ended_threads()
        engine.shutdown()  # once all requests are prepared, partial batches leave
        answered = [outcome for outcome in outcomes if outcome is not None]
        if len(answered) < len(requests):
            raise _died(dead[0] if dead else "")
        return answered

    def evidence(self, traffic: Traffic, *, profiled: bool = True) -> dict[str, Any]:
        """What the loaded service shows of its settings, for ``verify`` of the fixes.

        Batch counters are those of the last engine, which after a replay is the replay's. Modules, kernels, dtypes
        and layouts come from one additional forward pass.

        :param profiled: profile batches on a device too; the profiler stays in the process and slows it down.
        """
        import torch

        evidence: dict[str, Any] = {
            "device": self.models.device,
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "load_s": round(self.models.load_s, 3),
            "warmup_batches": self.warmup.batches,
            "warmup_shapes": self.warmup.shapes,
            "warmup_s": round(self.warmup.seconds, 3),
            "warmup_least_runs": self.warmup.least_runs or 0.0,
            "compilations": self.warmup.compilations,
            "compile_s": round(self.warmup.compile_s, 3),
            "gc_enabled": gc.isenabled(),
            "gc_frozen": gc.get_freeze_count(),
            "evaluates": self.models.adapter.has_evaluate(),
            "relaid": self.models.relaid,
            # The model is a Python loop around parts that it names.
            "compile_parts": getattr(self.models.instances[0].model, "compile_parts", None) is not None,
            "conversions": self.models.conversions,
            "outside": self.models.outside.to_json(),
            "made_of": makeup(self.models.instances[0].model, self.models.adapter),
            **summary(instance.calls for instance in self.models.instances),
        }
        if self.settings.backend == "torch":
            evidence["capability"] = device_capability(self.models.device)
            evidence |= weight_kinds(self.uncaptured(self.models.instances[0]).model, self.settings.keep_precision)
        if self.settings.compile != "off":
            evidence |= compiler_evidence(self.models.graphs)
        if profiled:
            evidence |= self.device_profile(traffic)
        if graphed := self.models.graphed():
            from latfix.runners.gpu.cuda_graphs import facts_of

            evidence |= facts_of(graphed)
        return evidence | self._census(traffic)

    def facts(self, traffic: Traffic) -> dict[str, Any]:
        """What can be changed in the model: :meth:`evidence`, and the layers' times in each precision.

        ``linear_ms`` and ``few_row_products`` are of a request of median size alone. They are missing if the model's
        layers were replaced, or if there is no request.
        """
        facts = self.evidence(traffic, profiled=False)
        settings = self.settings
        plain = settings.compile == "off" and settings.backend == "torch" and settings.precision == "default"
        inputs = representative(self.models.adapter, traffic, 1)
        if plain and inputs and self.models.device == "cpu":
            instance = self.models.instances[0]
            # If it fails, the replay reports the failure with its request.
            with contextlib.suppress(*USER_ERRORS), instance.guard():
                batch = instance.collate(inputs[:1])
                facts["linear_ms"] = linear_ms(instance.model, batch)
                facts["few_row_products"] = few_row_products(instance.model, batch)
        return facts

    def device_profile(self, traffic: Traffic, batches: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """Profile a few batches on the device: ``device_profile`` and ``device_waits`` of ``run.json``.

        Batches are profiled one by one, outside of anything timed. Empty on the CPU.

        :param batches: positions in the schedule; by default, requests of several sizes, alone and in full batches.
        """
        instance = self.uncaptured(self.models.instances[0])
        if instance.accelerator is None:
            return {}
        profiles: list[dict[str, Any]] = []
        waits: dict[str, None] = {}
        try:
            for inputs in self._profiled(traffic, batches):
                with instance.guard():
                    batch = instance.collate(inputs)
                waits |= dict.fromkeys(waits_in(instance, batch))
                elements = elements_of(batch)
                work = profile_batch(instance, batch, size=len(inputs), elements=elements)
                if work is not None:
                    profiles.append(work.to_json())
        except USER_ERRORS as error:
            # The replay reports a failing request; a failing profiler is reported here.
            return {"device_profile": profiles, "device_profile_failure": describe(error)}
        return {"device_profile": profiles, "device_waits": list(waits)}

    def _profiled(self, traffic: Traffic, batches: Sequence[Sequence[int]]) -> Iterator[list[Any]]:
        adapter = self.models.adapter
        for batch in batches:
            yield [adapter.prepare(traffic.request(position)) for position in batch]
        if not batches:
            for value in representative(self.models.adapter, traffic, _PROFILED_SIZES):
                for size in sorted({1, self.settings.max_batch_size}):
                    yield [value] * size

    def uncaptured(self, instance: ModelInstance) -> ModelInstance:
        """The instance with the model that its graphs were captured of: the same operators, launched one by one."""
        graphed = self.models.graphed()
        return replace(instance, model=graphed[0].original) if graphed else instance

    def _census(self, traffic: Traffic) -> dict[str, dict[str, int]]:
        inputs = representative(self.models.adapter, traffic, 1)
        if not inputs:
            return {}
        instance = self.uncaptured(self.models.instances[0])
        # Hooks on a compiled model would recompile it, and a converted model has no modules.
        plain = self.settings.compile == "off" and self.settings.backend == "torch"
        try:
            with instance.guard():
                batch = instance.collate(inputs[:1])
            return census(instance, batch, self.settings.keep_precision if plain else (), hooks=plain)
        except USER_ERRORS:  # the replay reports the failure with its request
            return {}


def _died(name: str) -> RunnerError:
    what = f"thread {name}" if name else "a thread"
    return RunnerError(f"{what} of the runner died; standard error has its traceback")
