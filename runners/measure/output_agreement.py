"""Answers of two services side by side: when they say the same, and how far apart their numbers are."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: Numbers agree within this share of the larger one's size.
_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Difference:
    """How two lists of answers differ.

    :param compared: answers of the first list that are not failures.
    :param agreeing: those to which the second list says the same.
    :param deviation: the largest difference of two numbers, as a share of the largest number at that place in all
        answers of the first list; ``None`` where there are no numbers to compare.
    :param broken: answers that failed in the second list alone, or hold NaN or infinity where the first has numbers.
    """

    compared: int
    agreeing: int
    deviation: float | None
    broken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The original's answers.

    :param sample: flattened answers to a sample of the traffic, ``None`` for a request that failed; empty where the
        workload has a score of its own.
    :param ids: of the requests that ``evaluate`` asked for, in that order; empty where there is no ``evaluate``.
    :param answers: what it was given for them.
    :param score: what it made of them.
    """

    sample: tuple[list[Any] | None, ...]
    ids: tuple[str, ...] = ()
    answers: tuple[Any, ...] = ()
    score: float | None = None

    def save(self, file: Path) -> None:
        """Write it to one file, for another process of the same workload.

        Answers that cannot be pickled are left out, and with them the comparison of scores request by request.
        """
        arrays = {f"{k}.{j}": leaf for k, leaves in enumerate(self.sample) for j, leaf in enumerate(leaves or ())}
        counts = np.array([-1 if leaves is None else len(leaves) for leaves in self.sample], dtype=np.int64)
        try:
            scored = pickle.dumps((self.ids, self.answers, self.score))
        except Exception:  # noqa: BLE001 - whatever a user's own class raises when it is pickled
            scored = pickle.dumps(((), (), None))
        np.savez(file, count=counts, scored=np.frombuffer(scored, dtype=np.uint8), **arrays)

    @classmethod
    def load(cls, file: Path) -> Reference:
        """Read what :meth:`save` wrote; the file is this program's own."""
        with np.load(file) as archive:
            counts = archive["count"].tolist()
            sample = tuple(None if n < 0 else [archive[f"{k}.{j}"] for j in range(n)] for k, n in enumerate(counts))
            ids, answers, score = pickle.loads(archive["scored"].tobytes())
        return cls(sample=sample, ids=ids, answers=answers, score=score)


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


def difference(first: Sequence[list[Any] | None], second: Sequence[list[Any] | None]) -> Difference:
    """Compare flattened answers in the same order; what failed in the first list is left out.

    :raises ValueError: the lists are not of one length.
    """
    # A request that the original itself fails says nothing about a fix.
    judged = [(a, b) for a, b in zip(first, second, strict=True) if a is not None]
    agreeing = sum(b is not None and agree(a, b) for a, b in judged)
    scales = _scales([a for a, _ in judged])
    far = [_deviation(a, b, scales) for a, b in judged]
    known = [value for value in far if value is not None and np.isfinite(value)]
    broken = sum(b is None for _, b in judged) + sum(value is not None and not np.isfinite(value) for value in far)
    return Difference(len(judged), agreeing, max(known, default=None), broken)


def _scales(answers: Sequence[Sequence[Any]]) -> dict[int, float]:
    """The largest finite number at each place of the answers: one alone may happen to be next to zero."""
    scales: dict[int, float] = {}
    for leaves in answers:
        for place, leaf in enumerate(leaves):
            if leaf.dtype.kind == "f" and np.isfinite(leaf).any():
                largest = float(np.abs(leaf[np.isfinite(leaf)]).max())
                scales[place] = max(scales.get(place, 0.0), largest)
    return scales


def _leaf_agrees(a: Any, b: Any) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    if a.ndim and a.shape[-1] > 1:
        return bool(np.array_equal(a.argmax(-1), b.argmax(-1)))
    return bool(np.allclose(a, b, rtol=_TOLERANCE, atol=1e-6, equal_nan=True))


def _deviation(expected: Sequence[Any], got: Sequence[Any] | None, scales: Mapping[int, float]) -> float | None:
    """The largest deviation of two answers' floats; infinite for a number that is none any more."""
    if got is None or len(expected) != len(got):
        return None
    found = [
        _leaf_deviation(a, b, scales.get(place, 0.0))
        for place, (a, b) in enumerate(zip(expected, got, strict=True))
        if a.dtype.kind == "f" and b.dtype.kind == "f" and a.shape == b.shape
    ]
    return max((value for value in found if value is not None), default=None)


def _leaf_deviation(a: Any, b: Any, scale: float) -> float | None:
    usable = np.isfinite(a)
    if not usable.any():
        return None
    if not np.isfinite(b[usable]).all():
        return float("inf")
    apart = float(np.abs(a[usable].astype(np.float64) - b[usable]).max())
    return apart / scale if scale > 0 else float(apart > 0)
