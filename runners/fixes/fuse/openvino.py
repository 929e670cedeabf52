"""``fuse.openvino``: the model, an ONNX file or converted to one, run by OpenVINO in the requested precision."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.fuse.converted_model import converted, convertible, converting_s, operators_in
from latfix.runners.fixes.shared.model_facts import COMPUTE


def _verify(applied: Applied) -> Verified:
    found = converted(applied, "openvino")
    wanted = applied.settings.precision
    conversions = applied.evidence.get("conversions", [])
    half, _ = operators_in(applied, "bf16")
    own = any(one.get("in_half") for one in conversions)
    if bool(half) != (wanted == "bf16") and not (half and own):
        return Verified(False, f"{half} operators computed in bfloat16, but precision is {wanted}; {found.evidence}")
    return found


FIX = Fix(
    id="fuse.openvino",
    title="run the model with OpenVINO",
    treats=COMPUTE,
    relief=0.2,
    compute=0.9,
    risk="the service starts later, by the conversion; the original stays in memory for batches that do not fit",
    changes_outputs=True,
    making_s=converting_s,
    needs=convertible("openvino", ("default", "bf16")),
    sets={"backend": "openvino"},
    verify=_verify,
)
