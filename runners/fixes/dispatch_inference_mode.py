"""``dispatch.inference_mode``: batches run without the bookkeeping of views and versions."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.model_facts import COMPUTE


def _obstacle(context: Context) -> str:
    return "batches run in inference mode already" if context.settings.inference_mode else ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"inference_mode": True}


def _verify(applied: Applied) -> Verified:
    batches = int(applied.evidence.get("batches_run", 0))
    inside = int(applied.evidence.get("batches_inference", 0))
    return Verified(0 < batches == inside, f"{inside} of {batches} batches ran in inference mode")


FIX = Fix(
    id="dispatch.inference_mode",
    title="run batches in torch.inference_mode",
    treats=COMPUTE,
    relief=0.05,
    gentle=True,
    risk="answers are tensors that cannot be changed in place later; a model that keeps state must not mind",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
