"""Rounds of two services: A B, B A, …, each on fresh processes, and the part of the traffic that each replays.

Many short rounds show more than few long ones: the effect of a restart differs between restarts, and only more rounds
average it. Rounds use the parts in turn, so that all of the traffic is replayed if the budget allows.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path

from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import PACE
from latfix.runners.gate.served_arm import ServedArm
from latfix.runners.replay.arm import Arm, Watch, start_at_once
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import slice_time

#: Rounds that a budget should hold. More, each of fewer requests, would be mostly starts of services.
WANTED_ROUNDS = 28
#: Minimum length of a replay; a shorter one is mostly its start and end.
_SHORTEST_S = 2.0
#: Minimum number of requests in a part.
_FEWEST = 30


@dataclass(frozen=True, slots=True)
class Round:
    """Both services once.

    :param drift: how much slower the machine was in the replay of ``new`` than in that of ``base``, as a logarithm,
        by the probe of its pace. NaN if unknown.
    """

    base: RunRecord
    new: RunRecord
    drift: float = math.nan


#: A service that is replayed on fresh processes.
Side = Arm | ServedArm


def replay_rounds(
    base: Side, new: Side, parts: Sequence[Traffic], out: Path, watch: Watch, *, seed: int
) -> Generator[Round, None, None]:
    """Endless rounds: start both services at once if they can, and replay a part of the traffic on each.

    :param parts: used one after the other, repeatedly.
    :param out: folder for records, one folder for each replay.
    :raises LatfixError: a service failed.
    :raises Interrupted: Ctrl-C.
    """
    for number, traffic in enumerate(cycle(parts)):
        records = {}
        start_at_once(base, new)
        for arm in (base, new) if number % 2 == 0 else (new, base):
            records[arm.label] = arm.replay(out / f"{arm.label}-{number + 1}", traffic, watch, seed=seed)
        for arm in (base, new):
            arm.restart()
        first, second = records[base.label], records[new.label]
        yield Round(first, second, _pace(second) - _pace(first))


def _pace(record: RunRecord) -> float:
    """Logarithm of the mean time of the fixed computation during a replay; NaN if it was not measured."""
    samples = record.samples
    found = samples["value"][(samples["series"] == PACE) & (samples["t_ns"] >= 0)]
    return math.log(found.mean()) if len(found) else math.nan


def part_seconds(traffic: Traffic, budget_s: float, start_s: float) -> float:
    """Length of one replay, in seconds of the schedule.

    :param start_s: about how long one service takes to start; a round starts and replays two.
    """
    span = max(traffic.duration_s - traffic.start_s, 1e-9)
    room = budget_s / WANTED_ROUNDS / 2 - start_s
    enough = _FEWEST * span / max(len(traffic), 1)
    return min(max(room, enough, _SHORTEST_S), span)


def cut(traffic: Traffic, seconds: float) -> list[Traffic]:
    """The traffic in consecutive parts of equal length, about ``seconds``; parts without a request are left out."""
    start, end = traffic.start_s, math.nextafter(traffic.duration_s, math.inf) + 1e-6
    count = max(int((end - start) / seconds), 1)
    if count == 1:
        return [traffic]
    edges = [start + (end - start) * k / count for k in range(count + 1)]
    arrivals = traffic.arrival_ns / 1e9
    return [slice_time(traffic, a, b) for a, b in pairwise(edges) if ((arrivals >= a) & (arrivals < b)).any()]
