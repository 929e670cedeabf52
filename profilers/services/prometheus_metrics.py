"""Parses a service's ``/metrics``: the text formats of Prometheus and OpenMetrics."""

from __future__ import annotations

import math
import re
from collections import defaultdict

#: Most names to keep, and most characters to read.
_MOST_NAMES = 200
LONGEST_TEXT = 8 << 20
#: The label of full collections in the metrics of prometheus' Python client.
_FULL = '{generation="2"}'
#: A name, labels, a value; optionally a time and, in OpenMetrics, an exemplar.
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*?)\})?\s+([^\s#]+)(?:\s+[-+.0-9eE]+)?\s*(?:#.*)?", re.ASCII)


_LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)


def read_labels(labels: str) -> dict[str, str]:
    """The labels of a sample by name; escaped characters stay escaped."""
    return dict(_LABEL.findall(labels))


def read_sample(line: str) -> tuple[str, str, str] | None:
    """Name, labels and value of a line as text; ``None`` if it is no sample."""
    match = _SAMPLE.fullmatch(line)
    return None if match is None else (match[1], match[2] or "", match[3])


def parse_metrics(text: str) -> dict[str, float]:
    """Values by name, summed over labels, without buckets, quantiles and non-finite values.

    Those of CPython's full collections are also kept apart.
    """
    result: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        name, labels, number = read_sample(line) or ("", "", "")
        if not name or name.endswith(("_bucket", "_created")) or "quantile=" in labels:
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        for key in (name, name + _FULL) if _FULL.strip("{}") in labels else (name,):
            if math.isfinite(value) and (key in result or len(result) < _MOST_NAMES):
                result[key] += value
    return dict(result)
