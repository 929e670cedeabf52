"""From the settings of a plan to entries of another server's configuration, setting by setting.

A server's table has for each setting either a function that returns entries, or words on what to do instead: every
setting has its line for every server, and what has no counterpart is said, not dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from latfix.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class Put:
    """One entry of a configuration.

    :param path: keys from the outside in. A list at the end of the same path is lengthened, anything else replaced.
    """

    path: tuple[str, ...]
    value: Any


#: The entries of a setting with this value, given all settings of the plan; a text is something to be said.
Emit = Callable[[Any, Mapping[str, Any]], Iterable[Put | str]]
#: By setting: what it becomes, or in words what to do because the server has nothing like it.
Table = Mapping[str, Emit | str]

_BY_HAND = "convert the model yourself before it is served"
_ENV = "start the server with the file of latfix export-plan --for env"
_OWN = "only latfix's engine does this (latfix.load_runner)"

#: For servers that have nothing like a setting: every setting is here.
NO_COUNTERPART: Mapping[str, str] = {
    "device": "choose the device in the server's own configuration",
    "devices": "choose the devices in the server's own configuration",
    "max_batch_size": "collect batches in your own code",
    "batch_window_ms": "collect batches in your own code",
    "workers": "start that many instances of the model",
    "shared_model": "each instance has weights of its own: mind the memory",
    "prepare_threads": "the server's own threads prepare requests",
    "intra_op_threads": "call torch.set_num_threads when the model is loaded, or set OMP_NUM_THREADS (--for env)",
    "max_queue": "limit the requests inside in front of the server",
    "timeout_ms": "set the deadline in the client or in front of the server",
    "hang_limit_ms": "restart the server where its health check does not answer",
    "warmup_requests": "send requests before traffic is let in",
    "warmup_shapes": "run the sizes of your traffic before traffic is let in",
    "seed": "call torch.manual_seed when the model is loaded",
    "precision": _BY_HAND,
    "keep_precision": f"{_BY_HAND}, these modules left out",
    "compile": "call torch.compile when the model is loaded",
    "backend": _BY_HAND,
    "memory_format": "call model.to(memory_format=torch.channels_last) when the model is loaded",
    "attention": "choose it in the model: torch.nn.attention.sdpa_kernel",
    "flush_denormal": "call torch.set_flush_denormal(True) in each thread that calls the model",
    "inference_mode": "wrap the call in torch.inference_mode()",
    "batching": f"its window is fixed; {_OWN}",
    "target_ms": _OWN,
    "window_least_ms": _OWN,
    "window_most_ms": _OWN,
    "batch_order": f"batches are in order of arrival; {_OWN}",
    "batch_key": _OWN,
    "schedule": f"requests are served in order of arrival; {_OWN}",
    "ageing_ms": f"there are no classes that a waiting request rises through; {_OWN}",
    "admission": f"nothing is refused for being late; {_OWN}",
    "routing": f"instances are treated alike; {_OWN}",
    "memory_limit_mb": _OWN,
    "buffer_pool": _OWN,
    "pinned_staging": "pin the tensors in your own code before they are copied",
    "overlap": _OWN,
    "cuda_graphs": "capture them in your own code: torch.cuda.graph",
    "reserve_mb": "allocate and free a tensor of that size when the model is loaded",
    "device_memory_share": "call torch.cuda.set_per_process_memory_fraction when the model is loaded",
    "gc": "call gc.collect() and gc.freeze() when the model is loaded",
    "pin": "start each instance with taskset or numactl",
    "nice": "start the server with nice -n",
    "prefault_mb": "nothing touches memory ahead; what it needs of the C library is in --for env",
    "huge_pages": "what it needs of the C library and of torch is in --for env",
    "keep_warm_ms": "send a small request while it is idle",
    "lock_memory": "call mlockall when the model is loaded",
    "hot_rows": _OWN,
    "env": _ENV,
}


def put(*path: str) -> Emit:
    """A setting that becomes one entry."""
    return lambda value, _settings: [Put(path, value)]


def by_value(entries: Mapping[Any, Iterable[Put | str]]) -> Emit:
    """A setting of which each value has entries of its own; others have none."""
    return lambda value, _settings: entries.get(value, ())


def translate(table: Table, settings: Mapping[str, Any], server: str) -> tuple[dict[str, Any], list[str]]:
    """The nested entries of a configuration, and what was not said in it, one line each.

    A setting that is at latfix's default asks for nothing where the server has no counterpart.

    :param settings: of a plan, by name.
    """
    document: dict[str, Any] = {}
    notes: list[str] = []
    defaults = RunnerSettings().to_json()
    for name, value in settings.items():
        entry = table[name]
        if isinstance(entry, str):
            if value != defaults[name]:
                notes.append(f"{name} = {_shown(value)} has no counterpart in {server}: {entry}")
            continue
        for found in entry(value, settings):
            if isinstance(found, Put):
                _insert(document, found)
            else:
                notes.append(f"{name} = {_shown(value)}: {found}")
    return document, notes


def _insert(document: dict[str, Any], found: Put) -> None:
    inner = document
    for key in found.path[:-1]:
        inner = inner.setdefault(key, {})
    last = found.path[-1]
    if isinstance(found.value, list):
        inner[last] = [*inner.get(last, ()), *found.value]
    else:
        inner[last] = found.value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def is_gpu(settings: Mapping[str, Any]) -> bool:
    """True if the plan names a GPU."""
    return str(settings.get("device", "")).startswith("cuda")


def gpus(settings: Mapping[str, Any]) -> list[int]:
    """Numbers of the GPUs that the plan names, from that of ``device`` on; empty where it leaves them open."""
    count = int(settings.get("devices", 1))
    if not is_gpu(settings) or not count:
        return []
    first = int(str(settings["device"]).partition(":")[2] or 0)
    return list(range(first, first + count))
