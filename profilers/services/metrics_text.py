"""What a service tells under ``/metrics``: the text format of Prometheus, summed over labels."""

from __future__ import annotations

import math
import re
from collections import defaultdict

#: Names that are kept, at most; and how long a text is read.
_MOST_NAMES = 200
LONGEST_TEXT = 8 << 20
_LINE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*")
#: Histograms and counters that hold how long requests waited in the service's queue: name of the sum, name of the
#: count, nanoseconds of its unit.
_QUEUES: tuple[tuple[str, str, float], ...] = (
    ("vllm:request_queue_time_seconds_sum", "vllm:request_queue_time_seconds_count", 1e9),
    ("sglang:queue_time_seconds_sum", "sglang:queue_time_seconds_count", 1e9),
    ("tgi_request_queue_duration_sum", "tgi_request_queue_duration_count", 1e9),
    ("nv_inference_queue_duration_us", "nv_inference_request_success", 1e3),
)
#: Names that say the same in other services.
_QUEUE_WORDS = re.compile(r"queu\w*_?(?:time|duration|wait|latency|delay)|(?:time|wait)_?in_?queue|queue_wait")
_UNITS = (("_seconds", 1e9), ("_milliseconds", 1e6), ("_ms", 1e6), ("_microseconds", 1e3), ("_us", 1e3))


def parse_metrics(text: str) -> dict[str, float]:
    """Values by name, summed over labels; buckets, quantiles and what is not finite are left out."""
    found: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line.startswith("#") or "quantile=" in line:
            continue
        match = _LINE.fullmatch(line)
        if match is None or match.group(1).endswith(("_bucket", "_created")):
            continue
        try:
            value = float(match.group(3))
        except ValueError:
            continue
        if math.isfinite(value) and (match.group(1) in found or len(found) < _MOST_NAMES):
            found[match.group(1)] += value
    return dict(found)


def queue_names(names: set[str]) -> tuple[str, str, float] | None:
    """The sum and the count of the service's queue times, and nanoseconds of their unit; ``None`` for none."""
    for total, count, unit in _QUEUES:
        if {total, count} <= names:
            return total, count, unit
    for total in sorted(names):
        base = total.removesuffix("_sum")
        if base != total and f"{base}_count" in names and _QUEUE_WORDS.search(base.lower()):
            scale = next((ns for suffix, ns in _UNITS if base.endswith(suffix)), None)
            if scale is not None:
                return total, f"{base}_count", scale
    return None
