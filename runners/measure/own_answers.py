"""Answers of a loaded service: to each request alone, in its own batches, on another number of threads."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from latfix.config.workload_toml import declared_outputs
from latfix.request import Request
from latfix.runners.answers.agreement import Shapes, Yardstick
from latfix.runners.answers.named_outputs import Answer, outputs_of
from latfix.runners.answers.own_variation import OwnAnswers, differ, own_variation
from latfix.runners.calls.model_call import USER_ERRORS
from latfix.runners.calls.tensor_tree import arrays_of
from latfix.runners.host.privileges import available_bytes
from latfix.runners.service.loaded_service import Service
from latfix.stages import Status

#: Requests one by one take longer than batches: after this many seconds, this many answers are enough.
_ENDS = ((8.0, 192), (20.0, 64), (30.0, 16))
_AT_ONCE = 8
#: Share of the available memory that these answers may take; there are several copies of them.
_MOST_HELD = 0.15
#: Requests whose input sizes are read.
_SIZED = 64
#: Requests that are repeated on another number of threads.
_THREADED = 16
#: Requests answered alone once more, to see whether answers repeat: a twelfth, within these bounds.
_REPEATED = (4, 16)
#: Each request in a batch of one.
ALONE: Mapping[str, Any] = {"max_batch_size": 1, "batching": "fixed", "batch_window_ms": 0.0}


def compare_own(
    service: Service, requests: Sequence[Request], ends: Sequence[tuple[float, int]] = _ENDS
) -> tuple[list[Answer | None], OwnAnswers]:
    """A service's answers to requests alone, as many as time and memory allow, and how its other answers differ.

    :param ends: pairs: after this many seconds, this many answers are enough.
    :raises InputError: ``[outputs]`` declares what no answer has.
    """
    started, alone = time.monotonic(), list[Answer | None]()
    room = _MOST_HELD * available_bytes()
    while len(alone) < len(requests):
        if room and sum(output.values.nbytes for answer in alone for output in answer or ()) > room:
            break
        if any(len(alone) >= count and time.monotonic() - started > seconds for seconds, count in ends):
            break
        alone += answers_of(service, requests[len(alone) : len(alone) + _AT_ONCE], ALONE)
    answered = requests[: len(alone)]
    again = answered[: min(max(len(answered) // 12, _REPEATED[0]), _REPEATED[1])]
    batches, began = service.settings.max_batch_size > 1, time.monotonic()
    shared = answers_of(service, answered) if batches else []
    shared_s = time.monotonic() - began if batches else began - started
    own = own_variation(
        [request.id for request in answered],
        alone,
        shared,
        _on_other_threads(service, answered[:_THREADED]),
        declared_outputs(service.folder, service.entry),
        [_shapes(service, request) for request in answered[:_SIZED]] if batches else [],
        answers_of(service, again, ALONE),
    )
    if own.check.unrepeatable:
        own = replace(own, check=replace(own.check, stateful=not _samples(service, again, own.yardstick)))
    return alone, replace(own, shared_s=shared_s)


def answers_of(
    service: Service, requests: Sequence[Request], settings: Mapping[str, Any] | None = None
) -> list[Answer | None]:
    """Answers in the service's own batches, or with other settings; ``None`` for a request that failed."""
    outcomes = service.predict(requests, settings=settings or {})
    names = getattr(service.models.adapter, "output_names", ())
    return [outputs_of(outcome.output, names) if outcome.status == Status.OK else None for outcome in outcomes]


def _samples(service: Service, requests: Sequence[Request], yardstick: Yardstick) -> bool:
    """True if answers alone repeat with one seed of the random generators, and differ without.

    State may settle when the same requests come again, so that answers repeat anyway.
    """
    import torch

    def answers(*, seeded: bool) -> list[Answer | None]:
        if seeded:
            torch.manual_seed(service.settings.seed)
            random.seed(service.settings.seed)
            np.random.seed(service.settings.seed)  # noqa: NPY002
        return answers_of(service, requests, ALONE)

    first, second, third = answers(seeded=True), answers(seeded=True), answers(seeded=False)
    return not differ(yardstick, first, second) and differ(yardstick, second, third)


def _on_other_threads(service: Service, requests: Sequence[Request]) -> list[Answer | None]:
    """Answers with operators on one thread instead of several, or on two instead of one; empty on a device."""
    if service.models.device != "cpu":
        return []
    import torch

    before = torch.get_num_threads()
    try:
        return answers_of(service, requests, {**ALONE, "intra_op_threads": 1 if before > 1 else 2})
    finally:
        torch.set_num_threads(before)


def _shapes(service: Service, request: Request) -> Shapes | None:
    try:
        return [tuple(array.shape) for array in arrays_of(service.models.adapter.prepare(request))]
    except USER_ERRORS:  # it has no answer either
        return None
