"""Access logs of nginx, Apache and Envoy: a line a request, fields set apart by blanks, quotes and brackets.

nginx: ``log_format`` of ngx_http_log_module, ``combined`` with ``$request_time`` behind it, bare or as ``rt=``, and
``$upstream_response_time`` (``urt=``, ``ut=``); the format of ingress-nginx. Times are seconds, and a line is written
when the request ends. Apache: ``combined`` with ``%D`` (microseconds) behind it; a line has the time of arrival.
Envoy: its default format and Istio's, with ``DURATION`` and ``X-ENVOY-UPSTREAM-SERVICE-TIME`` in milliseconds and the
time of arrival.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.errors import input_error
from latfix.formatting import shown
from latfix.profilers.recordings.reader import CUT_OFF, damaged
from latfix.profilers.recordings.requests.request_table import CANCELLED, UNKNOWN, RequestTable
from latfix.profilers.recordings.requests.text_source import BadLines, instant_ns, open_text
from latfix.stages import Status

NAME = "an access log of nginx, Apache or Envoy"
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
#: What a path names one thing by.
NUMBER_IN_PATH = re.compile(r"/([0-9]+|[0-9a-fA-F-]{8,})")
_LOOKED_AT, _MOST_ROUTES = 40, 10_000
_MS, _S, _US = 1_000_000, 1_000_000_000, 1_000
_STATUS_TIMEOUT, _STATUS_SHED, _CLIENT_LEFT = (408, 504), (429, 503), 499


@dataclass(frozen=True, slots=True)
class Layout:
    """Which field of a line means what.

    :param fields: how many a line has; ``places`` by meaning its place; ``prefixes`` what is before ``=`` there.
    :param unit_ns: of latencies; ``stamps_end`` lines have the time at which requests ended.
    """

    writer: str
    fields: int
    places: Mapping[str, int]
    prefixes: Mapping[str, str]
    unit_ns: int
    stamps_end: bool
    clf: bool


def knows(head: bytes) -> bool:
    """Whether most of the first lines are one layout's."""
    lines = head.decode("utf-8", "replace").splitlines()[:_LOOKED_AT]
    lines = [line for line in lines if line.strip()]
    stamped = [line for line in lines if _is_line(line)]
    return bool(stamped) and len(stamped) >= len(lines) / 2


def _is_line(line: str) -> bool:
    values = _blank_split(line)
    dated = any(_CLF.match(value) for value in values[:6]) or bool(values and _ISO.match(values[0]))
    return dated and line[:1] not in "{" and any(_REQUEST.match(value) for value in values[:12])


def _blank_split(line: str) -> list[str]:
    """Fields as a CSV reader with blanks and quotes sees them; brackets are taken off."""
    found, pending = [], ""
    for part in line.split(" "):
        if pending or part.startswith('"'):
            pending = f"{pending} {part}" if pending else part
            if len(pending) > 1 and pending.endswith('"') and not pending.endswith('\\"'):
                found.append(pending[1:-1])
                pending = ""
        else:
            found.append(part.strip("[]"))
    return [*found, pending] if pending else found


def layout_of(lines: list[str]) -> Layout | None:
    """The layout that the most of some lines have."""
    found: dict[tuple[object, ...], Layout] = {}
    votes: Counter[tuple[object, ...]] = Counter()
    for line in lines:
        layout = _layout(_blank_split(line))
        if layout is not None:
            key = (layout.writer, layout.fields, tuple(layout.places.items()))
            found.setdefault(key, layout)
            votes[key] += 1
    return found[votes.most_common(1)[0][0]] if votes else None


def _layout(values: list[str]) -> Layout | None:
    if values and _ISO.match(values[0]):
        return _envoy(values)
    stamp = next((k for k, value in enumerate(values[:6]) if _CLF.match(value)), None)
    request = next((k for k, value in enumerate(values[:10]) if _REQUEST.match(value)), None)
    if stamp is None or request is None or len(values) < request + 3:
        return None
    places = {"stamp": stamp, "zone": stamp + 1, "request": request, "status": request + 1, "bytes": request + 2}
    return _behind(values, places, request + 3)


def _envoy(values: list[str]) -> Layout | None:
    request = next((k for k, value in enumerate(values[:3]) if _REQUEST.match(value)), None)
    if request is None:
        return None
    numbers = [k for k in range(request + 1, len(values)) if _NUMBER.match(values[k]) or values[k] == "-"]
    # Status, then flags (and Istio's details), then four numbers in a row: received, sent, duration, upstream.
    row = next((k for k in numbers if all(j in numbers for j in range(k, k + 4)) and k > request + 2
                and _NUMBER.match(values[k + 2])), None)  # fmt: skip
    if row is None:
        return None
    places = {
        "stamp": 0,
        "request": request,
        "status": request + 1,
        "size": row,
        "bytes": row + 1,
        "latency": row + 2,
    }
    places["upstream"] = row + 3
    return Layout("Envoy", len(values), places, {}, _MS, stamps_end=False, clf=False)


def _behind(values: list[str], places: dict[str, int], first: int) -> Layout:
    """What stands behind the combined format."""
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
    if "latency" not in places and whole:
        places["latency"] = whole[-1]
        return Layout("Apache", len(values), places, prefixes, _US, stamps_end=False, clf=True)
    return Layout("nginx", len(values), places, prefixes, _S, stamps_end=True, clf=True)


@dataclass(slots=True)
class _Blocks:
    """Columns of the blocks that were read."""

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

    :raises InputError: most lines are something else, or none has a latency.
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
    import pyarrow as pa
    from pyarrow import csv

    names = [str(k) for k in range(layout.fields)]
    wanted = {str(k): pa.string() for k in layout.places.values()}

    def skip(row: Any) -> str:
        bad.add(row.number or 0, shown(row.text or "", 60))
        return "skip"

    total = 0
    try:
        with open_text(path) as file:
            reader = csv.open_csv(
                file,
                read_options=csv.ReadOptions(column_names=names, block_size=1 << 24, use_threads=False),
                parse_options=csv.ParseOptions(
                    delimiter=" ",
                    quote_char='"',
                    escape_char="\\",
                    newlines_in_values=False,
                    invalid_row_handler=skip,
                ),
                convert_options=csv.ConvertOptions(
                    include_columns=list(wanted), column_types=wanted, strings_can_be_null=False, check_utf8=False
                ),
            )
            for batch in reader:
                total += _add_block(pa.Table.from_batches([batch]), layout, blocks, bad, total)
    except (pa.ArrowInvalid, *CUT_OFF) as error:
        damaged(path, "an access log", error)
    return total


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
    blocks.status.append(http_statuses(status[good]))
    for meaning, found in (("upstream", blocks.upstream), ("connect", blocks.connect)):
        if meaning in layout.places:
            found.append(_durations(column(meaning), layout.unit_ns)[good])
    for meaning in ("size", "bytes"):
        if meaning in layout.places:
            sizes = _numbers(column(meaning), np.float64)[good]
            blocks.sizes.setdefault(meaning, []).append(np.maximum(sizes, 0).astype(np.float32))
    blocks.route.append(_route_codes(column("request"), blocks.routes)[good])
    return int(np.count_nonzero(good))


def _numbers(text: Any, kind: Any) -> Any:
    """Whole numbers; -1 for what is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    digits = pc.match_substring_regex(text, r"^[0-9]{1,18}$")
    return np.asarray(pc.cast(pc.if_else(digits, text, "-1"), pa.int64())).astype(kind)


def _durations(text: Any, unit_ns: int) -> Ints:
    """Nanoseconds; of several upstreams (``0.1, 0.2``) the last; :data:`UNKNOWN` for what is no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    digits = pc.match_substring_regex(text, r"^[0-9]{1,10}(\.[0-9]{1,9})?$")
    values = np.asarray(pc.cast(pc.if_else(digits, text, "-1"), pa.float64()))
    return np.where(values < 0, UNKNOWN, np.rint(values * unit_ns)).astype(np.int64)


def _stamps(text: Any, zone: Any) -> Ints:
    """Nanoseconds since 1970 of the distinct stamps, each read once; :data:`UNKNOWN` for what is none."""
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(text)
    read_one: Callable[[str], int] = instant_ns
    words = encoded.dictionary.to_pylist()
    if words and _CLF.match(words[0].strip("[]")):
        offset = zone[0].as_py().strip("[]") if zone is not None and len(zone) else "+0000"
        read_one = _clf_reader(offset)
    known = np.full(len(words), UNKNOWN, np.int64)
    for k, word in enumerate(words):
        try:
            known[k] = read_one(word.strip("[]"))
        except (ValueError, KeyError):
            known[k] = UNKNOWN
    codes = np.asarray(encoded.indices)
    return known[codes] if len(known) else np.zeros(0, np.int64)


def _clf_reader(offset: str) -> Callable[[str], int]:
    from datetime import datetime

    def read_one(word: str) -> int:
        return int(datetime.strptime(f"{word} {offset}", "%d/%b/%Y:%H:%M:%S %z").timestamp()) * _S

    return read_one


def http_statuses(codes: Any) -> Any:
    """HTTP's codes as ends of requests."""
    status = np.where(codes >= 500, Status.ERROR, Status.OK).astype(np.int8)
    status[np.isin(codes, _STATUS_TIMEOUT)] = Status.TIMEOUT
    status[np.isin(codes, _STATUS_SHED)] = Status.SHED
    status[codes == _CLIENT_LEFT] = CANCELLED
    return status


def _route_codes(text: Any, routes: dict[str, int]) -> Any:
    """Kinds of requests: method and path, without what is asked and without numbers and ids in the path."""
    import pyarrow.compute as pc

    path = pc.replace_substring_regex(text, r"( HTTP/[0-9.]+|\?.*)$", "")
    path = pc.replace_substring_regex(path, r"\?.*$", "")
    path = pc.replace_substring_regex(path, NUMBER_IN_PATH.pattern, "/*")
    encoded = pc.dictionary_encode(path)
    codes = [routes.setdefault(word, len(routes)) if len(routes) < _MOST_ROUTES or word in routes else _MOST_ROUTES
             for word in encoded.dictionary.to_pylist()]  # fmt: skip
    return np.array(codes, np.int32)[np.asarray(encoded.indices)] if codes else np.zeros(0, np.int32)


def _joined(parts: list[Any]) -> Any:
    """Blocks as one column; they are let go of, so that a large log is not held twice."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _table(layout: Layout, blocks: _Blocks, bad: BadLines) -> RequestTable:
    arrival, latency = _joined(blocks.stamp), _joined(blocks.latency)
    if layout.stamps_end:
        arrival -= latency
    parts = {}
    if blocks.upstream:
        upstream = _joined(blocks.upstream)
        known = (upstream >= 0) & (upstream <= latency)
        if known.any():  # what is beyond the upstream's time went between the proxy and its client
            parts["client"] = np.where(known, latency - upstream, 0)
    if blocks.connect:
        connect = _joined(blocks.connect)
        if (connect > 0).any():
            parts["connect"] = np.clip(connect, 0, latency)
    features = {"request_bytes" if name == "size" else "response_bytes": _joined(column)
                for name, column in blocks.sizes.items()}  # fmt: skip
    if "request_bytes" in features:  # what was sent back is no reason for work where what came in is known
        features.pop("response_bytes", None)
    notes = list(bad.notes())
    written = "when it ended, to the second" if layout.clf and layout.stamps_end else "when it arrived"
    unit = {_S: "seconds", _MS: "milliseconds", _US: "microseconds"}[layout.unit_ns]
    notes.append(f"Read as a log of {layout.writer}: latency in {unit}, a line has the time {written}.")
    route = _joined(blocks.route)
    return RequestTable(
        arrival_ns=arrival,
        latency_ns=latency,
        status=_joined(blocks.status),
        parts=parts,
        features=features,
        route=route if len(blocks.routes) > 1 else None,
        routes=tuple(blocks.routes) if len(blocks.routes) > 1 else (),
        resolution_ns=_S if layout.clf else _MS,
        facts={"format": f"{layout.writer} access log", "lines": len(latency), "bad_lines": bad.count},
        notes=tuple(notes),
    ).sorted()
