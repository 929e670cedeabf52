"""``quantize.int8_dynamic``: linear layers with int8 weights, activations quantized on the fly.

On the CPU by torch's own kernels, which the compiler cannot see into; on a GPU by torchao, which pays only compiled.
"""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.quantize.reduced_precision import (
    COMPILING_S,
    available,
    compiled_too,
    fast_layers,
    float32_layers,
    own_layers,
    products_in,
    with_compiler,
)
from latfix.runners.fixes.shared.conditions import need
from latfix.runners.fixes.shared.model_facts import COMPUTE, count

#: Part of the type name of these modules on the CPU.
QUANTIZED = "nn.quantized.dynamic"
#: Preconditions of int8 in all linear layers, or in some.
NEEDS = (
    available("int8_dynamic"),
    own_layers,
    float32_layers,
    need(
        lambda context: not context.on_cpu or context.settings.compile == "off",
        "on the CPU it does not work with torch.compile, which cannot see into its kernels",
    ),
    with_compiler,
    fast_layers("int8_dynamic"),
)


def int8_modules(applied: Applied) -> tuple[int, str]:
    """Number of int8 modules that ran in a forward pass on the CPU, and that in words."""
    modules = applied.evidence.get("modules", {})
    quantized, total = count(modules, QUANTIZED), sum(modules.values())
    return quantized, f"{quantized} of {total} leaf modules that ran in a forward pass were int8"


def ran_on_gpu(applied: Applied) -> bool:
    """True if the service was on a GPU."""
    return str(applied.evidence.get("device", "cpu")) != "cpu"


def _verify(applied: Applied) -> Verified:
    if ran_on_gpu(applied):
        return products_in(applied, "int8")
    quantized, text = int8_modules(applied)
    return Verified(quantized > 0, text)


FIX = Fix(
    id="quantize.int8_dynamic",
    title="int8 weights in linear layers",
    treats=COMPUTE,
    relief=0.4,
    compute=0.6,
    risk="accuracy; measured before speed",
    changes_outputs=True,
    accepted=0.5,
    making_gpu_s=COMPILING_S,
    needs=NEEDS,
    sets=lambda context: {"precision": "int8_dynamic", **compiled_too(context)},
    verify=_verify,
)
