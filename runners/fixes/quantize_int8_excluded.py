"""``quantize.int8_excluded``: int8 where it costs little; the layers that matter keep their precision."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.model_facts import COMPUTE, count
from latfix.runners.fixes.quantize_int8_dynamic import QUANTIZED, int8_obstacle


def _obstacle(context: Context) -> str:
    if obstacle := int8_obstacle(context):
        return obstacle
    if context.sensitivity is None:
        return (
            "it was not measured which layers the accuracy hangs on: that is done where quantize.int8_dynamic is"
            " refused for its accuracy, and time is left"
        )
    if not context.sensitivity:
        return "measuring the layers found none whose exclusion makes int8 accurate enough and still faster"
    return ""


def _change(context: Context) -> dict[str, Any]:
    keep = dict.fromkeys((*context.settings.keep_precision, *(context.sensitivity or {})))
    return {"precision": "int8_dynamic", "keep_precision": list(keep)}


def _verify(applied: Applied) -> Verified:
    modules, kept = applied.evidence.get("modules", {}), applied.evidence.get("kept", {})
    quantized, total = count(modules, QUANTIZED), sum(modules.values())
    spared, wrongly = sum(kept.values()), count(kept, QUANTIZED)
    named = applied.record.meta.get("settings", {}).get("keep_precision", [])
    said = (
        f"{quantized} of {total} leaf modules that ran in a forward pass were int8; {spared - wrongly} ran as they"
        f" were: {', '.join(named)}"
    )
    return Verified(quantized > 0 and spared > 0 and not wrongly, said)


FIX = Fix(
    id="quantize.int8_excluded",
    title="int8 weights in the linear layers that accuracy does not hang on",
    treats=COMPUTE,
    relief=0.35,
    compute=0.75,
    risk="accuracy; measured before speed",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
