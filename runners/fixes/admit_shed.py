"""``admit.shed``: requests that cannot be answered by their deadline are rejected before they take resources."""

from __future__ import annotations

import numpy as np

from latfix.results.worker_summary import series_range
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.run_evidence import losses_text

#: Minimum share of requests that time out.
_LATE = 0.01


def _deadlines_missed(context: Context) -> str:
    if np.isnan(context.record.traffic.deadline_ms).all() and not context.settings.timeout_ms:
        return "no request has a deadline"
    counts = context.record.counts()
    late, total = counts["timeout"], sum(counts.values())
    if late < _LATE * total or not total:
        return f"only {late} of {total} requests missed their deadline"
    return ""


def _verify(applied: Applied) -> Verified:
    names = ("refused_by_deadline", "dropped_by_deadline")
    if any(series_range(applied.record, f"runner.{name}") is None for name in names):
        return Verified(False, "deadlines were not checked")
    lost = losses_text(applied)
    if not applied.record.counts()["shed"]:
        return Verified(False, f"no request was rejected; {lost}")
    return Verified(True, f"some requests were rejected on arrival, others in the queue; {lost}")


FIX = Fix(
    id="admit.shed",
    title="reject requests that cannot be answered in time",
    treats=("traffic.overload", "traffic.burst"),
    relief=0.4,
    risk="requests with a deadline are shed by an estimate; if it is right, they would have been late anyway",
    needs=(at_default("admission", "admission is by {} already"), _deadlines_missed),
    sets={"admission": "deadline"},
    verify=_verify,
)
