"""Threads, memory and idle time of a run, read at its beginning and end, never in between.

They are in ``run.json`` of every run, with and without the fixes that they verify.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfix.profilers.gpu.alloc_conf import ALLOC_CONF, OLDER_CONF
from latfix.runners.gpu_memory.batch_memory import RESET_PEAK
from latfix.runners.gpu_memory.caching_allocator import DeviceFacts, allocators_of
from latfix.runners.host.cpu_topology import cores_text
from latfix.runners.host.kernel_files import System
from latfix.runners.host.malloc_libraries import loaded_allocator
from latfix.runners.host.privileges import available_bytes, status_bytes
from latfix.runners.host.process_setup import autogroup_nice, memory_facts
from latfix.runners.host.start_environment import environment_at_start
from latfix.runners.model_transforms.embedding_rows import table_bytes
from latfix.runners.scheduling.keep_warm import summed

if TYPE_CHECKING:
    from latfix.runners.engine.engine import Engine
    from latfix.runners.service.loaded_service import Service

_SYSTEM = System()


@dataclass(slots=True)
class RunFacts:
    """Facts about one run of an engine.

    :ivar found: the facts by their keys in ``run.json``; empty before :meth:`end`.
    """

    service: Service
    engine: Engine
    found: dict[str, Any] = field(default_factory=dict)
    _resident: int = 0
    _faults: tuple[int, int] = (0, 0)
    _migrations: dict[int, int] = field(default_factory=dict)
    _device: DeviceFacts = field(init=False)

    def __post_init__(self) -> None:
        self._device = DeviceFacts(allocators_of(worker.device for worker in self.engine.workers))

    def begin(self) -> None:
        """Call before the first measured request, with the threads running."""
        with contextlib.suppress(OSError):  # then the peak is that of the whole process
            Path("/proc/self/clear_refs").write_bytes(RESET_PEAK)
        self._resident = status_bytes("VmRSS")
        self._faults = _faults()
        self._device.begin(self.engine.steering.peak if self.engine.steering is not None else None)
        self._migrations = {tid: migrations(tid) for tid in _threads_of_this_process()}

    def end(self) -> None:
        """Call after the last request, while the threads still run."""
        engine, service = self.engine, self.service
        faults = _faults()
        memory = {
            "resident_start_bytes": self._resident,
            "resident_end_bytes": status_bytes("VmRSS"),
            "peak_bytes": max(status_bytes("VmHWM"), status_bytes("VmRSS")),
            "minor_faults": faults[0] - self._faults[0],
            "major_faults": faults[1] - self._faults[1],
            "available_bytes": available_bytes(),
            "model_bytes": model_bytes([service.uncaptured(instance).model for instance in service.models.instances]),
            "allocator": loaded_allocator(),
            "prefaulted_bytes": service.process.prefaulted_bytes,
            "prefault_kept_bytes": service.process.kept_bytes,
            **memory_facts(),
        }
        started = environment_at_start()
        tables, rows, size = table_bytes([service.models.instances[0].model])
        hot = service.models.instances[0].hot
        pools = service.models.pools
        reserved = [worker.reserved for worker in engine.workers if worker.reserved is not None]
        self.found = {
            "memory": memory,
            "device_memory": self._device.end([(worker.device, worker.reserved) for worker in engine.workers]),
            "placement": self._placement(),
            "residence": asdict(summed([worker.keeper.resident.done for worker in engine.workers])),
            "embeddings": {
                "tables": tables,
                "rows": rows,
                "bytes": size,
                "hot_rows": hot.rows if hot is not None else 0,
                "hot_share": hot.share if hot is not None else 0.0,
                "lookups": hot.lookups if hot is not None else 0,
            },
            "collections": asdict(service.collector.done) if service.collector is not None else {},
            "pool_answers": {
                "hits": sum(pool.answer_hits for pool in pools),
                "misses": sum(pool.answer_misses for pool in pools),
                "held": sum(pool.held for pool in pools),
                "bytes": sum(pool.bytes_held for pool in pools),
            },
            "environment": {name: started[name] for name in _named(service.settings.env) if name in started},
            "worker_devices": [worker.device for worker in engine.workers],
            "setup_notes": [
                *service.process.notes,
                *engine.places.notes,
                *service.models.notes,
                *filter(None, [service.models.outside.note(), self._device.note()]),
                *(each.note for each in reserved if each.note),
            ],
        }

    def _placement(self) -> dict[str, Any]:
        """By role, each thread's cores, priority and migrations during the run."""
        ids = self.engine.thread_ids()
        known = {tid for group in ids.values() for tid in group}
        python = {thread.native_id for thread in threading.enumerate()}
        # Threads that Python did not start belong to the framework's pools.
        ids["pool"] = sorted(set(_threads_of_this_process()) - python)
        ids["own"] = sorted(tid for tid in python - known if tid is not None)
        placement: dict[str, Any] = {role: [self._thread(tid) for tid in group] for role, group in ids.items()}
        for worker, row in zip(self.engine.workers, placement["worker"], strict=True):
            row["operator_threads"] = worker.operator_threads
        cores = {core for row in placement["worker"] for core in row["allowed"]}
        return {
            **placement,
            # Reading this walks the page tables.
            "node_pages": nodes_of_memory() if self.service.settings.pin == "locality" else {},
            "worker_cores": cores_text(cores),
            "autogroup_nice": autogroup_nice(),
        }

    def _thread(self, tid: int) -> dict[str, Any]:
        try:
            allowed = sorted(os.sched_getaffinity(tid)) if hasattr(os, "sched_getaffinity") else []
            nice: int | None = os.getpriority(os.PRIO_PROCESS, tid)
        except OSError:  # the thread has ended
            allowed, nice = [], None
        moved = migrations(tid) - self._migrations.get(tid, 0)
        return {"cores": cores_text(allowed), "allowed": allowed, "nice": nice, "migrations": moved}


def _named(environment: Mapping[str, str]) -> list[str]:
    """Variables to record: the settings' own, and those that allocators and thread pools read at the start."""
    read_at_start = ("GLIBC_TUNABLES", "LD_PRELOAD", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", ALLOC_CONF, OLDER_CONF)
    return sorted({*environment, *read_at_start})


def migrations(tid: int) -> int:
    """How often the kernel moved a thread to another core so far; 0 if it does not report it."""
    lines = (_SYSTEM.text(f"/proc/self/task/{tid}/sched") or "").splitlines()
    return next((int(line.rpartition(":")[2]) for line in lines if line.startswith("se.nr_migrations")), 0)


def nodes_of_memory(system: System = _SYSTEM) -> dict[str, int]:
    """Anonymous pages of this process by memory node (``N0``); empty if the system does not report them."""
    pages: dict[str, int] = {}
    for line in (system.text("/proc/self/numa_maps") or "").splitlines():
        fields = line.split()[2:]
        if any(part.startswith("file=") for part in fields):
            continue
        for part in fields:
            node, _, count = part.partition("=")
            if node[:1] == "N" and node[1:].isdigit():
                pages[node] = pages.get(node, 0) + int(count)
    return pages


def model_bytes(models: list[Any]) -> int:
    """Bytes of all parameters and buffers of ``models``, shared memory counted once, quantized tensors excluded."""
    import torch

    seen: dict[int, int] = {}
    for model in models:
        if isinstance(model, torch.nn.Module):
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.layout == torch.strided:
                    seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(seen.values())


def _threads_of_this_process() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
    except OSError:
        return []


def _faults() -> tuple[int, int]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt
