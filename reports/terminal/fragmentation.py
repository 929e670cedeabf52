"""What ``latfix fragmentation`` found, on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import count, significant
from latfix.reports.terminal.widgets import Portable, add_figures, plain_table, safe
from latfix.results.fragmentation import Fragmentation

_GIB, _MIB = 1 << 30, 1 << 20
#: Columns of a terminal that names of policies get at least; all of them fit into 80.
_NAMES = 20


def render_fragmentation(found: Fragmentation) -> RenderableType:
    """Policies side by side, the answer first."""
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
                f"\nThe first that failed: {size(worst['bytes'])} at event {count(worst['position'])}, while "
                f"{size(worst['free_bytes'])} were free, {size(worst['largest_free_block'])} of them in one piece."
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
    """Bytes as people read them: ``3.72 GiB``, ``178 MiB``."""
    return f"{significant(value / _GIB)} GiB" if value >= _GIB else f"{significant(value / _MIB)} MiB"


def _short(value: float) -> str:
    """Bytes for a narrow column: ``3.7G``, ``178M``."""
    return f"{significant(value / _GIB, 2)}G" if value >= _GIB else f"{value / _MIB:.0f}M"


def _how(found: Fragmentation) -> str:
    return (
        f"{found.source}: {count(found.events)} events, {size(found.peak_bytes)} in use at most, "
        f"{size(found.largest_bytes)} the largest; a device of {size(found.capacity_bytes)}. Models, not "
        "measurements. Stalls: cached memory is given back first, and the device waited for. Calls: of the device. "
        "Held, and stuck (free, and not to be given back): at most. Internal and external fragmentation: in the "
        "mean over allocations."
    )
