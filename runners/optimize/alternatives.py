"""The ways to run the model, each measured on the same few batches before anything is replayed.

A replay takes most of a minute and tells of one configuration; the same batches on two services tell within seconds
how their time changes, by what is in them. With that the forecast tells of every configuration that runs the model
this way. Accuracy is measured of those that are foretold to gain, on the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latfix.errors import LatfixError
from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.runners.measure.accuracy_guard import judge
from latfix.runners.optimize.configuration import Choice, Configuration
from latfix.runners.optimize.measurement import Bench
from latfix.runners.replay.arm import Arm

#: A way that takes this much of the time of typical batches at the best of them is dropped unscored.
_HOPELESS = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A way to run the model, measured.

    :param choices: that make it; none is the way it runs now.
    :param cost: how the time of batches changes; ``None`` where it did not run.
    :param status: ``ready``, or why it is out: ``rejected`` for its answers, ``no_gain``, ``not_effective``.
    :param reason: the figures, in a sentence.
    :param scored: what measuring the accuracy told; empty where it was not.
    """

    choices: tuple[Choice, ...]
    cost: BatchCost | None = None
    status: str = "ready"
    reason: str = ""
    scored: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """With it; ``None`` where it was not measured."""
        return float(self.scored["score"]) if self.scored else None


def measure(
    bench: Bench,
    base: Arm,
    way: Configuration,
    *,
    batches: Sequence[Sequence[int]],
    cost: Callable[[Sequence[Sequence[int]], Sequence[float], Sequence[float]], BatchCost | None],
    gains: Callable[[BatchCost], bool],
    original: float,
    known: Alternative | None = None,
) -> Alternative:
    """Compute the batches on both services in turns; where that promises a gain, measure the accuracy.

    :param way: the first settings with the choices that are to be measured.
    :param cost: :meth:`latfix.profilers.forecast.settings_forecast.Forecast.cost`.
    :param gains: whether a way of that cost is foretold to be worth it.
    :param original: the accuracy of the first settings.
    :param known: the same precision and backend as measured on other cores, whose answers are the same.
    :raises LatfixError: the service failed as it is.
    """
    fixes = [choice.fix for choice in way.choices]
    arm = bench.arm(f"pace-{'-'.join(way.fixes)}", way.settings, way.fixes, alone=bench.room.alone_with(fixes))
    try:
        told = bench.apart_if_need_be(arm, lambda: bench.paces(base, arm, batches))
        found = cost(batches, *told)
        if found is None:
            return Alternative(choices=way.choices, status="not_effective", reason="no batch was computed with it")
        said = f"the same batches take {_said(found)} as long"
        if not gains(found):
            return Alternative(choices=way.choices, cost=found, status="no_gain", reason=said)
        scored = {} if known is None else known.scored
        if not scored and any(fix.changes_outputs for fix in fixes):
            scored = bench.accuracy(arm)
        if scored:
            enough, figures = judge(scored, original, bench.max_drop)
            said = f"{said}; {figures}"
            if not enough:
                return Alternative(choices=way.choices, cost=found, status="rejected", reason=said, scored=scored)
        return Alternative(choices=way.choices, cost=found, reason=said, scored=scored)
    except LatfixError as error:
        if base.failed:
            raise
        return Alternative(
            choices=way.choices, status="not_effective", reason=f"the service did not run with it: {error.message}"
        )
    finally:
        arm.close()


def hopeless(cost: BatchCost) -> bool:
    """Whether no batch that was measured became quicker."""
    return cost.least >= _HOPELESS


def _said(cost: BatchCost) -> str:
    return f"x{cost.typical:.2f} ({cost.least:.2f} to {cost.most:.2f})"
