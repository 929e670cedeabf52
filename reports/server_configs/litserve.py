"""Arguments of LitServe's ``LitAPI`` and ``LitServer``, as Python (https://lightning.ai/docs/litserve)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table, gpus, put

_API, _SERVER = "LIT_API", "LIT_SERVER"


def _device(value: str, settings: Mapping[str, Any]) -> list[Put | str]:
    found: list[Put | str] = [Put((_SERVER, "accelerator"), value.partition(":")[0])]
    return [*found, Put((_SERVER, "devices"), numbers)] if (numbers := gpus(settings)) else found


def _workers(value: int, settings: Mapping[str, Any]) -> list[Put | str]:
    return [Put((_SERVER, "workers_per_device"), max(value // max(len(gpus(settings)), 1), 1))]


TABLE: Table = {
    **NO_COUNTERPART,
    "device": _device,
    "devices": lambda _value, _settings: [],  # with device
    "max_batch_size": put(_API, "max_batch_size"),
    "batch_window_ms": lambda value, _settings: [Put((_API, "batch_timeout"), value / 1000)],
    "workers": _workers,
    "timeout_ms": lambda value, _settings: [Put((_SERVER, "timeout"), value / 1000 if value else False)],
}
