"""Every cause that a diagnosis can name, by its id."""

from __future__ import annotations

from collections.abc import Mapping

#: What happened, in the words of someone on call.
CAUSE_WORDS: Mapping[str, str] = {
    "traffic.burst": "arrivals outran the runner for a moment",
    "traffic.overload": "arrivals outran the runner for good",
    "traffic.priority": "overtaken by requests of higher priority",
    "batching.window": "waited for the batch timer while the worker was free",
    "batching.size": "computed longer because others shared the batch",
    "batching.padding": "computed on padding",
    "input.size": "this input needs more work (explained, not a fault)",
    "cold.start": "first use: lazy initialization, weights paged in",
    "cold.compile": "compilation in the request's path",
    "memory.allocator": "the allocator's slow path",
    "memory.fragmentation": "memory was free but not in one piece",
    "memory.page_faults": "pages faulted in during the request",
    "transfer.copy": "host–device copy slower than its bytes need",
    "transfer.sync": "the host waited for the device where it need not",
    "dispatch.launch": "the device starved for launches",
    "gpu.clocks": "clocks lowered: thermal, power or idle",
    "gpu.contention": "another process used the device",
    "host.contention": "runnable but not running: too few cores for the threads",
    "host.throttle": "the cgroup's CPU quota was exhausted",
    "host.steal": "the hypervisor took the core",
    "host.slowdown": "on the core for longer than the same work takes",
    "python.gc": "the garbage collector ran",
    "python.gil": "waited for the interpreter lock",
    "external.dependency": "waited for something outside: network, database, disk",
    "drift.memory": "slower with age: memory grew",
    "drift.cache": "slower with age: a cache grew",
    "drift.sessions": "slower with age: sessions grew",
    "drift.unknown": "slower with age, no known reason",
    "observer": "latfix itself: late dispatch, probe reads",
    "unexplained": "none of the known causes",
}
