"""The result of a sweep: the knee, the largest load, its points, and the errors of theory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from latfix.capacity.max_load import Knee, LargestLoad, OpenInterval, ParetoPoint, PredictedLoad
from latfix.capacity.measured_load import Spread
from latfix.capacity.model_departures import Reason
from latfix.files.json_documents import Document, json_key


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepObjective(Document):
    """The percentile, and its limit in milliseconds; ``None`` if the workload states none."""

    percentile: float
    slo_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTraffic(Document):
    """The part of the recorded traffic that each point replays.

    :param recorded_rps: requests per second, as recorded.
    :param repeated: how often a point plays it.
    :param dispersion: index of dispersion of the part; ``dispersion_recorded`` of the whole recording.
    :param gap_scv: squared coefficient of variation of the gaps.
    :param index_of_dispersion: mean gaps in a window, and the index of dispersion of counts in it.
    """

    recorded_rps: float
    requests_per_point: int
    repeated: int
    dispersion: float | None
    dispersion_recorded: float | None
    gap_scv: float | None = None
    index_of_dispersion: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSetting(Document):
    """The setting that carries most; ``maybe_as_good`` are ids of those that may carry as much."""

    setting: int
    label: str
    status: str
    rps: float | None
    ci95_rps: OpenInterval
    reason: str = ""
    maybe_as_good: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMoments(Document):
    """Service times as measured at a low load; ``scv`` is the squared coefficient of variation."""

    batch_fixed_ms: float
    batch_each_ms: float
    batch_scv: float
    prepare_mean_ms: float
    prepare_scv: float
    measured_at_loads: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSetting(Document):
    """One combination of settings.

    :param values: the changed settings.
    :param failure: why it could not be replayed.
    :param most_achieved_rps: the highest measured throughput.
    :param capacity_rps: its capacity by the queueing models.
    :param predicted: loads as simulated, corrected by the observed errors; includes the replayed ones.
    :param memory_bytes: peak resident memory of its process; ``device_memory_bytes`` reserved on all devices.
    """

    id: int
    label: str
    values: Mapping[str, Any]
    failure: str | None
    largest: LargestLoad | None
    knee: Knee | None
    most_achieved_rps: float | None
    capacity_rps: float | None
    service: ServiceMoments | None
    predicted: tuple[PredictedLoad, ...] = ()
    memory_bytes: int | None = field(default=None, metadata=json_key(omit_empty=True))
    device_memory_bytes: int | None = field(default=None, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointObjective(Document):
    """A point compared with the objective.

    :param at_least: the point ended early, so that the percentile is a lower bound.
    :param meets: ``None`` if undecided.
    :param slow_share: share of requests beyond the limit.
    """

    percentile_ms: float | None
    ci95_ms: OpenInterval
    at_least: bool
    meets: bool | None
    slow_share: float | None
    slow_share_ci95: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPrediction(Document):
    """A queueing model's prediction for a point; ``None`` if it predicts that the service cannot keep up.

    :param fitted: the model was fitted to measurements at this very load.
    :param why_not: why it has no prediction.
    """

    mean_wait_ms: float | None
    mean_ms: float | None
    percentile_ms: float | None
    fitted: bool
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRun(Document):
    """One replay of a point; ``folder`` is relative to the sweep's.

    :param foretold_ms: the percentile that was predicted before it, with its 95 % interval.
    """

    folder: str
    kind: str
    began_s: float
    percentile_ms: float | None
    ended_early: bool
    fresh_process: bool
    foretold_ms: float | None = None
    foretold_ci95_ms: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint(Document):
    """One setting at one load.

    :param load: multiple of the recorded rate.
    :param latency_ms: as in a diagnosis: of all that arrived, and ``latency_ms_ok`` of those that ended ``ok``.
    :param enough_requests: enough requests lie beyond the percentile.
    :param saturated: its queue grew until the end.
    :param utilization: share of the time that workers compute, are held open, and that prepare threads work.
    :param predictions: by model.
    :param reasons: why the models are off.
    """

    setting: int
    load: float
    offered_rps: float
    achieved_rps: float
    requests: Mapping[str, int]
    latency_ms: Mapping[str, float]
    latency_ms_ok: Mapping[str, float] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    latency_ci95_ms: Mapping[str, tuple[float, float]]
    objective: PointObjective
    enough_requests: bool
    saturated: bool
    wait_ms: Mapping[str, float | None]
    utilization: Mapping[str, float]
    batch_size: float
    in_flight_at_end: int
    trustworthy: bool
    dispersion: float | None
    predictions: Mapping[str, LoadPrediction]
    reasons: tuple[Reason, ...]
    runs: tuple[PointRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityGate(Document):
    """``--at-least``; ``passed`` is ``None`` if undecided."""

    at_least_rps: float
    passed: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelErrors(Document):
    """Errors of a queueing model: the median factor between prediction and measurement.

    :param loads: the number of loads; ``silent`` those for which the model has no steady state.
    """

    wait: float | None
    percentile: float | None
    loads: int
    silent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLoad(Document):
    """A load that was requested and not replayed."""

    setting: int
    load: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Document):
    """The result of ``latfix sweep``: ``sweep.json``; while it runs, the head and its points.

    :param state: ``running``, ``complete`` or ``interrupted``.
    :param pareto: points that no other beats in both throughput and latency.
    :param best: the setting that carries most; ``None`` if none meets the objective.
    :param models: by queueing model, its errors.
    :param disturbed: how other processes disturbed the replays; empty if none is known.
    :param origin: ``started``, ``host``, ``command``, ``commit`` and ``branch``, if known.
    """

    SCHEMA: ClassVar[str] = "latfix.sweep/1"

    workload: str
    device: str
    objective: SweepObjective
    traffic: SweepTraffic
    state: str
    seed: int | None = None
    budget_s: float | None = None
    seconds: float | None = None
    settings: tuple[SweptSetting, ...] = ()
    points: tuple[SweepPoint, ...] = ()
    pareto: tuple[ParetoPoint, ...] = ()
    knee_rule: str = ""
    best: BestSetting | None = None
    gate: CapacityGate | None = None
    models: Mapping[str, ModelErrors] = field(default_factory=dict)
    spread: Spread | None = None
    skipped: tuple[SkippedLoad, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    disturbed: str = field(default="", metadata=json_key(omit_empty=True))
    notes: tuple[str, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict, metadata=json_key(omit_empty=True))
