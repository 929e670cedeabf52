"""``admit.shed``: requests that cannot be answered by their deadline are turned away before they cost anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.queue_evidence import losses, said_losses, series_range

#: Timeouts below this part of the requests leave nothing to gain.
_LATE = 0.01


def _obstacle(context: Context) -> str:
    if context.settings.admission != "all":
        return f"admission is by {context.settings.admission} already"
    with_deadline = int(np.count_nonzero(~np.isnan(context.record.traffic.deadline_ms)))
    if not with_deadline and not context.settings.timeout_ms:
        return "no request has a deadline"
    _, total, counts = losses(context.record)
    if counts["timeout"] < _LATE * total or not total:
        return f"only {counts['timeout']} of {total} requests missed their deadline"
    return ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"admission": "deadline"}


def _verify(applied: Applied) -> Verified:
    refused, dropped = (
        series_range(applied.record, f"runner.{name}") for name in ("refused_by_deadline", "dropped_by_deadline")
    )
    if refused is None or dropped is None:
        return Verified(False, "deadlines were not looked at")
    said = f"{said_losses(applied.record)}; without: {said_losses(applied.without)}"
    if not losses(applied.record)[2]["shed"]:
        return Verified(False, f"nobody was turned away; {said}")
    return Verified(True, f"some were turned away on arrival, others in the queue; {said}")


FIX = Fix(
    id="admit.shed",
    title="turn away what cannot be answered in time",
    treats=("traffic.overload", "traffic.burst"),
    relief=0.4,
    risk="requests with a deadline are shed by an estimate; those that would have been late anyhow, if it is right",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
