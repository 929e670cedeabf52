"""Prometheus' text format: histograms of latency, which count slow requests but do not identify them.

Fields: the exposition format (``# TYPE … histogram``, ``_bucket{le="…"}``, ``_sum``, ``_count``), for instance from
``/metrics``. A percentile is known up to its bucket, and unknown above the last bound.
"""

from __future__ import annotations

import math
import re
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
_LE = re.compile(r'(?:^|,)\s*le="([^"]+)"')
#: Names that servers use for the latency of a whole request; other histograms are parts.
_WHOLE = ("e2e_request_latency", "request_latency", "request_duration", "http_request_duration", "latency")


@dataclass(slots=True)
class Histogram:
    """A family of histograms, summed over its series.

    :param buckets: by upper bound in the unit, the number of requests up to it.
    :param total: sum of all observations in the unit; NaN if it is missing.
    """

    name: str
    unit_ns: int
    buckets: dict[float, float] = field(default_factory=dict)
    total: float = math.nan
    count: float = 0.0

    @property
    def mean_ms(self) -> float:
        return self.total * self.unit_ns / self.count / 1e6

    def bounds_ms(self, quantile: float) -> tuple[float, float]:
        """Lower and upper bound of a percentile in milliseconds; the upper one is NaN above the last bucket."""
        rank, below = quantile * self.count, 0.0
        for bound, reached in sorted(self.buckets.items()):
            if reached >= rank:
                return below * self.unit_ns / 1e6, bound * self.unit_ns / 1e6 if math.isfinite(bound) else math.nan
            below = bound
        return below * self.unit_ns / 1e6, math.nan


def knows(head: bytes) -> bool:
    """True if a histogram is among the first lines."""
    return re.search(rb'^[A-Za-z_:][\w:]*_bucket\{[^}]*le="', head, re.MULTILINE) is not None


def histograms(path: Path) -> dict[str, Histogram]:
    """All histograms with a unit of time in their name.

    :raises InputError: a sample has an invalid number.
    """
    result: dict[str, Histogram] = {}
    for number, line in lines_of(path):
        whole, labels, value = read_sample(line) or ("", "", "")
        name, _, kind = whole.rpartition("_")
        unit = UNITS_NS.get(name.rpartition("_")[2])
        if unit is None or kind not in ("bucket", "sum", "count"):
            continue
        bound = _LE.search(labels)
        with entry_of(path, f"the sample {shown(line, 60)}", "a finite number", number):
            amount, le = float(value), float(bound[1]) if bound is not None else math.nan
            if not math.isfinite(amount):
                raise ValueError(value)
        histogram = result.setdefault(name, Histogram(name, unit))
        if kind == "bucket" and bound is not None:
            histogram.buckets[le] = histogram.buckets.get(le, 0.0) + amount
        elif kind == "sum":
            histogram.total = amount + (0.0 if math.isnan(histogram.total) else histogram.total)
        elif kind == "count":
            histogram.count += amount
    return {name: each for name, each in result.items() if each.buckets and each.count > 0}


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
    return Diagnosis(
        workload=path.name.partition(".")[0] or path.name,
        device="",
        requests={"ok": round(whole.count), "error": None, "timeout": None, "shed": None},
        latency_ms=latency,
        latency_ci95_ms=bounds,
        stages_ms={name: _stage(each) for name, each in known.items() if each is not whole},
        verdict="inconclusive",
        sentence=(
            f"{percentile_label(percentile)} of {whole.name} lies between {milliseconds(low)} and "
            f"{milliseconds(high)}; a histogram does not identify slow requests, so no cause can be named."
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
