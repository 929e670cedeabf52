"""A batch through the model, on the host or on a CUDA device, with the stamps that divide it into stages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latfix.profilers.host import Account
from latfix.runners.adapter import call_model, move

if TYPE_CHECKING:
    import torch

    from latfix.runners.worker import ModelInstance

    #: The recorder's columns of batches by name; :attr:`latfix.profilers.recorder.StageRecorder.batch`.
    Stamps = Mapping[str, memoryview[int]]


@dataclass(frozen=True, slots=True)
class Ran:
    """A batch that ran; ``process_ns`` and ``spent`` are the process's and the thread's counters at its end."""

    outputs: list[Any]
    end_ns: int
    process_ns: int
    spent: Account


def compute_on_host(instance: ModelInstance, batch: Any, stamp: Stamps, batch_id: int) -> tuple[Any, int]:
    """Run a batch where its inputs are; returns the output and when it was there."""
    # There is no device to copy to or from: the copy stages have no length.
    stamp["collated_ns"][batch_id] = stamp["h2d_end_ns"][batch_id] = time.perf_counter_ns()
    output = call_model(instance.model, batch)
    stamp["compute_end_ns"][batch_id] = stamp["d2h_end_ns"][batch_id] = end = time.perf_counter_ns()
    if instance.pool is not None:
        output = instance.pool.release(output)
    return output, end


def compute_on_cuda(
    instance: ModelInstance, stream: torch.cuda.Stream, batch: Any, stamp: Stamps, batch_id: int
) -> tuple[Any, int]:
    """Copy a batch in, run it and copy its output out; returns that, on the host, and when it was there.

    :param stream: that all of it is enqueued on.
    """
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]  # type: ignore[no-untyped-call]
    stamp["collated_ns"][batch_id] = time.perf_counter_ns()
    with torch.cuda.stream(stream):
        events[0].record(stream)
        inputs = move(batch, instance.device, instance.dtype)
        events[1].record(stream)
        output = call_model(instance.model, inputs)
        events[2].record(stream)
        host = move(output, "cpu")
        events[3].record(stream)
        stream.synchronize()
    end = time.perf_counter_ns()
    # The device's timeline is anchored to the host's clock at the synchronization that ends the batch.
    compute_end = end - int(events[2].elapsed_time(events[3]) * 1e6)
    stamp["h2d_end_ns"][batch_id] = compute_end - int(events[1].elapsed_time(events[2]) * 1e6)
    stamp["compute_end_ns"][batch_id] = compute_end
    stamp["d2h_end_ns"][batch_id] = end
    return host, end
