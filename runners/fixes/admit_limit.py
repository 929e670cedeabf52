"""``admit.limit``: a limit on requests inside that follows latency; what comes beyond it is turned away at once."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.queue_evidence import losses, said_losses, series_range

#: Losses below this part of the requests: what a limit turned away would be lost on top, more than a fix may cost.
_LOST = 0.01


def _obstacle(context: Context) -> str:
    if context.settings.admission != "all":
        return f"admission is by {context.settings.admission} already"
    _, total, counts = losses(context.record)
    late = counts["timeout"] + counts["shed"]
    if late < _LOST * total or not total:
        return (
            f"the service turned away or answered too late {late} of {total} requests: what a limit turns away would "
            "be lost on top"
        )
    return ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"admission": "limit"}


def _verify(applied: Applied) -> Verified:
    limit, shed = (series_range(applied.record, f"runner.{name}") for name in ("concurrency_limit", "shed_at_limit"))
    if limit is None or shed is None:
        return Verified(False, "no limit was in force")
    said = f"{said_losses(applied.record)}; without: {said_losses(applied.without)}"
    turned_away = losses(applied.record)[2]["shed"]
    if not turned_away:
        return Verified(False, f"the limit, {limit[0]:.0f} to {limit[1]:.0f} requests, was never reached; {said}")
    return Verified(True, f"a limit of {limit[0]:.0f} to {limit[1]:.0f} requests inside; {said}")


FIX = Fix(
    id="admit.limit",
    title="let in as many as latency allows",
    treats=("traffic.overload", "traffic.burst"),
    relief=0.4,
    risk="requests are shed: percentiles are over those that were let in, and the count of the others stands beside",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
