"""``fuse.cudagraph``: operators are captured at warm-up, one graph per bucket of shapes, and launched at once."""

from __future__ import annotations

import numpy as np

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import on_its_device
from latfix.runners.fixes.shared.model_facts import COMPUTE, SHAPES, torch_runs_it

#: Minimum share of batches that a graph must have run.
_MOST_BATCHES = 0.95


def _can_capture(context: Context) -> str:
    """Code that waits for the device is no obstacle: it may not while it is captured, as transformers' masks.

    The capture tells.
    """
    settings = context.settings
    if settings.captures:
        return "graphs are captured already"
    if settings.batching == "continuous":
        return "requests join and leave between steps, so no two steps are alike"
    return ""


def _verify(applied: Applied) -> Verified:
    seen, graph = applied.evidence, applied.record.batches["graph"]
    measured = graph[applied.record.batches["warmup"] == 0]
    ran, missed = int(np.count_nonzero(measured == 1)), int(np.count_nonzero(measured == -1))
    graphs = (
        f"{ran} of {len(measured)} batches ran as one of {int(seen.get('graphs_captured', 0))} graphs, "
        f"{int(seen.get('graph_padded', 0))} of them padded to a bucket; captured in "
        f"{float(seen.get('capture_s', 0.0)):.3g} s at warm-up"
    )
    if missed:
        reasons = seen.get("graph_misses", {})
        most = max(reasons, key=lambda why: reasons[why], default="")
        graphs += f"; {missed} ran without" + (f", most for {most}" if most else "")
    return Verified(len(measured) > 0 and ran >= _MOST_BATCHES * len(measured), graphs)


FIX = Fix(
    id="fuse.cudagraph",
    title="capture the model's operators as CUDA graphs",
    # Batches are padded to shapes that have run at warm-up.
    treats=("dispatch.launch", "python.gil", "cold.start", *COMPUTE),
    relief=0.3,
    compute=0.85,
    launches=True,
    risk="memory for each bucket of shapes; batches are padded to it; shapes not seen at warm-up run without",
    changes_outputs=True,
    needs=(
        on_its_device("fuse.cudagraph", "the model runs on the CPU, which has no CUDA graphs"),
        _can_capture,
        torch_runs_it,
    ),
    sets=lambda context: {"cuda_graphs": True, "warmup_shapes": max(SHAPES, context.settings.warmup_shapes)},
    verify=_verify,
)
