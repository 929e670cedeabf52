"""Terminal report of ``latfix fragmentation``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import count, significant
from latfix.reports.terminal.widgets import Portable, add_figures, plain_table, safe
from latfix.results.fragmentation import Fragmentation

_GIB, _MIB = 1 << 30, 1 << 20
#: Minimum width of the column of policies, so that the table fits 80 columns.
_NAMES = 20


def render_fragmentation(found: Fragmentation) -> RenderableType:
    """The answer, then policies side by side."""
    table = plain_table()
    table.add_column("policy", overflow="fold", min_width=_NAMES)
    add_figures(table, "failed", "stalls", "calls", "held", "stuck", "int.", "ext.")
    for result in found.policies:
        bad = "red" if result.failed else "yellow" if result.retries else ""
        table.add_row(
            safe(result.policy),
            Text(count(result.failed), style=bad),
            Text(count(result.retries), style=bad),
            count(result.device_allocs + result.device_frees),
            _short(result.peak_reserved),
            _short(result.peak_stuck),
            f"{result.internal:.1%}",
            f"{result.external:.1%}",
        )
    parts: list[RenderableType] = [Text.assemble(safe(found.answer, "bold", limit=600)), Text(), table]
    worst = found.policies[0].worst
    if worst is not None:
        parts.append(
            Text(
                f"\nFirst failed allocation: {size(worst['bytes'])} at event {count(worst['position'])}, with "
                f"{size(worst['free_bytes'])} free, of which {size(worst['largest_free_block'])} in one block."
            )
        )
    recorded = found.recorded
    if recorded:
        parts.append(
            Text(
                f"\nIn the recording: {count(recorded['retries'])} stalls, {count(recorded['ooms'])} failures, "
                f"{count(recorded['device_allocs'] + recorded['device_frees'])} device calls."
            )
        )
    parts.append(Text(f"\n{_how(found)}", style="dim"))
    return Portable(Group(*parts))


def size(value: float) -> str:
    """Bytes with their unit: ``3.72 GiB``, ``178 MiB``."""
    return f"{significant(value / _GIB)} GiB" if value >= _GIB else f"{significant(value / _MIB)} MiB"


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
