"""The accuracy guard: accepts or rejects a fix by its loss of accuracy and the interval of that loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from time import perf_counter
from typing import Any

import numpy as np

from latfix.formatting import count
from latfix.statistics.decision import Interval
from latfix.statistics.distributions import student_t

#: A fix is also rejected if a loss of this many times the limit cannot be excluded.
_EXCLUDED = 2.0
#: Tolerance of a difference of two scores: 0.9 - 0.89 is more than 0.01 in floating point.
_ROUNDING = 1e-9
_Z = 1.96
_LEAST_GROUPS, _MOST_GROUPS = 8, 64


def judge(scored: Mapping[str, Any], original: float, max_drop: float) -> tuple[bool | None, str]:
    """True if a service is accurate enough, and the figures in one sentence.

    It is not if the loss exceeds ``max_drop`` or answers broke. It is undecided (``None``) if the sample is too small
    to exclude a loss of twice ``max_drop``, even if all of its answers agree. The sample does not matter if answers
    differ no more than the original's own do (``same``). If no loss is allowed at all, which no sample can prove, the
    estimate alone decides.

    :param scored: fields of :class:`latfix.runners.measure.accuracy.Accuracy`.
    :param original: the original's score.
    """
    score = float(scored["score"])
    loss = original - score if scored.get("loss") is None else float(scored["loss"])
    highest = scored.get("loss_hi")
    interval = "" if highest is None else f"; loss {loss:.3g} [{float(scored['loss_lo']):.3g}, {float(highest):.3g}]"
    figures = f"accuracy {original:.4g} -> {score:.4g}, limit {original - max_drop:.4g}{interval}{_apart(scored)}"
    if scored.get("broken"):
        return False, f"{count(scored['broken'])} answers failed or became NaN or infinite: {figures}"
    if loss > max_drop + _ROUNDING:
        return False, figures
    samples, excluded = scored.get("samples", 0), _EXCLUDED * max_drop
    undecided = highest is not None and float(highest) > excluded and not scored.get("same")
    if undecided and not samples:
        return None, "no answer could be compared: the original's differ each time, are None, or fail alone"
    if undecided and max_drop > 0:
        return None, f"{count(samples)} requests are too few to exclude a loss of {excluded:.3g}: {figures}"
    return True, figures


def too_few_to_tell(loss: Interval, max_drop: float | None) -> bool:
    """True if the loss is allowed, but the sample is too small to exclude twice the limit."""
    if max_drop is None or max_drop <= 0:
        return False
    return loss.value <= max_drop + _ROUNDING and loss.hi > _EXCLUDED * max_drop


def score_of(scored: Mapping[str, Any]) -> float | None:
    """The score; ``None`` if it is that of answers of which none could be compared."""
    return float(scored["score"]) if scored.get("samples") or scored.get("kind") == "evaluate" else None


def _apart(scored: Mapping[str, Any]) -> str:
    parts = []
    # If a workload has a score of its own, whole answers (a ranking of hundreds) need not be the same.
    own = scored.get("kind") == "evaluate" and scored.get("deviation") is not None
    if scored.get("agreement") is not None and not own:
        parts.append(f"{100 * float(scored['agreement']):.1f} % of the answers agree")
    if scored.get("deviation") is not None:
        parts.append(f"largest deviation {float(scored['deviation']):.2g}")
    return f"; {', '.join(parts)}" if parts else ""


def share_loss(losses: Sequence[float] | Any) -> Interval:
    """Mean loss of single answers, with an interval; below 0 for a gain.

    Student's t of the losses, combined with what a sample of this size may miss altogether: if none of n answers lost
    anything, the upper end is that of Wilson's interval for none of n, 3.84 / (n + 3.84).

    :param losses: ``(n,)``, each between -1 and 1.
    """
    each = np.asarray(losses, dtype=np.float64)
    n = len(each)
    if n < 2:
        return Interval(value=float(each.sum()), lo=-1.0, hi=1.0)
    value = float(each.mean())
    missed = _Z**2 / (n + _Z**2)
    half = sqrt((student_t(0.95, n - 1) * float(each.std(ddof=1))) ** 2 / n + missed**2)
    return Interval(value=value, lo=max(value - half, -1.0), hi=min(value + half, 1.0))


def paired_loss(
    score_of: Callable[[list[Any]], float], original: Sequence[Any], new: Sequence[Any], *, seconds: float = 2.0
) -> Interval | None:
    """The loss of any score from ``original`` to ``new`` answers, with an interval.

    A group of requests adds to the loss what the score gains if their answers are the original's and all others stay
    new. The spread over groups gives the variance (jackknife, Tukey 1958). The variance of two requests is added, as
    Agresti and Coull (1998) do for shares, so that a sample without a loss does not prove that there is none: for n
    requests and a share that did not change, the upper end is about 3 / n.

    :param score_of: the score of answers in a fixed order; it must depend on nothing else.
    :param seconds: about how long it may take; a slow score gets fewer groups.
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
    return Interval(value=value, lo=value - half, hi=value + half)
