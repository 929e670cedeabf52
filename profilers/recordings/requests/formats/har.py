"""HAR 1.2, the log of browsers, proxies and API clients: ``{"log": {"entries": …}}``.

Fields: http://www.softwareishard.com/blog/har-12-spec. Times in milliseconds, -1 if a part does not apply; ``ssl`` is
within ``connect``. An entry without a status was cancelled.
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
_STAGES = ("send", "wait", "receive")


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
    return rows.table(facts={"format": NAME, "creator": creator.get("name") if isinstance(creator, dict) else None})


def _add(rows: TableRows, entry: Mapping[str, Any]) -> None:
    request, response, timings = entry["request"], entry.get("response") or {}, entry.get("timings") or {}
    times = {name: ns_of(timings.get(name), _MS) for name in ("blocked", "dns", "connect", *_STAGES)}
    code, latency = int(response.get("status") or 0), ns_of(entry.get("time"), _MS)
    status = http_status(code)
    size = ns_of(request.get("bodySize"), 1)
    rows.add(
        arrival_ns=instant_ns(str(entry["startedDateTime"])),
        latency_ns=None if status == CANCELLED else latency,
        status=status,
        route=f"{request['method']} {route_of(urlsplit(str(request['url'])).path)}",
        parts={"network.connect": (times["dns"] or 0) + (times["connect"] or 0), "blocked": times["blocked"]},
        stages={name: times[name] for name in _STAGES},
        features={"request_bytes": size if size is not None else _text_bytes(request)},
    )


def _text_bytes(request: Mapping[str, Any]) -> int:
    """Bytes of a body whose size is not recorded."""
    body = request.get("postData")
    return len(str(body.get("text", "")).encode(errors="replace")) if isinstance(body, dict) else 0
