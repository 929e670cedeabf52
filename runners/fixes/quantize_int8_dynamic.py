"""``quantize.int8_dynamic``: linear layers with int8 weights, activations quantized as they come."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified

_QUANTIZED = "nn.quantized.dynamic"


def _obstacle(context: Context) -> str:
    if context.record.meta.get("device", "cpu") != "cpu":
        return "int8 kernels of this kind exist on the CPU only"
    if context.settings.precision != "default":
        return f"the precision is {context.settings.precision} already"
    if context.settings.compile != "off":
        return "does not go with torch.compile, which cannot see into its kernels"
    return ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"precision": "int8_dynamic"}


def _verify(applied: Applied) -> Verified:
    modules = applied.evidence.get("modules", {})
    count = sum(number for name, number in modules.items() if _QUANTIZED in name)
    total = sum(modules.values())
    return Verified(count > 0, f"{count} of {total} leaf modules that ran in a forward pass were int8")


FIX = Fix(
    id="quantize.int8_dynamic",
    title="int8 weights in linear layers",
    treats=("input.size", "batching.size", "batching.padding", "traffic.burst", "traffic.overload"),
    relief=0.4,
    risk="accuracy; measured before speed",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
