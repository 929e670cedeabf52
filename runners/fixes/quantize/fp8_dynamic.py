"""``quantize.fp8_dynamic``: linear layers multiply in fp8, all else is in bfloat16; by torchao, compiled."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.quantize import reduced_precision
from latfix.runners.fixes.shared.model_facts import COMPUTE, slow_layers


def _obstacle(context: Context) -> str:
    return (
        reduced_precision.obstacle(context, "fp8_dynamic")
        or reduced_precision.without_compiler(context)
        or slow_layers(context, "fp8_dynamic")
    )


def _change(context: Context) -> dict[str, Any]:
    return {"precision": "fp8_dynamic", **reduced_precision.compiled_too(context)}


def _verify(applied: Applied) -> Verified:
    return reduced_precision.products_in(applied, "fp8")


FIX = Fix(
    id="quantize.fp8_dynamic",
    title="fp8 in linear layers, bfloat16 between them, compiled",
    treats=COMPUTE,
    relief=0.38,
    compute=0.6,
    risk="accuracy, measured before speed; a start that is later by the compilation",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
