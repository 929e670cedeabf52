"""Terminal report of ``latfix fragmentation``."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import count, counted, share, significant
from latfix.reports.terminal.widgets import Cell, Column, FittedTable, Portable, safe
from latfix.results.fragmentation import Fragmentation

_GIB, _MIB = 1 << 30, 1 << 20
_FIGURES = ("failed", "stalls", "calls", "held", "stuck", "int.", "ext.")


def render_fragmentation(found: Fragmentation) -> RenderableType:
    """The answer, then policies side by side."""
    rows: list[list[Cell]] = []
    for result in found.policies:
        bad = "red" if result.failed else "yellow" if result.retries else ""
        rows.append(
            [
                safe(result.policy),
                Text(count(result.failed), style=bad),
                Text(count(result.retries), style=bad),
                count(result.device_allocs + result.device_frees),
                _short(result.peak_reserved),
                _short(result.peak_stuck),
                share(result.internal),
                share(result.external),
            ]
        )
    table = FittedTable([Column("policy", right=False), *map(Column, _FIGURES)], rows)
    parts: list[RenderableType] = [Text.assemble(safe(found.answer, "bold", limit=600)), Text(), table]
    worst = found.policies[0].worst if found.policies else None
    if worst:
        parts += [
            Text(),
            safe(
                f"First failed allocation: {size(worst['bytes'])} at event {count(worst['position'])}, with "
                f"{size(worst['free_bytes'])} free, of which {_largest_piece(worst)}."
            ),
        ]
    recorded = found.recorded
    if recorded:
        parts.append(
            Text(
                f"\nIn the recording: {counted(recorded.get('retries', 0), 'stall')}, "
                f"{counted(recorded.get('ooms', 0), 'failure')}, "
                f"{counted(recorded.get('device_allocs', 0) + recorded.get('device_frees', 0), 'device call')}."
            )
        )
    parts += [Text(), safe(_how(found), "dim", limit=1000)]
    return Portable(Group(*parts))


def size(value: float) -> str:
    """Bytes with their unit: ``3.72 GiB``, ``178 MiB``."""
    return f"{significant(value / _GIB)} GiB" if value >= _GIB else f"{significant(value / _MIB)} MiB"


def _largest_piece(worst: Mapping[str, int]) -> str:
    """The largest free piece at a failure: a free block, or memory of the device that the allocator does not hold."""
    largest = worst["largest_free_block"]
    if largest > worst.get("untaken_bytes", 0):
        return f"{size(largest)} in one block"
    why = ", too little for the segment that the allocator would take" if largest >= worst["bytes"] else ""
    return f"{size(largest)} not yet taken from the device{why}"


def _short(value: float) -> str:
    """Bytes for a narrow column: ``3.7G``, ``178M``."""
    return f"{significant(value / _GIB, 2)}G" if value >= _GIB else f"{value / _MIB:.0f}M"


def _how(found: Fragmentation) -> str:
    return (
        f"{found.source}: {count(found.events)} events, peak {size(found.peak_bytes)} in use, largest allocation "
        f"{size(found.largest_bytes)}; device of {size(found.capacity_bytes)}. These are models, not measurements. "
        "failed: allocations; stalls: the allocator returns cached memory and waits for the device; calls: device "
        "allocations and frees; held: peak reserved; stuck: peak that is free but cannot be returned; int., ext.: "
        "internal and external fragmentation, mean over allocations."
    )
