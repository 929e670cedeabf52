"""``quantize.int8_weight_only``: int8 weights, bfloat16 activations; for weights that are read for few rows."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.quantize.bf16 import native_bf16
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, facts, on_cpu, other_backend, slow_layers

_KERNEL = "_weight_int8pack_mm"


def _obstacle(context: Context) -> str:
    if not on_cpu(context):
        return (
            "its packed product is used on the CPU only: on a GPU the weights are widened before each product, which"
            " takes longer than it saves"
        )
    if not native_bf16():
        return "this CPU has no bfloat16 instructions, which its activations are in"
    if context.settings.precision != "default":
        return f"the precision is {context.settings.precision} already"
    if context.settings.compile != "off":
        return "the model is compiled already; its layers are changed before that or not at all"
    if facts(context).get("few_row_products") == 0:
        return (
            "all products of a middling request are of many rows, for which the weights are widened to bfloat16:"
            " quantize.bf16 does that without rounding them"
        )
    return other_backend(context) or slow_layers(context, "int8_weight_only", ("bf16",))


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"precision": "int8_weight_only"}


def _verify(applied: Applied) -> Verified:
    modules, kernels = applied.evidence.get("modules", {}), applied.evidence.get("kernels", {})
    layers, products = count(modules, "Int8WeightLinear"), count(kernels, _KERNEL)
    said = f"{layers} layers with int8 weights ran in a forward pass, {products} packed int8 products"
    return Verified(layers > 0 and products > 0, said)


FIX = Fix(
    id="quantize.int8_weight_only",
    title="int8 weights, bfloat16 activations",
    treats=COMPUTE,
    relief=0.15,
    compute=0.75,
    risk="accuracy, less than with int8 activations; measured before speed",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
