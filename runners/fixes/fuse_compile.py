"""``fuse.compile``: ``torch.compile`` with dynamic shapes, compiled at warm-up and never in a request."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.model import compiler_missing

_SHAPES = 8


def _obstacle(context: Context) -> str:
    if context.settings.compile != "off":
        return "the model is compiled already"
    if context.settings.precision == "int8_dynamic":
        return "does not go with quantize.int8_dynamic, whose kernels it cannot see into"
    return compiler_missing()


def _change(context: Context) -> dict[str, Any]:
    return {"compile": "dynamic", "warmup_shapes": max(_SHAPES, context.settings.warmup_shapes)}


def _verify(applied: Applied) -> Verified:
    at_warmup = int(applied.evidence.get("compilations", 0))
    in_run = int(applied.record.meta.get("compilations_in_run", 0))
    seconds = float(applied.evidence.get("compile_s", 0.0))
    said = f"{at_warmup} compilations in {seconds:.3g} s at warm-up, {in_run} while requests ran"
    return Verified(at_warmup > 0 and in_run == 0, said)


FIX = Fix(
    id="fuse.compile",
    title="compile the model with dynamic shapes, at warm-up",
    treats=("input.size", "batching.size", "batching.padding", "traffic.burst", "traffic.overload"),
    relief=0.2,
    risk="a start that is later by the compilation; shapes not seen at warm-up run uncompiled",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
