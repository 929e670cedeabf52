"""HAR 1.2, the log of browsers, proxies and API clients: ``{"log": {"entries": …}}``.

Fields: http://www.softwareishard.com/blog/har-12-spec. Milliseconds, -1 if a part does not apply. ``blocked``
is the wait for a free connection; ``ssl`` is within ``connect``, or counted beside it in ``time``, by the writer. An
entry without a status was cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from latfix.errors import input_error
from latfix.profilers.recordings.requests.request_table import CANCELLED, RequestTable, TableRows, http_status, ns_of
from latfix.profilers.recordings.requests.text_source import entry_of, instant_ns, json_document, route_of

NAME = "HAR"
_EXPECTED = "an HTTP archive (HAR) with log.entries[]"
_BEGINS = re.compile(rb'[\xef\xbb\xbf\s]*\{\s*"log"\s*:\s*\{')
_MS = 1_000_000
_TIMINGS = ("blocked", "dns", "connect", "send", "wait", "receive")

#: Of ``ssl``, at least, if it is not within ``connect``.
_BESIDE = 0.9


def knows(head: bytes) -> bool:
    return _BEGINS.match(head) is not None


def read(path: Path) -> RequestTable:
    """The requests of an archive.

    :raises InputError: it is damaged, or holds no requests.
    """
    log = json_document(path, _EXPECTED).get("log")
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(entries, list) or not entries:
        raise input_error(path, None, "no log.entries", _EXPECTED)
    rows = TableRows()
    for number, entry in enumerate(entries):
        with entry_of(path, f"log.entries[{number}]", _EXPECTED):
            _add(rows, entry)
    creator = log.get("creator")
    facts = {"format": NAME, "creator": creator.get("name") if isinstance(creator, dict) else None}
    return rows.table(facts=facts, answer_stage="wait")


def _add(rows: TableRows, entry: Mapping[str, Any]) -> None:
    request, response, timings = entry["request"], entry.get("response") or {}, entry.get("timings") or {}
    times = {name: ns_of(timings.get(name), _MS) or 0 for name in _TIMINGS}
    code, latency = int(response.get("status") or 0), ns_of(entry.get("time"), _MS)
    secured = ns_of(timings.get("ssl"), _MS) or 0
    beside = secured if (latency or 0) - sum(times.values()) >= _BESIDE * secured else 0
    status = http_status(code)
    size = ns_of(request.get("bodySize"), 1)
    rows.add(
        arrival_ns=instant_ns(str(entry["startedDateTime"])),
        latency_ns=None if status == CANCELLED else latency,
        status=status,
        route=f"{request['method']} {route_of(urlsplit(str(request['url'])).path)}",
        parts={
            "client.queue": times["blocked"],
            "network.connect": times["dns"] + times["connect"] + beside,
            "network.transfer": times["send"] + times["receive"],
        },
        stages={"wait": ns_of(timings.get("wait"), _MS)},
        features={"request_bytes": size if size is not None else _text_bytes(request)},
    )


def _text_bytes(request: Mapping[str, Any]) -> int:
    """Bytes of a body whose size is not recorded."""
    body = request.get("postData")
    return len(str(body.get("text", "")).encode(errors="replace")) if isinstance(body, dict) else 0
