"""Terminal report of ``latfix doctor``: findings, the costliest first, with the command that changes each."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from latfix.formatting import counted
from latfix.reports.terminal.widgets import Portable, heading, safe
from latfix.results.doctor_finding import Doctor, Finding

#: State, sign, style and title, in the order of the report. The sign replaces color where there is none.
_SECTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("costs", "!", "bold yellow", "Costs latency or makes it jitter"),
    ("missing", "-", "cyan", "Not installed"),
    ("unknown", "?", "magenta", "Unknown on this system"),
    ("note", "i", "dim", "Good to know"),
    ("ok", "+", "green", "OK"),
)
_LONGEST = 400


def render_doctor(found: Doctor) -> RenderableType:
    """The findings by state."""
    parts: list[RenderableType] = [safe(_summary(found), "bold", limit=_LONGEST)]
    for state, sign, style, title in _SECTIONS:
        findings = [finding for finding in found.findings if finding.state == state]
        if findings:
            parts.append(heading(title))
            parts += [line for finding in findings for line in _lines(finding, sign, style)]
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    parts += [Text(""), safe(f"{versions}; nothing was changed", "dim", limit=1000)]
    return Portable(Group(*parts))


def _summary(found: Doctor) -> str:
    costs, missing = (found.states.get(state, 0) for state in ("costs", "missing"))
    cores = "unknown cores" if found.machine.cores is None else counted(found.machine.cores, "core")
    where = f"{found.machine.cpu}, {cores}, {', '.join(found.machine.gpus) or 'no GPU'}"
    if not costs and not missing:
        return f"{where}: nothing to change"
    words = [f"{costs} {'things cost' if costs != 1 else 'thing costs'} latency"] if costs else []
    words += [f"{missing} {'parts are' if missing != 1 else 'part is'} not installed"] if missing else []
    return f"{where}: {', '.join(words)}"


def _lines(finding: Finding, sign: str, style: str) -> Iterable[RenderableType]:
    yield Text.assemble((f"{sign} ", style), safe(finding.found, limit=_LONGEST))
    if finding.costs:
        causes = f" (shows as {', '.join(finding.causes)})" if finding.causes else ""
        yield Padding(Text.assemble(safe(finding.costs, limit=_LONGEST), safe(causes, "dim")), (0, 0, 0, 4))
    if finding.change:
        yield Padding(Text.assemble(("> ", "bold"), safe(finding.change, limit=_LONGEST)), (0, 0, 0, 4))
