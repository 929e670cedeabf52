"""``quantize.int8_dynamic``: linear layers with int8 weights, activations quantized as they come."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.model_facts import COMPUTE, count, on_cpu, other_backend, slow_layers

#: Part of the type's name of every module of this kind.
QUANTIZED = "nn.quantized.dynamic"


def int8_obstacle(context: Context) -> str:
    """Why int8 layers of this kind cannot be used here."""
    if not on_cpu(context):
        return "int8 kernels of this kind exist on the CPU only"
    if context.settings.precision != "default":
        return f"the precision is {context.settings.precision} already"
    if context.settings.compile != "off":
        return "does not go with torch.compile, which cannot see into its kernels"
    return other_backend(context) or slow_layers(context, "int8_dynamic")


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"precision": "int8_dynamic"}


def _verify(applied: Applied) -> Verified:
    modules = applied.evidence.get("modules", {})
    quantized, total = count(modules, QUANTIZED), sum(modules.values())
    return Verified(quantized > 0, f"{quantized} of {total} leaf modules that ran in a forward pass were int8")


FIX = Fix(
    id="quantize.int8_dynamic",
    title="int8 weights in linear layers",
    treats=COMPUTE,
    relief=0.4,
    compute=0.6,
    risk="accuracy; measured before speed",
    changes_outputs=True,
    obstacle=int8_obstacle,
    change=_change,
    verify=_verify,
)
