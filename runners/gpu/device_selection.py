"""The device of each worker's model, from ``device`` and ``devices`` in the settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from latfix.errors import RunnerError
from latfix.profilers.gpu.device_ids import device_index
from latfix.settings import RunnerSettings


def resolve_device(wanted: str) -> str:
    """The torch device for ``device`` in the settings, on this machine.

    :raises RunnerError: the requested CUDA device does not exist.
    """
    count = _cuda_devices()
    if wanted == "cpu" or (wanted == "auto" and not count):
        return "cpu"
    device = "cuda:0" if wanted in ("auto", "cuda") else wanted
    if int(device.partition(":")[2]) >= count:
        raise RunnerError(f'device = "{wanted}": found {count} CUDA devices; use device = "cpu" or "auto"')
    return device


def place_workers(settings: RunnerSettings) -> list[str]:
    """The torch device of each worker, round-robin over ``devices`` GPUs starting with ``device``.

    On the CPU there is one device, and ``devices`` has no effect (:func:`placement_note`).

    :raises RunnerError: there are fewer devices than requested, or fewer workers than devices.
    """
    first = resolve_device(settings.device)
    begin = device_index(first)
    if begin is None or settings.devices == 1:
        return [first] * settings.workers
    there = _cuda_devices() - begin
    count = settings.devices or min(there, settings.workers)
    if count > there:
        raise RunnerError(
            f"devices = {settings.devices}: found {there} CUDA devices from {first} on; lower it, or use 0 for all"
        )
    if count > settings.workers:
        raise RunnerError(
            f"devices = {settings.devices} with workers = {settings.workers}: expected at least one worker per "
            f"device; set workers = {count}"
        )
    return [f"cuda:{begin + k % count}" for k in range(settings.workers)]


def placement_note(settings: RunnerSettings, devices: Sequence[str]) -> str:
    """A note if ``devices`` in the settings has no effect; otherwise empty."""
    if settings.devices > 1 and devices[0] == "cpu":
        return f"devices = {settings.devices} has no effect: all workers run on the CPU"
    return ""


def on_device(device: str) -> AbstractContextManager[Any]:
    """Makes a device the current one: tensors that a model creates ``on "cuda"`` inside are on it."""
    index = device_index(device)
    if index is None or not _choice():
        return contextlib.nullcontext()
    import torch

    return torch.cuda.device(index)


@contextlib.contextmanager
def _within(device: str, mode: AbstractContextManager[Any]) -> Iterator[None]:
    with on_device(device), mode:
        yield


def in_mode(device: str, mode: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """A mode of torch and the current device together."""
    return _within(device, mode) if device_index(device) is not None and _choice() else mode


def _choice() -> bool:
    """True if there are several devices: then a library may have left another one current."""
    return _cuda_devices() > 1


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
