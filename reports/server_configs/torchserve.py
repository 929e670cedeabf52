"""TorchServe's ``config.properties`` and a model's ``model-config.yaml``.

https://github.com/pytorch/serve/blob/master/docs/configuration.md; TorchServe is no longer maintained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table, by_value, gpus

_MODEL, _SERVER = "model", "server"


def _size(value: int, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    yield Put((_MODEL, "batchSize"), value)
    if value > 1 and "batch_window_ms" not in settings:
        yield "TorchServe waits up to 100 ms for a batch to fill: set maxBatchDelay to the workload's window"


def _whole_ms(value: float, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    yield Put((_MODEL, "maxBatchDelay"), round(value))
    if value != round(value):
        yield "maxBatchDelay is rounded to whole milliseconds"


def _workers(value: int, _settings: Mapping[str, Any]) -> Iterator[Put]:
    yield Put((_MODEL, "minWorkers"), value)
    yield Put((_MODEL, "maxWorkers"), value)


def _device(value: str, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value == "auto":
        return
    yield Put((_MODEL, "deviceType"), "cpu" if value == "cpu" else "gpu")
    if numbers := gpus(settings):
        yield Put((_MODEL, "deviceIds"), numbers)


def _compile(value: str, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value != "off":
        mode = {"dynamic": "default"}.get(value, value)
        yield Put((_MODEL, "pt2", "compile"), {"enable": True, "backend": "inductor", "mode": mode})
        yield "applies to handlers derived from BaseHandler"


def _pin(value: str, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value != "off":
        yield Put((_SERVER, "cpu_launcher_enable"), True)
        yield "the launcher (torch.backends.xeon.run_cpu, with numactl) gives each worker its own cores"


def _queue(value: int, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value:
        yield Put((_SERVER, "job_queue_size"), value)
        yield "job_queue_size counts waiting requests; max_queue counts all requests inside"


TABLE: Table = {
    **NO_COUNTERPART,
    "device": _device,
    "devices": by_value({}),  # with device
    "max_batch_size": _size,
    "batch_window_ms": _whole_ms,
    "workers": _workers,
    "max_queue": _queue,
    "timeout_ms": "responseTimeout restarts the worker, in whole seconds: set the deadline in the client instead",
    "compile": _compile,
    "inference_mode": by_value({True: ["handlers derived from BaseHandler do so by default"]}),
    "pin": _pin,
}
