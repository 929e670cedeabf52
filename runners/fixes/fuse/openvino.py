"""``fuse.openvino``: the model converted to ONNX and run by OpenVINO, in the precision that was asked for."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.fuse.converted_model import conversion_obstacle, converted
from latfix.runners.fixes.shared.model_facts import COMPUTE


def _obstacle(context: Context) -> str:
    return conversion_obstacle(context, "openvino", ("default", "bf16"))


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"backend": "openvino"}


def _verify(applied: Applied) -> Verified:
    found = converted(applied, "openvino")
    wanted = applied.record.meta.get("settings", {}).get("precision", "default")
    conversions = applied.evidence.get("conversions", [])
    half = sum(number for one in conversions for name, number in one["precisions"].items() if "bf16" in name.lower())
    if bool(half) != (wanted == "bf16"):
        return Verified(
            False, f"{half} operators computed in bfloat16, where precision is {wanted}; {found.evidence}"
        )
    return found


FIX = Fix(
    id="fuse.openvino",
    title="run the model with OpenVINO",
    treats=COMPUTE,
    relief=0.2,
    compute=0.9,
    risk="a later start by the conversion; the original stays in memory beside it, for batches that it does not fit",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
