"""``warmup.shapes``: run the shapes that traffic brings before the first request."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified

_SHAPES = 8


def _obstacle(context: Context) -> str:
    return "already warmed up on shapes" if context.settings.warmup_shapes else ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"warmup_shapes": _SHAPES}


def _verify(applied: Applied) -> Verified:
    warmup = applied.evidence
    batches, seconds = warmup.get("warmup_batches", 0), warmup.get("warmup_s", 0.0)
    return Verified(
        batches > 0,
        f"{batches} batches over {warmup.get('warmup_shapes', 0)} input sizes ran in {seconds:.3g} s before the first"
        " request",
    )


FIX = Fix(
    id="warmup.shapes",
    title="warm up on the traffic's own shapes before the first request",
    treats=("cold.start", "cold.compile"),
    relief=0.9,
    gentle=True,
    risk="a later start",
    cold=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
