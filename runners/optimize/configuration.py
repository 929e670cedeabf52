"""A whole configuration: the chosen fixes, each with the settings that it changes; and ways that were measured.

A replay takes most of a minute and tests one configuration. The same batches on two services show within seconds how
their time changes with their content, and the forecast predicts every configuration that runs the model this way.
Answers are scored only when the best configuration is about to be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from latfix.errors import LatfixError
from latfix.formatting import from_ns, ratio, significant
from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.profilers.forecast.recorded_work import removable
from latfix.profilers.forecast.settings_forecast import Forecast, Serving
from latfix.queueing.adaptive_batching import Bounds
from latfix.runners.fixes import Fix
from latfix.settings import RunnerSettings

if TYPE_CHECKING:
    from latfix.runners.optimize.measurement import Bench
    from latfix.runners.replay.arm import Arm

#: Settings that change the cores of a batch: their effect on compute is measured, not predicted.
_SHARING = frozenset({"workers", "intra_op_threads", "shared_model"})
#: Settings that several fixes may change: they are merged, or the later fix reads the earlier value.
_SHARED = frozenset({"env", "keep_precision", "warmup_shapes"})
#: A way cannot gain if even its best batch takes this multiple of the baseline's time.
_HOPELESS = 1.02
#: Batches are slowed down by other workers if they take at least this many times as long next to them.
_SLOWED = 1.02
#: The first batch of a new shape takes longer if that is at least this share of a batch's time.
_NEW_SHAPE = 0.1


@dataclass(frozen=True, slots=True)
class Choice:
    """One fix and the settings that it changes."""

    fix: Fix
    change: Mapping[str, Any]

    @property
    def changes_model(self) -> bool:
        """True if it changes how the model runs: its precision, backend, compilation or layout."""
        return self.fix.compute != 1.0

    @property
    def splits_cores(self) -> bool:
        """True if it changes only on how many cores a batch runs."""
        return not (self.changes_model or _SHARING.isdisjoint(self.change))

    @property
    def measured(self) -> bool:
        """True if its effect on the time of a batch must be measured."""
        return self.changes_model or self.splits_cores

    @property
    def words(self) -> str:
        """Its name in messages: the id, with the values if there are several to choose from."""
        if self.fix.options is None:
            return self.fix.id
        return f"{self.fix.id} ({', '.join(f'{name} = {value}' for name, value in self.change.items())})"

    @property
    def runs(self) -> str:
        """What it does to the time of a batch: two fixes with the same split of the cores do the same."""
        split = {name: value for name, value in self.change.items() if name in _SHARING}
        return self.words if self.changes_model else str(sorted(split.items()))

    @property
    def suspect(self) -> str:
        """What is suspected if answers differ: its fix, or for all fixes that only regroup batches, the batches."""
        return "batches" if self.fix.mates_only else self.fix.id


@dataclass(frozen=True, slots=True)
class Configuration:
    """Choices on top of the first settings."""

    first: RunnerSettings
    choices: tuple[Choice, ...] = ()

    @property
    def settings(self) -> RunnerSettings:
        """All choices applied, in order."""
        settings = self.first
        for choice in self.choices:
            settings = settings.with_overrides(choice.change)
        return settings

    @property
    def fixes(self) -> tuple[str, ...]:
        """Ids of the fixes, in order."""
        return tuple(choice.fix.id for choice in self.choices)

    @property
    def measured(self) -> tuple[Choice, ...]:
        """Choices that change the time of a batch."""
        return tuple(choice for choice in self.choices if choice.measured)

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies it among other configurations."""
        return tuple(choice.words for choice in self.choices)

    @property
    def words(self) -> str:
        """Its name in messages."""
        return ", ".join(self.key) or "unmodified"

    def change_of(self, fix: str) -> dict[str, Any]:
        """Settings that one of its fixes changes."""
        return next(dict(choice.change) for choice in self.choices if choice.fix.id == fix)

    def without(self, fix: str) -> Configuration:
        """All choices but one."""
        return Configuration(self.first, tuple(choice for choice in self.choices if choice.fix.id != fix))

    def serving(self, cost: BatchCost | None) -> Serving:
        """Input of the forecast.

        :param cost: how its measured choices change the time of batches.
        """
        settings = self.settings
        removed = frozenset(cause for choice in self.choices for cause in choice.fix.removes)
        in_steps = settings.batching == "continuous"
        # If requests shared steps in the record too, each has its time at its own place there.
        places = settings.max_batch_size if self.first.batching == "continuous" else 1
        return Serving(
            max_batch=settings.max_batch_size // places,
            window_ns=0.0 if in_steps else settings.batch_window_ms * 1e6,
            workers=settings.workers * places,
            prepare_threads=settings.prepare_threads,
            adaptive=Bounds.of(settings),
            by_length=settings.batch_order == "length",
            in_steps=in_steps and places == 1,
            shortest=settings.schedule == "shortest",
            ageing_ns=int(settings.ageing_ms * 1e6),
            cost=cost,
            warm_shapes=settings.warmup_shapes,
            without=removable(removed),
        )


#: Why a fix does not apply to settings; empty if it does.
Obstacle = Callable[[Fix, RunnerSettings], str]


def compose(first: RunnerSettings, choices: Sequence[Choice], obstacle: Obstacle) -> Configuration:
    """As many of the choices as are compatible; earlier ones take precedence.

    The preconditions of each fix are checked on the settings that the fixes before it leave: precision, backend or
    batches may have changed.
    """
    configuration = Configuration(first)
    for choice in choices:
        taken = {name for each in configuration.choices for name in each.change}
        if taken & choice.change.keys() - _SHARED:
            continue
        if configuration.choices and obstacle(choice.fix, configuration.settings):
            continue
        configuration = Configuration(first, (*configuration.choices, choice))
    return configuration


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


def counted_new_shape(new_shape_ns: float, took: Sequence[float]) -> float:
    """What the first batch of a new shape takes longer, 0 if that is little.

    :param took: nanoseconds of some batches, NaN if one failed.
    """
    return new_shape_ns if new_shape_ns > _NEW_SHAPE * float(np.nanmedian(took)) else 0.0


def measure(
    bench: Bench, base: Arm, way: Configuration, batches: Sequence[Sequence[int]], forecast: Forecast
) -> Alternative:
    """Compute the batches on both services in turns.

    :param way: the first settings with the choices to measure.
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
    found = forecast.cost(batches, paces.before, paces.after)
    if found is None:
        return Alternative(choices=way.choices, status="not_effective", reason="no batch was computed with it")
    bounds = f"{significant(found.least)} to {significant(found.most)}"
    reason = f"the same batches take {ratio(found.typical)} ({bounds}) as long"
    if paces.together >= _SLOWED:
        found = replace(found, together=paces.together)
        reason += f", {ratio(paces.together)} of that next to other workers"
    if counted := counted_new_shape(paces.new_shape_ns, paces.after):
        found = replace(found, new_shape_ns=counted)
        reason += f", the first of a new shape {from_ns(counted)} longer"
    faster = found.least < _HOPELESS or any(choice.splits_cores for choice in way.choices)
    return Alternative(choices=way.choices, cost=found, status="ready" if faster else "no_gain", reason=reason)
