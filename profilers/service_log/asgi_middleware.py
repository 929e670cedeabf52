"""``latfix.RecordMiddleware`` records every HTTP request of an ASGI application (FastAPI, Starlette, …)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from latfix.profilers.service_log.recorder import OpenRequest, log_of, status_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Messages that may end an answer.
_BODY = ("http.response.body", "http.response.pathsend")


class RecordMiddleware:
    """``app.add_middleware(latfix.RecordMiddleware, folder="DIR")``; plain ASGI, for any framework.

    A request's latency ends when the last byte of its answer is handed to the server, without background tasks after
    that. An aborted answer is ``cancelled``. The row keeps the route (``/users/{id}``) and the body's length, nothing
    of the query, headers and body.

    :param folder: and ``most_mb``, ``rows_per_s`` as in :class:`latfix.record`.
    """

    def __init__(
        self, app: Application, folder: str | os.PathLike[str], *, most_mb: float = 256.0, rows_per_s: int = 1000
    ) -> None:
        self._app = app
        self._log = log_of(folder, most_mb, rows_per_s)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection's scope; scopes other than HTTP pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, status = OpenRequest(self._log), ""

        def end(ended: str) -> None:
            request.end(ended, _route(scope), _features(scope))

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            try:
                await send(message)
            except OSError:  # servers report a disconnected client this way
                end("cancelled")
                raise
            if message["type"] in _BODY and not message.get("more_body"):
                end("ok" if status[:1] in "123" else status)

        try:
            await self._app(scope, receive, observed_send)
        except BaseException as error:
            end(status_of(error))
            raise
        finally:
            if request.running:  # the answer is incomplete
                end("cancelled")


def _route(scope: Mapping[str, Any]) -> str:
    """The path with the names of its parameters, not their values; without the query."""
    known = getattr(scope.get("route"), "path", None)
    if isinstance(known, str):
        return known
    path = str(scope.get("path", ""))
    for name, value in (scope.get("path_params") or {}).items():
        if value == "":
            continue
        text, placeholder = str(value), f"{{{name}}}"
        whole = f"{path}/".replace(f"/{text}/", f"/{placeholder}/")[:-1]
        # Else the value is part of a segment, as in {name}.json: replace the last occurrence.
        path = whole if whole != path else placeholder.join(path.rsplit(text, 1))
    return path


def _features(scope: Mapping[str, Any]) -> dict[str, float]:
    length = next((value for name, value in scope.get("headers", ()) if name == b"content-length"), b"")
    return {"request_bytes": float(length)} if length.isdigit() else {}
