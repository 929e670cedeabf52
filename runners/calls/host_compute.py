"""A batch through the model on the host, with the stamps that divide it into stages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latfix.profilers.probes.thread_counters import Account
from latfix.runners.calls.model_call import call_model

if TYPE_CHECKING:
    from latfix.runners.engine.worker import ModelInstance

    #: The recorder's columns of batches by name; :attr:`latfix.profilers.probes.stage_recorder.StageRecorder.batch`.
    Stamps = Mapping[str, memoryview[int]]


@dataclass(frozen=True, slots=True)
class Ran:
    """A batch that ran; ``process_ns`` and ``spent`` are the process's and the thread's counters at its end."""

    outputs: list[Any]
    end_ns: int
    process_ns: int
    spent: Account


@dataclass(frozen=True, slots=True)
class Collated:
    """A batch before its compute; the counters are the thread's, the process's clock, and the process's memory."""

    batch: Any
    spent: Account
    process_ns: int
    memory: Account


def compute_on_host(instance: ModelInstance, batch: Any, stamp: Stamps, batch_id: int) -> tuple[Any, int]:
    """Run a batch where its inputs are; returns the output and when it was there."""
    # There is no device to copy to or from: the copy stages have no length.
    stamp["collated_ns"][batch_id] = stamp["h2d_end_ns"][batch_id] = time.perf_counter_ns()
    output = call_model(instance.model, batch)
    stamp["compute_end_ns"][batch_id] = stamp["d2h_end_ns"][batch_id] = end = time.perf_counter_ns()
    if instance.pool is not None:
        output = instance.pool.release(output)
    return output, end
