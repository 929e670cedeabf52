"""``fuse.attention``: attention by plain matrix products, if the fused kernel is slower."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, on_its_device
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, facts, torch_runs_it

_FLASH, _MATH = "_scaled_dot_product_flash_attention", "_scaled_dot_product_attention_math"


def _fused_kernel_ran(context: Context) -> str:
    seen = facts(context).get("kernels", {})
    if seen and not count(seen, "scaled_dot_product"):
        return "no scaled_dot_product_attention ran in a forward pass"
    if seen and not count(seen, _FLASH):
        return "the fused attention kernel did not run, because its inputs do not allow it"
    return ""


def _verify(applied: Applied) -> Verified:
    kernels = applied.evidence.get("kernels", {})
    flash, math = count(kernels, _FLASH), count(kernels, _MATH)
    runs = f"attention ran {math} times as matrix products in a forward pass, {flash} times as the fused kernel"
    return Verified(math > 0 and flash == 0, runs)


FIX = Fix(
    id="fuse.attention",
    title="compute attention by matrix products instead of the fused kernel",
    treats=COMPUTE,
    relief=0.05,
    compute=0.98,
    risk="memory for long inputs grows with the square of their length; applies to the whole process",
    changes_outputs=True,
    needs=(
        at_default("attention", "attention is {} already"),
        on_its_device("fuse.attention", "attention kernels are chosen only on the CPU"),
        at_default("compile", "the model is compiled, so its kernels are chosen already"),
        torch_runs_it,
        _fused_kernel_ran,
    ),
    sets={"attention": "math"},
    verify=_verify,
)
