"""What a sweep is asked for, and what it measured: settings, replays, and the cells that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.capacity.measured_load import Cell, LoadPoint, cell_of, run_spread, with_spread
from latfix.capacity.next_load import Kind
from latfix.capacity.objective import Target
from latfix.capacity.sweep_traffic import Part
from latfix.settings import RunnerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to sweep.

    :param loads: multiples of the recorded rate, ascending.
    :param budget_s: seconds for all replays.
    """

    loads: tuple[float, ...]
    budget_s: float
    target: Target
    seed: int = 0


@dataclass(slots=True)
class Setting:
    """One combination of settings.

    :param values: what was set for it; ``settings`` holds everything.
    :param failure: why it could not be replayed; empty where it could.
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
    """

    setting: int
    load: float
    folder: Path
    point: LoadPoint
    kind: Kind
    began_s: float
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A load that was asked for and not replayed."""

    setting: int
    load: float
    reason: str


@dataclass(slots=True)
class Outcome:
    """What a sweep measured.

    :param meta: ``run.json`` of the first replay: machine, versions, device.
    """

    settings: list[Setting]
    part: Part
    target: Target
    measured: list[Measured] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)
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

    def plain_cells(self) -> list[Cell]:
        """Cells of all settings, with the intervals of their own requests alone."""
        return [
            self._cell(setting.number, load, ones)
            for setting in self.settings
            for load, ones in self.points(setting.number).items()
        ]

    def cells(self) -> dict[int, list[Cell]]:
        """Cells of each setting, by rising load, their intervals widened by the spread between replays."""
        plain = {
            setting.number: [
                self._cell(setting.number, load, ones) for load, ones in self.points(setting.number).items()
            ]
            for setting in self.settings
        }
        spread = run_spread([cell for cells in plain.values() for cell in cells])
        return {number: with_spread(cells, spread, self.target) for number, cells in plain.items()}


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
