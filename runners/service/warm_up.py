"""Warm-up: which shapes the traffic brings, which batches to run, and work on a worker's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

import numpy as np

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.runners.backends.tensorrt.shape_profile import Shapes
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe
from latfix.runners.calls.tensor_tree import arrays_of, elements_of, flatten, shapes_of, tensors_of
from latfix.runners.engine.worker import ModelInstance, worker_name
from latfix.runners.gpu.async_batches import Collated, Flights
from latfix.runners.gpu.device_clock import DeviceClock
from latfix.runners.host.cpu_placement import Places, limit_operator_threads
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

T = TypeVar("T")

#: Requests sampled to find the shapes of the traffic, for warm-up and conversion.
_SHAPE_SAMPLE = 96
#: Maximum number of features whose extremes are added to the sample.
_MOST_FEATURES = 32
#: Up to this many warm-up batches, every batch size is run, not only powers of two; and for how long.
_EVERY_SIZE = 64
_BETWEEN_S = 5.0


@dataclass(slots=True)
class Warmup:
    """What warm-up did: batches run, shapes seen, seconds with conversions and captures, and compilations among them.

    :param least_runs: minimum runs per batch of what replaces the model's operators; ``None`` if no batch was run.
    """

    batches: int = 0
    shapes: int = 0
    seconds: float = 0.0
    compilations: int = 0
    compile_s: float = 0.0
    least_runs: float | None = None


def prepared_sample(adapter: Workload, traffic: Traffic, *, extremes: bool = False) -> list[tuple[int, Any]]:
    """Elements and prepared inputs of a sample of the traffic, in its order.

    :param extremes: include the requests with the least and the greatest value of each numeric feature.
    """
    picks = np.linspace(0, len(traffic) - 1, min(_SHAPE_SAMPLE, len(traffic))).astype(int)
    picks = np.unique([*picks, *_extremes(traffic)] if extremes else picks).astype(int)
    prepared: list[tuple[int, Any]] = []
    for pick in picks:
        try:
            value = adapter.prepare(traffic.request(int(pick)))
            elements = elements_of(value)
        except USER_ERRORS:  # a request that fails is reported when it is replayed
            continue
        prepared.append((elements, value))
    return prepared


def _extremes(traffic: Traffic) -> Iterator[int]:
    """Positions of the requests with the least and the greatest value of each numeric feature."""
    for column in list(traffic.features.values())[:_MOST_FEATURES]:
        if not np.issubdtype(column.dtype, np.number) or np.isnan(column).all():
            continue
        yield int(np.nanargmin(column))
        yield int(np.nanargmax(column))


def traffic_shapes(adapter: Workload, traffic: Traffic, most: int) -> tuple[list[Shapes], Any]:
    """The shapes of all tensors of whole batches; a RunnerError if no request can be prepared.

    :param most: requests in a full batch.
    :returns: for each distinct request, the shapes of a batch of one and of a full batch of it; and a full batch of
        the request of median size, as batches are under load.
    """
    prepared = sorted(prepared_sample(adapter, traffic, extremes=True), key=lambda pair: pair[0])
    if not prepared:
        raise RunnerError("no request could be prepared to determine the shapes of batches")
    different = {shapes_of(tensors_of(value)): value for _, value in prepared}
    batches = (adapter.collate([value] * size) for value in different.values() for size in sorted({1, most}))
    seen = dict.fromkeys(shapes_of(flatten(batch)[0]) for batch in batches)
    return list(seen), adapter.collate([prepared[len(prepared) // 2][1]] * most)


def representative(adapter: Workload, traffic: Traffic, wanted: int) -> list[Any]:
    """Prepared inputs of distinct shapes from a sample of the traffic, spread evenly over their sizes, ascending."""
    shapes: dict[Any, tuple[int, Any]] = {}
    for elements, value in prepared_sample(adapter, traffic):
        shapes.setdefault(shapes_of(arrays_of(value)), (elements, value))
    prepared = sorted(shapes.values(), key=lambda pair: pair[0])
    if not prepared:
        return []
    if wanted == 1:
        return [prepared[len(prepared) // 2][1]]
    ranks = np.unique(np.linspace(0, len(prepared) - 1, wanted).round().astype(int))
    return [prepared[rank][1] for rank in ranks]


def sizes_to_run(inputs: Sequence[Any], most: int) -> Iterator[tuple[Any, int]]:
    """Pairs of an input and the size of the batch to run it in.

    Sizes are 1, 2, 4, … up to ``most`` for each input, then those in between if they are few, while time allows.
    """
    first = doubling(most)
    yield from product(inputs, first)
    between = [size for size in range(1, most + 1) if size not in first and most * len(inputs) <= _EVERY_SIZE]
    until = time.perf_counter() + _BETWEEN_S
    for value, size in product(inputs, between):
        if time.perf_counter() > until:
            return
        yield value, size


def rehearsal(instance: ModelInstance, settings: RunnerSettings) -> Callable[[Any, int], int]:
    """A function that runs a batch of ``size`` copies of an input like a batch of requests; returns how many ran.

    On a device, batches pass through the buffers and streams of the requests, two at once if batches overlap.

    :raises RunnerError: from the returned function: the model or its collate failed.
    """
    flights = None
    if instance.accelerator is not None:
        flights = Flights(instance, DeviceClock(), StageRecorder(1), overlap=settings.overlap)

    def once(value: Any, size: int) -> int:
        try:
            at_once = 2 if flights is not None and settings.overlap else 1
            batches = [instance.collate([value] * size) for _ in range(at_once)]
            instance.first_time(arrays_of(batches[0]))
            if flights is None:
                call_model(instance.model, instance.on_device(batches[0]))
                return 1
            airborne = [flights.launch(k, Collated(batch, (), 0, ())) for k, batch in enumerate(batches)]
            for flight in airborne:
                flights.land(flight)
            flights.resolve()
            return at_once
        except USER_ERRORS as error:
            raise RunnerError(f"warm-up with a batch of {size} raised {describe(error)}") from error

    return once


def as_worker(instance: ModelInstance, settings: RunnerSettings, work: Callable[[], T], number: int = 0) -> T:
    """Run ``work`` on the instance's thread, set up as its worker will be, whose number this is.

    The framework counts its threads per calling thread, and a compiled graph is recompiled if the number differs.
    """

    def run() -> T:
        limit_operator_threads(settings, Places(settings).worker(number))
        return work()

    return instance.thread.run(run, worker_name(number))


def doubling(most: int) -> list[int]:
    """1, 2, 4, … and ``most``."""
    sizes = [1 << k for k in range(most.bit_length())]
    return sizes if sizes[-1] == most else [*sizes, most]
