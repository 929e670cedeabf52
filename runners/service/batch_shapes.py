"""Shapes of the batches that traffic produces, from sampled requests and the extremes of each feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.runners.backends.tensorrt.shape_profile import Shapes
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.calls.tensor_tree import flatten, shapes_of, tensors_of
from latfix.runners.service.warm_up import prepared_sample
from latfix.traffic.schedule import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficShapes:
    """Shapes of all tensors of whole batches.

    :param seen: for each distinct request, the shapes of a batch of one and of a full batch of it.
    :param middling: prepared inputs of the request of median size.
    :param tuned: the shapes of a full batch of that request; batches are full under load.
    """

    seen: tuple[Shapes, ...]
    middling: Any
    tuned: Shapes


def traffic_shapes(adapter: Workload, traffic: Traffic, most: int) -> TrafficShapes:
    """The shapes of batches of up to ``most`` requests; a RunnerError if none can be prepared or collated."""
    prepared = sorted(prepared_sample(adapter, traffic, extremes=True), key=lambda pair: pair[0])
    if not prepared:
        raise RunnerError("no request could be prepared to determine the shapes of batches")
    different = {shapes_of(tensors_of(value)): value for _, value in prepared}
    middling = prepared[len(prepared) // 2][1]
    try:
        seen = [
            _shapes(adapter.collate([value] * size)) for value in different.values() for size in sorted({1, most})
        ]
        tuned = _shapes(adapter.collate([middling] * most))
    except USER_ERRORS as error:
        raise RunnerError(f"{type(adapter).__name__}.collate raised {describe(error)}") from error
    return TrafficShapes(seen=tuple(dict.fromkeys(seen)), middling=middling, tuned=tuned)


def _shapes(batch: Any) -> Shapes:
    return shapes_of(flatten(batch)[0])
