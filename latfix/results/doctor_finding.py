"""The result of ``latfix doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from latfix.files.json_documents import Document

#: ``ok``: nothing to gain. ``costs``: latency or jitter. ``missing``: a part is not installed. ``note``: useful for
#: interpreting figures. ``unknown``: this system does not report it.
State = Literal["ok", "costs", "missing", "note", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Document):
    """One check.

    :param id: stable name, ``area.thing``; areas are ``measured``, ``processor``, ``memory``, ``limits``, ``gpu`` and
        ``software``.
    :param found: the current state, with its value.
    :param costs: what it costs in latency, or what cannot be done; empty if nothing.
    :param change: the command or the step that would change it; empty if there is none.
    :param causes: ids of the causes as which a diagnosis would show it.
    """

    COMPUTED: ClassVar[tuple[str, ...]] = ("area",)

    id: str
    state: State
    found: str
    costs: str = ""
    change: str = ""
    causes: tuple[str, ...] = ()

    @property
    def area(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMachine(Document):
    """The machine that was checked."""

    cpu: str | None
    cores: int | None
    os: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor(Document):
    """The result of ``latfix doctor``: ``doctor.json``.

    :param date: ISO 8601, with the time zone.
    """

    SCHEMA: ClassVar[str] = "latfix.doctor/1"
    COMPUTED: ClassVar[tuple[str, ...]] = ("states",)

    date: str
    machine: CheckedMachine
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def states(self) -> Mapping[str, int]:
        """The number of findings by state."""
        return dict(Counter(finding.state for finding in self.findings))
