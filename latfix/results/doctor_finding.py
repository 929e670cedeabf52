"""One thing that ``latfix doctor`` found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

#: ``ok``: nothing to gain. ``costs``: latency or jitter. ``missing``: a part that is not installed. ``note``: good
#: to know when figures are read. ``unknown``: this system does not tell.
State = Literal["ok", "costs", "missing", "note", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    :param id: stable name, ``area.thing``; areas are ``measured``, ``processor``, ``memory``, ``limits``, ``gpu`` and
        ``software``.
    :param found: what is there, with its value.
    :param costs: what it costs in latency, or what cannot be done; empty where nothing.
    :param change: the command or the step that would change it; empty where there is none.
    :param causes: ids of the causes that a diagnosis would show it as.
    """

    id: str
    state: State
    found: str
    costs: str = ""
    change: str = ""
    causes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All fields by name, and the area."""
        return {"id": self.id, "area": self.id.partition(".")[0], **asdict(self), "causes": list(self.causes)}
