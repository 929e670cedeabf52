"""``batch.continuous``: requests join and leave a batch between two steps of the model."""

from __future__ import annotations

import numpy as np

from latfix.results.worker_summary import workers_of
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, need, wait_for_batch
from latfix.runners.fixes.shared.run_evidence import mean

#: Requests that share a step if the settings do not say.
_PLACES = 8


def works_in_steps(record: RunRecord) -> bool:
    """True if the engine noted that the model can run in steps."""
    notes = record.events["detail"][record.events["kind"] == "note"] if len(record.events["kind"]) else ()
    return any(isinstance(detail, dict) and detail.get("steps") is True for detail in notes)


def _sets(context: Context) -> Change:
    change: Change = {"batching": "continuous", "batch_window_ms": 0.0}
    if context.settings.max_batch_size > 1:
        return change
    # Whole batches may have been best one by one; here no request waits for the longest.
    first = context.record.meta.settings.max_batch_size
    return {**change, "max_batch_size": first if first > 1 else _PLACES}


def joined(record: RunRecord) -> tuple[int, int]:
    """Number of requests that joined while a worker was serving others, and of all served requests."""
    batches = record.batches
    worker = workers_of(record)
    number = 0
    for one in np.unique(worker).tolist():
        rows = np.flatnonzero((worker == one) & (batches["retried"] == 0))
        rows = rows[np.argsort(batches["close_ns"][rows], kind="stable")]
        taken, ends = batches["close_ns"][rows], batches["compute_end_ns"][rows]
        running = np.maximum.accumulate(ends)
        # Requests that join together have the same time: compare with those before the first of them.
        before = np.searchsorted(taken, taken, side="left")
        number += int(np.count_nonzero((before > 0) & (running[np.maximum(before - 1, 0)] > taken)))
    return number, len(batches["size"])


def _verify(applied: Applied) -> Verified:
    (now, served), (before, _) = applied.both(joined)
    sizes = applied.record.batches["size"]
    shared = mean(sizes)
    continuous = applied.settings.batching == "continuous"
    return Verified(
        continuous and now > before,
        f"{now} of {served} requests joined others between two steps, {before} without; {shared:.3g} shared a step "
        "on average",
    )


FIX = Fix(
    id="batch.continuous",
    title="let requests join and leave a batch between steps",
    # Requests of any length no longer wait for others of their batch, or behind a long one.
    treats=("batching.size", "batching.window", "batching.padding", "input.size", "traffic.burst"),
    relief=0.9,
    risk="reading a new prompt delays the answers in progress",
    changes_outputs=True,
    needs=(
        need(lambda context: context.settings.batching != "continuous", "batching is continuous already"),
        need(
            lambda context: works_in_steps(context.record),
            "the model does not work in steps (it has no start, done, step, join and leave)",
        ),
        at_default("memory_limit_mb", "batches are kept below {} MB, which does not work with requests that join"),
        at_default("backend", "with backend = {!r} the model does not run in steps"),
        wait_for_batch,
    ),
    sets=_sets,
    verify=_verify,
)
