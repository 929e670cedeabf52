"""Parses a service's ``/metrics``: the text formats of Prometheus and OpenMetrics."""

from __future__ import annotations

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator

#: Most names to keep, and most characters to read.
_MOST_NAMES = 200
LONGEST_TEXT = 8 << 20
#: What a series of full collections is called: those with this label in the metrics of prometheus' Python client.
_FULL = '{generation="2"}'
#: A name, labels, a value; optionally a time and, in OpenMetrics, an exemplar.
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*?)\})?\s+([^\s#]+)(?:\s+[-+.0-9eE]+)?\s*(?:#.*)?", re.ASCII)
_LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)


def read_sample(line: str) -> tuple[str, dict[str, str], str]:
    """Name, labels and value of a line as text, all empty if it is no sample; escaped characters stay escaped."""
    match = _SAMPLE.fullmatch(line)
    return ("", {}, "") if match is None else (match[1], dict(_LABEL.findall(match[2] or "")), match[3])


def finite_samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample, without quantiles and non-finite values."""
    for name, labels, number in map(read_sample, text.splitlines()):
        value = math.nan
        with contextlib.suppress(ValueError):
            value = float(number)
        if math.isfinite(value) and "quantile" not in labels:
            yield name, labels, value


def parse_metrics(text: str) -> dict[str, float]:
    """Values by name, summed over labels, without buckets, quantiles and non-finite values.

    Those of CPython's full collections are also kept apart.
    """
    result: dict[str, float] = defaultdict(float)
    for name, labels, value in finite_samples(text):
        if name.endswith(("_bucket", "_created")):
            continue
        for key in (name, name + _FULL) if labels.get("generation") == "2" else (name,):
            if key in result or len(result) < _MOST_NAMES:
                result[key] += value
    return dict(result)
