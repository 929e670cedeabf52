"""The causes, one module each, in the order in which they claim: the most specific evidence first."""

from __future__ import annotations

from latfix.profilers.causes import (
    batching,
    denormals,
    external_dependency,
    input_size,
    observer,
    service_reports,
    service_waits,
    traffic,
    unexplained,
)
from latfix.profilers.causes.cause import Cause
from latfix.profilers.causes.cold import compile as cold_compile
from latfix.profilers.causes.cold import start as cold_start
from latfix.profilers.causes.device import gpu_clocks, gpu_contention, idle_device, transfer_copy
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

CAUSES: tuple[Cause, ...] = (
    cold_compile.CAUSE,  # known intervals
    python_gc.CAUSE,
    service_waits.DELAYED_ACK,  # a timer of the kernel
    host_throttle.CAUSE,  # run-queue delay: throttling is contained in it, so it claims first
    host_contention.CAUSE,
    cold_start.CAUSE,
    python_gil.CAUSE,  # counts times prices; before external.dependency, which claims all other blocked time
    service_waits.LOOP,  # a service behind an address: waits of its threads
    service_waits.LOCK,
    external_dependency.CAUSE,
    service_waits.CONNECT,
    memory_fragmentation.CAUSE,  # faults on memory of a growing heap, then all other faults
    memory_allocator.CAUSE,
    page_faults.CAUSE,
    observer.CAUSE,  # known intervals; before waits of the device for its host
    gpu_contention.CAUSE,  # a turn of another process delays copies and compute alike
    transfer_copy.CAUSE,  # on a device's own clock: copies, then waits of device and host for each other
    idle_device.SYNC,
    idle_device.LAUNCH,
    gpu_clocks.CAUSE,
    denormals.CAUSE,  # a flag of the processor
    host_steal.CAUSE,
    batching.WINDOW,  # waits with an idle worker
    input_size.CAUSE,  # modelled work
    batching.SIZE,
    batching.PADDING,
    drift_causes.MEMORY,  # a rise that stays is drift; an episode is left to slowdown
    drift_causes.CACHE,
    drift_causes.SESSIONS,
    drift_causes.UNKNOWN,
    service_reports.QUEUE,  # where the time was, as the service reports it; its causes claim before
    service_reports.COMPUTE,
    service_reports.TRANSIT,
    host_slowdown.CAUSE,  # remaining on-CPU time beyond the model of work
    traffic.BURST,  # waits in the queue's replay at reference service
    traffic.OVERLOAD,
    traffic.PRIORITY,
    unexplained.CAUSE,
)

__all__ = ["CAUSES"]
