"""How a figure developed over recorded runs: what ``latfix history --json`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from latfix.files.json_documents import Document
from latfix.gates.evaluate import GateResult
from latfix.gates.reference_level import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun(Document):
    """One recorded run.

    :param value: the figure; ``None`` where the run did not measure it.
    :param settings: digest of the runner's settings.
    :param not_compared_because: empty where later runs are held against it.
    """

    run: str
    started: str
    value: float | None
    verdict: str
    folder: str
    settings: str
    versions: Mapping[str, Any]
    requests: Mapping[str, int]
    gates: tuple[GateResult, ...] = ()
    not_compared_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange(Document):
    """A run from which on the figure is another.

    :param before: median of the runs of the level before; ``after`` of this one.
    :param ratio: after over before; ``None`` where before is zero.
    :param differs: what else differs between this run and the one before it: settings, versions.
    """

    run: str
    started: str
    folder: str
    before: float
    after: float
    ratio: float | None
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTrend(Document):
    """The runs of one workload on one machine that are compared with each other, oldest first.

    :param level: the usual figure of the runs that others are held against; ``None`` where fewer than two have it.
    """

    workload: str
    machine: str
    machine_facts: Mapping[str, Any]
    device: str
    command: str
    plan: str
    traffic: str
    level: Level | None
    runs: tuple[PastRun, ...]
    changes: tuple[LevelChange, ...]

    @property
    def values(self) -> list[float]:
        """What was measured, in order."""
        return [run.value for run in self.runs if run.value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTrends(Document):
    """Trends of a figure in milliseconds, requests a second, or shares: what ``latfix history`` shows.

    :param file: the history that was read.
    """

    SCHEMA: ClassVar[str] = "latfix.history/1"

    file: str
    metric: str
    trends: tuple[HistoryTrend, ...]
