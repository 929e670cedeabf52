"""``quantize.bf16``: weights and activations in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified


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
    return ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"precision": "bf16"}


def _verify(applied: Applied) -> Verified:
    dtypes = applied.evidence.get("dtypes", {})
    settings = applied.record.meta["settings"]
    if settings["compile"] != "off":  # a compiled model has no modules to look at
        return Verified(settings["precision"] == "bf16", "the model was cast to bfloat16 before it was compiled")
    count, total = dtypes.get("bfloat16", 0), sum(dtypes.values())
    return Verified(count > 0, f"{count} of {total} leaf modules that ran in a forward pass answered in bfloat16")


FIX = Fix(
    id="quantize.bf16",
    title="weights and activations in bfloat16",
    treats=("input.size", "batching.size", "batching.padding", "traffic.burst", "traffic.overload"),
    relief=0.3,
    risk="accuracy; measured before speed",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
