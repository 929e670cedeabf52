"""The rule of the accuracy guard: what a fix may cost, decided on the loss and on how well it is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from time import perf_counter
from typing import Any

import numpy as np

from latfix.statistics.distributions import student_t

#: A fix is refused, too, where a loss of this many times the limit cannot be excluded.
_EXCLUDED = 2.0
#: Of a difference of two scores: 0.9 - 0.89 is more than 0.01 in floating point.
_ROUNDING = 1e-9
_Z = 1.96
_LEAST_GROUPS, _MOST_GROUPS = 8, 64


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of the score with its 95 % interval; below 0 for a gain."""

    value: float
    lo: float
    hi: float


def judge(scored: Mapping[str, Any], original: float, max_drop: float) -> tuple[bool, str]:
    """Whether a service is accurate enough, and the figures in one sentence.

    It is not where the loss exceeds ``max_drop``, where answers broke, and where the sample is too small to exclude a
    loss of twice ``max_drop``, even if all of its answers agree: none of 40 is not none of all. That is no question
    where answers differ no more than the original's own do (``same``): numbers but for rounding, or every answer
    agrees and holds no numbers to tell them apart by. Where no loss is allowed at all, which no sample can show, the
    estimate alone decides.

    :param scored: fields of :class:`latfix.runners.measure.accuracy.Accuracy`.
    :param original: the original's score.
    """
    score = float(scored["score"])
    loss = original - score if scored.get("loss") is None else float(scored["loss"])
    said = (
        f"accuracy {original:.4g} -> {score:.4g}, limit {original - max_drop:.4g}{_interval(scored)}{_apart(scored)}"
    )
    if loss > max_drop + _ROUNDING:
        return False, said
    if scored.get("broken"):
        return False, f"{scored['broken']} answers failed or are no numbers any more: {said}"
    highest = scored.get("loss_hi")
    if highest is not None and max_drop > 0 and float(highest) > _EXCLUDED * max_drop and not scored.get("same"):
        return False, (
            f"{scored.get('samples', 0)} requests are too few to exclude a loss of {_EXCLUDED * max_drop:.3g}: {said}"
        )
    return True, said


def _interval(scored: Mapping[str, Any]) -> str:
    if scored.get("loss_hi") is None:
        return ""
    loss = original_loss(scored)
    return f"; loss {loss:.3g} [{float(scored['loss_lo']):.3g}, {float(scored['loss_hi']):.3g}]"


def original_loss(scored: Mapping[str, Any]) -> float:
    """The loss that was measured request by request; 0 where none was."""
    return float(scored.get("loss") or 0.0)


def _apart(scored: Mapping[str, Any]) -> str:
    parts = []
    # Where a workload has a score of its own, whole answers (a ranking of hundreds) need not be the same.
    own = scored.get("kind") == "evaluate" and scored.get("deviation") is not None
    if scored.get("agreement") is not None and not own:
        parts.append(f"{float(scored['agreement']):.1%} of the answers say the same")
    if scored.get("deviation") is not None:
        parts.append(f"largest deviation {float(scored['deviation']):.2g}")
    return f"; {', '.join(parts)}" if parts else ""


def share_loss(losses: Sequence[float] | Any) -> Loss:
    """The mean of what single answers lost, with an interval.

    Student's t of the losses, to which is added what so many answers may have missed altogether: where none of n lost
    anything, the upper end is that of Wilson's interval of none of n, 3.84 / (n + 3.84).

    :param losses: ``(n,)``, each between -1 and 1.
    """
    each = np.asarray(losses, dtype=np.float64)
    n = len(each)
    if n < 2:
        return Loss(float(each.sum()), -1.0, 1.0)
    value = float(each.mean())
    missed = _Z**2 / (n + _Z**2)
    half = sqrt((student_t(0.95, n - 1) * float(each.std(ddof=1))) ** 2 / n + missed**2)
    return Loss(value, value - half, value + half)


def paired_loss(
    score_of: Callable[[list[Any]], float], original: Sequence[Any], new: Sequence[Any], *, seconds: float = 2.0
) -> Loss | None:
    """The loss of a score from ``original`` to ``new`` answers, with an interval, for any score of answers.

    What a group of requests adds to the loss is what the score gains when their answers are the original's again
    and all others stay new. Groups are taken for a sample of all that could be asked: their spread gives the
    variance (the jackknife's argument, Tukey 1958), to which that of two requests' worth is added, as Agresti and
    Coull (1998) do for shares, so that no loss seen is not "no loss for sure". For n requests and a share that did
    not change, the upper end is about 3 / n.

    :param score_of: the score of answers in a fixed order; it must depend on nothing else.
    :param seconds: about how long it may take; groups are fewer where the score takes long.
    :returns: ``None`` for fewer than eight requests.
    """
    n = len(new)
    if n < _LEAST_GROUPS or n != len(original):
        return None
    started = perf_counter()
    after, before = score_of(list(new)), score_of(list(original))
    each_s = max((perf_counter() - started) / 2, 1e-9)
    groups = int(min(max(seconds / each_s, _LEAST_GROUPS), _MOST_GROUPS, n))
    added = np.empty(groups)
    for group in range(groups):
        mixed = list(new)
        mixed[group::groups] = original[group::groups]
        added[group] = score_of(mixed) - after
    value = before - after
    seen = np.abs(added[added != 0])
    one = float(seen.min()) if len(seen) else max(abs(before), 1.0 if 0 <= before <= 1 else 0.0) / n
    variance = groups / (groups - 1) * float(((added - added.mean()) ** 2).sum()) + 2 * one**2
    half = student_t(0.95, groups - 1) * sqrt(variance)
    return Loss(value, value - half, value + half)
