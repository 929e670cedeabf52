"""``quantize.int8_dynamic``: linear layers with int8 weights, activations quantized as they come.

On the CPU by torch's own kernels, which no compiler sees into; on a GPU by torchao, which pays only compiled.
"""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.quantize import reduced_precision
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, on_cpu, slow_layers

#: Part of the type's name of every module of this kind on the CPU.
QUANTIZED = "nn.quantized.dynamic"


def int8_obstacle(context: Context) -> str:
    """Why int8 layers of this kind cannot be used here."""
    if reason := reduced_precision.obstacle(context, "int8_dynamic"):
        return reason
    if on_cpu(context) and context.settings.compile != "off":
        return "on the CPU it does not go with torch.compile, which cannot see into its kernels"
    return reduced_precision.without_compiler(context) or slow_layers(context, "int8_dynamic")


def int8_change(context: Context) -> dict[str, Any]:
    """The settings of int8 layers of this kind, compiled where they pay only so."""
    return {"precision": "int8_dynamic", **reduced_precision.compiled_too(context)}


def ran_on_gpu(applied: Applied) -> bool:
    """Whether the service was on a GPU."""
    return str(applied.evidence.get("device", "cpu")) != "cpu"


def _verify(applied: Applied) -> Verified:
    if ran_on_gpu(applied):
        return reduced_precision.products_in(applied, "int8")
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
    change=int8_change,
    verify=_verify,
)
