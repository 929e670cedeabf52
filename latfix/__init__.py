"""latfix: find out why the latency of model inference jitters, fix it, and prove the fix.

Adapters use :class:`Request`, :class:`Workload` and :class:`span`. To serve a workload in your own program, use
:func:`load_runner`, the :class:`Runner` that it returns, and the errors of its requests.
:class:`record` and :class:`RecordMiddleware` record other kinds of services (docs/services.md).
Notebooks use :func:`read_run`, :func:`diagnose`, :func:`compare` and :func:`replay` (docs/api.md).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from latfix.adapter_api import Workload
from latfix.errors import InputError, LatfixError
from latfix.request import Request
from latfix.spans import span

if TYPE_CHECKING:
    from latfix.notebook import Run, compare, diagnose, read_run, replay
    from latfix.profilers.service_log.asgi_middleware import RecordMiddleware
    from latfix.profilers.service_log.recorder import record
    from latfix.runners.live.load import load_runner
    from latfix.runners.live.requests import RequestError, RequestFailed, RequestShed, RequestTimedOut, RunnerClosed
    from latfix.runners.live.runner import Runner

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "LatfixError",
    "RecordMiddleware",
    "Request",
    "RequestError",
    "RequestFailed",
    "RequestShed",
    "RequestTimedOut",
    "Run",
    "Runner",
    "RunnerClosed",
    "Workload",
    "__version__",
    "compare",
    "diagnose",
    "load_runner",
    "read_run",
    "record",
    "replay",
    "span",
]

_ERRORS = "latfix.runners.live.requests"
#: Imported on first access, so that ``import latfix`` stays light for adapters.
_LATER = {
    **dict.fromkeys(("Run", "compare", "diagnose", "read_run", "replay"), "latfix.notebook"),
    "RecordMiddleware": "latfix.profilers.service_log.asgi_middleware",
    "record": "latfix.profilers.service_log.recorder",
    "load_runner": "latfix.runners.live.load",
    "Runner": "latfix.runners.live.runner",
    "RequestError": _ERRORS,
    "RequestFailed": _ERRORS,
    "RequestShed": _ERRORS,
    "RequestTimedOut": _ERRORS,
    "RunnerClosed": _ERRORS,
}

if not TYPE_CHECKING:  # a type checker would otherwise accept any name in this package

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'latfix' has no attribute {name!r}")
        value = getattr(importlib.import_module(_LATER[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
