"""How a figure developed over recorded runs: what ``latfix history --json`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from latfix.files.json_documents import Document
from latfix.gates.evaluate import GateResult


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualLevel(Document):
    """Where the figure usually lies; ``spread`` is a factor where ``by_factor``, else in the figure's unit."""

    median: float
    spread: float
    by_factor: bool
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun(Document):
    """One recorded run; ``not_compared_because`` is empty where it counts."""

    run: str
    started: str
    value: float | None
    verdict: str
    folder: str
    settings: str
    versions: Mapping[str, str]
    requests: Mapping[str, int]
    gates: tuple[GateResult, ...] = ()
    not_compared_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange(Document):
    """A run from which on the figure is another, and what differs from the runs before."""

    run: str
    started: str
    folder: str
    before: float
    after: float
    ratio: float | None
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTrend(Document):
    """The runs of one workload on one machine that are compared with each other."""

    workload: str
    machine: str
    machine_facts: Mapping[str, Any]
    device: str
    command: str
    plan: str
    traffic: str
    level: UsualLevel | None
    runs: tuple[PastRun, ...]
    changes: tuple[LevelChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTrends(Document):
    """Trends of a figure: milliseconds, requests a second, or shares.

    :param file: the history that was read.
    """

    SCHEMA: ClassVar[str] = "latfix.history/1"

    file: str
    metric: str
    trends: tuple[HistoryTrend, ...]
