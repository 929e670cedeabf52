"""The causes, one module each, in the order in which they claim: the most specific evidence first."""

from __future__ import annotations

from latfix.profilers.causes import (
    connection_setup,
    denormals,
    external_dependency,
    input_size,
    observer,
    service_lock,
    service_loop,
    unexplained,
)
from latfix.profilers.causes.batching import padding as batching_padding
from latfix.profilers.causes.batching import size as batching_size
from latfix.profilers.causes.batching import window as batching_window
from latfix.profilers.causes.cause import Cause
from latfix.profilers.causes.cold import compile as cold_compile
from latfix.profilers.causes.cold import start as cold_start
from latfix.profilers.causes.device import dispatch_launch, gpu_clocks, gpu_contention, transfer_copy, transfer_sync
from latfix.profilers.causes.drift import drift_causes
from latfix.profilers.causes.host import contention as host_contention
from latfix.profilers.causes.host import slowdown as host_slowdown
from latfix.profilers.causes.host import steal as host_steal
from latfix.profilers.causes.host import throttle as host_throttle
from latfix.profilers.causes.memory import allocator as memory_allocator
from latfix.profilers.causes.memory import fragmentation as memory_fragmentation
from latfix.profilers.causes.memory import page_faults
from latfix.profilers.causes.python import gc as python_gc
from latfix.profilers.causes.python import gil as python_gil
from latfix.profilers.causes.traffic import burst as traffic_burst
from latfix.profilers.causes.traffic import overload as traffic_overload
from latfix.profilers.causes.traffic import priority as traffic_priority

CAUSES: tuple[Cause, ...] = (
    cold_compile.CAUSE,  # known intervals
    python_gc.CAUSE,
    host_throttle.CAUSE,  # run-queue delay: throttling is contained in it, so it claims first
    host_contention.CAUSE,
    cold_start.CAUSE,
    python_gil.CAUSE,  # counts times prices; blocked time that external.dependency would take for its own
    service_loop.CAUSE,  # a service behind an address: what its threads waited for
    service_lock.CAUSE,
    external_dependency.CAUSE,
    connection_setup.CAUSE,
    memory_fragmentation.CAUSE,  # faults on memory that the heap grew by, then the rest of them
    memory_allocator.CAUSE,
    page_faults.CAUSE,
    observer.CAUSE,  # known intervals; before what a device waited for whatever its host did
    transfer_copy.CAUSE,  # on a device's own clock: copies, then waits of device and host for each other
    transfer_sync.CAUSE,
    dispatch_launch.CAUSE,
    gpu_contention.CAUSE,  # what a device took longer by: whoever else was on it, then its clock
    gpu_clocks.CAUSE,
    denormals.CAUSE,  # a flag that the processor sets
    host_steal.CAUSE,
    batching_window.CAUSE,  # waits with an idle worker
    input_size.CAUSE,  # modelled work
    batching_size.CAUSE,
    batching_padding.CAUSE,
    drift_causes.MEMORY,  # what of it rises and stays, so that a level is drift and an episode slowdown
    drift_causes.CACHE,
    drift_causes.SESSIONS,
    drift_causes.UNKNOWN,
    host_slowdown.CAUSE,  # what the model of work leaves of on-CPU time
    traffic_burst.CAUSE,  # what the queue's replay leaves at reference service
    traffic_overload.CAUSE,
    traffic_priority.CAUSE,
    unexplained.CAUSE,
)

__all__ = ["CAUSES"]
