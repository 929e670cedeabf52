"""What a fix is: what it treats, when it applies, the settings it changes, and the evidence that it took effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from latfix.profilers.allocator_lab.recommend import Choice
from latfix.profilers.forecast.parameter_search import Proposal
from latfix.profilers.forecast.settings_forecast import Forecast, Serving
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a fix may look at when it decides whether and how it applies.

    :param settings: as they stand, with the fixes kept so far.
    :param record: the record of the baseline.
    :param diagnosis: its diagnosis.
    :param default_collate: the adapter batches by the default collate.
    :param cores: cores that the runner may use.
    :param forecast: of the baseline's requests under other settings; ``None`` where the run is too small for one.
    :param serving: how the fixes kept so far serve, for the forecast.
    :param latest: the last replay of the service as it stands; ``None`` where nothing was kept yet.
    :param sensitivity: by module, the loss of accuracy that quantizing it alone costs, where that was measured.
    :param memory_choice: what the run's own allocations on the device said of its allocator's settings; ``None``
        where they were not recorded.
    :param proposal: the numbers that the forecast likes best, once all other fixes are decided.
    """

    settings: RunnerSettings
    record: RunRecord
    diagnosis: Diagnosis
    default_collate: bool
    cores: int
    forecast: Forecast | None = None
    serving: Serving | None = None
    latest: RunRecord | None = None
    sensitivity: Mapping[str, float] | None = None
    proposal: Proposal | None = None
    memory_choice: Choice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What is known of a service that ran with the fix, beside one that ran without.

    :param evidence: of the service with the fix (:meth:`latfix.runners.service.loaded_service.Service.evidence`).
    :param record: its replay.
    :param without: the replay of the service without the fix.
    """

    evidence: Mapping[str, Any]
    record: RunRecord
    without: RunRecord


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether a fix took effect, and the evidence in one sentence."""

    effective: bool
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One fix.

    :param id: as in plans and reports.
    :param title: what it does, in a few words.
    :param treats: ids of the causes that it treats.
    :param risk: what it may cost.
    :param relief: the share of those causes' milliseconds that it has been seen to remove; for the order only.
    :param removes: of those causes, the ones that it takes away whole, so that the forecast can leave them out.
    :param compute: what is left of a batch's compute, as a first guess; the trial measures it.
    :param gentle: it changes neither answers nor capacity, so it may be tried together with others like it.
    :param cold: it acts on a service's first requests only, so it is judged on fresh processes.
    :param alone: it acts on how much of a device's memory the service holds, so that there it is judged with nothing
        of the search beside it.
    :param changes_outputs: answers may differ, so accuracy is measured before speed.
    :param obstacle: why it does not apply here; empty where it does.
    :param change: overrides of the settings.
    :param verify: looks for its effect.
    """

    id: str
    title: str
    treats: tuple[str, ...]
    risk: str
    relief: float
    removes: tuple[str, ...] = ()
    compute: float = 1.0
    gentle: bool = False
    cold: bool = False
    alone: bool = False
    changes_outputs: bool = False
    obstacle: Callable[[Context], str]
    change: Callable[[Context], dict[str, Any]]
    verify: Callable[[Applied], Verified]
