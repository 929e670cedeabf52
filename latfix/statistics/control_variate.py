"""Removes the machine's drift between two replays from the rounds' ratios.

A control variate (Lavenberg and Welch, 1981) is measured along with each round's ratio, and moves with what disturbs
it. Here it is the machine's pace: the logarithm of the time that a small fixed computation takes during one replay of
a round over the other. How much of it shows in the ratio is fitted by least squares over the rounds, which costs a
degree of freedom. If a service is compared with itself, ratio and control are jointly symmetric about zero, so that
subtracting any share of the control favors no arm.

If services differ, the control need not be zero on average: one that uses more of a core's shared parts slows the
fixed computation next to it. If the control's 95 % interval does not hold
zero, it measures more than drift and nothing is removed. So the mean ratio never leaves its own 95 % interval: the
shift is at most ``slope * t * sd(control) / sqrt(n)``, and the slope at most ``sd(ratio) / sd(control)``. As drift
alone causes such a control in 5 % of comparisons, and those are the ones in which it moved the ratio most, the plain
ratio is then tested at a quarter of the level, which adds at most that to the error rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Floats
from latfix.statistics.distributions import student_t
from latfix.statistics.score_bounds import between

#: Fewer rounds do not show how ratio and control are related.
_FEWEST = 6
#: A queue amplifies a slower machine; a steeper slope than this is chance.
_STEEPEST = 4.0
#: Share of the level at which the plain ratio is tested if its control is not zero on average.
_STRICTER = 0.25


@dataclass(frozen=True, slots=True)
class Control:
    """What is removed from the rounds' log ratios.

    :param shifts: ``(rounds,)``, subtracted.
    :param slope: the share of the control that shows in the ratio; 0: nothing is removed.
    :param wider: factor by which the fit widens an interval of the mean ratio.
    :param level: factor on the error rate of a test of the ratio.
    """

    shifts: Floats
    slope: float = 0.0
    wider: float = 1.0
    level: float = 1.0

    @property
    def fitted(self) -> int:
        """Degrees of freedom used by the fit."""
        return int(self.slope != 0)

    def between(self, each: Floats, level: float) -> tuple[float, float]:
        """:func:`score_bounds.between` of corrected log ratios, including the cost of the fit."""
        mean, half = between(each - self.shifts, level * self.level, fitted=self.fitted)
        return mean, half * self.wider


def fit_control(each: Floats, control: Floats) -> Control:
    """Fit the control to the rounds' log ratios.

    :param each: ``(rounds,)``, of one statistic.
    :param control: ``(rounds,)``; NaN if not measured, which leaves that round unchanged.
    """
    known = np.isfinite(each) & np.isfinite(control)
    none = Control(np.zeros(len(each)))
    if np.count_nonzero(known) < _FEWEST:
        return none
    measured, ratio = control[known], each[known]
    count, mean = len(measured), float(measured.mean())
    apart = measured - mean
    square = float(apart @ apart)
    if square <= 0:
        return none
    slope = min(float(apart @ ratio) / square, _STEEPEST)
    if slope <= 0:  # a slower machine makes nothing faster
        return none
    leverage = count * mean**2 / square
    if leverage * (count - 1) > student_t(0.95, count - 1) ** 2:
        return replace(none, level=_STRICTER)
    return Control(np.where(known, slope * np.nan_to_num(control), 0.0), slope, math.sqrt(1.0 + leverage))
