"""Ways to run the model, each measured on the same few batches before anything is replayed.

A replay takes most of a minute and tests one configuration. The same batches on two services show within seconds how
their time changes with their content, and the forecast predicts every configuration that runs the model this way.
Answers are scored only when the best configuration is about to be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latfix.errors import LatfixError
from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.runners.optimize.configuration import Choice, Configuration
from latfix.runners.optimize.measurement import Bench
from latfix.runners.replay.arm import Arm

#: A way cannot gain if even its best batch takes this multiple of the baseline's time.
_HOPELESS = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A measured way to run the model.

    :param cost: how the time of batches changes; ``None`` if it did not run.
    :param status: ``ready``, or why it is out: ``no_gain``, ``not_effective``.
    :param reason: the figures, in a sentence.
    """

    choices: tuple[Choice, ...]
    cost: BatchCost | None = None
    status: str = "ready"
    reason: str = ""


def measure(
    bench: Bench,
    base: Arm,
    way: Configuration,
    batches: Sequence[Sequence[int]],
    cost: Callable[[Sequence[Sequence[int]], Sequence[float], Sequence[float]], BatchCost | None],
) -> Alternative:
    """Compute the batches on both services in turns.

    :param way: the first settings with the choices to measure.
    :param cost: :meth:`latfix.profilers.forecast.settings_forecast.Forecast.cost`.
    :raises LatfixError: the service failed with its first settings.
    """
    fixes = [choice.fix for choice in way.choices]
    arm = bench.arm(f"pace-{'-'.join(way.fixes)}", way.settings, way.fixes, alone=bench.room.alone_with(fixes))
    try:
        paces = bench.retry_alone(arm, lambda: bench.paces(base, arm, batches))
    except LatfixError as error:
        if base.failed:
            raise
        reason = f"the service did not run with it: {error.message}"
        return Alternative(choices=way.choices, status="not_effective", reason=reason)
    finally:
        arm.close()
    found = cost(batches, *paces)
    if found is None:
        return Alternative(choices=way.choices, status="not_effective", reason="no batch was computed with it")
    reason = f"the same batches take x{found.typical:.2f} ({found.least:.2f} to {found.most:.2f}) as long"
    faster = found.least < _HOPELESS or any(choice.fix.compute == 1.0 for choice in way.choices)
    return Alternative(choices=way.choices, cost=found, status="ready" if faster else "no_gain", reason=reason)
