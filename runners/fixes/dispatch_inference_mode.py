"""``dispatch.inference_mode``: batches run without autograd's bookkeeping of views and versions."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.model_facts import COMPUTE, torch_runs_it


def _verify(applied: Applied) -> Verified:
    batches, inside = (int(applied.evidence.get(name, 0)) for name in ("batches_run", "batches_inference"))
    return Verified(0 < batches == inside, f"{inside} of {batches} batches ran in inference mode")


FIX = Fix(
    id="dispatch.inference_mode",
    title="run batches in torch.inference_mode",
    treats=COMPUTE,
    relief=0.05,
    gentle=True,
    risk="answers cannot be changed in place later; a model that keeps state must allow that",
    needs=(at_default("inference_mode", "batches run in inference mode already"), torch_runs_it),
    sets={"inference_mode": True},
    verify=_verify,
)
