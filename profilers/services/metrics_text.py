"""What a service tells under ``/metrics``: the text format of Prometheus, summed over labels."""

from __future__ import annotations

import math
import re
from collections import defaultdict

#: Names that are kept, at most; and how long a text is read.
_MOST_NAMES = 200
LONGEST_TEXT = 8 << 20
_LINE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*")


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
