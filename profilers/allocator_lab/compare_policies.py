"""Replays allocation traffic through models of allocators, and compares their stalls and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latfix.formatting import counted
from latfix.profilers.allocator_lab.arena_policies import BestFit, Buddy, SizeClasses
from latfix.profilers.allocator_lab.free_blocks import Block
from latfix.profilers.allocator_lab.policy import OutOfMemory, Policy
from latfix.profilers.allocator_lab.torch_caching import CachingAllocator, parse_settings
from latfix.profilers.allocator_lab.torch_expandable import ExpandableAllocator
from latfix.profilers.allocator_lab.trace import AllocationTrace
from latfix.results.fragmentation import Fragmentation, PolicyResult

#: Settings of torch's allocator that are compared by default; the first is torch's default.
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
)
_ARENA_TYPES: Mapping[str, Callable[[int], Policy]] = {
    "one reserved pool, best fit": BestFit,
    "buddy": Buddy,
    "size classes": SizeClasses,
}
#: Allocators for a custom pool.
ARENAS = tuple(_ARENA_TYPES)


def policy_of(name: str, capacity: int) -> Policy:
    """The model for an arena's name, or for settings of ``PYTORCH_ALLOC_CONF``.

    :raises InputError: settings that torch would reject.
    """
    if name in _ARENA_TYPES:
        return _ARENA_TYPES[name](capacity)
    settings = parse_settings(name)
    label = name or "torch's defaults"
    if settings.expandable:
        return ExpandableAllocator(capacity, settings, name=label)
    return CachingAllocator(capacity, settings, name=label)


def compare(trace: AllocationTrace, capacity: int, names: Sequence[str] = (*SETTINGS, *ARENAS)) -> list[PolicyResult]:
    """Replay a trace through several policies.

    :param capacity: bytes of the device.
    :raises InputError: settings that torch would reject.
    """
    policies = [(policy_of(name, capacity), "" if name in ARENAS else name) for name in names]
    return [replay(trace, capacity, policy, setting) for policy, setting in policies]


#: Allocations between two counts of free blocks that cannot be given back: counting walks all of them.
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
            if block is not None:  # None after a failed allocation
                policy.free(block)
            continue
        result.allocations += 1
        try:
            live[event.key] = policy.allocate(event.size, event.stream)
        except OutOfMemory:
            result.failed += 1
            left, untaken = capacity - counters.granted, capacity - counters.reserved
            if left >= event.size:
                result.failed_fragmented += 1
                if result.worst is None:
                    result.worst = {
                        "position": position,
                        "bytes": event.size,
                        "free_bytes": left,
                        "largest_free_block": max(policy.free_bytes()[1], untaken),
                        "untaken_bytes": untaken,
                    }
        free, largest = policy.free_bytes()
        external += 1.0 - largest / free if free else 0.0
        internal += 1.0 - counters.requested / counters.granted if counters.granted else 0.0
        result.peak_reserved = max(result.peak_reserved, counters.reserved)
        if result.allocations % _COUNTED_EACH == 0:
            result.peak_stuck = max(result.peak_stuck, policy.stuck_bytes())
    result.retries, result.device_allocs = counters.retries, counters.device_allocs
    result.device_frees = counters.device_frees
    if result.allocations:
        result.internal, result.external = internal / result.allocations, external / result.allocations
    return result


def fragmentation(trace: AllocationTrace, capacity: int, results: Sequence[PolicyResult]) -> Fragmentation:
    """The results of policies on a trace, with a sentence on them."""
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
    """A sentence on which of torch's settings would have avoided the stalls and failures of the first policy.

    :param recorded: counts of the real allocator (:attr:`AllocationTrace.recorded`).
    """
    first, *others = results
    if not first.retries and not first.failed:
        stalled = (recorded or {}).get("retries", 0) + (recorded or {}).get("ooms", 0)
        if not stalled:
            return f"{first.policy}: no allocation stalls or fails."
        return (
            f"{first.policy}: no allocation stalls or fails in the model, but {stalled:,} did in the "
            "recording: the process had less memory than --capacity."
        )
    text = f"{first.policy}: {counted(first.retries, 'stall')}, {counted(first.failed, 'failure')}"
    if first.failed:
        text += f" ({first.failed_fragmented} of them with enough memory free in total)"
    settings = sorted((result for result in others if result.setting), key=_cost)
    if not settings or _cost(settings[0])[:2] >= _cost(first)[:2]:
        return f"{text}. None of the tested settings does better."
    best, *rest = settings
    text += f". With {best.setting} {_remaining(best)} would remain ({_figures(first, best)})"
    text += "".join(f"; with {each.setting} {_remaining(each)}" for each in rest)
    return f"{text}."


def _remaining(result: PolicyResult) -> str:
    """The failures and stalls of a policy, in words."""
    counts = ((result.failed, "failure"), (result.retries, "stall"))
    return " and ".join(counted(number, word) for number, word in counts if number) or "none"


def _cost(result: PolicyResult) -> tuple[int, int, int, int]:
    """The order of policies, the best first: failures, stalls, device calls, memory held."""
    return (result.failed, result.retries, result.device_allocs + result.device_frees, result.peak_reserved)


def _figures(first: PolicyResult, best: PolicyResult) -> str:
    calls = [each.device_allocs + each.device_frees for each in (first, best)]
    held = [each.peak_reserved / 2**20 for each in (first, best)]
    return f"device calls {calls[0]:,} -> {calls[1]:,}, held at most {held[0]:,.0f} -> {held[1]:,.0f} MiB"


#: Settings to compare with the current ones. ``garbage_collection_threshold`` acts only with a limit, which another
#: fix sets.
TRIED: tuple[str, ...] = tuple(name for name in SETTINGS if name and not name.startswith("garbage_collection"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of replaying a history through the models.

    :param setting: the best one; empty if none is better than the current one, or nothing could be replayed.
    :param description: a sentence on all results, or the reason why there are none.
    """

    setting: str = ""
    description: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


def choose(trace: AllocationTrace, capacity: int, standing: str = "") -> Choice:
    """Replay a history through the current setting and through others added to it, and choose the best.

    They are compared by failures, stalls, device calls and memory held, in this order. A setting must reduce failures
    or stalls to replace the current one.

    :param capacity: bytes that the process could have.
    :param standing: the modelled settings with which the history was recorded.
    """
    names = (standing, *(f"{standing},{name}" if standing else name for name in TRIED if name != standing))
    results: list[PolicyResult] = compare(trace, capacity, names)
    best = min(results[1:], key=_cost, default=results[0])
    better = _cost(best)[:2] < _cost(results[0])[:2]
    return Choice(
        setting=best.setting if better else "",
        description=answer(results, trace.recorded),
        figures={"capacity_bytes": capacity, "policies": [result.to_json() for result in results]},
    )
