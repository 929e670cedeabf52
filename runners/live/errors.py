"""How a request to a live runner can fail, as errors that a caller can tell apart."""

from __future__ import annotations

from latfix.errors import RunnerError


class RequestError(RunnerError):
    """Base of what can become of one request besides an answer.

    :param request_id: whose; empty where it has none.
    """

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id


class RequestFailed(RequestError):
    """``prepare``, the model or ``finish`` raised an error over this request. Sent again it would again."""


class RequestTimedOut(RequestError):
    """Its deadline passed before there was an answer."""


class RequestShed(RequestError):
    """It was not taken in, because as many are inside as may be. Later it might be."""


class RunnerClosed(RequestError):
    """The runner serves no more: it was closed, a thread of it died, or the process was forked from its own."""
