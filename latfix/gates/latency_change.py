"""Which stages account for the latency difference between two services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from latfix.arrays import Floats
from latfix.files.json_documents import Document, json_key
from latfix.formatting import key_label, significant
from latfix.run_record.run_record import RunRecord
from latfix.stages import Status
from latfix.statistics.latency_summary import QUANTILES

#: Stage names in sentences; stages that belong together share one.
_NAMES: Mapping[str, str] = {
    "prepare": "prepare",
    "queue": "queue behind it",
    "batch": "collate",
    "h2d": "copies",
    "compute": "compute",
    "d2h": "copies",
    "finish": "finish",
    "dispatch": "replayer's own lag",
}
#: Those of a service behind an address, as its client sees them.
_NAMES_OUTSIDE: Mapping[str, str] = {**_NAMES, "prepare": "send", "compute": "first byte", "finish": "stream"}
#: Stages with a smaller share of the total change are not listed.
_LEAST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyChange(Document):
    """The change of one latency, in milliseconds.

    :param metric: ``mean`` or the key of a percentile.
    :param parts_ms: by stage; they add up to ``after_ms - before_ms``.
    :param causes_ms: by cause, the change of the requests beyond a percentile, or of all for the mean, including a
        quiet request's part; empty if not requested.
    """

    metric: str
    before_ms: float
    after_ms: float
    parts_ms: Mapping[str, float]
    causes_ms: Mapping[str, float] = field(default_factory=dict, metadata=json_key(omit_empty=True))

    @property
    def sentence(self) -> str:
        """``p99 + 8.1 ms: compute + 2.1, queue behind it + 6.0, all else + 0.0``, then the same by cause."""
        change = _signed(self.after_ms - self.before_ms)
        stages = f"{key_label(self.metric)} {change} ms: {_largest(self.parts_ms)}"
        if not self.causes_ms:
            return stages
        total = _signed(sum(self.causes_ms.values()))
        which = "all requests" if self.metric == "mean" else "requests beyond it"
        return f"{stages}; by cause, {which} {total} ms: {_largest(self.causes_ms)}"


def latency_change(metric: str, before: Sequence[RunRecord], after: Sequence[RunRecord]) -> LatencyChange | None:
    """The change of a latency, stage by stage; ``None`` if an arm has no request that ended ``ok``.

    For the mean, stages are averaged over all requests. For a percentile, they are averaged over the requests around
    it, on either side half as many as lie beyond it, and scaled to the percentile.
    """
    first, second = _stages(metric, before), _stages(metric, after)
    if first is None or second is None:
        return None
    names = dict.fromkeys((*first, *second))
    parts = {name: second.get(name, 0.0) - first.get(name, 0.0) for name in names}
    return LatencyChange(metric=metric, before_ms=sum(first.values()), after_ms=sum(second.values()), parts_ms=parts)


def _stages(metric: str, records: Sequence[RunRecord]) -> dict[str, float] | None:
    """Milliseconds by stage name, adding up to the metric."""
    ok = [record.measured & (record.requests["status"] == Status.OK) for record in records]

    def column(name: str) -> Floats:
        parts = [record.requests[name][chosen] for record, chosen in zip(records, ok, strict=True)]
        return np.concatenate(parts).astype(np.float64) / 1e6

    latency = column("latency_ns")
    if not len(latency):
        return None
    if metric in QUANTILES:
        q = QUANTILES[metric]
        low, high = np.quantile(latency, [q - (1.0 - q) / 2, q + (1.0 - q) / 2], method="inverted_cdf")
        around, figure = (latency >= low) & (latency <= high), float(np.quantile(latency, q))
    else:
        around, figure = np.ones(len(latency), dtype=np.bool_), float(latency.mean())
    scale = figure / float(latency[around].mean())
    found: dict[str, float] = {}
    for stage, name in (_NAMES_OUTSIDE if records[0].meta.is_http else _NAMES).items():
        found[name] = found.get(name, 0.0) + scale * float(column(f"{stage}_ns")[around].mean())
    return found


def _largest(parts: Mapping[str, float]) -> str:
    moved = sum(map(abs, parts.values()))
    named = {name: part for name, part in parts.items() if moved and abs(part) >= _LEAST_SHARE * moved}
    rest = sum(part for name, part in parts.items() if name not in named)
    listed = [f"{name} {_signed(part)}" for name, part in sorted(named.items(), key=lambda each: -abs(each[1]))]
    return ", ".join((*listed, f"all else {_signed(rest)}"))


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'} {significant(abs(value))}" if abs(value) >= 0.05 else "+ 0.0"
