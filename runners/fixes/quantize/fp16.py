"""``quantize.fp16``: weights and activations in half precision, on a GPU."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.quantize import reduced_precision
from latfix.runners.fixes.quantize.bf16 import answered_in
from latfix.runners.fixes.shared.model_facts import COMPUTE


def _obstacle(context: Context) -> str:
    return reduced_precision.obstacle(context, "fp16") or reduced_precision.in_half_already(context)


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"precision": "fp16"}


def _verify(applied: Applied) -> Verified:
    return reduced_precision.computes_in(applied, "fp16") or answered_in(applied, "float16")


FIX = Fix(
    id="quantize.fp16",
    title="weights and activations in half precision",
    treats=COMPUTE,
    relief=0.28,
    compute=0.7,
    risk="accuracy, and numbers above 65,504 become infinite; measured before speed",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
