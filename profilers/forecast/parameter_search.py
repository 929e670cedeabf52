"""Which numbers serve best: the batch limit, the window, workers and their threads, as the forecast sees them.

A search by coordinates: the limit and the window are moved in turns until neither gains, for every way to share the
cores whose pace was measured. What comes out is a proposal; the replay decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from latfix.profilers.forecast.settings_forecast import Floats, Forecast, Serving
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings

#: Workers, and threads of an operator in each.
Split = tuple[int, int]

LIMITS = (1, 2, 4, 8, 16, 32, 64)
WINDOWS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
#: A move must be foretold to gain this much, for forecasts do not tell smaller things.
_GAIN = 0.01
_PASSES = 4
#: Ways to share the cores whose pace is measured, beside the one that is.
MOST_SPLITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers of a service; ``threads`` of an operator, 0 where torch decides."""

    limit: int
    window_ms: float
    workers: int
    threads: int

    @classmethod
    def of(cls, settings: RunnerSettings) -> Numbers:
        """Those of some settings."""
        return cls(
            limit=settings.max_batch_size,
            window_ms=settings.batch_window_ms,
            workers=settings.workers,
            threads=settings.intra_op_threads,
        )

    @classmethod
    def of_record(cls, record: RunRecord) -> Numbers:
        """Those that a run was recorded with."""
        return cls.of(record.meta.settings)

    @property
    def split(self) -> Split:
        """How the cores are shared."""
        return self.workers, self.threads

    def changes(self, settings: RunnerSettings) -> dict[str, Any]:
        """What differs from some settings, as overrides of them."""
        mine = {
            "max_batch_size": self.limit,
            "batch_window_ms": self.window_ms,
            "workers": self.workers,
            "intra_op_threads": self.threads,
        }
        return {name: value for name, value in mine.items() if getattr(settings, name) != value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The best numbers that were found.

    :param score: p99 or mean over what they are now, whichever is worse.
    :param looked_at: how many combinations were simulated.
    """

    numbers: Numbers
    score: float
    looked_at: int


def splits(cores: int, now: Split) -> list[Split]:
    """Other ways to share the cores: from one worker on all of them to one a core, with one thread or all it can."""
    workers = [2**k for k in range(cores.bit_length()) if 2**k <= cores]
    ways = [(count, threads) for count in workers for threads in {1, cores // count}]
    others = [way for way in ways if way != now and way != (now[0], now[1] or cores)]
    # Those that use the cores fully come first, and of them those nearest to what is there.
    return sorted(others, key=lambda way: (-way[0] * way[1], abs(way[0] - now[0]), way))[:MOST_SPLITS]


def propose(
    forecast: Forecast,
    serving: Serving,
    settings: RunnerSettings,
    *,
    paces: Mapping[Split, tuple[float, float]],
    refused: Collection[Numbers] = (),
) -> Proposal:
    """The numbers that the forecast likes best.

    :param serving: how the service is as it stands, with ``settings``.
    :param paces: by other ways to share the cores, ``(a, b)``: a batch that takes ``t`` now takes ``a + b·t``.
    :param refused: numbers that replays have spoken against; none of their limit and split is proposed again.
    """
    grid = _Grid(forecast, serving, paces, {(each.limit, each.split) for each in refused})
    start = Numbers.of(settings)
    best, score = start, 1.0
    for split in (start.split, *paces):
        found, told = grid.descend(replace(start, workers=split[0], threads=split[1]))
        if told < score - _GAIN:
            best, score = found, told
    return Proposal(numbers=best, score=score, looked_at=len(grid.seen))


class _Grid:
    """Scores of numbers, each simulated once."""

    def __init__(
        self,
        forecast: Forecast,
        serving: Serving,
        paces: Mapping[Split, tuple[float, float]],
        closed: Collection[tuple[int, Split]],
    ) -> None:
        self._forecast = forecast
        self._serving = serving
        self._paces = paces
        self._closed = closed
        self._now: Floats = forecast.latencies(serving)
        self.seen: dict[Numbers, float] = {}

    def descend(self, numbers: Numbers) -> tuple[Numbers, float]:
        """From some numbers to the best that moving limit and window in turns leads to."""
        score = self._score(numbers)
        for _ in range(_PASSES):
            before = numbers
            limits = [replace(numbers, limit=limit) for limit in LIMITS]
            numbers, score = self._better(numbers, score, limits)
            windows = [replace(numbers, window_ms=window) for window in WINDOWS_MS]
            numbers, score = self._better(numbers, score, windows)
            if numbers == before:
                break
        return numbers, score

    def _better(self, numbers: Numbers, score: float, others: Sequence[Numbers]) -> tuple[Numbers, float]:
        best = min(others, key=self._score)
        return (best, self._score(best)) if self._score(best) < score - _GAIN else (numbers, score)

    def _score(self, numbers: Numbers) -> float:
        if numbers not in self.seen:
            self.seen[numbers] = self._simulated(numbers)
        return self.seen[numbers]

    def _simulated(self, numbers: Numbers) -> float:
        if (numbers.limit, numbers.split) in self._closed:
            return float("inf")
        offset, slope = self._paces.get(numbers.split, (0.0, 1.0))
        was_offset, was_slope = self._serving.compute
        serving = replace(
            self._serving,
            max_batch=numbers.limit,
            window_ns=numbers.window_ms * 1e6,
            workers=numbers.workers,
            compute=(offset + slope * was_offset, slope * was_slope),
        )
        ratios = Forecast.ratios(self._now, self._forecast.latencies(serving))
        return max(ratios["p99"], ratios["mean"])
