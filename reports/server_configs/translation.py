"""Translates the settings of a plan into another server's configuration, setting by setting.

A server's table maps every setting to a function that returns entries, or to a text on what to do instead: a setting
without a counterpart is reported, not dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from latfix.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class Put:
    """One entry of a configuration.

    :param path: keys from the outside in. A list extends an existing list at its path; anything else is replaced.
    """

    path: tuple[str, ...]
    value: Any


#: The entries for a setting's value, given all settings of the plan; a text becomes a note.
Emit = Callable[[Any, Mapping[str, Any]], Iterable[Put | str]]
#: By setting: its translation, or a text on what to do if the server has no counterpart.
Table = Mapping[str, Emit | str]

_BY_HAND = "convert the model yourself before serving it"
_ENV = "start the server with the file of latfix export-plan --for env"
_OWN = "only latfix's engine does this (latfix.load_runner)"

#: What to do without a counterpart, for every setting.
NO_COUNTERPART: Mapping[str, str] = {
    "device": "choose the device in the server's own configuration",
    "devices": "choose the devices in the server's own configuration",
    "max_batch_size": "your own code decides how many requests share a batch",
    "batch_window_ms": "your own code decides how long a batch waits for more requests",
    "workers": "start that many instances of the model",
    "shared_model": "each instance has its own weights: check the memory",
    "prepare_threads": "the server's own threads prepare requests",
    "intra_op_threads": "call torch.set_num_threads when the model is loaded, or set OMP_NUM_THREADS (--for env)",
    "max_queue": "limit concurrent requests in front of the server",
    "timeout_ms": "set the deadline in the client or in front of the server",
    "hang_limit_ms": "restart the server if its health check does not answer",
    "warmup_requests": "send requests before admitting traffic",
    "warmup_shapes": "run the input sizes of your traffic before admitting it",
    "seed": "call torch.manual_seed when the model is loaded",
    "precision": _BY_HAND,
    "keep_precision": f"{_BY_HAND}, without these modules",
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
    "ageing_ms": f"waiting requests do not rise in priority; {_OWN}",
    "admission": f"late requests are not refused; {_OWN}",
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
    "prefault_mb": "memory is not touched in advance; the C library's part of this setting is in --for env",
    "huge_pages": "the C library's and torch's part of this setting is in --for env",
    "keep_warm_ms": "send a small request while the server is idle",
    "lock_memory": "call mlockall when the model is loaded",
    "hot_rows": _OWN,
    "env": _ENV,
}


#: Their defaults mean no batches, which a server may form all the same: in a plan, that is a change.
_BATCHES = ("max_batch_size", "batch_window_ms")


def put(*path: str) -> Emit:
    """A setting that becomes one entry."""
    return lambda value, _settings: [Put(path, value)]


def by_value(entries: Mapping[Any, Iterable[Put | str]]) -> Emit:
    """A setting with entries for each of its values; no entries for other values."""
    return lambda value, _settings: entries.get(value, ())


def translate(table: Table, settings: Mapping[str, Any], server: str) -> tuple[dict[str, Any], list[str]]:
    """The nested entries of a configuration, and notes on what it does not cover, one per line.

    A setting without a counterpart gets no note if it has latfix's default, unless that means no batches.

    :param settings: of a plan, by name.
    """
    document: dict[str, Any] = {}
    notes: list[str] = []
    defaults = RunnerSettings().to_json()
    for name, value in settings.items():
        entry = table[name]
        if isinstance(entry, str):
            if value != defaults[name] or name in _BATCHES:
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
    """Numbers of the plan's GPUs, starting with ``device``; empty if the plan does not set them."""
    count = int(settings.get("devices", 1))
    if not is_gpu(settings) or not count:
        return []
    first = int(str(settings["device"]).partition(":")[2] or 0)
    return list(range(first, first + count))
