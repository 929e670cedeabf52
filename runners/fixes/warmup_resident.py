"""``warmup.resident``: an idle worker runs a small synthetic input, so that no request finds it cold."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Floats
from latfix.run_record.process_facts import Residence
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, refusals
from latfix.runners.host.privileges import lockable_bytes

#: Pauses in milliseconds: batches after longer ones are compared with batches after shorter ones.
_PAUSES_MS = (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
#: Minimum number of batches on either side of a comparison.
_ENOUGH = 8
#: Minimum slowdown of batches after a pause.
_SLOWER = 1.1
#: A difference of at least this share of the largest one is as clear.
_ABOUT = 0.8
_MIB = 1 << 20


def after_pauses(record: RunRecord, pause_ms: float) -> float | None:
    """How much longer batches compute after an idle time of at least ``pause_ms`` than after a shorter one.

    Ratio of medians of compute time relative to batches of about the same size; ``None`` if there are too few.
    """
    relative, idle = _relative_compute(record), _idle_ms(record)
    known = np.isfinite(relative) & np.isfinite(idle)
    late, soon = relative[known & (idle >= pause_ms)], relative[known & (idle < pause_ms)]
    if len(late) < _ENOUGH or len(soon) < _ENOUGH:
        return None
    return float(np.median(late) / max(np.median(soon), 1e-9))


def _idle_ms(record: RunRecord) -> Floats:
    """Time from the end of the worker's previous batch to this one; ``nan`` for its first."""
    batches = record.batches
    idle = np.full(len(batches["open_ns"]), np.nan)
    for worker in np.unique(batches["worker"]):
        own = np.flatnonzero(batches["worker"] == worker)
        own = own[np.argsort(batches["open_ns"][own], kind="stable")]
        idle[own[1:]] = (batches["open_ns"][own[1:]] - batches["finish_end_ns"][own[:-1]]) / 1e6
    return idle


def _relative_compute(record: RunRecord) -> Floats:
    """Compute over the median of batches of the same size (within a factor of two); ``nan`` if there are too few."""
    batches = record.batches
    compute = (batches["compute_end_ns"] - batches["h2d_end_ns"]).astype(np.float64)
    counted = (batches["warmup"] == 0) & (batches["retried"] == 0) & (compute > 0)
    size = np.log2(np.maximum(batches["padded_elements"], 1)).astype(np.int64)
    relative = np.full(len(compute), np.nan)
    for one in np.unique(size[counted]):
        alike = counted & (size == one)
        if np.count_nonzero(alike) >= _ENOUGH:
            relative[alike] = compute[alike] / np.median(compute[alike])
    return relative


def cold_after_ms(record: RunRecord) -> tuple[float, float] | None:
    """The shortest pause after which batches are clearly slower, and by how much; ``None`` if there is none.

    Longer pauses with a similar difference would count cold batches as warm.
    """
    ratios = {pause_ms: after_pauses(record, pause_ms) or 0.0 for pause_ms in _PAUSES_MS}
    clearest = max(ratios.values())
    if clearest < _SLOWER:
        return None
    enough = 1 + _ABOUT * (clearest - 1)
    return next((pause_ms, ratio) for pause_ms, ratio in ratios.items() if ratio >= enough)


def _pauses_cost(context: Context) -> str:
    if cold_after_ms(context.record) is not None:
        return ""
    known = [(pause_ms, ratio) for pause_ms in _PAUSES_MS if (ratio := after_pauses(context.record, pause_ms))]
    if not known:
        idle = _idle_ms(context.record)
        longest = float(np.nanmax(idle)) if np.isfinite(idle).any() else 0.0
        return f"there are too few pauses to measure their cost; the longest was {max(longest, 0.0):.3g} ms"
    pause_ms, ratio = known[-1]
    return (
        f"batches after a pause of {pause_ms:g} ms or more compute {ratio:.2f} times as long as after a shorter one"
    )


def _sets(context: Context) -> Change:
    """Half the pause after which a worker is cold; lock memory only if it was paged in during requests."""
    cold = cold_after_ms(context.record)
    change: Change = {"keep_warm_ms": cold[0] / 2 if cold is not None else _PAUSES_MS[0]}
    # With a limit, the address space may exceed it, and locking would be refused after the start.
    if context.record.meta.memory.major_faults > 0 and lockable_bytes() is None:
        change["lock_memory"] = True
    return change


def _verify(applied: Applied) -> Verified:
    period = applied.settings.keep_warm_ms
    done = applied.record.meta.residence or Residence()
    if not done.runs or done.failure or not period:
        return Verified(False, f"no synthetic input was run{f': {done.failure}' if done.failure else ''}")
    mean, longest = done.total_ns / done.runs / 1e6, done.longest_ns / 1e6
    text = (
        f"idle workers ran an input of {done.elements} elements {done.runs} times, {mean:.3g} ms each and "
        f"{longest:.3g} at most; a request waited for {done.delayed} of them"
    )
    now, before = applied.both(lambda record: after_pauses(record, 2 * period))
    if now is not None and before is not None:
        text += f"; after a pause batches computed {now:.2f} times as long, {before:.2f} without"
    if applied.settings.lock_memory:
        locked = applied.record.meta.memory.locked_bytes
        text += f"; {locked / _MIB:,.0f} MiB locked"
        if not locked:
            return Verified(False, "; ".join([text, *refusals(applied.record, "lock_memory")]))
    # If the cost of pauses was measured, it must be lower.
    warmer = now is None or before is None or now < before
    return Verified(warmer, text)


FIX = Fix(
    id="warmup.resident",
    title="keep idle workers warm with a small synthetic input",
    treats=("cold.start", "host.slowdown"),
    relief=0.4,
    gentle=True,
    risk="CPU time while idle, which busy neighbors lack; a model with state sees inputs that no client sent",
    stateless=True,
    needs=(
        at_default("keep_warm_ms", "idle workers run a synthetic input every {:g} ms already"),
        _pauses_cost,
    ),
    sets=_sets,
    verify=_verify,
)
