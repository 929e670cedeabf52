"""``admit.limit``: a limit on requests inside that follows latency; what comes beyond it is turned away at once."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.run_evidence import losses, losses_text, series_range

#: Losses below this part of the requests: what a limit turned away would be lost on top, more than a fix may cost.
_LOST = 0.01


def _lost_already(context: Context) -> str:
    _, total, counts = losses(context.record)
    late = counts["timeout"] + counts["shed"]
    if late >= _LOST * total > 0:
        return ""
    return (
        f"the service turned away or answered too late {late} of {total} requests: what a limit turns away would "
        "be lost on top"
    )


def _verify(applied: Applied) -> Verified:
    limit, shed = (series_range(applied.record, f"runner.{name}") for name in ("concurrency_limit", "shed_at_limit"))
    if limit is None or shed is None:
        return Verified(False, "no limit was in force")
    said, span = losses_text(applied), f"{limit[0]:.0f} to {limit[1]:.0f} requests"
    if not losses(applied.record)[2]["shed"]:
        return Verified(False, f"the limit, {span}, was never reached; {said}")
    return Verified(True, f"a limit of {span} inside; {said}")


FIX = Fix(
    id="admit.limit",
    title="let in as many as latency allows",
    treats=("traffic.overload", "traffic.burst"),
    relief=0.4,
    risk="requests are shed: percentiles are over those that were let in, and the count of the others stands beside",
    needs=(at_default("admission", "admission is by {} already"), _lost_already),
    sets={"admission": "limit"},
    verify=_verify,
)
