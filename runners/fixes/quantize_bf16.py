"""``quantize.bf16``: weights and activations in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.model_facts import COMPUTE, other_backend


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
    if context.settings.precision != "default":
        return f"the precision is {context.settings.precision} already"
    if context.record.meta.get("device", "cpu") == "cpu" and not _native_bf16():
        return "this CPU has no bfloat16 instructions, without which it is slower"
    return other_backend(context)


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"precision": "bf16"}


def _verify(applied: Applied) -> Verified:
    # A compiled model has no modules to look at; what its graphs compute in is known from when they were compiled.
    compiled = applied.evidence.get("graph_dtypes")
    dtypes = compiled or applied.evidence.get("dtypes", {})
    count, total = dtypes.get("bfloat16", 0), sum(dtypes.values())
    what = "operators of the compiled graphs" if compiled else "leaf modules that ran in a forward pass"
    return Verified(count > 0, f"{count} of {total} {what} answered in bfloat16")


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
