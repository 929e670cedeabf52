"""A sweep while it runs: its options and settings, its replays, and what they showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.capacity.max_load import LoadAnswer
from latfix.capacity.measured_load import Cell, LoadPoint, cell_of
from latfix.capacity.model_departures import Reason
from latfix.capacity.next_load import Kind
from latfix.capacity.objective import LatencyObjective
from latfix.capacity.sweep_traffic import Part
from latfix.results.sweep import LoadPrediction, ServiceMoments, SkippedLoad
from latfix.run_record.run_meta import RunMeta
from latfix.settings import RunnerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to sweep.

    :param loads: multiples of the recorded rate to replay first, ascending; if empty, one is chosen.
    :param budget_s: seconds for all replays.
    :param gate_rps: a load to decide, too.
    """

    loads: tuple[float, ...]
    budget_s: float
    target: LatencyObjective
    seed: int = 0
    gate_rps: float | None = None


@dataclass(slots=True)
class Setting:
    """One combination of settings.

    :param values: the changed settings; ``settings`` holds all.
    :param failure: why it could not be replayed; empty if it could.
    """

    number: int
    values: Mapping[str, Any]
    settings: RunnerSettings
    failure: str = ""

    @property
    def label(self) -> str:
        """``max_batch_size=4 batch_window_ms=5``."""
        return " ".join(f"{key}={_plain(value)}" for key, value in self.values.items()) or "as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One replay of a sweep.

    :param folder: its record's.
    :param kind: why it was replayed.
    :param began_s: seconds after the sweep began.
    :param fresh: it was the first replay of its process, after the warm-up.
    :param predicted: the percentile in seconds that was predicted before, and its 95 % interval.
    :param costs: peak ``memory_bytes`` and ``device_memory_bytes`` of the process, until its end.
    :param disturbed: how other processes disturbed it; empty if none is known.
    """

    setting: int
    load: float
    folder: Path
    point: LoadPoint
    kind: Kind
    began_s: float
    fresh: bool
    predicted: tuple[float, float, float] | None = None
    costs: Mapping[str, Any] = field(default_factory=dict)
    disturbed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTheory:
    """Predictions of models for one load.

    :param predictions: by model.
    :param dispersion: index of dispersion of the arrivals over the queue's own time scale.
    :param relaxation: seconds that such a queue takes to settle; infinite if it cannot.
    """

    predictions: Mapping[str, LoadPrediction]
    dispersion: float
    relaxation: float
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """A setting as seen by models.

    :param capacity: requests per second that full batches and the prepare pool could serve.
    """

    service: ServiceMoments
    capacity: float
    loads: Mapping[float, LoadTheory]


@dataclass(slots=True)
class Outcome:
    """All measurements of a sweep.

    :param answers: by setting, as ``theory``, at the end.
    :param meta: of the last replay: machine, versions, device.
    """

    settings: list[Setting]
    part: Part
    target: LatencyObjective
    measured: list[Measured] = field(default_factory=list)
    answers: dict[int, LoadAnswer] = field(default_factory=dict)
    theory: dict[int, Theory] = field(default_factory=dict)
    skipped: list[SkippedLoad] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    meta: RunMeta = field(default_factory=RunMeta)
    interrupted: bool = False
    seconds: float = 0.0
    _known: dict[tuple[int, float, int], Cell] = field(default_factory=dict, repr=False)

    def points(self, setting: int) -> dict[float, list[Measured]]:
        """Replays of a setting by load, ascending."""
        by_load: dict[float, list[Measured]] = {}
        for one in sorted((m for m in self.measured if m.setting == setting), key=lambda m: m.load):
            by_load.setdefault(one.load, []).append(one)
        return by_load

    def _cell(self, setting: int, load: float, ones: Sequence[Measured]) -> Cell:
        key = setting, load, len(ones)
        if key not in self._known:
            self._known[key] = cell_of(load, [one.point for one in ones], self.target)
        return self._known[key]

    def cells(self) -> dict[int, list[Cell]]:
        """Cells of each setting, by rising load."""
        return {
            setting.number: [
                self._cell(setting.number, load, ones) for load, ones in self.points(setting.number).items()
            ]
            for setting in self.settings
        }


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
