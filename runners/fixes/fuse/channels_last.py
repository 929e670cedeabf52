"""``fuse.channels_last``: images and the weights of convolutions with their channels last in memory."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, facts, other_backend


def _obstacle(context: Context) -> str:
    if context.settings.memory_format != "default":
        return f"the memory format is {context.settings.memory_format} already"
    if context.settings.compile != "off":
        return "the model is compiled, and the compiler lays images out itself"
    seen = facts(context)
    layouts = seen.get("layouts", {})
    if seen.get("modules") and not count(seen["modules"], "nn.modules.conv.Conv2d"):
        return "no two-dimensional convolution ran in a forward pass"
    if layouts.get("channels_last", 0) > layouts.get("contiguous", 0):
        return (
            f"{layouts['channels_last']} of {sum(layouts.values())} images in a forward pass are laid out so already"
        )
    return other_backend(context)


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"memory_format": "channels_last"}


def _verify(applied: Applied) -> Verified:
    layouts = applied.evidence.get("layouts", {})
    relaid = int(applied.evidence.get("relaid", 0))
    last, plain = layouts.get("channels_last", 0), layouts.get("contiguous", 0)
    said = (
        f"{relaid} weights laid out anew; of the images that layers answered with in a forward pass, {last} had"
        f" channels last by their strides, {plain} had not"
    )
    return Verified(relaid > 0 and last > plain, said)


FIX = Fix(
    id="fuse.channels_last",
    title="lay images out with channels last",
    treats=COMPUTE,
    relief=0.15,
    compute=0.9,
    risk="sums in another order",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
