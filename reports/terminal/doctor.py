"""The findings of ``latfix doctor`` on a terminal: what costs latency first, with what would change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from latfix.reports.terminal.widgets import Portable, heading, safe

#: In the order in which they are told; the sign stands out without color, too.
_SECTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("costs", "!", "bold yellow", "Costs latency or makes it jitter"),
    ("missing", "-", "cyan", "Not installed"),
    ("unknown", "?", "magenta", "Not told by this system"),
    ("note", "i", "dim", "Good to know"),
    ("ok", "+", "green", "In order"),
)
_LONGEST = 400


def render_doctor(document: Mapping[str, Any]) -> RenderableType:
    """The document of ``latfix doctor`` as people read it."""
    parts: list[RenderableType] = [Text(_summary(document), style="bold")]
    for state, sign, style, title in _SECTIONS:
        findings = [finding for finding in document["findings"] if finding["state"] == state]
        if findings:
            parts.append(heading(title))
            parts += [line for finding in findings for line in _lines(finding, sign, style)]
    parts.append(Text(f"\n{_versions(document)}; nothing was changed", style="dim"))
    return Portable(Group(*parts))


def _summary(document: Mapping[str, Any]) -> str:
    costs, missing = (document["states"].get(state, 0) for state in ("costs", "missing"))
    machine = document["machine"]
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    where = f"{machine['cpu']}, {machine['cores']} cores, {gpus}"
    if not costs and not missing:
        return f"{where}: nothing to change"
    words = [f"{costs} {'things cost' if costs != 1 else 'thing costs'} latency"] if costs else []
    words += [f"{missing} {'parts are' if missing != 1 else 'part is'} not installed"] if missing else []
    return f"{where}: {', '.join(words)}"


def _lines(finding: Mapping[str, Any], sign: str, style: str) -> Iterable[RenderableType]:
    head = Text.assemble((f"{sign} ", style), safe(finding["found"], limit=_LONGEST))
    yield head
    if finding["costs"]:
        told = Text.assemble(safe(finding["costs"], limit=_LONGEST), _as_causes(finding["causes"]))
        yield Padding(told, (0, 0, 0, 4))
    if finding["change"]:
        yield Padding(Text.assemble(("> ", "bold"), safe(finding["change"], limit=_LONGEST)), (0, 0, 0, 4))


def _as_causes(causes: Sequence[str]) -> Text:
    return Text(f" (shows as {', '.join(causes)})" if causes else "", style="dim")


def _versions(document: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in document["versions"].items())
