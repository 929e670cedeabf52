"""Classifies calls of the CUDA, HIP or SYCL runtime, kernels and host code by their names."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache


class Host(IntEnum):
    """What the host executes. The first three are its own code; the others are calls of the device's runtime."""

    CODE = 0
    OPERATOR = 1
    FRAME = 2
    LAUNCH = 3
    GRAPH_LAUNCH = 4
    SYNC = 5
    COPY = 6
    ALLOC = 7
    FIRST_USE = 8
    COMPILE = 9
    OTHER_CALL = 10
    OUTSIDE = 11
    GC = 12


#: Calls that issue work to the device or wait for it.
CALLS = (Host.LAUNCH, Host.GRAPH_LAUNCH, Host.SYNC, Host.COPY, Host.ALLOC)


class Device(IntEnum):
    """What the device executes. ``OWN_COPY`` is within the device, ``COPY`` from or to it."""

    KERNEL = 0
    COPY = 1
    MEMSET = 2
    COLLECTIVE = 3
    OWN_COPY = 4


#: Kinds by pattern of the name without the vendor's prefix; the first match counts.
_CALLS: tuple[tuple[Host, re.Pattern[str]], ...] = (
    (Host.GRAPH_LAUNCH, re.compile(r"GraphLaunch|^urEnqueueCommandBufferExp$")),
    (Host.FIRST_USE, re.compile(r"GraphInstantiate|GraphExecUpdate|StreamBeginCapture|StreamEndCapture")),
    (
        Host.LAUNCH,
        re.compile(
            r"LaunchKernel|LaunchCooperative|LaunchHostFunc|ModuleLaunch|ExtModuleLaunch|HccModuleLaunch|ExtLaunch"
            r"|LaunchByPtr|Launch$|Memset|USMFill"
        ),
    ),
    (Host.COPY, re.compile(r"Memcpy|AppendMemoryCopy")),
    (
        Host.ALLOC,
        re.compile(
            r"USM\w+Alloc|Malloc|FreeHost|FreeAsync|FreeArray|Free$|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister"
            r"|Mem(?:Alloc|Free|Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree|PoolTrim|HostAlloc)"
        ),
    ),
    (
        Host.SYNC,
        re.compile(
            r"(?:Device|Stream|Event|Ctx|Context|Host|Queue)Synchronize|^(?:ur|pi)(?:QueueFinish|Events?Wait)$"
        ),
    ),
    (
        Host.FIRST_USE,
        re.compile(
            r"Module(?:Load|Unload|GetFunction|GetGlobal)|Library(?:Load|Get|Unload)|KernelGetFunction|LinkComplete"
            r"|LinkCreate|LinkAdd|Init$|DevicePrimaryCtx|CtxCreate|StreamCreate|DeviceGetStreamPriorityRange"
            r"|GetSymbolAddress|RegisterFatBinary|DeviceReset|SetDevice$"
        ),
    ),
)
_PREFIX = re.compile(r"^(?:cuda|hip|cu|nvrtc|hiprtc)(?=[A-Z])")
_COMPILERS = re.compile(r"^(?:nvrtc|hiprtc)|LinkComplete")
_VERSION = re.compile(r"_v\d+(?:_ptsz)?$|_ptsz$|_spt$|_v2$|R0\d{3}$")
_COLLECTIVE = re.compile(
    r"nccl|rccl|(?:all|cross_device|one_shot|two_shot|multimem)_?(?:reduce|gather)|reduce_?scatter|all_?to_?all"
    r"|custom_ar|nvshmem|quick_?reduce",
    re.IGNORECASE,
)
_OUTSIDE = re.compile(
    r"\bsleep\b|acquire of _thread|\block\.acquire|threading\.py\(\d+\): (?:wait|join|acquire)|queue\.py\(\d+\): get"
    r"|\b(?:select|poll|epoll_wait|recv|recv_into|recvfrom|accept|connect|sem_wait|pthread_cond_(?:timed)?wait"
    r"|nanosleep|read of (?:socket|_io))\b|zmq.*recv|method (?:poll|recv|recv_into|select|read) of",
)
_GC = re.compile(r"built-in function collect>|\bgc\.collect\b|^gc(?:\b|:| collect)|garbage collect", re.IGNORECASE)
_COMPILE = re.compile(
    r"dynamo_timed|compile_fx|compile_inner|benchmark_all_configs|autotuner\.py\(\d+\): (?:_?bench|benchmark)"
    r"|triton/compiler/compiler\.py\(\d+\): compile|torch/_inductor/(?:compile|codecache|graph\.py)"
    r"|_compile\.compile",
)


@lru_cache(maxsize=4096)
def call_kind(name: str) -> Host:
    """The kind of a runtime or driver call: ``cudaLaunchKernel``, ``hipMemcpyAsync``."""
    plain = _VERSION.sub("", name)
    if _COMPILERS.search(plain):
        return Host.COMPILE
    plain = _PREFIX.sub("", plain)
    if plain.startswith(("FuncGet", "FuncSet", "PointerGet")):
        return Host.OTHER_CALL
    return next((kind for kind, pattern in _CALLS if pattern.search(plain)), Host.OTHER_CALL)


@lru_cache(maxsize=65536)
def code_kind(name: str, *, frame: bool) -> Host:
    """The kind of a Python frame, an operator or a range of the host."""
    if "::" in name and not frame:
        return Host.OPERATOR
    if _OUTSIDE.search(name):
        return Host.OUTSIDE
    if _GC.search(name):
        return Host.GC
    if _COMPILE.search(name):
        return Host.COMPILE
    return Host.FRAME if frame else Host.OPERATOR


@lru_cache(maxsize=4096)
def copy_kind(name: str) -> Device:
    """The kind of a copy such as ``Memcpy DtoD (Device -> Device)``; one between devices counts as a collective."""
    if "PtoP" in name:
        return Device.COLLECTIVE
    return Device.OWN_COPY if "DtoD" in name else Device.COPY


@lru_cache(maxsize=65536)
def is_collective(kernel: str) -> bool:
    """True if a kernel exchanges data with other devices."""
    return _COLLECTIVE.search(kernel) is not None
