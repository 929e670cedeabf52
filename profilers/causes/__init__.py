"""The causes, one module each, in the order in which they claim: the most specific evidence first."""

from __future__ import annotations

from latfix.profilers.cause import Cause
from latfix.profilers.causes import (
    batching_padding,
    batching_size,
    batching_window,
    cold_compile,
    cold_start,
    dispatch_launch,
    drift_cache,
    drift_memory,
    drift_sessions,
    drift_unknown,
    external_dependency,
    gpu_clocks,
    gpu_contention,
    host_contention,
    host_slowdown,
    host_steal,
    host_throttle,
    input_size,
    memory_allocator,
    memory_fragmentation,
    observer,
    page_faults,
    python_gc,
    python_gil,
    traffic_burst,
    traffic_overload,
    traffic_priority,
    transfer_copy,
    transfer_sync,
    unexplained,
)

CAUSES: tuple[Cause, ...] = (
    cold_compile.CAUSE,  # known intervals
    python_gc.CAUSE,
    host_throttle.CAUSE,  # run-queue delay: throttling is contained in it, so it claims first
    host_contention.CAUSE,
    cold_start.CAUSE,
    python_gil.CAUSE,  # counts times prices; blocked time that external.dependency would take for its own
    external_dependency.CAUSE,
    memory_fragmentation.CAUSE,  # faults on memory that the heap grew by, then the rest of them
    memory_allocator.CAUSE,
    page_faults.CAUSE,
    transfer_copy.CAUSE,  # on a device's own clock: copies, then waits of device and host for each other
    transfer_sync.CAUSE,
    dispatch_launch.CAUSE,
    gpu_contention.CAUSE,  # what a device took longer by: whoever else was on it, then its clock
    gpu_clocks.CAUSE,
    host_steal.CAUSE,
    observer.CAUSE,
    batching_window.CAUSE,  # waits with an idle worker
    input_size.CAUSE,  # modelled work
    batching_size.CAUSE,
    batching_padding.CAUSE,
    drift_memory.CAUSE,  # what of it rises and stays, so that a level is drift and an episode slowdown
    drift_cache.CAUSE,
    drift_sessions.CAUSE,
    drift_unknown.CAUSE,
    host_slowdown.CAUSE,  # what the model of work leaves of on-CPU time
    traffic_burst.CAUSE,  # what the queue's replay leaves at reference service
    traffic_overload.CAUSE,
    traffic_priority.CAUSE,
    unexplained.CAUSE,
)

__all__ = ["CAUSES"]
