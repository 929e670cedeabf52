"""Rounds in which something favored one of two services, on simulated records."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.profilers.fair_rounds import FairRounds
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import REQUEST_DTYPE
from tests.profilers.samples import add_samples
from tests.records import build_record, zeros

S = 1_000_000_000


def beside(cores: float, late_ms: float = 0.0, machine: int = 2) -> RunRecord:
    """Four seconds on a machine of two cores, beside a process that uses some of them."""
    rows = zeros(REQUEST_DTYPE, 40)
    rows["latency_ns"] = np.full(40, 10_000_000)
    rows["dispatch_ns"] = np.full(40, int(late_ms * 1e6))
    at = np.arange(5) * S
    hog = np.full(5, cores * S) * (at > 0)
    series = {"other.all.spent_ns": (at, hog), "other.7.stress.spent_ns": (at, hog)}
    return add_samples(build_record(rows, cores=machine), series)


def rounds(*pairs: tuple[float, float], late: tuple[int, ...] = ()) -> FairRounds:
    fair = FairRounds()
    for k, pair in enumerate(pairs):
        fair.add(*(beside(cores, late_ms=50.0 if k in late else 0.0) for cores in pair))
    return fair


@pytest.mark.parametrize(
    ("pairs", "counted"),
    [
        ([(0, 0), (0, 1.2), (1.2, 0), (0.1, 0)], [0, 3]),
        ([(0, 0), (0.9, 0.9)], [0, 1]),  # both beside the same
        ([(0, 0), (0, 0.9), (0.9, 0), (0.5, 0)], [0, 1, 2, 3]),  # this machine is always so
    ],
)
def test_rounds_with_an_uneven_neighbor_do_not_count_unless_most_are(
    pairs: list[tuple[float, float]], counted: list[int]
) -> None:
    fair = rounds(*pairs)
    assert fair.counted == counted
    assert len(list(fair.notes())) == (len(counted) < len(pairs))


def test_what_was_left_out_is_said_with_the_neighbor() -> None:
    fair = rounds((0, 0), (0, 0), (0, 1.2), (0, 0), late=(1,))
    assert fair.counted == [0, 3] and fair.late == 1
    assert list(fair.notes()) == [
        "1 of 4 rounds is left out: something else on the machine delayed the replayer",
        "1 of 4 rounds is left out: other processes used more of the cores beside one service than beside the other "
        "(in the first of them stress (process 7), 1.2 cores)",
    ]


def test_many_cores_need_more_to_be_uneven() -> None:
    fair = FairRounds()
    for cores in (1.2, 0.0):
        fair.add(beside(0, machine=32), beside(cores, machine=32))
    assert fair.counted == [0, 1]


def test_records_that_watched_no_other_process_are_even() -> None:
    fair = FairRounds()
    fair.add(build_record(zeros(REQUEST_DTYPE, 3)), build_record(zeros(REQUEST_DTYPE, 3)))
    assert fair.counted == [0] and not list(fair.notes())
