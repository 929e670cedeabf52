"""``admit.limit``: a limit on requests in flight that follows latency; further requests are rejected at once."""

from __future__ import annotations

from latfix.results.worker_summary import series_range
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.run_evidence import losses_text

#: Minimum share of lost requests: below it, a limit would lose more requests than a fix may cost.
_LOST = 0.01


def _lost_already(context: Context) -> str:
    counts = context.record.counts()
    late, total = counts["timeout"] + counts["shed"], sum(counts.values())
    if late >= _LOST * total > 0:
        return ""
    return (
        f"the service rejected or answered too late {late} of {total} requests: those that a limit rejects would be "
        "lost in addition"
    )


def _verify(applied: Applied) -> Verified:
    limit, shed = (series_range(applied.record, f"runner.{name}") for name in ("concurrency_limit", "shed_at_limit"))
    if limit is None or shed is None:
        return Verified(False, "no limit was in force")
    lost, span = losses_text(applied), f"{limit[0]:.0f} to {limit[1]:.0f} requests"
    if not applied.record.counts()["shed"]:
        return Verified(False, f"the limit, {span}, was never reached; {lost}")
    return Verified(True, f"a limit of {span} in flight; {lost}")


FIX = Fix(
    id="admit.limit",
    title="limit requests in flight by measured latency",
    treats=("traffic.overload", "traffic.burst"),
    relief=0.4,
    risk="requests are shed, which every percentile counts as lost",
    needs=(at_default("admission", "admission is by {} already"), _lost_already),
    sets={"admission": "limit"},
    verify=_verify,
)
