"""``batch.window``: how long a batch waits for more requests while the worker is free; usually not at all."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, batches_shared, need
from latfix.runners.fixes.shared.run_evidence import open_ms

#: Maximum remaining share of the wait; two replays without any change differ by less.
_LEFT = 0.5
#: Windows that the forecast chooses from, in milliseconds.
_CHOICES_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def _verify(applied: Applied) -> Verified:
    now, before = applied.both(open_ms)
    left = applied.settings.batch_window_ms
    took = now < max(_LEFT * before, min(left, before))
    return Verified(took, f"a batch stayed open for {now:.3g} ms on average, {before:.3g} without")


FIX = Fix(
    id="batch.window",
    title="close a batch as soon as a worker is free",
    treats=("batching.window",),
    relief=1.0,
    gentle=True,
    risk="smaller batches under light load",
    needs=(
        at_default("batching", "batching is {}, which has no fixed window"),
        batches_shared("requests run one by one (max_batch_size = 1), so no batch waits for more of them"),
        need(lambda context: context.settings.batch_window_ms > 0, "there is no batch window"),
    ),
    options=lambda context: [{"batch_window_ms": ms} for ms in _CHOICES_MS if ms < context.settings.batch_window_ms],
    verify=_verify,
)
