"""Warming up: which shapes traffic brings, in which batches a model runs them, on a thread set up as a worker's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

import numpy as np

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe
from latfix.runners.calls.tensor_tree import elements_of, tensors_of
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.gpu.async_batches import Collated, Flights
from latfix.runners.gpu.device_clock import DeviceClock
from latfix.runners.host.cpu_placement import Places, limit_operator_threads
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

T = TypeVar("T")

#: Requests looked at to find the shapes that traffic has, for warming up and for converting.
_SHAPE_SAMPLE = 96
#: Features whose extremes are looked at.
_MOST_FEATURES = 32
#: Batches of warm-up up to which every size of a batch is run, not only the powers of two, and how long.
_EVERY_SIZE = 64
_BETWEEN_S = 5.0


@dataclass(slots=True)
class Warmup:
    """What warming up did: batches run, shapes seen, seconds, and compilations among them.

    :param least_runs: how often what replaces the model's operators ran in a batch, at least; ``None``
        where no batch was run.
    """

    batches: int = 0
    shapes: int = 0
    seconds: float = 0.0
    compilations: int = 0
    compile_s: float = 0.0
    least_runs: float | None = None


def prepared_sample(adapter: Workload, traffic: Traffic, *, extremes: bool = False) -> list[tuple[int, Any]]:
    """Elements and prepared inputs of a sample of the traffic, in its order.

    :param extremes: also the requests that have the least and the most of a numeric feature.
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
    """Places of the requests with the least and the most of each feature that is a number."""
    for column in list(traffic.features.values())[:_MOST_FEATURES]:
        if not np.issubdtype(column.dtype, np.number) or np.isnan(column).all():
            continue
        yield int(np.nanargmin(column))
        yield int(np.nanargmax(column))


def representative(adapter: Workload, traffic: Traffic, wanted: int) -> list[Any]:
    """Prepared inputs of different shapes in a sample of the traffic, evenly over their sizes, smallest first."""
    shapes: dict[Any, tuple[int, Any]] = {}
    for elements, value in prepared_sample(adapter, traffic):
        shapes.setdefault(tuple(tuple(tensor.shape) for tensor in tensors_of(value)), (elements, value))
    prepared = sorted(shapes.values(), key=lambda pair: pair[0])
    if not prepared:
        return []
    if wanted == 1:
        return [prepared[len(prepared) // 2][1]]
    ranks = np.unique(np.linspace(0, len(prepared) - 1, wanted).round().astype(int))
    return [prepared[rank][1] for rank in ranks]


def sizes_to_run(inputs: Sequence[Any], most: int) -> Iterator[tuple[Any, int]]:
    """Inputs with the sizes of the batches to run them in.

    Sizes are 1, 2, 4, … up to ``most`` for each, then those between where they are few and it does not take long.
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
    """What runs a batch of so many times the same inputs as requests are run; returns how many, when they are done.

    On a device it goes the whole way: through the buffers and streams of the requests, two batches at once where
    they overlap.

    :raises RunnerError: what is returned raises it: the model or its collate failed.
    """
    flights = None
    if instance.accelerator is not None:
        flights = Flights(instance, DeviceClock(), StageRecorder(1), overlap=settings.overlap)

    def once(value: Any, size: int) -> int:
        try:
            at_once = 2 if flights is not None and settings.overlap else 1
            batches = [instance.collate([value] * size) for _ in range(at_once)]
            instance.first_time(tensors_of(batches[0]))
            if flights is None:
                call_model(instance.model, instance.on_device(batches[0]))
                return 1
            airborne = [flights.launch(k, Collated(batch, (), 0, ())) for k, batch in enumerate(batches)]
            for flight in airborne:
                flights.land(flight)
            flights.resolve()
            return at_once
        except USER_ERRORS as error:
            raise RunnerError(f"warming up with a batch of {size} raised {describe(error)}") from error

    return once


def as_worker(settings: RunnerSettings, work: Callable[[], T], number: int = 0) -> T:
    """What ``work`` returns on a fresh thread that is set up as that of the worker with this number.

    Threads of the framework are counted for each thread that uses them, and a compiled graph is compiled again where
    the number differs.
    """

    def run() -> T:
        limit_operator_threads(settings, Places(settings).worker(number))
        return work()

    with ThreadPoolExecutor(1, thread_name_prefix="latfix-warmup") as pool:
        return pool.submit(run).result()


def doubling(most: int) -> list[int]:
    """1, 2, 4, … and the largest."""
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] != most:
        sizes.append(most)
    return sizes
