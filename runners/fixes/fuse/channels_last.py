"""``fuse.channels_last``: images and the weights of convolutions with channels last in memory."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, facts, python_modules, torch_runs_it


def _images_to_lay_out(context: Context) -> str:
    seen = facts(context)
    layouts = seen.get("layouts", {})
    if seen.get("modules") and not count(seen["modules"], "nn.modules.conv.Conv2d"):
        return "no two-dimensional convolution ran in a forward pass"
    if layouts.get("channels_last", 0) > layouts.get("contiguous", 0):
        last, images = layouts["channels_last"], sum(layouts.values())
        return f"{last} of {images} images in a forward pass have channels last already"
    return ""


def _verify(applied: Applied) -> Verified:
    layouts = applied.evidence.get("layouts", {})
    relaid = int(applied.evidence.get("relaid", 0))
    last, plain = layouts.get("channels_last", 0), layouts.get("contiguous", 0)
    layout = (
        f"{relaid} weights laid out anew; of the images that layers returned in a forward pass, {last} had"
        f" channels last by their strides, {plain} had not"
    )
    return Verified(relaid > 0 and last > plain, layout)


FIX = Fix(
    id="fuse.channels_last",
    title="lay images out with channels last",
    treats=COMPUTE,
    relief=0.15,
    compute=0.9,
    risk="sums in another order",
    changes_outputs=True,
    needs=(
        at_default("memory_format", "the memory format is {} already"),
        at_default("compile", "the model is compiled, and the compiler lays images out itself"),
        torch_runs_it,
        python_modules("the layout of its images cannot be seen, so the effect could not be verified"),
        _images_to_lay_out,
    ),
    sets={"memory_format": "channels_last"},
    verify=_verify,
)
