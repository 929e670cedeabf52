"""Every cause of latency that latfix can assign: its id, how it is known, and what to call it.

What each claims of a run is decided in ``profilers/causes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

EvidenceClass = Literal["measured", "counted", "modelled", "propagated", "remainder"]

#: The cause that holds what no other explains.
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class KnownCause:
    """One cause.

    :param id: in reports, plans and gates.
    :param evidence_class: how its own part is known.
    :param title: what happened, in the words of someone on call.
    :param happened: what happened to a request, to follow "… is" in a sentence.
    :param behind: what the requests ahead suffered, to follow "requests waiting behind …".
    """

    id: str
    evidence_class: EvidenceClass
    title: str
    happened: str
    behind: str


_KNOWN: tuple[KnownCause, ...] = (
    KnownCause(
        "traffic.burst",
        "modelled",
        "arrivals outran the runner for a moment",
        happened="arrivals outrunning the runner for a moment",
        behind="arrivals outrunning the runner for a moment",
    ),
    KnownCause(
        "traffic.overload",
        "modelled",
        "arrivals outran the runner for good",
        happened="arrivals outrunning the runner for good",
        behind="arrivals outrunning the runner for good",
    ),
    KnownCause(
        "traffic.priority",
        "modelled",
        "overtaken by requests of higher priority",
        happened="being overtaken by requests of higher priority",
        behind="being overtaken by requests of higher priority",
    ),
    KnownCause(
        "batching.window",
        "measured",
        "waited for the batch timer while the worker was free",
        happened="waiting for the batch timer while the worker was free",
        behind="a worker held by the batch timer",
    ),
    KnownCause(
        "batching.size",
        "modelled",
        "computed longer because others shared the batch",
        happened="sharing a larger batch",
        behind="an oversized batch",
    ),
    KnownCause(
        "batching.padding",
        "modelled",
        "computed on padding",
        happened="computing on padding",
        behind="batches padded to a long input",
    ),
    KnownCause(
        "input.size",
        "modelled",
        "this input needs more work (explained, not a fault)",
        happened="inputs that need more work",
        behind="a larger input",
    ),
    KnownCause(
        "cold.start",
        "modelled",
        "first use: lazy initialization, weights paged in",
        happened="first use (lazy initialization, weights paged in)",
        behind="one that met first use",
    ),
    KnownCause(
        "cold.compile",
        "measured",
        "compilation in the request's path",
        happened="compilation in the request's path",
        behind="one that paid for a compilation",
    ),
    KnownCause(
        "memory.allocator",
        "counted",
        "the allocator's slow path",
        happened="the allocator growing the heap or giving memory back",
        behind="one for which the heap grew or shrank",
    ),
    KnownCause(
        "memory.fragmentation",
        "counted",
        "memory was free but not in one piece",
        happened="the heap growing because what was free in it lay in pieces",
        behind="one for which a fragmented heap grew",
    ),
    KnownCause(
        "memory.page_faults",
        "counted",
        "pages faulted in during the request",
        happened="pages faulted in during the request",
        behind="one that faulted pages in",
    ),
    KnownCause(
        "transfer.copy",
        "measured",
        "host–device copy slower than its bytes need",
        happened="a copy to or from the GPU that took longer than its bytes need",
        behind="one whose copy to or from the GPU took long",
    ),
    KnownCause(
        "transfer.sync",
        "modelled",
        "the host waited for the device where it need not",
        happened="the GPU idle because the host had waited for it",
        behind="one in which the host and the GPU waited for each other",
    ),
    KnownCause(
        "dispatch.launch",
        "modelled",
        "the device starved for launches",
        happened="the GPU waiting for the host to issue its work",
        behind="one in which the GPU waited for the host",
    ),
    KnownCause(
        "gpu.clocks",
        "modelled",
        "clocks lowered: thermal, power or idle",
        happened="the GPU computing at a lower clock",
        behind="one that the GPU computed at a lower clock",
    ),
    KnownCause(
        "gpu.contention",
        "modelled",
        "another process used the device",
        happened="another process using the GPU",
        behind="one that shared the GPU with another process",
    ),
    KnownCause(
        "host.contention",
        "measured",
        "runnable but not running: too few cores for the threads",
        happened="other threads or processes taking the core",
        behind="one whose core was taken",
    ),
    KnownCause(
        "host.throttle",
        "measured",
        "the cgroup's CPU quota was exhausted",
        happened="the cgroup's CPU quota running out",
        behind="one that the CPU quota stopped",
    ),
    KnownCause(
        "host.steal",
        "counted",
        "the hypervisor took the core",
        happened="the hypervisor taking the core",
        behind="one whose core the hypervisor took",
    ),
    KnownCause(
        "host.slowdown",
        "modelled",
        "on the core for longer than the same work takes",
        happened="the core working slower than usual",
        behind="one whose core worked slower than usual",
    ),
    KnownCause(
        "numerics.denormals",
        "counted",
        "computed with denormal numbers, which the processor is slow at",
        happened="computing with denormal numbers",
        behind="one that computed with denormal numbers",
    ),
    KnownCause(
        "python.gc",
        "measured",
        "the garbage collector ran",
        happened="the garbage collector running during the request",
        behind="one that the garbage collector interrupted",
    ),
    KnownCause(
        "python.gil",
        "counted",
        "waited for the interpreter lock",
        happened="waiting for the interpreter lock that another thread held",
        behind="one that waited for the interpreter lock",
    ),
    KnownCause(
        "service.lock",
        "modelled",
        "waited for a lock that another request of the service held",
        happened="waiting for a lock that another request of the service held",
        behind="one that waited for a lock of the service",
    ),
    KnownCause(
        "service.loop",
        "measured",
        "a call held the service's event loop",
        happened="a call holding the service's event loop, so that nobody was answered",
        behind="one that a call in the service's event loop held up",
    ),
    KnownCause(
        "external.dependency",
        "measured",
        "waited for something outside: network, database, disk",
        happened="waiting for something outside (database, network, disk)",
        behind="one that waited for something outside",
    ),
    KnownCause(
        "network.connect",
        "measured",
        "a connection had to be opened",
        happened="opening a connection for the request",
        behind="one that opened a connection",
    ),
    KnownCause(
        "drift.memory",
        "modelled",
        "slower with age: memory grew",
        happened="work slowing down while memory grew",
        behind="one slowed by growing memory",
    ),
    KnownCause(
        "drift.cache",
        "modelled",
        "slower with age: a cache grew",
        happened="work slowing down while a cache of shapes or compilations grew",
        behind="one slowed by a growing cache",
    ),
    KnownCause(
        "drift.sessions",
        "modelled",
        "slower with age: sessions grew",
        happened="work slowing down while sessions piled up",
        behind="one slowed by sessions that piled up",
    ),
    KnownCause(
        "drift.unknown",
        "modelled",
        "slower with age, no known reason",
        happened="work slowing down with age",
        behind="one slowed with age",
    ),
    KnownCause(
        "observer",
        "measured",
        "latfix itself: late dispatch, probe reads",
        happened="latfix itself being late",
        behind="one that latfix delayed",
    ),
    KnownCause(
        "unexplained",
        "remainder",
        "none of the known causes",
        happened="something that no probe accounts for",
        behind="one slowed by something that no probe accounts for",
    ),
)

#: Causes that only a recording of a device tells apart; a replay does not search for them.
_OF_DEVICE_RECORDINGS: tuple[KnownCause, ...] = (
    KnownCause(
        "gpu.compute",
        "measured",
        "the device computed: kernels on the critical path",
        happened="kernels on the device",
        behind="one whose kernels took long",
    ),
    KnownCause(
        "gpu.slowdown",
        "modelled",
        "the same kernels took longer: clocks, or a neighbor on the device",
        happened="the same kernels taking longer than usual",
        behind="one whose kernels took longer than usual",
    ),
    KnownCause(
        "gpu.gaps",
        "measured",
        "the device idled between kernels that were queued already",
        happened="the device idle between kernels that were queued already",
        behind="one in whose queue of kernels the device idled",
    ),
    KnownCause(
        "gpu.collective",
        "measured",
        "collectives: bytes exchanged between devices",
        happened="collectives between devices",
        behind="one that exchanged data between devices",
    ),
    KnownCause(
        "gpu.rank_wait",
        "modelled",
        "waited in a collective for other ranks",
        happened="waiting in collectives for other ranks",
        behind="one that waited for other ranks",
    ),
    KnownCause(
        "host.python",
        "measured",
        "the host's own code set the pace: Python, operators, launch calls",
        happened="the host's own code (Python, operators, launch calls)",
        behind="one whose host code took long",
    ),
)

CATALOGUE: Mapping[str, KnownCause] = {cause.id: cause for cause in (*_KNOWN, *_OF_DEVICE_RECORDINGS)}
#: Ids of those that a replay does not search for.
RECORDED_ONLY: frozenset[str] = frozenset(cause.id for cause in _OF_DEVICE_RECORDINGS)
