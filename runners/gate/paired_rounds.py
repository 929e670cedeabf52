"""Rounds of two services: A B, B A, …, each on fresh processes, with their compute measured in turns."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Protocol

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.measure.compute_pace import typical_batches
from latfix.runners.replay.arm import Arm, Watch
from latfix.stages import Status
from latfix.traffic.schedule import Traffic

#: Typical batches of a replay that are computed in turns: a fast, a median and a slow one.
_TURNS_OF = (2, 5, 8)
_TURN_S = 0.1
#: A B B A: a linear drift cancels out.
_TURNS = (0, 1, 1, 0)


@dataclass(frozen=True, slots=True)
class Round:
    """Both services once.

    :param drift: how much more the machine slowed the second replay than the first, as a logarithm: the difference of
        compute in the replays minus the difference when the same batches are computed in turns. NaN if unknown.
    """

    base: RunRecord
    new: RunRecord
    drift: float = math.nan


class Side(Protocol):
    """A service that is replayed on fresh processes (:class:`Arm` or :class:`served_arm.ServedArm`)."""

    @property
    def label(self) -> str: ...

    @property
    def start_s(self) -> float: ...

    def running(self) -> object: ...

    def close(self) -> None: ...

    def replay(self, folder: Path, traffic: Traffic, watch: Watch, *, seed: int) -> RunRecord: ...

    def restart(self) -> None: ...


def replay_rounds(
    base: Side, new: Side, parts: Sequence[Traffic], out: Path, watch: Watch, *, seed: int
) -> Generator[Round, None, None]:
    """Endless rounds: start both services, replay a part of the traffic on each, measure compute in turns.

    :param parts: used one after the other, repeatedly.
    :param out: folder for records, one folder for each replay.
    :raises LatfixError: a service failed.
    :raises Interrupted: Ctrl-C.
    """
    for number, traffic in enumerate(cycle(parts)):
        records = {}
        for arm in (base, new) if number % 2 == 0 else (new, base):
            records[arm.label] = arm.replay(out / f"{arm.label}-{number + 1}", traffic, watch, seed=seed)
        pair = (records[base.label], records[new.label])
        drift = _drift((base, new), pair) if isinstance(base, Arm) and isinstance(new, Arm) else math.nan
        for arm in (base, new):
            arm.restart()
        yield Round(*pair, drift)


def _drift(arms: tuple[Arm, Arm], records: tuple[RunRecord, RunRecord]) -> float:
    """:attr:`Round.drift`; both processes are still loaded."""
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
    """Logarithm of the compute of each request's batch, by position; NaN if it has none."""
    ok = record.measured & (record.requests["status"] == Status.OK) & (record.requests["compute_ns"] > 0)
    found = np.full(len(record.traffic), math.nan)
    found[record.requests["index"][ok]] = np.log(record.requests["compute_ns"][ok])
    return found
