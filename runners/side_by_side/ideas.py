"""What ``latfix try`` compares: the unmodified workload, and changes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latfix.config.plan import Plan
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import InputError
from latfix.runners.host.apply_plan import with_plan
from latfix.settings import RunnerSettings

#: Name of the unmodified workload.
AS_IT_IS = "as it is"
#: Name of the arm with all given settings.
TOGETHER = "all sets together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """One arm.

    :param name: unique; tables show it.
    :param spec: provides the adapter; its traffic and objective are ignored.
    :param fixes: ids of the fixes that ``settings`` come from.
    """

    name: str
    spec: WorkloadSpec
    settings: RunnerSettings
    fixes: tuple[str, ...] = ()

    @property
    def service(self) -> tuple[str, RunnerSettings]:
        """What is replayed: the adapter or model file, and its settings."""
        return self.spec.entry, self.settings


def idea_of_changes(name: str, base: Idea, changes: Mapping[str, Any]) -> Idea:
    """The unmodified workload with some settings replaced."""
    return replace(base, name=name, settings=base.settings.with_overrides(changes))


def idea_of_profile(base: Idea, spec: WorkloadSpec) -> Idea:
    """A profile's adapter and settings, with the traffic and objective of the unmodified workload."""
    held = replace(spec, name=base.spec.name, objective=base.spec.objective, traffic=base.spec.traffic)
    return Idea(name=f"profile {spec.profile}", spec=held, settings=spec.settings)


def idea_of_plan(base: Idea, path: Path) -> tuple[Idea, Plan]:
    """The unmodified workload with a plan's settings, and the plan.

    :raises InputError: it cannot be read.
    """
    settings, plan = with_plan(base.settings, path)
    fixes = tuple(fix.id for fix in plan.fixes)
    return replace(base, name=f"plan {path}", settings=settings, fixes=fixes), plan


def together(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All changes in one.

    :raises InputError: there are fewer than two, or two of them change a setting to different values.
    """
    if len(changes) < 2:
        raise InputError(f"--combine: found {len(changes)} --set; expected two or more to combine")
    found: dict[str, Any] = {}
    for each in changes:
        for key, value in each.items():
            if key == "env":
                value = {**found.get(key, {}), **value}
            elif found.get(key, value) != value:
                raise InputError(
                    f"--combine: found {key}={found[key]} and {key}={value}; expected settings without a conflict"
                )
            found[key] = value
    return found


def distinct(ideas: Sequence[Idea], say: Callable[[str], None]) -> list[Idea]:
    """The ideas without those that run the same service as an earlier one; ``say`` is called with a line for each."""
    found: list[Idea] = []
    for idea in ideas:
        same = next((each for each in found if each.service == idea.service), None)
        if same is None:
            found.append(idea)
        else:
            say(f"warning: {idea.name!r} and {same.name!r} are the same service, which is replayed once")
    return found
