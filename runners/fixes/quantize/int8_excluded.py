"""``quantize.int8_excluded``: int8 in most layers; those on which accuracy depends keep their precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from latfix.errors import LatfixError
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, SetUp, Verified
from latfix.runners.fixes.quantize.int8_dynamic import FIX as ALL_LAYERS
from latfix.runners.fixes.quantize.int8_dynamic import NEEDS, QUANTIZED, int8_modules, ran_on_gpu
from latfix.runners.fixes.quantize.reduced_precision import COMPILING_S, products_in
from latfix.runners.fixes.shared.model_facts import COMPUTE, count

if TYPE_CHECKING:
    from latfix.runners.optimize.measurement import Bench
    from latfix.runners.replay.arm import Arm

#: Maximum seconds to find the layers on which accuracy depends.
_MEASURING_S = 60.0


def _all_layers_refused(context: Context) -> bool:
    """True if int8 in all layers was rejected for its accuracy."""
    whole = next((step for step in context.steps if step.fix == ALL_LAYERS.id), None)
    return whole is not None and whole.status == "rejected" and bool(whole.scored) and whole.comparison is None


def _measure_layers(bench: Bench, base: Arm) -> Mapping[str, Any]:
    """The layers that must keep their precision, measured in a separate process; otherwise the reason."""
    arm = bench.lone_arm("sensitivity", base.settings, ())
    try:
        answer = arm.ask(
            "sensitivity",
            folder=str(bench.baseline.folder),
            precision="int8_dynamic",
            max_drop=bench.max_drop,
            budget_s=max(min(_MEASURING_S, bench.left_s() / 6), 5.0),
        )
    except LatfixError as error:
        return {"reason": error.message}
    finally:
        arm.close()
    found: Mapping[str, Any] = answer["sensitivity"]
    return found


def _layers_known(context: Context) -> str:
    found = context.found.get(FIX.id)
    if found is None:
        return (
            "the layers on which accuracy depends were not measured: that takes place if quantize.int8_dynamic is"
            " rejected for its accuracy and time is left"
        )
    if found.get("keep"):
        return ""
    reason = f": {found['reason']}" if found.get("reason") else ""
    return f"no layers were found whose exclusion makes int8 accurate enough and still faster{reason}"


def _sets(context: Context) -> Change:
    keep = dict.fromkeys((*context.settings.keep_precision, *context.found.get(FIX.id, {}).get("keep", {})))
    return {**ALL_LAYERS.change(context), "keep_precision": list(keep)}


def _verify(applied: Applied) -> Verified:
    named = ", ".join(applied.settings.keep_precision)
    if ran_on_gpu(applied):  # a compiled model runs no modules, but its weights can be seen
        products, kept = products_in(applied, "int8"), applied.evidence.get("kept_weights", {})
        spared, wrongly = sum(kept.values()), count(kept, "torchao")
        text = f"{products.evidence}; {spared - wrongly} kept their weights: {named}"
        return Verified(products.effective and spared > 0 and not wrongly, text)
    (quantized, text), kept = int8_modules(applied), applied.evidence.get("kept", {})
    spared, wrongly = sum(kept.values()), count(kept, QUANTIZED)
    text += f"; {spared - wrongly} ran in their own precision: {named}"
    return Verified(quantized > 0 and spared > 0 and not wrongly, text)


FIX = Fix(
    id="quantize.int8_excluded",
    title="int8 weights in the linear layers on which accuracy does not depend",
    treats=COMPUTE,
    relief=0.35,
    compute=0.75,
    risk="accuracy; measured before speed",
    changes_outputs=True,
    accepted=0.7,
    making_gpu_s=COMPILING_S,
    needs=(*NEEDS, _layers_known),
    sets=_sets,
    verify=_verify,
    set_up=SetUp(due=_all_layers_refused, measure=_measure_layers, recorded=True),
    after=ALL_LAYERS.id,
)
