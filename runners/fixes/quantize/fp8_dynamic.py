"""``quantize.fp8_dynamic``: linear layers multiply in fp8, the rest is in bfloat16; by torchao, compiled."""

from __future__ import annotations

from latfix.runners.fixes.fix import Fix
from latfix.runners.fixes.quantize.reduced_precision import (
    COMPILING_S,
    available,
    compiled_too,
    fast_layers,
    own_layers,
    products_in,
    with_compiler,
)
from latfix.runners.fixes.shared.model_facts import COMPUTE

FIX = Fix(
    id="quantize.fp8_dynamic",
    title="fp8 in linear layers, bfloat16 between them, compiled",
    treats=COMPUTE,
    relief=0.38,
    compute=0.6,
    risk="accuracy, measured before speed; the service starts later, by the compilation",
    changes_outputs=True,
    accepted=0.6,
    making_gpu_s=COMPILING_S,
    needs=(available("fp8_dynamic"), own_layers, with_compiler, fast_layers("fp8_dynamic")),
    sets=lambda context: {"precision": "fp8_dynamic", **compiled_too(context)},
    verify=lambda applied: products_in(applied, "fp8"),
)
