"""The result of a self-test: how often the diagnosis was right about injected faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from latfix.files.json_documents import Document, json_key
from latfix.statistics.distributions import wilson_interval

Group = Literal["single", "mixed", "unlisted", "quiet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Document):
    """A proportion, with Wilson's 95 % interval."""

    COMPUTED: ClassVar[tuple[str, ...]] = ("value", "ci95")

    hits: int
    of: int

    @property
    def value(self) -> float | None:
        """The share; ``None`` if nothing was counted."""
        return self.hits / self.of if self.of else None

    @property
    def ci95(self) -> tuple[float, float]:
        """Wilson's interval."""
        return wilson_interval(self.hits, self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestErrors(Document):
    """Errors of the diagnosis from the injected time, request by request. Milliseconds.

    :param count: requests compared.
    :param median_ms: median of the absolute error.
    :param allowed_ms: median of the allowed error: the larger of 0.1 ms and 5 % of the injected time.
    :param within: how many are within the allowed error.
    """

    count: int
    median_ms: float
    allowed_ms: float
    within: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseScore(Document):
    """One case: the injected faults, the diagnosis, and how the two compare.

    :param injected: injected causes; empty for a quiet run.
    :param excess_ms: of the tail, or of the ten slowest requests if the faults are rarer than its percentile leaves.
    :param faults: faults in the injectors' log; ``dropped`` those too small to count.
    :param counted: false if every fault was dropped: the case then does not count.
    :param true_ms: by cause, mean milliseconds in a tail request, if the log has them.
    :param natural_ms: the part of the tail's wait due to arrivals alone.
    :param found_ms: by cause, the diagnosis' estimate of the same.
    :param top: the diagnosis' largest cause; ``right_tops`` those that would be right; ``top_right`` whether it is.
    :param present: injected causes that a diagnosis must name.
    :param wrong: named causes that were neither injected nor are side effects of injected ones.
    :param held: by cause, whether its interval holds the true milliseconds.
    :param errors: request by request, if the log has them.
    :param unexplained: share of an unlisted cause's milliseconds that is in ``unexplained``.
    :param alarms: faults named in a quiet run; ``traffic_alarms`` causes of arrivals named there.
    :param conservation_ns: largest gap of the ledger.
    :param trustworthy: the replay itself was on time.
    :param neighbors: share of the machine's cores that other processes used during the run; ``disturbed`` if so much
        that their effect counts neither for nor against the diagnosis.
    :param folder: its own within the folder that keeps the runs, if they are kept.
    """

    id: str
    recipes: tuple[str, ...]
    group: Group
    intensity: str
    seed: int
    injected: tuple[str, ...]
    requests: int
    p50_ms: float
    excess_ms: float
    faults: int
    dropped: int
    counted: bool
    verdict: str
    top: str
    right_tops: tuple[str, ...]
    top_right: bool | None
    named: tuple[str, ...]
    present: tuple[str, ...]
    wrong: tuple[str, ...]
    true_ms: Mapping[str, float] = field(default_factory=dict)
    natural_ms: float = 0.0
    found_ms: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, bool] = field(default_factory=dict)
    errors: RequestErrors | None = None
    unexplained: float | None = None
    alarms: tuple[str, ...] = ()
    traffic_alarms: tuple[str, ...] = ()
    conservation_ns: int = 0
    trustworthy: bool = True
    neighbors: float | None = None
    disturbed: bool = False
    folder: str = ""

    @property
    def weak(self) -> bool:
        """True if the excess is below twice the median latency."""
        return self.excess_ms < 2 * self.p50_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(Document):
    """One line of the scoreboard.

    :param id: its key in the JSON document.
    :param words: what is measured.
    :param value: ``None`` if nothing was counted.
    :param interval: 95 %, if the measure is a share.
    :param count: the number of cases it is based on.
    :param bar: the bar in words; ``met`` whether it is reached, ``None`` if nothing was counted.
    :param unit: ``share``, ``ms`` or ``ns``.
    """

    id: str
    words: str
    value: float | None
    interval: tuple[float, float] | None = field(metadata=json_key("ci95"))
    count: int
    bar: str
    met: bool | None
    unit: Literal["share", "ms", "ns"] = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseScore(Document):
    """How well one cause is recognized.

    :param top1: alone in a run, how often it was the largest.
    :param precision: of the runs that name it, how many have it; ``recall`` of those that have it, how many name it.
    :param taken_for: the largest cause if it should have been this one, by count.
    """

    cause: str
    top1: Share
    precision: Share
    recall: Share
    taken_for: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoreboard(Document):
    """A self-test's result: ``selftest.json``.

    :param measures: against their bars.
    :param causes: one entry for each cause that was injected or named.
    :param not_injectable: by cause, why it was not injected here.
    :param planned: the number of planned cases; fewer were scored if the test was interrupted.
    """

    SCHEMA: ClassVar[str] = "latfix.selftest/1"
    COMPUTED: ClassVar[tuple[str, ...]] = ("scored",)

    sentence: str = ""
    quick: bool
    seed: int
    planned: int
    seconds: float = 0.0
    typical_ms: float = 0.0
    machine: Mapping[str, Any] = field(default_factory=dict)
    measures: tuple[Measure, ...]
    causes: tuple[CauseScore, ...]
    not_injectable: Mapping[str, str]
    cases: tuple[CaseScore, ...]

    @property
    def scored(self) -> int:
        """The number of scored cases."""
        return len(self.cases)

    @property
    def interrupted(self) -> bool:
        """True if some planned cases were not replayed."""
        return len(self.cases) < self.planned
