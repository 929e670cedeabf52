"""All causes of latency: id, class of evidence, and the words that reports use; and what fixes need of a run.

How much of a run each cause claims is decided in ``profilers/causes``; what a fix does, in ``runners/fixes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

EvidenceClass = Literal["measured", "counted", "modelled", "propagated", "remainder"]

#: The cause that holds the remainder.
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class KnownCause:
    """One cause.

    :param id: used in reports, plans and gates.
    :param evidence_class: how its own part is known.
    :param title: what happened, as an engineer on call would put it.
    :param happened: what happened to a request; completes "12 ms of the excess is …".
    :param behind: what happened to the requests ahead; completes "requests waiting behind …".
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
        "a burst: arrivals briefly exceeded capacity",
        happened="a burst of arrivals above capacity",
        behind="a burst of arrivals above capacity",
    ),
    KnownCause(
        "traffic.overload",
        "modelled",
        "overload: arrivals exceeded capacity for long",
        happened="sustained overload (arrivals above capacity)",
        behind="the backlog of a sustained overload",
    ),
    KnownCause(
        "traffic.priority",
        "modelled",
        "overtaken by requests of higher priority",
        happened="being overtaken by requests of higher priority",
        behind="requests of higher priority",
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
        "computed longer because other requests shared the batch",
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
        "this input needs more work (not a fault)",
        happened="inputs that need more work",
        behind="a larger input",
    ),
    KnownCause(
        "cold.start",
        "modelled",
        "first use: lazy initialization, weights paged in, plans for new shapes",
        happened="first use (lazy initialization, weights paged in, plans for new shapes)",
        behind="one that paid for first-use initialization",
    ),
    KnownCause(
        "cold.compile",
        "measured",
        "compilation on the request path",
        happened="compilation on the request path",
        behind="one that triggered a compilation",
    ),
    KnownCause(
        "memory.allocator",
        "counted",
        "the allocator's slow path",
        happened="the allocator growing the heap or returning memory",
        behind="one for which the heap grew or shrank",
    ),
    KnownCause(
        "memory.fragmentation",
        "counted",
        "enough memory was free, but not in one piece",
        happened="the heap growing although enough memory was free, in fragments",
        behind="one for which a fragmented heap grew",
    ),
    KnownCause(
        "memory.page_faults",
        "counted",
        "page faults during the request",
        happened="page faults during the request",
        behind="one that took page faults",
    ),
    KnownCause(
        "transfer.copy",
        "measured",
        "host–device copy took longer than its size requires",
        happened="a copy to or from the GPU that took longer than its size requires",
        behind="one with a slow copy to or from the GPU",
    ),
    KnownCause(
        "transfer.sync",
        "modelled",
        "unnecessary synchronization of host and device",
        happened="the GPU idle because the host had synchronized with it",
        behind="one in which the host and the GPU waited for each other",
    ),
    KnownCause(
        "dispatch.launch",
        "modelled",
        "the device idled, waiting for kernel launches",
        happened="the GPU waiting for the host to launch its next work",
        behind="one in which the GPU waited for kernel launches",
    ),
    KnownCause(
        "gpu.clocks",
        "modelled",
        "lower GPU clock: thermal, power or idle",
        happened="the GPU computing at a lower clock",
        behind="one computed at a lower GPU clock",
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
        behind="one throttled by the CPU quota",
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
        "more CPU time than the same work usually takes",
        happened="work taking more CPU time than usual",
        behind="one that took more CPU time than usual",
    ),
    KnownCause(
        "numerics.denormals",
        "counted",
        "computed with denormal numbers, which are slow to process",
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
        happened="waiting for the interpreter lock while another thread held it",
        behind="one that waited for the interpreter lock",
    ),
    KnownCause(
        "service.lock",
        "modelled",
        "waited for a lock held by another thread",
        happened="waiting for a lock held by another thread",
        behind="one that waited for a lock of the service",
    ),
    KnownCause(
        "service.loop",
        "measured",
        "a call blocked the service's event loop",
        happened="a call blocking the service's event loop, so that no request was answered",
        behind="one delayed by a call that blocked the event loop",
    ),
    KnownCause(
        "service.queue",
        "measured",
        "waited in the service's own queue, as it reports",
        happened="waiting in the service's own queue",
        behind="one that waited in the service's queue",
    ),
    KnownCause(
        "service.compute",
        "measured",
        "the service's own work took longer than usual",
        happened="the service's own work taking longer than for other requests of this size",
        behind="one on which the service worked for longer",
    ),
    KnownCause(
        "external.dependency",
        "measured",
        "waited for something outside: network, database, disk, lock, sleep",
        happened="waiting for something outside (network, database, disk, lock, sleep)",
        behind="one that waited for something outside (network, database, disk, lock, sleep)",
    ),
    KnownCause(
        "network.connect",
        "measured",
        "a new connection had to be opened",
        happened="opening a connection for the request",
        behind="one that opened a connection",
    ),
    KnownCause(
        "network.delayed_ack",
        "measured",
        "the answer waited for an acknowledgment that the client's kernel delayed",
        happened="answers in two pieces, the second of which waited for a delayed acknowledgment",
        behind="one whose answer waited for a delayed acknowledgment",
    ),
    KnownCause(
        "network.transit",
        "measured",
        "outside of what the service reports: the network, or not yet accepted",
        happened="time outside of what the service reports (the network, or not yet accepted)",
        behind="one that was late to reach the service",
    ),
    KnownCause(
        "drift.memory",
        "modelled",
        "slowed down over time: memory grew",
        happened="work slowing down while memory grew",
        behind="one slowed by growing memory",
    ),
    KnownCause(
        "drift.cache",
        "modelled",
        "slowed down over time: a cache grew",
        happened="work slowing down while a cache of shapes or compilations grew",
        behind="one slowed by a growing cache",
    ),
    KnownCause(
        "drift.sessions",
        "modelled",
        "slowed down over time: sessions grew",
        happened="work slowing down while sessions piled up",
        behind="one slowed by accumulated sessions",
    ),
    KnownCause(
        "drift.unknown",
        "modelled",
        "slowed down over time, reason unknown",
        happened="work slowing down over time",
        behind="one that ran slower than early work",
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

#: Causes that only a recording of a device can distinguish; a replay does not search for them.
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
        "the device idled between kernels that were already queued",
        happened="the device idle between kernels that were already queued",
        behind="one in which the device idled between queued kernels",
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
        "host code set the pace: Python, operators, launch calls",
        happened="host code (Python, operators, launch calls)",
        behind="one with slow host code",
    ),
)

CATALOGUE: Mapping[str, KnownCause] = {cause.id: cause for cause in (*_KNOWN, *_OF_DEVICE_RECORDINGS)}
#: Ids of the causes that a replay does not search for.
RECORDED_ONLY: frozenset[str] = frozenset(cause.id for cause in _OF_DEVICE_RECORDINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Premise:
    """What a fix needs of a run's device, model and settings, before anything is measured.

    :param device: kind of device that the model must be on, ``cpu`` or ``cuda``; empty for any.
    :param layers: the model must consist of torch's layers, not of a file for another runtime.
    :param workers: at least.
    :param threads: of one operator, at least.
    """

    device: Literal["cpu", "cuda", ""] = ""
    layers: bool = False
    workers: int = 1
    threads: int = 1

    def allows(self, device: str) -> bool:
        """True on this device, as a run's meta names it."""
        return not self.device or (self.device == "cpu") == (device == "cpu")


#: By fix. One that is not here has no such premise.
PREMISES: Mapping[str, Premise] = {
    "cache.embeddings": Premise(device="cpu", layers=True),
    "dispatch.inference_mode": Premise(layers=True),
    "fuse.attention": Premise(device="cpu", layers=True),
    "fuse.channels_last": Premise(layers=True),
    "fuse.compile": Premise(layers=True),
    "fuse.compile_autotune": Premise(device="cuda", layers=True),
    "fuse.cudagraph": Premise(device="cuda", layers=True),
    "fuse.onnxruntime": Premise(device="cpu", layers=True),
    "fuse.openvino": Premise(device="cpu", layers=True),
    "fuse.planless_attention": Premise(device="cuda", layers=True),
    "fuse.tensorrt": Premise(device="cuda", layers=True),
    "host.parallel": Premise(device="cpu"),
    "host.pin": Premise(device="cpu"),
    "host.routing": Premise(workers=2),
    "host.threads": Premise(device="cpu", threads=2),
    "host.wait_policy": Premise(device="cpu", threads=2),
    "host.workers": Premise(device="cpu"),
    "locality.cores": Premise(device="cpu"),
    "memory.device_allocator": Premise(device="cuda"),
    "memory.limit": Premise(device="cuda"),
    "quantize.bf16": Premise(layers=True),
    "quantize.fp16": Premise(layers=True),
    "quantize.fp8_dynamic": Premise(device="cuda", layers=True),
    "quantize.int8_dynamic": Premise(layers=True),
    "quantize.int8_excluded": Premise(layers=True),
    "quantize.int8_weight_only": Premise(device="cpu", layers=True),
    "quantize.tf32": Premise(device="cuda", layers=True),
    "transfer.overlap": Premise(device="cuda"),
    "transfer.pinned": Premise(device="cuda"),
}
