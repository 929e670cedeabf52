"""``traffic.burst``: arrivals outran the runner for a moment."""

from __future__ import annotations

from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import Cause, TailFigures, no_claim
from latfix.profilers.evidence.units import Evidence


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    size = int(evidence.setup.max_batch)
    return (
        f"with every request at reference cost, {figures.requests} requests would still have waited, at most "
        f"{milliseconds(figures.largest_ms)}, though the backlog did not keep growing "
        f"(batches of up to {size}, {evidence.setup.workers} worker(s))."
    )


CAUSE = Cause(
    id="traffic.burst",
    fixes=(
        "host.workers",
        "batch.size",
        "schedule.shortest_expected",
        "quantize.int8_dynamic",
        "quantize.int8_weight_only",
        "quantize.fp8_dynamic",
        "quantize.bf16",
        "quantize.fp16",
        "fuse.compile",
        "fuse.onnxruntime",
        "fuse.openvino",
        "fuse.tensorrt",
    ),
    claim=no_claim,
    sentence=_sentence,
)
