"""A first look at a large record: where to cut it, and its percentiles of latency, exact, in two passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from latfix.profilers.chunked.chunks import Cutter, Piece
from latfix.profilers.evidence.work_model import Ints
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.schema import Columns
from latfix.stages import Status
from latfix.statistics.quantile_sketch import ExactPercentiles, LogHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a large record amounts to before any cause is looked at.

    :param pieces: in order, all rows between them.
    :param latency: of the measured requests that ended ``ok`` in a batch; ``percentiles_ns`` exact, by 0..100; zeros
        for none.
    :param first_ns: their first arrival, ``last_ns`` the last one; ``ended_ns`` when the last of them had ended.
    """

    pieces: tuple[Piece, ...]
    latency: LogHistogram
    percentiles_ns: dict[float, float]
    first_ns: int
    last_ns: int
    ended_ns: int

    @property
    def rows(self) -> int:
        """Rows of the record, warm-up included."""
        return self.pieces[-1].last if self.pieces else 0


def survey(source: RecordSource, percentiles: Sequence[float], size: int) -> Survey:
    """Look a record over.

    :param percentiles: that are wanted exactly, 0 to 100.
    :param size: requests in a piece at least.
    """
    cutter, latency = Cutter(size), LogHistogram()
    first, last, ended = 2**62, -(2**62), -(2**62)
    for rows in source.scan(("arrival_ns", "latency_ns", "status", "warmup", "batch_id")):
        cutter.add(rows["arrival_ns"], rows["arrival_ns"] + rows["latency_ns"], rows["batch_id"])
        counted = _counted(rows)
        arrival, taken = rows["arrival_ns"][counted], rows["latency_ns"][counted]
        latency.add(taken)
        ended = max(ended, int((arrival + taken).max(initial=ended)))
        first, last = min(first, int(arrival.min(initial=first))), max(last, int(arrival.max(initial=last)))
    exact, some = ExactPercentiles(latency, percentiles), len(latency) > 0
    for values in _latencies(source):
        exact.add(values)
    return Survey(
        pieces=tuple(cutter.pieces()),
        latency=latency,
        percentiles_ns=dict.fromkeys(percentiles, 0.0) | exact.values(),
        first_ns=first if some else 0,
        last_ns=last if some else 0,
        ended_ns=ended if some else 0,
    )


def _latencies(source: RecordSource) -> Iterator[Ints]:
    for rows in source.scan(("latency_ns", "status", "warmup", "batch_id")):
        yield rows["latency_ns"][_counted(rows)]


def _counted(rows: Columns) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.asarray((rows["warmup"] == 0) & (rows["status"] == Status.OK) & (rows["batch_id"] >= 0))
