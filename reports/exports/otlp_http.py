"""OTLP over HTTP with JSON: batches posted to a collector, one at a time.

Protocol: https://opentelemetry.io/docs/specs/otlp/#otlphttp. The signal's path is appended to the endpoint; a busy
collector is asked again; what it rejects is an error.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable

from latfix import __version__
from latfix.errors import InputError
from latfix.formatting import visible

_TIMEOUT_S = 30.0
#: Answers after which the protocol allows another attempt, and the waits before them.
_BUSY = (429, 502, 503, 504)
_WAITS_S = (1.0, 2.0, 4.0)
#: Bytes of an answer that are read.
_ANSWER = 1 << 16
#: The variable by which OpenTelemetry's own exporters are given headers, such as a token.
_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_EXPECTED = "expected an OTLP receiver for JSON over HTTP, usually at port 4318"


def _is_address(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return known and not parts.query and text.isascii() and text.isprintable() and not set(text) & {" ", "#"}


def _given_headers() -> dict[str, str]:
    """``name=value,name=value`` of the environment, the values percent-encoded.

    :raises InputError: it is not of that form; values are not shown.
    """
    found = {}
    for number, pair in enumerate(filter(str.strip, os.environ.get(_HEADERS, "").split(",")), 1):
        name, equals, value = pair.partition("=")
        name, value = name.strip(), urllib.parse.unquote(value.strip())
        known = equals and re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII)
        if not known or not value.isascii() or not value.isprintable():
            raise InputError(f"{_HEADERS}: found no header in its part {number}; expected name=value,name=value")
        found[name] = value
    return found


class Collector:
    """An OpenTelemetry collector.

    :param endpoint: ``http://HOST:4318``, or with a path that ``/v1/traces`` is appended to.
    :param sleep: waits some seconds; tests replace it.
    :raises InputError: it is not such an address, or the environment's headers are malformed.
    """

    def __init__(self, endpoint: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._shown, self._sleep = visible(endpoint, limit=200), sleep
        self._base = endpoint.rstrip("/")
        if not _is_address(endpoint):
            raise InputError(f"--endpoint: found {self._shown!r}; expected an address such as http://localhost:4318")
        json_type = {"Content-Type": "application/json", "User-Agent": f"latfix/{__version__}"}
        self._headers = _given_headers() | json_type

    def post(self, signal: str, document: str) -> None:
        """Send one batch.

        :param signal: ``traces`` or ``metrics``.
        :param document: the export request, as JSON.
        :raises InputError: there is no collector, or it does not take the batch.
        """
        for wait_s in (*_WAITS_S, None):
            try:
                answer = self._answer(signal, document.encode())
            except urllib.error.HTTPError as error:
                with error:
                    if error.code in _BUSY and wait_s is not None:
                        self._sleep(wait_s)
                        continue
                    raise self._refused(signal, f"{error.code} {visible(error.reason, limit=80)}") from error
            except (OSError, http.client.HTTPException) as error:
                reason = visible(getattr(error, "reason", None) or error, limit=120)
                raise InputError(f"--endpoint {self._shown}: found no collector ({reason}); {_EXPECTED}") from error
            self._check(signal, answer)
            return

    def _answer(self, signal: str, body: bytes) -> bytes:
        request = urllib.request.Request(f"{self._base}/v1/{signal}", data=body, headers=self._headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return bytes(response.read(_ANSWER))

    def _check(self, signal: str, answer: bytes) -> None:
        """Refuse an answer that reports rejected items.

        :raises InputError: it does.
        """
        try:
            partial = json.loads(answer or b"{}").get("partialSuccess") or {}
            rejected = sum(int(partial.get(key) or 0) for key in ("rejectedSpans", "rejectedDataPoints"))
        except (ValueError, AttributeError, TypeError, RecursionError):
            return  # the batch was taken; how the answer is written does not matter
        if rejected:
            words = visible(partial.get("errorMessage", ""), limit=200)
            raise self._refused(signal, f"{rejected} rejected{f': {words}' if words else ''}")

    def _refused(self, signal: str, why: str) -> InputError:
        return InputError(f"--endpoint {self._shown}: found {why} for /v1/{signal}; {_EXPECTED}")
