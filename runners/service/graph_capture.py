"""Which batches to capture as graphs: the sizes of batches, at lengths that the traffic has."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.calls.tensor_tree import elements_of, flatten
from latfix.runners.gpu.cuda_graphs import Capture, GraphedModel, capture_on
from latfix.runners.service.warm_up import as_worker, doubling, representative
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

if TYPE_CHECKING:
    from latfix.runners.engine.worker import ModelInstance
    from latfix.runners.service.load import LoadedModels

#: Number of lengths to capture, and how long to prepare requests in search of the longest.
_LENGTHS = 8
_SEARCH_S = 2.0


def capture_graphs(
    models: LoadedModels,
    traffic: Traffic,
    settings: RunnerSettings,
    capture: Callable[[str], Capture] = capture_on,
    *,
    pads: bool,
) -> None:
    """Make every worker's model run as captured graphs.

    :param capture: makes what captures on a device.
    :param pads: the default collate makes the batches, which pads dimension 1.
    :raises RunnerError: no request could be prepared, or the model cannot be captured.
    """
    inputs = shapes_to_capture(models.adapter, traffic)
    if not inputs:
        raise RunnerError("cuda_graphs: no request could be prepared to capture graphs with")
    ragged = _ragged(inputs) if pads else []
    for number, instance in enumerate(models.instances):
        assert instance.accelerator is not None, "there are graphs on devices only"
        graphed = GraphedModel(instance.model, capture(instance.device), models.tally, ragged)
        as_worker(instance, settings, partial(_capture, instance, graphed, inputs, settings.max_batch_size), number)
        instance.model = graphed
        instance.calls.tally = models.tally


def shapes_to_capture(adapter: Workload, traffic: Traffic, seconds: float = _SEARCH_S) -> list[Any]:
    """Prepared inputs of several lengths from the shortest to the longest found, shortest first.

    A longer request would run without a graph and be among the slowest. Therefore many requests are searched for the
    longest, in random order.
    """
    inputs = representative(adapter, traffic, _LENGTHS)
    order = random.Random(0).sample(range(len(traffic)), len(traffic))
    until = time.perf_counter() + seconds
    longest = max((elements_of(value) for value in inputs), default=0)
    for position in order:
        if time.perf_counter() > until:
            break
        try:
            value = adapter.prepare(traffic.request(position))
            elements = elements_of(value)
        except USER_ERRORS:  # a request that fails is reported when it is replayed
            continue
        if elements > longest:
            longest = elements
            inputs.append(value)
    # Of the inputs that were the longest in turn, the last one is enough.
    return inputs[:_LENGTHS] + inputs[_LENGTHS:][-1:]


def _ragged(inputs: Sequence[Any]) -> list[int]:
    """Flattened inputs that differ between requests in dimension 0, which is dimension 1 of a batch."""
    flat = [flatten(value)[0] for value in inputs]
    return [
        place
        for place in range(len(flat[0]))
        if flat[0][place].dim() and len({tensors[place].shape[0] for tensors in flat}) > 1
    ]


def _capture(instance: ModelInstance, graphed: GraphedModel, inputs: Sequence[Any], most: int) -> None:
    batches = []
    with instance.guard():
        for value in inputs:
            for size in doubling(most):
                try:
                    batch = instance.collate([value] * size)  # held until it is copied: its buffers are reused
                    with instance.working():
                        batches.append(instance.on_device(batch))
                except USER_ERRORS as error:
                    raise RunnerError(f"cuda_graphs: collating a batch of {size} raised {describe(error)}") from error
        # In the requests' stream: graphs of one pool share its memory if they share a stream.
        with instance.working():
            graphed.capture(batches)
