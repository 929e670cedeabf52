"""Answers whose deviation from the original's is exaggerated: a sharper bound on a loss than a small sample gives.

Of n requests without a loss, up to 3 / n may still lose. But answers made of numbers tell more: if none loses even
with several times the deviation, few are near the point where they would. As long as a loss grows at least in
proportion to the deviation, a bound on the exaggerated answers' loss, divided by that factor, bounds the loss itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from latfix.arrays import Bools
from latfix.statistics.decision import Interval

#: How much larger the deviation becomes; the sharpest bound counts.
TIMES = (2.0, 4.0)
#: Least share of the numbers that deviate at all, without zeros (of a ReLU). Rounded numbers and labels jump, and
#: show nothing in between.
_MOVED = 0.9


class _NoNumber(Exception):
    """Part of an answer is not made of numbers, or the two have different shapes."""


def narrowed(
    loss: Interval,
    before: Sequence[Any],
    after: Sequence[Any],
    loss_of: Callable[[list[Any]], Interval | None],
) -> Interval:
    """The loss with the upper end that its exaggerations allow, if that is lower.

    :param before: the original's answers; ``after`` those judged, to the same requests.
    :param loss_of: the loss of other answers to them.
    """
    highest = loss.hi
    for times in TIMES:
        larger = exaggerated(before, after, times)
        if larger is not None and (most := loss_of(larger)) is not None:
            highest = min(highest, max(most.hi / times, loss.value))
    return Interval(value=loss.value, lo=loss.lo, hi=highest)


def exaggerated(before: Sequence[Any], after: Sequence[Any], times: float) -> list[Any] | None:
    """Answers that deviate so many times as much; ``None`` if they are not only numbers, or hardly any differs."""
    moved: list[Bools] = []
    try:
        larger = [_larger(a, b, times, moved) for a, b in zip(before, after, strict=True)]
    except _NoNumber:
        return None
    every = np.concatenate(moved) if moved else np.zeros(0, bool)
    return larger if len(every) and every.mean() >= _MOVED else None


def _larger(before: Any, after: Any, times: float, moved: list[Bools]) -> Any:
    """One answer in the same structure; adds to ``moved`` which of its numbers deviate, without zeros that stay."""
    if isinstance(after, dict) and isinstance(before, dict) and before.keys() == after.keys():
        return {key: _larger(before[key], after[key], times, moved) for key in after}
    if type(after) in (list, tuple) and type(before) is type(after) and len(before) == len(after):
        return type(after)(_larger(a, b, times, moved) for a, b in zip(before, after, strict=True))
    alike = type(before) is type(after) and np.shape(before) == np.shape(after)
    if not (alike and _is_floating(before) and _is_floating(after)):
        raise _NoNumber
    apart = after - before
    told = np.asarray((before != 0) | (after != 0)).ravel()
    moved.append(np.asarray(apart != 0).ravel()[told])
    return type(after)(before + times * apart) if isinstance(after, float) else before + times * apart


def _is_floating(value: Any) -> bool:
    """True for a float, an array or an ordinary tensor of them on the host."""
    if hasattr(value, "is_floating_point"):
        ordinary = value.device.type == "cpu" and str(value.layout) == "torch.strided"
        return ordinary and bool(value.is_floating_point())
    return isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")
