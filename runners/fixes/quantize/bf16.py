"""``quantize.bf16``: weights and activations in bfloat16."""

from __future__ import annotations

from latfix.runners.fixes.fix import Context, Fix
from latfix.runners.fixes.quantize.reduced_precision import (
    available,
    capability,
    computed_in,
    new_in_half,
    unquantized,
)
from latfix.runners.fixes.shared.model_facts import COMPUTE
from latfix.runners.host.kernel_files import System

#: Compute capability of the first GPUs with bfloat16 products; older ones emulate it.
_LEAST = (8, 0)


def native_bf16() -> bool:
    """True if this CPU has bfloat16 instructions."""
    flags = System().text("/proc/cpuinfo") or ""
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))


def _native(context: Context) -> str:
    if context.on_cpu and not native_bf16():
        return "this CPU has no bfloat16 instructions, and bfloat16 is slower without them"
    found = capability(context)
    if found is not None and found < _LEAST:
        return "GPUs below compute capability 8.0 emulate bfloat16; quantize.fp16 is native"
    return new_in_half(context)


FIX = Fix(
    id="quantize.bf16",
    title="weights and activations in bfloat16",
    treats=COMPUTE,
    relief=0.3,
    compute=0.7,
    risk="accuracy; measured before speed",
    changes_outputs=True,
    accepted=0.9,
    needs=(available("bf16"), unquantized, _native),
    sets={"precision": "bf16"},
    verify=lambda applied: computed_in(applied, "bf16", "bfloat16"),
)
