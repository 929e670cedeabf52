"""``host.threads``: operators on one thread each, so that they do not spin beside a busy neighbor."""

from __future__ import annotations

from typing import Any

from latfix.record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified


def _threads(record: RunRecord) -> int:
    """Threads of one operator as torch reported them in that run; 0 where they are not known."""
    return int(record.meta.get("torch_threads", 0))


def _obstacle(context: Context) -> str:
    if context.record.meta.get("device", "cpu") != "cpu":
        return "the model runs on a GPU"
    if context.settings.intra_op_threads == 1 or _threads(context.record) == 1:
        return "operators run on one thread already"
    if context.cores == 1:
        return "there is one core"
    return ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"intra_op_threads": 1}


def _verify(applied: Applied) -> Verified:
    threads = int(applied.evidence.get("torch_threads", 0))
    before = _threads(applied.without)
    return Verified(threads == 1 < before, f"torch reported {threads} intra-operator thread(s), {before} without")


FIX = Fix(
    id="host.threads",
    title="run operators on one thread",
    treats=("host.contention", "host.slowdown", "host.throttle", "traffic.burst"),
    relief=0.3,
    risk="a single large request takes longer on an idle machine",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
