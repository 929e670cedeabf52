"""``quantize.int8_weight_only``: int8 weights, bfloat16 activations; for weights that are read for few rows."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.quantize import bf16
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, facts, slow_layers, torch_runs_it

_KERNEL = "_weight_int8pack_mm"


def _on_this_cpu(context: Context) -> str:
    if not context.on_cpu:
        return (
            "its packed product is used on the CPU only: on a GPU the weights are widened before each product, which"
            " takes longer than it saves"
        )
    return "" if bf16.native_bf16() else "this CPU has no bfloat16 instructions, which its activations are in"


def _few_rows(context: Context) -> str:
    if facts(context).get("few_row_products") != 0:
        return ""
    return (
        "all products of a middling request are of many rows, for which the weights are widened to bfloat16:"
        " quantize.bf16 does that without rounding them"
    )


def _fast_layers(context: Context) -> str:
    return slow_layers(context, "int8_weight_only", ("bf16",))


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
    needs=(
        _on_this_cpu,
        at_default("precision", "the precision is {} already"),
        at_default("compile", "the model is compiled already; its layers are changed before that or not at all"),
        _few_rows,
        torch_runs_it,
        _fast_layers,
    ),
    sets={"precision": "int8_weight_only"},
    verify=_verify,
)
