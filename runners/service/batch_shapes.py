"""Shapes of the batches that traffic produces, from sampled requests and the extremes of each feature."""

from __future__ import annotations

from typing import Any

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.runners.backends.tensorrt.shape_profile import Shapes, TrafficShapes
from latfix.runners.calls.tensor_tree import flatten, shapes_of, tensors_of
from latfix.runners.service.warm_up import prepared_sample
from latfix.traffic.schedule import Traffic


def traffic_shapes(adapter: Workload, traffic: Traffic, most: int) -> TrafficShapes:
    """The shapes of batches of up to ``most`` requests; a RunnerError if none can be prepared."""
    prepared = sorted(prepared_sample(adapter, traffic, extremes=True), key=lambda pair: pair[0])
    if not prepared:
        raise RunnerError("no request could be prepared to determine the shapes of batches")
    different = {shapes_of(tensors_of(value)): value for _, value in prepared}
    middling = prepared[len(prepared) // 2][1]

    def batch_of(value: Any, size: int) -> Shapes:
        return shapes_of(flatten(adapter.collate([value] * size))[0])

    seen = [batch_of(value, size) for value in different.values() for size in sorted({1, most})]
    return TrafficShapes(seen=tuple(dict.fromkeys(seen)), middling=middling, tuned=batch_of(middling, most))
