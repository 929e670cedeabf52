"""Prometheus' text format: histograms of latency, which count slow requests but do not identify them.

Fields: the exposition format (``# TYPE … histogram``, ``_bucket{le="…"}``, ``_sum``, ``_count``), for instance from
``/metrics``. A percentile is known up to its bucket, and unknown above the last bound.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from latfix.errors import input_error
from latfix.formatting import LATENCY_KEYS, milliseconds, percentile_label, shown
from latfix.profilers.recordings.reader import ReadOptions, Recorded
from latfix.profilers.recordings.requests.text_source import UNITS_NS, entry_of, lines_of
from latfix.profilers.services.prometheus_metrics import read_sample
from latfix.results.diagnosis import Diagnosis, Source
from latfix.statistics.latency_summary import QUANTILES

NAME = "histograms in Prometheus' text format"
#: Names that servers use for the latency of a whole request; other histograms are parts.
_WHOLE = ("e2e_request_latency", "request_latency", "request_duration", "http_request_duration", "latency")


@dataclass(slots=True)
class Series:
    """One histogram.

    :param buckets: by upper bound in the unit, the number of requests up to it.
    :param total: sum of all observations in the unit; NaN if it is missing.
    :param counted: the number of requests, for a series without a bucket for all.
    """

    buckets: dict[float, float] = field(default_factory=dict)
    total: float = math.nan
    counted: float = 0.0

    @property
    def count(self) -> float:
        return self.buckets.get(math.inf, self.counted)


@dataclass(slots=True)
class Histogram:
    """A family of histograms, by their labels. Of several scrapes in a file the last counts."""

    name: str
    unit_ns: int
    series: dict[frozenset[tuple[str, str]], Series] = field(default_factory=lambda: defaultdict(Series))

    @property
    def count(self) -> float:
        return sum(each.count for each in self.series.values())

    @property
    def total(self) -> float:
        return sum(each.total for each in self.series.values())

    @property
    def mean_ms(self) -> float:
        return self.total * self.unit_ns / self.count / 1e6

    def bounds_ms(self, quantile: float) -> tuple[float, float]:
        """Lower and upper bound of a percentile in milliseconds; the upper one is NaN above the last bucket."""
        rank, low = quantile * self.count, 0.0
        for bound in sorted({bound for each in self.series.values() for bound in each.buckets}):
            # The bounds of the series may differ: the requests up to a bound are known within theirs.
            up_to = [[c for b, c in each.buckets.items() if b <= bound] for each in self.series.values()]
            beyond = [
                [c for b, c in each.buckets.items() if b >= bound] or [each.count] for each in self.series.values()
            ]
            if sum(map(max, filter(None, up_to))) >= rank:
                return low * self.unit_ns / 1e6, bound * self.unit_ns / 1e6 if math.isfinite(bound) else math.nan
            if sum(map(min, beyond)) < rank:
                low = bound
        return low * self.unit_ns / 1e6, math.nan


def knows(head: bytes) -> bool:
    """True if a histogram is among the first lines."""
    return re.search(rb'^[A-Za-z_:][\w:]*_bucket\{[^}]*le="', head, re.MULTILINE) is not None


def histograms(path: Path) -> dict[str, Histogram]:
    """All histograms with a unit of time in their name.

    :raises InputError: a sample has an invalid number.
    """
    result: dict[str, Histogram] = {}
    for number, line in lines_of(path):
        whole, labels, value = read_sample(line)
        name, _, kind = whole.rpartition("_")
        unit = UNITS_NS.get(name.rpartition("_")[2])
        if unit is None or kind not in ("bucket", "sum", "count"):
            continue
        bound = labels.pop("le", "")
        with entry_of(path, f"the sample {shown(line, 60)}", "a finite number", number):
            amount, le = float(value), float(bound) if bound else math.nan
            if not math.isfinite(amount):
                raise ValueError(value)
        series = result.setdefault(name, Histogram(name, unit)).series[frozenset(labels.items())]
        if kind == "bucket" and bound:
            series.buckets[le] = amount
        elif kind == "sum":
            series.total = amount
        elif kind == "count":
            series.counted = amount
    for histogram in result.values():
        histogram.series = {key: each for key, each in histogram.series.items() if each.buckets and each.count > 0}
        for each in histogram.series.values():
            counts = [each.buckets[bound] for bound in sorted(each.buckets)]
            if counts != sorted(counts):
                raise input_error(
                    path, None, f"buckets of {histogram.name} that decrease", "cumulative counts", "scrape it again"
                )
    return {name: each for name, each in result.items() if each.series}


def diagnose(recorded: Recorded, options: ReadOptions) -> Diagnosis:
    """The diagnosis that histograms allow: bounds of percentiles, means of parts; no requests, no causes.

    :raises InputError: there is no histogram of a latency.
    """
    path = recorded.path
    known = histograms(path)
    whole = _whole(known)
    if whole is None:
        raise input_error(
            path, None, "no histogram of a latency with a count", "a histogram such as *_latency_seconds"
        )
    bounds = {key: whole.bounds_ms(quantile) for key, quantile in QUANTILES.items()}
    latency = {key: bounds[key][1] if key in bounds else math.nan for key in LATENCY_KEYS}
    latency["mean"] = whole.mean_ms
    percentile = 99.0 if options.percentile is None else options.percentile
    low, high = whole.bounds_ms(percentile / 100)
    between = (
        f"above {milliseconds(low)}" if math.isnan(high) else f"between {milliseconds(low)} and {milliseconds(high)}"
    )
    return Diagnosis(
        workload=path.name.partition(".")[0] or path.name,
        device="",
        requests={"ok": round(whole.count), "error": None, "timeout": None, "shed": None},
        latency_ms=latency,
        latency_ci95_ms=bounds,
        stages_ms={name: _stage(each) for name, each in known.items() if each is not whole},
        verdict="inconclusive",
        sentence=(
            f"{percentile_label(percentile)} of {whole.name} lies {between}; a histogram does not identify slow "
            "requests, so no cause can be named."
        ),
        percentile=percentile,
        notes=("Percentiles are the upper bounds of their buckets; the intervals are the buckets.",),
        source=Source(kind="requests", path=str(path), read={"format": NAME, "histograms": len(known)}),
    )


def _whole(known: Mapping[str, Histogram]) -> Histogram | None:
    for part in _WHOLE:
        named = [each for name, each in known.items() if part in name]
        if named:
            return max(named, key=lambda each: each.count)
    return max(known.values(), key=lambda each: np.nan_to_num(each.total), default=None)


def _stage(histogram: Histogram) -> dict[str, float]:
    return {
        "mean": histogram.mean_ms,
        "p50": histogram.bounds_ms(0.5)[1],
        "p99": histogram.bounds_ms(0.99)[1],
        "reference": math.nan,
        "tail": math.nan,
    }
