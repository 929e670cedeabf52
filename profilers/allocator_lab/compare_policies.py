"""Replay allocation traffic through models of allocators, and see which would have stalled or failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latfix.profilers.allocator_lab.arena_policies import BestFit, Buddy, SizeClasses
from latfix.profilers.allocator_lab.free_blocks import Block
from latfix.profilers.allocator_lab.policy import OutOfMemory, Policy
from latfix.profilers.allocator_lab.torch_caching import CachingAllocator, parse_settings
from latfix.profilers.allocator_lab.torch_expandable import ExpandableAllocator
from latfix.profilers.allocator_lab.trace import AllocationTrace
from latfix.results.fragmentation import Fragmentation, PolicyResult

#: Settings of torch's allocator that are compared unless others are asked for; the first is what it does by default.
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
)
#: Allocators that a pool of one's own could have.
ARENAS = ("one reserved pool, best fit", "buddy", "size classes")


def policy_of(name: str, capacity: int) -> Policy:
    """A model by the name of an arena, or by settings of ``PYTORCH_ALLOC_CONF``.

    :raises InputError: settings that torch would not take.
    """
    if name in ARENAS:
        return (BestFit, Buddy, SizeClasses)[ARENAS.index(name)](capacity)
    settings = parse_settings(name)
    label = name or "torch's defaults"
    if settings.expandable:
        return ExpandableAllocator(capacity, settings, name=label)
    return CachingAllocator(capacity, settings, name=label)


def compare(trace: AllocationTrace, capacity: int, names: Sequence[str] = (*SETTINGS, *ARENAS)) -> list[PolicyResult]:
    """Replay a trace through several policies.

    :param capacity: bytes that the device has.
    :raises InputError: settings that torch would not take.
    """
    policies = [(policy_of(name, capacity), "" if name in ARENAS else name) for name in names]
    return [replay(trace, capacity, policy, setting) for policy, setting in policies]


#: Free blocks that cannot be given back are counted once in so many allocations: counting walks all of them.
_COUNTED_EACH = 16


def replay(trace: AllocationTrace, capacity: int, policy: Policy, setting: str = "") -> PolicyResult:
    """Replay a trace through one policy."""
    result = PolicyResult(policy=policy.name, setting=setting)
    live: dict[int, Block] = {}
    counters = policy.counters
    internal = external = 0.0
    for position, event in enumerate(trace.events):
        if event.is_free:
            block = live.pop(event.key, None)
            if block is not None:  # not one that could not be had
                policy.free(block)
            continue
        result.allocations += 1
        try:
            live[event.key] = policy.allocate(event.size, event.stream)
        except OutOfMemory:
            result.failed += 1
            left = capacity - counters.granted
            if left >= event.size:
                result.failed_fragmented += 1
                if result.worst is None:
                    result.worst = {
                        "position": position,
                        "bytes": event.size,
                        "free_bytes": left,
                        "largest_free_block": max(policy.free_bytes()[1], capacity - counters.reserved),
                    }
        free, largest = policy.free_bytes()
        external += 1.0 - largest / free if free else 0.0
        internal += 1.0 - counters.asked / counters.granted if counters.granted else 0.0
        result.peak_reserved = max(result.peak_reserved, counters.reserved)
        if result.allocations % _COUNTED_EACH == 0:
            result.peak_stuck = max(result.peak_stuck, policy.stuck_bytes())
    result.retries, result.device_allocs = counters.retries, counters.device_allocs
    result.device_frees = counters.device_frees
    if result.allocations:
        result.internal, result.external = internal / result.allocations, external / result.allocations
    return result


def fragmentation(trace: AllocationTrace, capacity: int, results: Sequence[PolicyResult]) -> Fragmentation:
    """The results of policies on a trace, with the answer."""
    return Fragmentation(
        source=trace.source,
        events=len(trace.events),
        peak_bytes=trace.peak_bytes,
        largest_bytes=trace.largest,
        capacity_bytes=capacity,
        recorded=dict(trace.recorded),
        policies=tuple(results),
        answer=answer(results, trace.recorded),
    )


def answer(results: Sequence[PolicyResult], recorded: Mapping[str, int] | None = None) -> str:
    """Which of torch's settings would have avoided the stalls and failures of the first one, in a sentence.

    :param recorded: what the real allocator did (:attr:`AllocationTrace.recorded`).
    """
    first, *others = results
    if not first.retries and not first.failed:
        stalled = (recorded or {}).get("retries", 0) + (recorded or {}).get("ooms", 0)
        if not stalled:
            return f"{first.policy}: no allocation stalls or fails."
        return (
            f"{first.policy}: no allocation stalls or fails in the model, but {_many(stalled, 'did', '')} in the "
            "recording: the process had less memory than --capacity says."
        )
    said = f"{first.policy}: {_many(first.retries, 'stall')}, {_many(first.failed, 'failure')}"
    if first.failed:
        said += f" ({first.failed_fragmented} of them with enough memory free in total)"
    settings = sorted((result for result in others if result.setting), key=badness)
    if not settings or badness(settings[0])[:2] >= badness(first)[:2]:
        return f"{said}. None of the settings that were tried does better."
    best, *rest = settings
    said += f". With {best.setting} {left_over(best)} would be left ({_figures(first, best)})"
    said += "".join(f"; with {each.setting} {left_over(each)}" for each in rest)
    return f"{said}."


def left_over(result: PolicyResult) -> str:
    """The failures and stalls of a policy, in words."""
    left = [_many(number, word) for number, word in ((result.failed, "failure"), (result.retries, "stall")) if number]
    return " and ".join(left) if left else "none"


def badness(result: PolicyResult) -> tuple[int, int, int, int]:
    """What policies are ordered by, the best first: failures, stalls, calls of the device, memory held."""
    return (result.failed, result.retries, result.device_allocs + result.device_frees, result.peak_reserved)


def _figures(first: PolicyResult, best: PolicyResult) -> str:
    calls = [each.device_allocs + each.device_frees for each in (first, best)]
    held = [each.peak_reserved / 2**20 for each in (first, best)]
    return f"calls of the device {calls[0]:,} -> {calls[1]:,}, held at most {held[0]:,.0f} -> {held[1]:,.0f} MiB"


def _many(number: int, word: str, more: str = "s") -> str:
    return f"{number:,} {word}{'' if number == 1 else more}"


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
