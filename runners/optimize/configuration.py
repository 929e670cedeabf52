"""A whole configuration: the fixes that were chosen, each with the settings that it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.profilers.forecast.settings_forecast import Serving, removable
from latfix.runners.fixes import Fix
from latfix.settings import RunnerSettings

#: Settings by which batches get more or fewer cores: what they do to compute is measured, not foretold.
_SHARING = frozenset({"workers", "intra_op_threads"})
#: Settings that several fixes may change: they are merged, or the later one looks at what is there.
_SHARED = frozenset({"env", "keep_precision", "warmup_shapes"})


@dataclass(frozen=True, slots=True)
class Choice:
    """One fix and the settings that it changes."""

    fix: Fix
    change: Mapping[str, Any]

    @property
    def measured(self) -> bool:
        """Whether the same batches must be computed with it to know what it does: it changes how the model runs, or
        how many cores it runs on."""
        return self.fix.compute != 1.0 or not _SHARING.isdisjoint(self.change)

    @property
    def words(self) -> str:
        """As people call it: the id, and the numbers where there are several to choose from."""
        if self.fix.options is None:
            return self.fix.id
        return f"{self.fix.id} ({', '.join(f'{name} = {value}' for name, value in self.change.items())})"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings as choices made of the first ones.

    :param first: the settings that the choices change.
    """

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
        """Ids, in order."""
        return tuple(choice.fix.id for choice in self.choices)

    @property
    def measured(self) -> tuple[Choice, ...]:
        """The choices that the time of a batch depends on."""
        return tuple(choice for choice in self.choices if choice.measured)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from others."""
        return tuple(choice.words for choice in self.choices)

    @property
    def words(self) -> str:
        """As people call it."""
        return ", ".join(self.key) or "as it is"

    def without(self, fix: str) -> Configuration:
        """All choices but one."""
        return Configuration(self.first, tuple(choice for choice in self.choices if choice.fix.id != fix))

    def serving(self, cost: BatchCost | None) -> Serving:
        """For the forecast.

        :param cost: of its measured choices.
        """
        settings = self.settings
        removed = frozenset(cause for choice in self.choices for cause in choice.fix.removes)
        return Serving(
            max_batch=settings.max_batch_size,
            window_ns=settings.batch_window_ms * 1e6,
            workers=settings.workers,
            prepare_threads=settings.prepare_threads,
            by_length=settings.batch_order == "length",
            cost=cost,
            without=removable(removed),
        )


#: Why a fix does not apply to settings; empty where it does.
Obstacle = Callable[[Fix, RunnerSettings], str]


def compose(first: RunnerSettings, choices: Sequence[Choice], obstacle: Obstacle) -> Configuration:
    """As many of the choices as go together, the earlier ones before the later ones.

    A fix's preconditions are asked again at the settings that those before it leave: what the precision, the backend,
    the batches are by then decides whether it still applies.
    """
    made = Configuration(first)
    for choice in choices:
        taken = {name for each in made.choices for name in each.change}
        if taken & choice.change.keys() - _SHARED or (made.choices and obstacle(choice.fix, made.settings)):
            continue
        made = Configuration(first, (*made.choices, choice))
    return made
