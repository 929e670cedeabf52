"""What a machine did to one replay more than to the other, taken out of the rounds' ratios.

A control variate (Lavenberg and Welch, 1981): beside each round's ratio something is measured that has nothing to do
with what is asked, is zero on average, and moves with what disturbs the ratio. Here it is what compute differed by in
a round's replays beyond what it differs by when the same batches are computed in turns: the machine's drift from
one replay to the other. How much of it shows in the ratio is fitted by least squares over the rounds, and costs a
degree of freedom. Where a service is compared with itself, ratio and control are symmetric about zero together, so
that taking a share of the one from the other favors no arm, whatever the share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats

#: Fewer rounds do not show how ratio and control go together.
_FEWEST = 6
#: A queue makes more of a slower machine than its share; beyond that a slope is chance.
_STEEPEST = 4.0


@dataclass(frozen=True, slots=True)
class Control:
    """What to divide the new arm's latencies by, round by round.

    :param shifts: ``(rounds,)`` logarithms of the divisors.
    :param slope: the share of the control that shows in the ratio; 0: nothing is taken out.
    :param wider: by how much the fit widens an interval of the mean ratio.
    """

    shifts: Floats
    slope: float = 0.0
    wider: float = 1.0

    @property
    def fitted(self) -> int:
        """Degrees of freedom that the fit has taken."""
        return int(self.slope != 0)


def fit_control(each: Floats, control: Floats) -> Control:
    """The control fitted to the rounds' log ratios.

    :param each: ``(rounds,)``, one statistic's.
    :param control: ``(rounds,)``; NaN where it was not measured, which takes nothing out of that round.
    """
    known = np.isfinite(each) & np.isfinite(control)
    none = Control(np.zeros(len(each)))
    if np.count_nonzero(known) < _FEWEST:
        return none
    beside, ratio = control[known], each[known]
    apart = beside - beside.mean()
    square = float(apart @ apart)
    if square <= 0:
        return none
    slope = min(float(apart @ ratio) / square, _STEEPEST)
    if slope <= 0:  # a slower machine makes nothing faster
        return none
    leverage = len(beside) * float(beside.mean()) ** 2 / square
    return Control(np.where(known, slope * np.nan_to_num(control), 0.0), slope, math.sqrt(1.0 + leverage))
