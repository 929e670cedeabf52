"""The development of a figure over recorded runs: the document of ``latfix history --json``."""

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

    :param value: the figure; ``None`` if the run did not measure it.
    :param settings: digest of the runner's settings.
    :param not_compared_because: empty if later runs are compared with it.
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
    """A run at which the level of the figure changes.

    :param before: median of the runs of the previous level; ``after`` of this one.
    :param ratio: after over before; ``None`` if before is zero.
    :param differs: what else differs from the previous run: settings, versions.
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
    """The comparable runs of one workload on one machine, oldest first.

    :param level: the usual figure of the comparable runs; ``None`` if fewer than two have it.
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
        """The measured values, in order."""
        return [run.value for run in self.runs if run.value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTrends(Document):
    """Trends of a figure in milliseconds, requests per second, or shares: the result of ``latfix history``.

    :param file: the history that was read.
    """

    SCHEMA: ClassVar[str] = "latfix.history/1"

    file: str
    metric: str
    trends: tuple[HistoryTrend, ...]
