"""Which setting of torch's allocator a run's own history of allocations speaks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latfix.profilers.allocator_lab.compare_policies import SETTINGS, answer, badness, compare
from latfix.profilers.allocator_lab.trace import AllocationTrace
from latfix.results.fragmentation import PolicyResult

#: What is tried beside what stands. ``garbage_collection_threshold`` acts only with a limit, which another fix sets.
TRIED: tuple[str, ...] = tuple(name for name in SETTINGS if name and not name.startswith("garbage_collection"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What replaying a history through the models told.

    :param setting: the cheapest without stalls, or with the fewest; empty where none does better than what stands,
        or nothing could be replayed.
    :param said: what each would have done, or why there is no answer, in a sentence.
    """

    setting: str = ""
    said: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


def choose(trace: AllocationTrace, capacity: int, standing: str = "", tried: Sequence[str] = TRIED) -> Choice:
    """Replay a history through what stands and through other settings beside it, and take the best.

    They are compared by failures, stalls, calls of the device and memory held, in this order; one that leaves as many
    failures and stalls as what stands is no reason to change.

    :param capacity: bytes that the process could have.
    :param standing: the setting that the history was recorded with, where it is modelled.
    """
    names = (standing, *(f"{standing},{name}" if standing else name for name in tried if name != standing))
    results: list[PolicyResult] = compare(trace, capacity, names)
    best = min(results[1:], key=badness, default=results[0])
    better = badness(best)[:2] < badness(results[0])[:2]
    return Choice(
        setting=best.setting if better else "",
        said=answer(results, trace.recorded),
        figures={"capacity_bytes": capacity, "policies": [result.to_json() for result in results]},
    )
