"""``fuse.planless_attention``: attention by kernels that need no plan for each shape.

From torch 2.10 on, Hopper and Blackwell GPUs compute it by cuDNN first, whose plan for each new batch size and length
takes some 60 ms; torch keeps the plans by thread (docs/gpu.md).
"""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import on_its_device
from latfix.runners.fixes.shared.model_facts import count, facts, torch_runs_it

_ANY, _CUDNN = "_scaled_dot_product", "_scaled_dot_product_cudnn_attention"
_VARIABLE = "TORCH_CUDNN_SDPA_DEPRIORITIZED"


def _cudnn_ran(context: Context) -> str:
    if _VARIABLE in context.settings.env:
        return f"{_VARIABLE} is set already"
    return "" if count(facts(context).get("kernels", {}), _CUDNN) else "cuDNN ran no attention in a forward pass"


def _verify(applied: Applied) -> Verified:
    kernels = applied.evidence.get("kernels", {})
    every, cudnn = count(kernels, _ANY), count(kernels, _CUDNN)
    asked = applied.record.meta.environment.get(_VARIABLE, "")
    text = f"the process was started with {_VARIABLE}={asked or 'nothing'}; attention ran {every} times in a forward"
    return Verified(asked == "1" and every > 0 and not cudnn, f"{text} pass, {cudnn} times in cuDNN")


FIX = Fix(
    id="fuse.planless_attention",
    title="compute attention by kernels that need no plan for each shape",
    treats=("cold.start",),
    relief=0.7,
    cold=True,
    risk="shapes that recur may compute longer; applies to the whole process",
    changes_outputs=True,
    needs=(
        on_its_device("fuse.planless_attention", "the model runs on the CPU, where attention needs no plans"),
        torch_runs_it,
        _cudnn_ran,
    ),
    sets={"env": {_VARIABLE: "1"}},
    verify=_verify,
)
