"""A Ray Serve config file (https://docs.ray.io/en/latest/serve/configure-serve-deployment.html)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table, gpus, is_gpu

_DEPLOYMENT = "deployment"
_USER = (_DEPLOYMENT, "user_config")
_ACTOR = (_DEPLOYMENT, "ray_actor_options")
_RECONFIGURE = "pass it to @serve.batch in your own reconfigure (set_max_batch_size, set_batch_wait_timeout_s)"


def _device(_value: object, settings: Mapping[str, Any]) -> Iterator[Put]:
    """A GPU for each replica, or a part of one (in four digits, as Ray counts) if several share it."""
    if is_gpu(settings):
        sharing = math.ceil(_number(settings) / (len(gpus(settings)) or _number(settings)))
        yield Put((*_ACTOR, "num_gpus"), 1 if sharing == 1 else math.floor(1e4 / sharing) / 1e4)


def _number(settings: Mapping[str, Any]) -> int:
    return max(int(settings.get("workers", 1)), len(gpus(settings)))


def _replicas(_value: object, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    yield Put((_DEPLOYMENT, "num_replicas"), _number(settings))


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
    "devices": _replicas,
    "max_batch_size": _batch,
    "batch_window_ms": lambda value, _settings: [Put((*_USER, "batch_wait_timeout_s"), value / 1000)],
    "workers": _replicas,
    "intra_op_threads": _threads,
    "max_queue": _queue,
    "timeout_ms": _timeout,
    "env": lambda _value, _settings: [],  # the whole environment is in runtime_env
}
