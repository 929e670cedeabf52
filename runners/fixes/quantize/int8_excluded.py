"""``quantize.int8_excluded``: int8 where it costs little; the layers that matter keep their precision."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.quantize import reduced_precision
from latfix.runners.fixes.quantize.int8_dynamic import QUANTIZED, int8_change, int8_obstacle, ran_on_gpu
from latfix.runners.fixes.shared.model_facts import COMPUTE, count


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
    return {**int8_change(context), "keep_precision": list(keep)}


def _verify(applied: Applied) -> Verified:
    if ran_on_gpu(applied):
        return _verify_on_gpu(applied)
    modules, kept = applied.evidence.get("modules", {}), applied.evidence.get("kept", {})
    quantized, total = count(modules, QUANTIZED), sum(modules.values())
    spared, wrongly = sum(kept.values()), count(kept, QUANTIZED)
    said = (
        f"{quantized} of {total} leaf modules that ran in a forward pass were int8; {spared - wrongly} ran as they"
        f" were: {_named(applied)}"
    )
    return Verified(quantized > 0 and spared > 0 and not wrongly, said)


def _verify_on_gpu(applied: Applied) -> Verified:
    """A compiled model has no modules that run; which weights it holds can be seen all the same."""
    products, kept = reduced_precision.products_in(applied, "int8"), applied.evidence.get("kept_weights", {})
    spared, wrongly = sum(kept.values()), count(kept, "torchao")
    said = f"{products.evidence}; {spared - wrongly} have the weights that they had: {_named(applied)}"
    return Verified(products.effective and spared > 0 and not wrongly, said)


def _named(applied: Applied) -> str:
    return ", ".join(applied.record.meta.get("settings", {}).get("keep_precision", []))


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
