"""``quantize.int8_weight_only``: int8 weights, bfloat16 activations; for products of few rows."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.quantize import bf16
from latfix.runners.fixes.quantize.reduced_precision import fast_layers, own_layers, unquantized, weights_in_torch
from latfix.runners.fixes.shared.conditions import at_default, need, on_its_device
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, facts, torch_runs_it

_KERNEL = "_weight_int8pack_mm"


def _verify(applied: Applied) -> Verified:
    modules, kernels = applied.evidence.get("modules", {}), applied.evidence.get("kernels", {})
    layers, products = count(modules, "Int8WeightLinear"), count(kernels, _KERNEL)
    runs = f"{layers} layers with int8 weights ran in a forward pass, {products} packed int8 products"
    return Verified(layers > 0 and products > 0, runs)


FIX = Fix(
    id="quantize.int8_weight_only",
    title="int8 weights, bfloat16 activations",
    treats=COMPUTE,
    relief=0.15,
    compute=0.75,
    risk="accuracy, less than with int8 activations; measured before speed",
    changes_outputs=True,
    accepted=0.7,
    needs=(
        torch_runs_it,
        weights_in_torch,
        own_layers,
        unquantized,
        on_its_device(
            "quantize.int8_weight_only",
            "its packed product is used only on the CPU: on a GPU the weights are converted before each product,"
            " which takes longer than it saves",
        ),
        need(lambda _: bf16.native_bf16(), "this CPU has no bfloat16 instructions, which its activations need"),
        at_default("precision", "the precision is {} already"),
        at_default("compile", "the model is compiled already; its layers can only be changed before that"),
        need(
            lambda context: facts(context).get("few_row_products") != 0,
            "all products of a median request have many rows, for which the weights are converted to bfloat16:"
            " quantize.bf16 does the same without rounding them",
        ),
        fast_layers("int8_weight_only", "bf16"),
    ),
    sets={"precision": "int8_weight_only"},
    verify=_verify,
)
