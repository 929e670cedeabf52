"""Accuracy of a service: the workload's own score, or agreement of its outputs with the original's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import RunnerError
from latfix.request import Request
from latfix.runners.adapter import USER_ERRORS, describe
from latfix.runners.service import Service
from latfix.stages import Status
from latfix.traffic.model import Traffic

#: Requests whose outputs are compared where the workload has no score of its own.
AGREEMENT_SAMPLE = 256
#: Numbers agree within this share of the larger one's size.
_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """A service's accuracy.

    :param score: higher is better.
    :param kind: ``evaluate`` (the workload's own score) or ``agreement`` (share of outputs that agree).
    :param samples: requests that it rests on.
    """

    score: float
    kind: str
    samples: int


def evaluate(service: Service, traffic: Traffic, reference: Path | None) -> Accuracy:
    """Measure a loaded service's accuracy.

    :param reference: the original's outputs (:func:`save_outputs`), for a workload without ``evaluate``.
    :raises RunnerError: ``evaluate`` failed or returned no number, or a request failed.
    """
    adapter = service.models.adapter
    if adapter.has_evaluate():
        asked = 0

        def predict(requests: Sequence[Request]) -> list[Any]:
            nonlocal asked
            asked += len(requests)
            return _outputs(service, list(requests))

        try:
            score = float(adapter.evaluate(predict))
        except RunnerError:
            raise
        except USER_ERRORS as error:
            raise RunnerError(f"{type(adapter).__name__}.evaluate raised {describe(error)}") from error
        if not math.isfinite(score):
            raise RunnerError(f"{type(adapter).__name__}.evaluate returned {score}; expected a finite score")
        return Accuracy(score=score, kind="evaluate", samples=asked)
    if reference is None:
        return Accuracy(score=1.0, kind="agreement", samples=0)
    pairs = list(zip(_load(reference), _answers(service, traffic), strict=True))
    # A request that the original itself fails says nothing about a fix.
    judged = [(expected, got) for expected, got in pairs if expected is not None]
    agreeing = sum(got is not None and agree(expected, got) for expected, got in judged)
    return Accuracy(score=agreeing / max(len(judged), 1), kind="agreement", samples=len(judged))


def save_outputs(service: Service, traffic: Traffic, file: Path) -> int:
    """Save the outputs on a sample of the traffic; returns how many."""
    answers = _answers(service, traffic)
    arrays = {f"{k}.{j}": leaf for k, leaves in enumerate(answers) for j, leaf in enumerate(leaves or ())}
    np.savez(file, count=np.array([-1 if leaves is None else len(leaves) for leaves in answers]), **arrays)
    return len(answers)


def sample_requests(traffic: Traffic) -> list[Request]:
    """Requests spread evenly over the traffic."""
    size = min(AGREEMENT_SAMPLE, len(traffic))
    picks = np.linspace(0, max(len(traffic) - 1, 0), size).round().astype(int).tolist()
    return [traffic.request(pick) for pick in dict.fromkeys(picks)]


def flatten(output: Any) -> list[Any]:
    """An output as a list of NumPy arrays: tensors, numbers and texts, in a fixed order."""
    if isinstance(output, dict):
        return [leaf for key in sorted(output, key=str) for leaf in flatten(output[key])]
    if isinstance(output, tuple | list):
        return [leaf for item in output for leaf in flatten(item)]
    if hasattr(output, "detach"):
        tensor = output.detach().cpu()
        return [(tensor.float() if tensor.is_floating_point() else tensor).numpy()]
    if isinstance(output, bool | int | float | str | np.generic | np.ndarray):
        return [np.asarray(output)]
    return [np.asarray(repr(output))]


def agree(expected: Sequence[Any], got: Sequence[Any]) -> bool:
    """Whether two flattened outputs say the same.

    Vectors of numbers (scores over classes, logits) agree where their largest entry is the same one, single
    numbers where they differ by at most 2 %, everything else where it is equal.
    """
    if len(expected) != len(got):
        return False
    return all(_leaf_agrees(np.asarray(a), np.asarray(b)) for a, b in zip(expected, got, strict=True))


def _leaf_agrees(a: Any, b: Any) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    if a.ndim and a.shape[-1] > 1:
        return bool(np.array_equal(a.argmax(-1), b.argmax(-1)))
    return bool(np.allclose(a, b, rtol=_TOLERANCE, atol=1e-6, equal_nan=True))


def _outputs(service: Service, requests: list[Request]) -> list[Any]:
    outcomes = service.predict(requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        if outcome.status != Status.OK:
            raise RunnerError(f"request {request.id!r} failed while measuring accuracy: {outcome.error}")
    return [outcome.output for outcome in outcomes]


def _answers(service: Service, traffic: Traffic) -> list[list[Any] | None]:
    """Flattened outputs on a sample of the traffic; ``None`` for a request that failed."""
    outcomes = service.predict(sample_requests(traffic))
    return [flatten(outcome.output) if outcome.status == Status.OK else None for outcome in outcomes]


def _load(file: Path) -> list[list[Any] | None]:
    with np.load(file) as archive:
        counts = archive["count"].tolist()
        return [None if n < 0 else [archive[f"{k}.{j}"] for j in range(n)] for k, n in enumerate(counts)]
