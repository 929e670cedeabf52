"""What the plan requires of a container: resources, environment and capabilities, to merge into its entry.

The kubelet's static CPU manager assigns exclusive cores for whole CPUs with requests equal to limits:
https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table, by_value, gpus

_CAPABILITIES = ("securityContext", "capabilities", "add")
_STATIC = "exclusive cores need whole CPUs with requests equal to limits, and a node with cpuManagerPolicy: static"


def _cores(_value: int, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    """One CPU for each thread of each worker, if the plan sets both."""
    workers, threads = int(settings.get("workers", 1)), int(settings.get("intra_op_threads", 0))
    if threads:
        yield from (Put(("resources", side, "cpu"), str(workers * threads)) for side in ("requests", "limits"))
    elif workers > 1:
        yield "set the number of CPUs yourself: the plan does not set intra_op_threads"


def _device(_value: str, settings: Mapping[str, Any]) -> Iterator[Put]:
    if count := len(gpus(settings)):
        yield Put(("resources", "limits", "nvidia.com/gpu"), str(count))


def _nice(value: int, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value < 0:
        yield Put(_CAPABILITIES, ["SYS_NICE"])
    if value:
        yield f"Kubernetes does not set process priorities: {NO_COUNTERPART['nice']}"


def _threads(value: int, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    yield from _cores(value, settings)
    if value:
        yield Put(("env",), [{"name": "OMP_NUM_THREADS", "value": str(value)}])


TABLE: Table = {
    **NO_COUNTERPART,
    "device": _device,
    "devices": _device,
    "workers": _cores,
    "intra_op_threads": _threads,
    "pin": lambda value, _settings: [_STATIC] if value != "off" else [],
    "nice": _nice,
    "lock_memory": by_value({True: [Put(_CAPABILITIES, ["IPC_LOCK"]), NO_COUNTERPART["lock_memory"]]}),
    "env": lambda _value, _settings: [],  # the whole environment is in env
}
