"""``batch.tune``: batch limit, window, workers and threads together, for the service as the other fixes left it."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.profilers.forecast.parameter_search import Numbers
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.host.threads import threads_text, worker_threads

#: Numbers must be foretold to bring p99 and the mean below this share of what they are.
_WORTH_IT = 0.97


def _obstacle(context: Context) -> str:
    if context.settings.batching != "fixed":
        return f"batching is {context.settings.batching}, which moves its limits by itself"
    found = context.proposal
    if found is None:
        return "the run is too small for a forecast, or the forecast of what ran was too far from it"
    if found.score >= _WORTH_IT:
        return (
            f"of {found.looked_at} combinations of limit, window, workers and threads the forecast finds none that "
            f"gains {1 - _WORTH_IT:.0%}"
        )
    return ""


def _change(context: Context) -> dict[str, Any]:
    assert context.proposal is not None, "without one there is an obstacle"
    return context.proposal.numbers.changes(context.settings)


def _verify(applied: Applied) -> Verified:
    now, before = (Numbers.of_record(record) for record in (applied.record, applied.without))
    seen: list[tuple[bool, str]] = []
    with_it, without = applied.record.batches, applied.without.batches
    if now.limit != before.limit:
        largest, was = (int(batches["size"].max(initial=0)) for batches in (with_it, without))
        took = largest <= now.limit < was if now.limit < before.limit else largest > was
        seen.append((took, f"batches held {largest} requests at most, {was} without"))
    if now.window_ms != before.window_ms:
        opened, was_open = (_open_ms(batches) for batches in (with_it, without))
        took = opened > was_open if now.window_ms > before.window_ms else opened < was_open
        seen.append((took, f"a batch stayed open for {opened:.3g} ms on average, {was_open:.3g} without"))
    if now.workers != before.workers:
        busy, were = (len(np.unique(batches["worker"])) for batches in (with_it, without))
        seen.append((busy == now.workers, f"{busy} workers ran batches, {were} without"))
    if now.threads != before.threads:
        threads = worker_threads(applied)
        seen.append((set(threads) == {now.threads}, f"workers ran operators on {threads_text(threads)} thread(s)"))
    return Verified(bool(seen) and all(took for took, _ in seen), "; ".join(words for _, words in seen))


def _open_ms(batches: Any) -> float:
    waits = (batches["close_ns"] - batches["open_ns"]) / 1e6
    return float(np.mean(waits)) if len(waits) else 0.0


FIX = Fix(
    id="batch.tune",
    title="batch limit, window, workers and threads that suit the service as the other fixes left it",
    treats=("batching.size", "batching.window", "traffic.burst", "traffic.overload"),
    relief=0.2,
    risk="the numbers suit this traffic at this load; other loads may want others",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
