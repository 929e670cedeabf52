"""Rounds of two services: A B, B A, …, each on fresh processes, with compute measured in turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.measure.compute_pace import typical_batches
from latfix.runners.replay.arm import Arm, Watch
from latfix.stages import Status
from latfix.traffic.schedule import Traffic

#: Of the typical batches of a replay, those that are computed in turns: quick, usual and slow.
_TURNS_OF = (2, 5, 8)
_TURN_S = 0.1
#: A B B A: what drifts evenly falls out.
_TURNS = (0, 1, 1, 0)


@dataclass(frozen=True, slots=True)
class Round:
    """Both services once.

    :param drift: by how much more the machine slowed the second service's replay down than the first one's, as a
        logarithm: what their compute differed by in the replays, less what it differs by when the same batches are
        computed in turns. NaN where that could not be measured.
    """

    base: RunRecord
    new: RunRecord
    drift: float = math.nan


class Side(Protocol):
    """A service that is replayed on fresh processes."""

    @property
    def label(self) -> str:
        """``base`` or ``head``."""

    @property
    def start_s(self) -> float:
        """Seconds that it took to start, last time."""

    def running(self) -> object:
        """See that it starts."""

    def close(self) -> None:
        """End the process."""

    def replay(self, folder: Path, traffic: Traffic, watch: Watch, *, seed: int) -> RunRecord:
        """One replay, recorded in a folder."""

    def restart(self) -> None:
        """End the process; the next replay starts another."""


def replay_rounds(
    base: Side, new: Side, parts: Sequence[Traffic], out: Path, watch: Watch, *, seed: int
) -> Iterator[Round]:
    """Endless rounds: both services started, a part of the traffic replayed on each, compute measured in turns.

    :param parts: taken one after the other, again and again.
    :param out: where records go, a folder a replay.
    :raises LatfixError: a service failed.
    :raises Interrupted: Ctrl-C.
    """
    number = 0
    while True:
        traffic = parts[number % len(parts)]
        records = {}
        for arm in (base, new) if number % 2 == 0 else (new, base):
            records[arm.label] = arm.replay(out / f"{arm.label}-{number + 1}", traffic, watch, seed=seed)
        pair = (records[base.label], records[new.label])
        drift = _drift((base, new), pair) if isinstance(base, Arm) and isinstance(new, Arm) else math.nan
        for arm in (base, new):
            arm.restart()
        yield Round(*pair, drift)
        number += 1


def _drift(arms: tuple[Arm, Arm], records: tuple[RunRecord, RunRecord]) -> float:
    """:attr:`Round.drift`; both processes are loaded still."""
    if any(record.meta.device != "cpu" for record in records):
        return math.nan
    batches = typical_batches(records[0])
    chosen = [batches[k] for k in _TURNS_OF if k < len(batches)] or batches
    if not chosen:
        return math.nan
    paces: tuple[list[list[float]], list[list[float]]] = ([], [])
    for turn in _TURNS:
        found = arms[turn].ask("pace", folder=str(records[turn].folder), batches=chosen, seconds=_TURN_S)["together"]
        paces[turn].append([math.nan if value is None else math.log(value) for value in found])
    in_turns = np.nanmedian(np.mean(paces[1], axis=0) - np.mean(paces[0], axis=0))
    return float(np.nanmedian(_log_compute(records[1]) - _log_compute(records[0])) - in_turns)


def _log_compute(record: RunRecord) -> np.ndarray:
    """The logarithm of the compute of each request's batch, by position; NaN where there is none."""
    ok = record.measured & (record.requests["status"] == Status.OK) & (record.requests["compute_ns"] > 0)
    found = np.full(len(record.traffic), math.nan)
    found[record.requests["index"][ok]] = np.log(record.requests["compute_ns"][ok])
    return found
