"""Shapes of the batches that traffic produces, from sampled requests and the extremes of each feature."""

from __future__ import annotations

from typing import Any

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.runners.backends.tensorrt.shape_profile import Shapes
from latfix.runners.calls.tensor_tree import flatten, shapes_of, tensors_of
from latfix.runners.service.warm_up import prepared_sample
from latfix.traffic.schedule import Traffic


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
