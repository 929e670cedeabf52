"""OpenTelemetry metrics in OTLP's JSON: the figures of the OpenMetrics export.

One ``ExportMetricsServiceRequest`` (opentelemetry-proto, metrics/v1/metrics.proto). Values cover the whole run, so
counts and the histogram are cumulative from its start to its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from latfix import __version__
from latfix.formatting import finite
from latfix.reports.exports.openmetrics import EDGES, Family, families
from latfix.reports.exports.otlp_spans import resource_of, started_ns, text_attribute
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.chunked_record import RecordSource

_CUMULATIVE = 2
#: Units as in UCUM, which OpenTelemetry uses.
_UNITS = {"seconds": "s", "": "1"}


def otlp_metrics(diagnosis: Diagnosis, source: RecordSource) -> str:
    """The document.

    :raises InputError: ``run.json`` has no start time.
    """
    begun = started_ns(source)
    parts = source.scan(("arrival_ns", "latency_ns"))
    ended = max((int((rows["arrival_ns"] + rows["latency_ns"]).max(initial=0)) for rows in parts), default=0)
    when = {"startTimeUnixNano": str(begun), "timeUnixNano": str(begun + ended)}
    metrics = [_metric(family, when) for family in families(diagnosis, source)]
    scope = {"scope": {"name": "latfix", "version": __version__}, "metrics": metrics}
    return json.dumps(
        {"resourceMetrics": [{"resource": {"attributes": resource_of(source)}, "scopeMetrics": [scope]}]},
        allow_nan=False,
    )


def _metric(family: Family, when: Mapping[str, str]) -> dict[str, Any]:
    known = {"name": f"latfix.{family.name}", "description": family.words, "unit": _UNITS[family.unit]}
    if family.kind == "histogram":
        return known | {"histogram": {"aggregationTemporality": _CUMULATIVE, "dataPoints": [_buckets(family, when)]}}
    points = [
        {**when, "attributes": _attributes(labels), **_value(value)}
        for _, labels, value in family.samples
        if finite(value) is not None  # an undecided gate and a lost percentile have no value
    ]
    if family.kind == "counter":
        more = {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
        return known | {"sum": {**more, "dataPoints": points}}
    return known | {"gauge": {"dataPoints": points}}


def _value(value: object) -> dict[str, object]:
    return {"asInt": str(value)} if isinstance(value, int) else {"asDouble": value}


def _attributes(labels: Mapping[str, object]) -> list[dict[str, object]]:
    return [text_attribute(key, value) for key, value in labels.items() if key != "le"]


def _buckets(family: Family, when: Mapping[str, str]) -> dict[str, Any]:
    """The data point of cumulative buckets, followed by the count and the sum."""
    *buckets, (_, labels, total), (_, _, sum_s) = family.samples
    reached = [0, *(int(str(number)) for _, _, number in buckets)]
    counts: Sequence[int] = [after - before for before, after in pairwise(reached)]
    return {
        **when,
        "attributes": _attributes(labels),
        "count": str(total),
        "sum": sum_s,
        "bucketCounts": [str(number) for number in counts],
        "explicitBounds": list(EDGES),
    }
