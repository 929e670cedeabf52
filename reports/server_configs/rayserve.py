"""A Ray Serve config file (https://docs.ray.io/en/latest/serve/configure-serve-deployment.html)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table, gpus, is_gpu

_DEPLOYMENT = "deployment"
_USER = (_DEPLOYMENT, "user_config")
_ACTOR = (_DEPLOYMENT, "ray_actor_options")
_RECONFIGURE = "pass it to @serve.batch in your own reconfigure (set_max_batch_size, set_batch_wait_timeout_s)"


def _device(_value: str, settings: Mapping[str, Any]) -> Iterator[Put]:
    if is_gpu(settings):
        yield Put((*_ACTOR, "num_gpus"), 1)


def _replicas(value: int, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    yield Put((_DEPLOYMENT, "num_replicas"), max(value, len(gpus(settings))))


def _threads(value: int, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value:
        yield Put((*_ACTOR, "num_cpus"), value)
        yield Put((*_ACTOR, "runtime_env", "env_vars"), {"OMP_NUM_THREADS": str(value)})


def _queue(value: int, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value:
        yield Put((_DEPLOYMENT, "max_queued_requests"), value)
        yield "max_queued_requests applies to each deployment handle"


def _timeout(value: float, _settings: Mapping[str, Any]) -> Iterator[Put]:
    if value:
        yield Put(("http_options", "request_timeout_s"), value / 1000)


def _batch(value: int, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    yield Put((*_USER, "max_batch_size"), value)
    yield _RECONFIGURE


TABLE: Table = {
    **NO_COUNTERPART,
    "device": _device,
    "devices": lambda _value, settings: _replicas(1, settings),
    "max_batch_size": _batch,
    "batch_window_ms": lambda value, _settings: [Put((*_USER, "batch_wait_timeout_s"), value / 1000)],
    "workers": _replicas,
    "intra_op_threads": _threads,
    "max_queue": _queue,
    "timeout_ms": _timeout,
    "env": lambda _value, _settings: [],  # the whole environment is in runtime_env
}
