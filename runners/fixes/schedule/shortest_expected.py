"""``schedule.shortest_expected``: what is expected to compute shortest leaves the queue first, with ageing."""

from __future__ import annotations

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.batch.bucket import bucket_key
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.queue_evidence import Waits, choose_ageing_ms, learned, overtaking, work_spread
from latfix.runners.fixes.shared.run_evidence import series_range

#: Waiting below this part of the p95 latency leaves nothing to reorder.
_WAITING = 0.1
#: Expected work must differ by this factor between p10 and p90, and explain so much of what batches computed.
_VARIES, _EXPLAINED = 1.3, 0.2
#: Of the requests that overtook, at least so many must have been the shorter one.
_SHORTER = 0.9


def _key(context: Context) -> str:
    """The feature that lengths are told by: what batches go by already, else the one that tells compute best."""
    return context.settings.batch_key or bucket_key(context.record)


def _order_pays(context: Context) -> str:
    waits = Waits.of(context.record)
    if not len(waits.latency):
        return "no request reached a batch"
    waited, latency = (float(np.percentile(values, 95)) / 1e6 for values in (waits.wait, waits.latency))
    if waited < _WAITING * latency:
        return f"hardly anybody waits: {waited:.3g} ms in the queue at p95, of a latency of {latency:.3g} ms"
    estimate = learned(context.record, _key(context))
    explained = estimate.line.explained
    if explained < _EXPLAINED:
        return f"length tells only {explained:.0%} of how long batches compute"
    spread = work_spread(context.record, estimate, _key(context))
    if spread < _VARIES:
        return f"requests take alike long: expected compute at p90 is {spread:.2f} times that at p10"
    return ""


def _sets(context: Context) -> Change:
    key = _key(context)
    ageing = choose_ageing_ms(context.record, context.settings, "shortest", key)
    return {"schedule": "shortest", "ageing_ms": ageing, "batch_key": key}


def _verify(applied: Applied) -> Verified:
    key = applied.settings.batch_key

    def overtook(record: RunRecord) -> tuple[int, int, float]:
        """Requests that overtook one of their class, how many were the shorter one, and their share."""
        seen = overtaking(Waits.of(record, key), by_length=record.meta.settings.batch_order == "length")
        return seen.same_class, seen.shorter, seen.shorter / max(seen.same_class, 1)

    (now, shorter, share), (before, were_shorter, was) = applied.both(overtook)
    explained = series_range(applied.record, "runner.work_explained")
    return Verified(
        shorter > were_shorter and share >= _SHORTER and now > 0,
        f"{now} requests overtook one of their class, {share:.0%} of them the shorter of the two; {before} and "
        f"{was:.0%} without; length explains {explained[-1] if explained else 0.0:.0%} of compute",
    )


FIX = Fix(
    id="schedule.shortest_expected",
    title="serve what computes shortest first",
    treats=("traffic.burst", "traffic.overload", "input.size"),
    relief=0.2,
    gentle=True,
    risk="long requests wait longer, at most the ageing interval for each typical request that they are worth",
    needs=(at_default("schedule", "the queue is ordered by {} already"), _order_pays),
    sets=_sets,
    verify=_verify,
)
