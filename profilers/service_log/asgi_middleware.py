"""``latfix.RecordMiddleware``: every HTTP request of an ASGI application (FastAPI, Starlette, …) recorded."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from latfix.profilers.service_log.recorder import OpenRequest, log_of, status_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class RecordMiddleware:
    """``app.add_middleware(latfix.RecordMiddleware, folder="DIR")``; of plain ASGI, for any framework.

    A request's latency is until the last byte of its answer was handed to the server. Of its path the route is kept
    (``/users/{id}``), of its query, headers and body nothing but the body's length.

    :param folder: and ``most_mb``, ``rows_per_s`` as in :class:`latfix.record`.
    """

    def __init__(
        self, app: Application, folder: str | os.PathLike[str], *, most_mb: float = 256.0, rows_per_s: int = 1000
    ) -> None:
        self._app = app
        self._log = log_of(folder, most_mb, rows_per_s)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection's scope; other kinds than HTTP pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = "cancelled"  # where no answer begins

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        request = OpenRequest(self._log)
        try:
            await self._app(scope, receive, noting)
        except BaseException as error:
            status = status_of(error)
            raise
        finally:
            request.end("ok" if status[:1] in "123" else status, _route(scope), _features(scope))


def _route(scope: Mapping[str, Any]) -> str:
    """The path with the names of its parameters, not their values; without the query."""
    known = getattr(scope.get("route"), "path", None)
    if isinstance(known, str):
        return known
    path = str(scope.get("path", ""))
    for name, value in (scope.get("path_params") or {}).items():
        path = path.replace(str(value), f"{{{name}}}") if str(value) else path
    return path


def _features(scope: Mapping[str, Any]) -> dict[str, float]:
    length = next((value for name, value in scope.get("headers", ()) if name == b"content-length"), b"")
    return {"request_bytes": float(length)} if length.isdigit() else {}
