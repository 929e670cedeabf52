"""``quantize.bf16``: weights and activations in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.quantize import reduced_precision
from latfix.runners.fixes.shared.model_facts import COMPUTE, on_cpu

#: Compute capability of the first GPUs that multiply bfloat16 themselves; before, it is emulated.
_LEAST = (8, 0)


def native_bf16() -> bool:
    """Whether this CPU computes in bfloat16 by itself."""
    return _native_bf16()


def _native_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))


def _obstacle(context: Context) -> str:
    if reason := reduced_precision.obstacle(context, "bf16"):
        return reason
    if on_cpu(context):
        return "" if _native_bf16() else "this CPU has no bfloat16 instructions, without which it is slower"
    capability = reduced_precision.capability(context)
    if capability is not None and capability < _LEAST:
        return "bfloat16 is emulated on GPUs before compute capability 8.0; quantize.fp16 is not"
    return reduced_precision.in_half_already(context)


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"precision": "bf16"}


def _verify(applied: Applied) -> Verified:
    return reduced_precision.computes_in(applied, "bf16") or answered_in(applied, "bfloat16")


def answered_in(applied: Applied, dtype: str) -> Verified:
    """Whether the model's layers answered in a type, where no kernel tells what they computed in."""
    # A compiled model has no modules to look at; what its graphs compute in is known from when they were compiled.
    compiled = applied.evidence.get("graph_dtypes")
    dtypes = compiled or applied.evidence.get("dtypes", {})
    count, total = dtypes.get(dtype, 0), sum(dtypes.values())
    what = "operators of the compiled graphs" if compiled else "leaf modules that ran in a forward pass"
    return Verified(count > 0, f"{count} of {total} {what} answered in {dtype}")


FIX = Fix(
    id="quantize.bf16",
    title="weights and activations in bfloat16",
    treats=COMPUTE,
    relief=0.3,
    compute=0.7,
    risk="accuracy; measured before speed",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
