"""``schedule.shortest_expected``: requests with the shortest expected compute leave the queue first, with ageing."""

from __future__ import annotations

import numpy as np

from latfix.formatting import counted, percent
from latfix.results.worker_summary import series_range
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.batch.bucket import bucket_key
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.queue_evidence import Waits, choose_ageing_ms, learned, overtaking, work_spread

#: Minimum wait in the queue, as a share of the p95 latency.
_WAITING = 0.1
#: Minimum ratio of expected work at p90 to p10, and minimum share of the batches' compute that it explains.
_VARIES, _EXPLAINED = 1.3, 0.2
#: Minimum share of overtaking requests that are shorter than the overtaken one.
_SHORTER = 0.9


def _key(context: Context) -> str:
    """The feature that gives lengths: the one that batches use already, or the one that explains compute best."""
    return context.settings.batch_key or bucket_key(context.record)


def _order_pays(context: Context) -> str:
    waits = Waits.of(context.record)
    if not len(waits.latency):
        return "no request reached a batch"
    waited, latency = (float(np.percentile(values, 95)) / 1e6 for values in (waits.wait, waits.latency))
    if waited < _WAITING * latency:
        return f"requests hardly wait: {waited:.3g} ms in the queue at p95, of a latency of {latency:.3g} ms"
    estimate = learned(context.record, _key(context))
    explained = estimate.line.explained
    if explained < _EXPLAINED:
        return f"length explains only {percent(explained)} of how long batches compute"
    spread = work_spread(context.record, estimate, _key(context))
    if spread < _VARIES:
        return f"requests are alike: expected compute at p90 is {spread:.2f} times that at p10"
    return ""


def _sets(context: Context) -> Change:
    key = _key(context)
    ageing = choose_ageing_ms(context.record, context.settings, "shortest", key)
    return {"schedule": "shortest", "ageing_ms": ageing, "batch_key": key}


def _verify(applied: Applied) -> Verified:
    key = applied.settings.batch_key

    def overtook(record: RunRecord) -> tuple[int, int, float]:
        """Requests that overtook one of their class, how many of them were shorter, and their share."""
        seen = overtaking(Waits.of(record, key), by_length=record.meta.settings.batch_order == "length")
        return seen.same_class, seen.shorter, seen.shorter / max(seen.same_class, 1)

    (now, shorter, share), (before, were_shorter, was) = applied.both(overtook)
    explained = series_range(applied.record, "runner.work_explained") or (0.0,)
    return Verified(
        shorter > were_shorter and share >= _SHORTER and now > 0,
        f"{counted(now, 'request')} overtook one of their class, {percent(share)} of them the shorter of the two; "
        f"{before} and {percent(was)} without; length explains {percent(explained[-1])} of compute",
    )


FIX = Fix(
    id="schedule.shortest_expected",
    title="serve requests with the shortest expected compute first",
    treats=("traffic.burst", "traffic.overload", "input.size"),
    relief=0.2,
    gentle=True,
    risk="long requests wait longer, at most one ageing interval for each typical request of the same total work",
    reorders=True,
    needs=(at_default("schedule", "the queue is ordered by {} already"), _order_pays),
    sets=_sets,
    verify=_verify,
)
