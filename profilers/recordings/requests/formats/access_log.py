"""Access logs of nginx, Apache and Envoy: one line per request, fields separated by blanks, quotes and brackets.

nginx: ``log_format`` of ngx_http_log_module, ``combined`` followed by ``$request_time``, bare or as ``rt=``, and
``$upstream_response_time`` (``urt=``, ``ut=``); the format of ingress-nginx; ``$time_iso8601`` for ``$time_local``.
Times are seconds, and a line has the time at which the request ended. A request with retries has a time for each
upstream (``0.1, 0.2``). Apache: ``combined`` followed by ``%D`` (microseconds); a line has the time of arrival.
Envoy: its default format and Istio's, with ``DURATION`` and ``X-ENVOY-UPSTREAM-SERVICE-TIME`` in milliseconds and the
time of arrival.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.errors import input_error
from latfix.files.decompressed import CUT_OFF, open_text
from latfix.formatting import shown
from latfix.profilers.recordings.reader import damaged
from latfix.profilers.recordings.requests.request_table import UNKNOWN, RequestTable, http_status
from latfix.profilers.recordings.requests.text_source import (
    LONGEST_NS,
    NUMBER_IN_PATH,
    BadLines,
    instant_or_unknown,
    resolution_ns,
)

NAME = "an access log of nginx, Apache or Envoy"
_STATUSES = np.array([http_status(code) for code in range(600)], np.int8)
_CLF = re.compile(r"\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d$")
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_REQUEST = re.compile(r"[A-Z]+ \S+( HTTP/[0-9.]+)?$")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?$")
_KEYS: Mapping[str, str] = {
    "rt": "latency",
    "request_time": "latency",
    "urt": "upstream",
    "ut": "upstream",
    "upstream_response_time": "upstream",
    "uct": "connect",
    "upstream_connect_time": "connect",
    "rl": "size",
    "request_length": "size",
}
#: Separates the times of several upstreams.
_ATTEMPTS = re.compile(r"(?<=[0-9-])(?:, | : )(?=[0-9-])")
#: Most bytes of an answer's headers.
_HEADERS = 4096
_LOOKED_AT, _MOST_ROUTES = 40, 10_000
_MS, _S, _US = 1_000_000, 1_000_000_000, 1_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The meaning of a line's fields.

    :param fields: their number; ``places`` their places by meaning; ``prefixes`` by meaning the text up to ``=``.
    :param unit_ns: of latencies.
    :param stamps_end: lines have the time at which requests ended, not arrived.
    """

    writer: str
    fields: int
    places: Mapping[str, int]
    prefixes: Mapping[str, str]
    unit_ns: int
    stamps_end: bool


def knows(head: bytes) -> bool:
    """True if most of the first lines are of an access log."""
    lines = head.decode("utf-8", "replace").splitlines()[:_LOOKED_AT]
    lines = [line for line in lines if line.strip()]
    stamped = [line for line in lines if _is_line(line)]
    return bool(stamped) and len(stamped) >= len(lines) / 2


def _is_line(line: str) -> bool:
    values = _blank_split(line)
    return line[:1] not in "{" and _stamp(values) is not None and any(map(_REQUEST.match, values[:12]))


def _stamp(values: list[str]) -> int | None:
    return next((k for k, value in enumerate(values[:6]) if _CLF.match(value) or _ISO.match(value)), None)


def _blank_split(line: str) -> list[str]:
    """Fields as a CSV reader splits them at blanks, with quotes; brackets are removed."""
    result, pending = [], ""
    for part in line.split(" "):
        if pending or part.startswith('"'):
            pending = f"{pending} {part}" if pending else part
            if len(pending) > 1 and pending.endswith('"') and not pending.endswith('\\"'):
                result.append(pending[1:-1])
                pending = ""
        else:
            result.append(part.strip("[]"))
    return [*result, pending] if pending else result


def layout_of(lines: list[str]) -> Layout | None:
    """The most frequent layout of some lines."""
    result: dict[tuple[object, ...], Layout] = {}
    votes: Counter[tuple[object, ...]] = Counter()
    for line in lines:
        layout = _layout(_blank_split(line))
        if layout is not None:
            key = (layout.writer, layout.fields, tuple(layout.places.items()))
            result.setdefault(key, layout)
            votes[key] += 1
    return result[votes.most_common(1)[0][0]] if votes else None


def _layout(values: list[str]) -> Layout | None:
    stamp = _stamp(values)
    request = next((k for k, value in enumerate(values[:10]) if _REQUEST.match(value)), None)
    if stamp is None or request is None or len(values) < request + 3:
        return None
    places = {"stamp": stamp, "request": request, "status": request + 1}
    if _CLF.match(values[stamp]):
        places["zone"] = stamp + 1
    elif row := _envoy_numbers(values, request + 3):
        places |= {"size": row, "bytes": row + 1, "latency": row + 2, "upstream": row + 3}
        return Layout("Envoy", len(values), places, {}, _MS, stamps_end=False)
    return _behind(values, places | {"bytes": request + 2}, request + 3)


def _envoy_numbers(values: list[str], first: int) -> int | None:
    """The place of four whole numbers after the flags (and Istio's details): received, sent, duration, upstream."""
    whole = [value.isdecimal() or value == "-" for value in values]
    return next((k for k in range(first, len(values)) if len(whole[k : k + 4]) == 4 and all(whole[k : k + 4])
                 and values[k + 2].isdecimal()), None)  # fmt: skip


def _behind(values: list[str], places: dict[str, int], first: int) -> Layout:
    """The layout of a line whose fields from ``first`` follow the combined format."""
    prefixes: dict[str, str] = {}
    decimals: list[int] = []
    whole: list[int] = []
    for k in range(first, len(values)):
        key, equals, value = values[k].partition("=")
        value = value.strip('"')
        if equals and key in _KEYS and (_NUMBER.match(value) or value == "-"):
            places.setdefault(_KEYS[key], k)
            prefixes[_KEYS[key]] = f"{key}="
        elif _NUMBER.match(values[k]):
            (decimals if "." in values[k] else whole).append(k)
    if "latency" not in places and decimals:
        places["latency"] = decimals[0]
        if decimals[0] - 1 in whole:
            places.setdefault("size", decimals[0] - 1)
        if len(decimals) > 1:
            places.setdefault("upstream", decimals[1])
    if "latency" not in places and whole and not _are_bytes(values, places["bytes"], whole):
        places["latency"] = whole[-1]
        return Layout("Apache", len(values), places, prefixes, _US, stamps_end=False)
    return Layout("nginx", len(values), places, prefixes, _S, stamps_end=True)


def _are_bytes(values: list[str], sent: int, whole: list[int]) -> bool:
    """True if two numbers are ``%I %O`` of Apache's ``combinedio``: bytes in and out, with headers."""
    body = int(values[sent]) if values[sent].isdecimal() else 0
    return len(whole) == 2 and 0 <= int(values[whole[1]]) - body <= _HEADERS


@dataclass(slots=True)
class _Blocks:
    """The columns of all blocks, each as a list of arrays."""

    stamp: list[Ints] = field(default_factory=list)
    latency: list[Ints] = field(default_factory=list)
    status: list[Any] = field(default_factory=list)
    upstream: list[Ints] = field(default_factory=list)
    connect: list[Ints] = field(default_factory=list)
    sizes: dict[str, list[Any]] = field(default_factory=dict)
    route: list[Any] = field(default_factory=list)
    routes: dict[str, int] = field(default_factory=dict)


def read(path: Path) -> RequestTable:
    """The requests of a log.

    :raises InputError: most lines have another layout, or none has a latency.
    """
    bad = BadLines(path, "a line like the others of this access log")
    lines = _first_lines(path)
    layout = layout_of(lines)
    if layout is None:
        raise input_error(path, 1, shown(lines[0] if lines else "", 60), "a line of an access log")
    if "latency" not in layout.places:
        todo = "add $request_time (nginx) or %D (Apache) to its format, and record again"
        raise input_error(path, 1, f"{layout.fields} fields without a latency", "how long each request took", todo)
    blocks = _Blocks()
    total = _read_blocks(path, layout, blocks, bad)
    bad.check(total)
    return _table(layout, blocks, bad)


def _first_lines(path: Path) -> list[str]:
    try:
        with open_text(path) as file:
            return [file.readline().decode("utf-8", "replace").rstrip("\r\n") for _ in range(_LOOKED_AT * 5)]
    except CUT_OFF as error:
        damaged(path, "an access log", f"compressed data that ends too soon ({error})")


def _read_blocks(path: Path, layout: Layout, blocks: _Blocks, bad: BadLines) -> int:
    again: list[str] = []

    def skip(row: Any) -> str:
        joined = _ATTEMPTS.sub(",", row.text or "")
        if joined == row.text:
            bad.add(row.number or 0, shown(row.text or "", 60))
        else:
            again.append(joined)
        return "skip"

    def leave_out(row: Any) -> str:
        bad.add(0, shown(row.text or "", 60))
        return "skip"

    total = 0
    try:
        with open_text(path) as file:
            for table in _tables(file, layout, skip):
                total += _add_block(table, layout, blocks, bad, total)
        if again:  # requests with several upstreams
            for table in _tables(io.BytesIO("\n".join(again).encode()), layout, leave_out):
                total += _add_block(table, layout, blocks, bad, total)
    except (ValueError, *CUT_OFF) as error:  # ValueError: pyarrow's
        damaged(path, "an access log", error)
    return total


def _tables(file: Any, layout: Layout, invalid: Any) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv

    wanted = {str(k): pa.string() for k in layout.places.values()}
    yield from (
        pa.Table.from_batches([batch])
        for batch in csv.open_csv(
            file,
            read_options=csv.ReadOptions(
                column_names=[str(k) for k in range(layout.fields)], block_size=1 << 24, use_threads=False
            ),
            parse_options=csv.ParseOptions(
                delimiter=" ", quote_char='"', escape_char="\\", newlines_in_values=False, invalid_row_handler=invalid
            ),
            convert_options=csv.ConvertOptions(
                include_columns=list(wanted), column_types=wanted, strings_can_be_null=False, check_utf8=False
            ),
        )
    )


def _add_block(table: Any, layout: Layout, blocks: _Blocks, bad: BadLines, before: int) -> int:
    import pyarrow.compute as pc

    def column(meaning: str) -> Any:
        text = table.column(str(layout.places[meaning])).combine_chunks()
        prefix = layout.prefixes.get(meaning, "")
        if prefix:
            text = pc.replace_substring_regex(text, f'^{re.escape(prefix)}"?|"$', "")
        return text

    latency = _durations(column("latency"), layout.unit_ns)
    stamp = _stamps(column("stamp"), column("zone") if "zone" in layout.places else None)
    status = _numbers(column("status"), np.int64)
    good = (latency >= 0) & (stamp > UNKNOWN) & (status >= 100) & (status < 600)
    for row in np.flatnonzero(~good)[:1].tolist():
        bad.add(
            before + row + 1, f"latency {column('latency')[row].as_py()!r}, status {column('status')[row].as_py()!r}"
        )
    bad.count += max(int(np.count_nonzero(~good)) - 1, 0)
    blocks.latency.append(latency[good])
    blocks.stamp.append(stamp[good])
    blocks.status.append(_STATUSES[status[good]])
    for meaning, result in (("upstream", blocks.upstream), ("connect", blocks.connect)):
        if meaning in layout.places:
            result.append(_durations(column(meaning), layout.unit_ns)[good])
    for meaning in ("size", "bytes"):
        if meaning in layout.places:
            sizes = _numbers(column(meaning), np.float64)[good]
            blocks.sizes.setdefault(meaning, []).append(np.maximum(sizes, 0).astype(np.float32))
    blocks.route.append(_route_codes(column("request"), blocks.routes)[good])
    return int(np.count_nonzero(good))


def _numbers(text: Any, kind: Any) -> Any:
    """Whole numbers; -1 if invalid."""
    import pyarrow as pa
    import pyarrow.compute as pc

    digits = pc.match_substring_regex(text, r"^[0-9]{1,18}$")
    return np.asarray(pc.cast(pc.if_else(digits, text, "-1"), pa.int64())).astype(kind)


def _durations(text: Any, unit_ns: int) -> Ints:
    """Nanoseconds, the sum for several upstreams; :data:`UNKNOWN` if invalid."""
    import pyarrow as pa
    import pyarrow.compute as pc

    digits = pc.match_substring_regex(text, r"^[0-9]{1,10}(\.[0-9]{1,9})?$")
    values = np.array(pc.cast(pc.if_else(digits, text, "-1"), pa.float64()))
    for row in np.flatnonzero(pc.match_substring_regex(text, "[0-9], ?[0-9-]|[0-9] : ")).tolist():
        values[row] = sum(map(float, re.findall(r"[0-9]+\.[0-9]+", text[row].as_py())))
    known = (values >= 0) & (values <= LONGEST_NS / unit_ns)
    return np.where(known, np.rint(values * unit_ns), UNKNOWN).astype(np.int64)


def _stamps(text: Any, zone: Any) -> Ints:
    """Nanoseconds since 1970, each distinct stamp parsed once; :data:`UNKNOWN` if invalid."""
    import pyarrow.compute as pc

    if zone is not None:  # the zone may change within a log
        text = pc.binary_join_element_wise(text, zone, " ")
    encoded = pc.dictionary_encode(text)
    known = np.array([instant_or_unknown(word) for word in encoded.dictionary.to_pylist()], np.int64)
    return known[np.asarray(encoded.indices)] if len(known) else known


def _route_codes(text: Any, routes: dict[str, int]) -> Any:
    """Routes: method and path, without the query, numbers and ids."""
    import pyarrow.compute as pc

    path = pc.replace_substring_regex(text, r"( HTTP/[0-9.]+|\?.*)$", "")
    path = pc.replace_substring_regex(path, r"\?.*$", "")
    path = pc.replace_substring_regex(path, NUMBER_IN_PATH.pattern, "/*")
    encoded = pc.dictionary_encode(path)
    codes = [routes.setdefault(word if len(routes) < _MOST_ROUTES or word in routes else "other", len(routes))
             for word in encoded.dictionary.to_pylist()]  # fmt: skip
    return np.array(codes, np.int32)[np.asarray(encoded.indices)] if codes else np.zeros(0, np.int32)


def _joined(parts: list[Any]) -> Any:
    """Blocks as one column. The blocks are freed, so that a large log is not held twice."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _table(layout: Layout, blocks: _Blocks, bad: BadLines) -> RequestTable:
    arrival, latency = _joined(blocks.stamp), _joined(blocks.latency)
    resolution = resolution_ns(arrival)
    if layout.stamps_end:
        arrival -= latency
    parts = {}
    if blocks.upstream:
        upstream = _joined(blocks.upstream)
        known = (upstream >= 0) & (upstream <= latency)
        if known.any():  # time beyond the upstream's is between the proxy and its client
            parts["client"] = np.where(known, latency - upstream, 0)
    if blocks.connect:
        connect = _joined(blocks.connect)
        if (connect > 0).any():
            parts["connect"] = np.clip(connect, 0, latency)
    features = {"request_bytes" if name == "size" else "response_bytes": _joined(column)
                for name, column in blocks.sizes.items()}  # fmt: skip
    if "request_bytes" in features:  # the size of the request predicts work better than that of the answer
        features.pop("response_bytes", None)
    notes = list(bad.notes())
    stamp = f"when it {'ended' if layout.stamps_end else 'arrived'}{', to the second' if resolution == _S else ''}"
    unit = {_S: "seconds", _MS: "milliseconds", _US: "microseconds"}[layout.unit_ns]
    notes.append(f"Read as a log of {layout.writer}: latency in {unit}, a line has the time {stamp}.")
    route = _joined(blocks.route)
    return RequestTable(
        arrival_ns=arrival,
        latency_ns=latency,
        status=_joined(blocks.status),
        parts=parts,
        features=features,
        route=route if len(blocks.routes) > 1 else None,
        routes=tuple(blocks.routes) if len(blocks.routes) > 1 else (),
        resolution_ns=resolution,
        facts={"format": f"{layout.writer} access log", "lines": len(latency), "bad_lines": bad.count},
        notes=tuple(notes),
    ).sorted()
