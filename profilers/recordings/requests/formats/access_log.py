"""Access logs of nginx, Apache and Envoy: one line per request, fields separated by blanks, quotes and brackets.

nginx: ``log_format`` of ngx_http_log_module, ``combined`` followed by ``$request_time``, bare or as ``rt=``, and
``$upstream_response_time`` (``urt=``, ``ut=``); the format of ingress-nginx; ``$time_iso8601`` for ``$time_local``.
Times are seconds, and a line has the time at which the request ended. A request with retries has a time for each
upstream (``0.1, 0.2``). Apache: ``combined`` followed by ``%D`` (microseconds) or ``%T/%D``; a line has the time of
arrival, as in Jetty's; gunicorn's ``%(D)s`` looks the same, but has the time of the end. Tomcat: the same with
milliseconds, recognized by their size, and the time of the end; in Jetty's logLatency it is the arrival. The order of
lines shows it if requests took longer than a unit of the time. morgan and other writers of units: ``20.3 ms``; the
time of the end.
Envoy: its default format and Istio's, with ``DURATION`` and ``X-ENVOY-UPSTREAM-SERVICE-TIME`` in milliseconds and the
time of arrival.
"""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.errors import input_error
from latfix.formatting import shown
from latfix.profilers.recordings.reader import damaged, opened
from latfix.profilers.recordings.requests.request_table import RETRY, UNKNOWN, RequestTable, http_status
from latfix.profilers.recordings.requests.text_source import (
    LONGEST_NS,
    NUMBER_IN_PATH,
    BadLines,
    csv_batches,
    instants_ns,
    resolution_ns,
)

NAME = "an access log of nginx, Apache or Envoy"
_OF_MILLISECONDS = "Tomcat or Jetty"
_STATUSES = np.array([http_status(code) for code in range(600)], np.int8)
_CLF = re.compile(r"\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(\.\d+)?$")
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_REQUEST = re.compile(r"[A-Z]+ \S+( (HTTP/)?[0-9.]+)?$")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?$")
#: Where a proxy sent a request: an address, a host with its port, or a socket.
_ADDRESS = re.compile(
    r"(tcp://|https?://)?(\d+\.\d+\.\d+\.\d+|\[?[0-9a-f:]+\]|(?=[\d.-]*[A-Za-z])\w[\w.-]*):\d{1,5}$|unix:/"
)
_SERVER_KEYS = {"upstream", "upstream_addr", "upstream_host", "backend", "server"}
_STATUS_KEYS = {"upstream_status", "us"}
#: Statuses of upstreams. Between several upstreams, their times and statuses; in the words of a label, their number.
_ANSWERS = re.compile(r"[1-5]\d\d((,| : ) ?[1-5]\d\d)*$")
_SEVERAL = re.compile(", ?| : ")
#: Before the last of several upstreams, which answered.
_EARLIER = "^.*(?:, ?| : )"
_NUMBERS = {2: "two", 3: "three"}
#: From Envoy's number of received bytes to the address, after five texts of the request.
_TO_ADDRESS = 8
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
#: A unit after a number; the seconds before Apache's microseconds in ``%T/%D``, often between asterisks.
_AMOUNT = re.compile(r"[0-9]+(?:\.[0-9]+)?(ms|us|µs|s)?$")
_UNITS: Mapping[str, int] = {"ms": 1_000_000, "us": 1_000, "µs": 1_000, "s": 1_000_000_000}
_SECONDS_AND_MICROSECONDS = re.compile(r"\**[0-9]+/[0-9]+\**$")
#: Whole numbers with a smaller median are no microseconds of Apache; up to a millisecond they may be.
_LEAST_US, _SURELY_US = 100, 1_000
#: Lines are written when requests end. Least number of lines that go back in time, and share of them that may in the
#: right reading, because processes write side by side.
_BACK, _SIDE_BY_SIDE = 5, 0.1
#: Separates the times of several upstreams.
_ATTEMPTS = re.compile(r"(?<=[0-9-])(?:, | : )(?=[\w\[-])")
#: Most bytes of an answer's headers.
_HEADERS = 4096
_LOOKED_AT, _MOST_ROUTES = 40, 10_000
#: Lines by which an access log is recognized among others.
_FEW = 5
#: More addresses than this are not of servers, but of clients with their ports.
_MOST_SERVERS = 500
#: Fields up to the time, including those that syslog and containers put before a line.
_PREFIX = 10
_MS, _S, _US = 1_000_000, 1_000_000_000, 1_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The meaning of a line's fields.

    :param fields: their number; ``places`` their places by meaning; ``around`` by meaning a pattern of the text
        around a number.
    :param unit_ns: of latencies.
    :param stamps_end: lines have the time at which requests ended, not arrived.
    :param doubt: why the unit may be another one; empty if it is certain.
    """

    writer: str
    fields: int
    places: Mapping[str, int]
    around: Mapping[str, str]
    unit_ns: int
    stamps_end: bool
    doubt: str = ""


def knows(head: bytes) -> bool:
    """True if most of the first lines are of an access log."""
    lines = head.decode("utf-8", "replace").splitlines()[:_LOOKED_AT]
    lines = [line for line in lines if line.strip()]
    stamped = [line for line in lines if _is_line(line)]
    return bool(stamped) and len(stamped) >= len(lines) / 2


def few_among(head: bytes) -> str:
    """What a file is of whose first lines some are of an access log, but most are not; empty for others."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:-1] if line.strip()]
    is_line = [_is_line(line) for line in lines]
    stamped = [line for line, fits in zip(lines, is_line, strict=True) if fits]
    layout = layout_of(stamped[:_LOOKED_AT])
    if layout is None or "latency" not in layout.places or len(stamped) < _FEW or all(is_line):
        return ""
    other = is_line.index(False) + 1
    return (
        f"an access log in {len(stamped):,} of its first {len(lines):,} lines; the others are of another format, the "
        f"first in line {other}: {shown(lines[other - 1], 60)}; leave them out: grep HTTP/ FILE > requests.log"
    )


def _is_line(line: str) -> bool:
    if line[:1] in "{":
        return False
    values = _blank_split(line)
    return bool(_stamps_in(values)) and any(map(_REQUEST.match, values[: _PREFIX + 6]))


def _stamps_in(values: list[str]) -> list[int]:
    return [k for k, value in enumerate(values[:_PREFIX]) if _CLF.match(value) or _ISO.match(value)]


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
    stamps = _stamps_in(values)
    request = next((k for k, value in enumerate(values[: _PREFIX + 4]) if _REQUEST.match(value)), None)
    if not stamps or request is None or len(values) < request + 3:
        return None
    first, own = stamps[0], max((k for k in stamps if k < request), default=stamps[0])
    places = {"stamp": first, "request": request, "status": request + 1}
    if not _CLF.match(values[own]) and (row := _envoy_numbers(values, request + 3)):
        places |= {"stamp": own, "size": row, "bytes": row + 1, "latency": row + 2, "upstream": row + 3}
        places |= _address_in(values, row + _TO_ADDRESS, row + _TO_ADDRESS + 1)
        return Layout("Envoy", len(values), places, {}, _MS, stamps_end=False)
    if _CLF.match(values[first]):
        places["zone"] = first + 1
    layout = _behind(values, places | {"bytes": request + 2}, request + 3)
    # What syslog or a container puts before a line, often finer, is the time at which the line was written.
    return layout if own == first else replace(layout, stamps_end=True)


def _envoy_numbers(values: list[str], first: int) -> int | None:
    """The place of bytes received, sent, duration and the upstream's, after the flags and Istio's details.

    Only the last may be ``-``, as details often are.
    """
    whole = [value.isdecimal() for value in values]
    return next((k for k in range(first, len(values) - 3) if all(whole[k : k + 3])
                 and (whole[k + 3] or values[k + 3] == "-")), None)  # fmt: skip


def _behind(values: list[str], places: dict[str, int], first: int) -> Layout:
    """The layout of a line whose fields from ``first`` follow the combined format."""
    around: dict[str, str] = {}
    decimals: list[int] = []
    whole: list[int] = []
    for k in range(first, len(values)):
        if named := _named(values[k]):
            meaning, around_it = named
            places.setdefault(meaning, k)
            around[meaning] = around_it
        elif unit := _unit_at(values, k):
            places["latency"] = k
            around["latency"] = "(ms|us|µs|s)$"
            return Layout("morgan", len(values), places, around, _UNITS[unit], stamps_end=True)
        elif _SECONDS_AND_MICROSECONDS.match(values[k]):
            places["latency"] = k
            around["latency"] = r"^\**[0-9]+/|\**$"
            return Layout("Apache", len(values), places, around, _US, stamps_end=False)
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
        return Layout("Apache", len(values), places, around, _US, stamps_end=False)
    places |= {**_address_in(values, first, len(values)), **places}
    around.setdefault("server", _EARLIER)
    behind = max(places.get("server", len(values)), places.get("upstream", 0)) + 1
    answers = next((k for k in range(behind, len(values)) if _ANSWERS.match(values[k])), 0)
    places |= {"answers": answers, **places} if answers else {}
    return Layout("nginx", len(values), places, around, _S, stamps_end=True)


def _named(text: str) -> tuple[str, str] | None:
    """What a ``key=value`` means, and a pattern of the text around the value; ``None`` for others."""
    key, equals, value = text.partition("=")
    value = value.strip('"')
    around = rf'^{re.escape(key)}="?|"$'
    if not equals:
        return None
    if key in _SERVER_KEYS and not _NUMBER.match(value):
        return "server", f"{_EARLIER}|{around}"
    if key in _STATUS_KEYS:
        return "answers", around
    return (_KEYS[key], around) if key in _KEYS and (_NUMBER.match(value) or value == "-") else None


def _address_in(values: list[str], first: int, end: int) -> dict[str, int]:
    """The place of the first address of a server, if there is one."""
    texts = ((k, _SEVERAL.split(value)[-1]) for k, value in enumerate(values[first:end], first))
    found = (k for k, text in texts if _ADDRESS.match(text))
    return {"server": place} if (place := next(found, 0)) else {}


def _unit_at(values: list[str], k: int) -> str:
    """The unit of a number, attached to it or in the next field; empty without one."""
    amount = _AMOUNT.match(values[k])
    after = values[k + 1] if k + 1 < len(values) else ""
    return (amount[1] or (after if after in _UNITS else "")) if amount else ""


def _with_unit_of_whole_numbers(layout: Layout, lines: list[str], path: Path) -> Layout:
    """Apache's layout with the unit of its whole numbers: Tomcat's ``%D`` and Apache's ``%{ms}T`` are milliseconds.

    :raises InputError: most are 0.
    """
    split = [values for line in lines if len(values := _blank_split(line)) == layout.fields]
    texts = [values[layout.places["latency"]] for values in split]
    amounts = [int(text) for text in texts if text.isdecimal()]
    typical = float(np.median(amounts)) if amounts else _SURELY_US
    if not typical:
        todo = (
            "log a finer unit, such as Apache's %D, or say what they are with --pattern '...(?P<latency_ms>[0-9]+)$'"
        )
        raise input_error(path, None, "latencies in whole numbers that are mostly 0", "microseconds", todo)
    if typical >= _SURELY_US:
        return layout
    if typical < _LEAST_US:
        doubt = "whole numbers this small are no microseconds"
        return replace(layout, writer=_OF_MILLISECONDS, unit_ns=_MS, stamps_end=True, doubt=doubt)
    doubt = "if they are milliseconds, as %D of Tomcat and %{ms}T, use --pattern '...(?P<latency_ms>[0-9]+)$'"
    return replace(layout, doubt=doubt)


def _are_bytes(values: list[str], sent: int, whole: list[int]) -> bool:
    """True if two numbers are ``%I %O`` of Apache's ``combinedio``: bytes in and out, with headers."""
    body = int(values[sent]) if values[sent].isdecimal() else 0
    return len(whole) == 2 and 0 <= int(values[whole[1]]) - body <= _HEADERS


def read(path: Path) -> RequestTable:
    """The requests of a log.

    :raises InputError: most lines have another layout, or none has a latency.
    """
    bad = BadLines(path, "a line like the others of this access log")
    with opened(path, "an access log") as file:
        lines = [file.readline().decode("utf-8", "replace").rstrip("\r\n") for _ in range(_LOOKED_AT * 5)]
    layout = layout_of(lines)
    if layout is None:
        raise input_error(path, 1, shown(lines[0] if lines else "", 60), "a line of an access log")
    if "latency" not in layout.places:
        todo = "add $request_time (nginx) or %D (Apache) to its format, and record again"
        raise input_error(path, 1, f"{layout.fields} fields without a latency", "how long each request took", todo)
    if layout.writer == "Apache" and "latency" not in layout.around:
        layout = _with_unit_of_whole_numbers(layout, lines, path)
    log = _Log(path, layout, bad)
    log.read()
    bad.check(log.good)
    return log.table()


class _Log:
    """The columns of a log, each as a list of arrays, one per block of lines."""

    def __init__(self, path: Path, layout: Layout, bad: BadLines) -> None:
        self._path, self._layout, self._bad = path, layout, bad
        self._columns: dict[str, list[Any]] = defaultdict(list)
        self._routes: dict[str, int] = {}
        self._servers: dict[str, int] = {}
        self._attempts: dict[str, int] = {"one upstream": 0}
        self._retried: list[tuple[int, str]] = []
        self.good = 0

    def read(self) -> None:
        """Read all lines."""
        try:
            with opened(self._path, "an access log") as file:
                for block in _tables(file, self._layout, self._skip):
                    self._add(block)
            if self._retried:
                lines = "\n".join(text for _, text in self._retried)
                for block in _tables(io.BytesIO(lines.encode()), self._layout, self._leave_out):
                    self._add(block)
        except ValueError as error:  # pyarrow's
            damaged(self._path, "an access log", error)

    def _skip(self, row: Any) -> str:
        """Keep lines with several upstreams, or behind a quote that is not closed, for later; another one is bad."""
        lines = list(enumerate((row.text or "").split("\n"), row.number or 0))
        joined = [(number, _ATTEMPTS.sub(",", text)) for number, text in lines if text.strip()]
        if len(lines) > 1 or joined == lines:
            self._bad.add(lines[0][0], shown(lines[0][1], 60))
            del joined[:1]
        self._retried += joined
        return "skip"

    def _leave_out(self, row: Any) -> str:
        self._bad.add(self._retried[(row.number or 1) - 1][0], shown(row.text or "", 60))
        return "skip"

    def _add(self, block: Any) -> None:
        import pyarrow.compute as pc

        places, unit_ns = self._layout.places, self._layout.unit_ns

        def column(meaning: str) -> Any:
            text = block.column(str(places[meaning]))
            around = self._layout.around.get(meaning, "")
            return pc.replace_substring_regex(text, around, "") if around else text

        latency, moment = _durations(column("latency"), unit_ns), column("stamp")
        if "zone" in places:  # which may change within a log
            moment = pc.binary_join_element_wise(moment, column("zone"), " ")
        stamp = instants_ns(moment)
        status = _numbers(column("status"), np.int64)
        answered = (status == 0) | ((status >= 100) & (status < 600))  # proxies write 0 if the client left before
        good = (latency >= 0) & (stamp > UNKNOWN) & answered
        left = np.flatnonzero(~good)
        if len(left):
            row = int(left[0])
            values = f"latency {column('latency')[row].as_py()!r}, status {column('status')[row].as_py()!r}"
            self._bad.add(self.good + row + 1, values, len(left))
        self._columns["latency"].append(latency[good])
        self._columns["stamp"].append(stamp[good])
        self._columns["status"].append(_STATUSES[status[good]])
        for meaning in places.keys() & {"upstream", "connect"}:
            self._columns[meaning].append(_durations(column(meaning), unit_ns)[good])
        for meaning in places.keys() & {"size", "bytes"}:
            sizes = _numbers(column(meaning), np.float64)[good]
            self._columns[meaning].append(np.maximum(sizes, 0).astype(np.float32))
        self._columns["route"].append(_route_codes(column("request"), self._routes)[good])
        if "server" in places:
            self._columns["server"].append(_codes(column("server"), self._servers)[good])
        if "upstream" in places:
            texts = column("upstream")
            several = np.flatnonzero(pc.match_substring_regex(texts, _SEVERAL.pattern))
            answers = column("answers") if "answers" in places else None
            earlier, attempt = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int32)
            for row in several.tolist():
                times = _SEVERAL.split(texts[row].as_py())
                earlier[row] = sum(round(float(time) * unit_ns) for time in times[:-1] if _NUMBER.match(time))
                words = _attempts_in_words(len(times), "" if answers is None else answers[row].as_py())
                attempt[row] = self._attempts.setdefault(words, len(self._attempts))
            self._columns["earlier"].append(earlier[good])
            self._columns["attempt"].append(attempt[good])
        self.good += int(np.count_nonzero(good))

    def _joined(self, name: str) -> Any:
        """A column, or ``None``. Its blocks are freed, so that a large log is not held twice."""
        blocks = self._columns.pop(name, None)
        return np.concatenate(blocks) if blocks else None

    def table(self) -> RequestTable:
        """The requests."""
        layout = self._layout
        arrival, latency = self._joined("stamp"), self._joined("latency")
        resolution = resolution_ns(arrival)
        stamps_end, stamp_doubt = _order_of_ends(layout, arrival, latency, resolution)
        if stamps_end:
            arrival -= latency
        parts = {}
        if (upstream := self._joined("upstream")) is not None:
            known = (upstream >= 0) & (upstream <= latency)
            if known.any():  # time beyond the upstream's is between the proxy and its client
                parts["client"] = np.where(known, latency - upstream, 0)
        earlier, attempt = self._joined("earlier"), self._joined("attempt")
        if earlier is not None and earlier.any():
            parts[RETRY] = np.clip(earlier, 0, latency)
        if (connect := self._joined("connect")) is not None and (connect > 0).any():
            parts["connect"] = np.clip(connect, 0, latency)
        # The size of the request predicts work better than that of the answer.
        received, sent = self._joined("size"), self._joined("bytes")
        features = {"response_bytes": sent} if sent is not None else {}
        features = {"request_bytes": received} if received is not None else features
        stamp = f"when it {'ended' if stamps_end else 'arrived'}{', to the second' if resolution == _S else ''}"
        unit = {_S: "seconds", _MS: "milliseconds", _US: "microseconds"}[layout.unit_ns]
        unit += f" ({layout.doubt})" if layout.doubt else ""
        several = 1 < len(self._servers) <= _MOST_SERVERS
        note = f"Read as a log of {layout.writer}: latency in {unit}, a line has the time {stamp}{stamp_doubt}."
        return RequestTable(
            arrival_ns=arrival,
            latency_ns=latency,
            status=self._joined("status"),
            parts=parts,
            features=features,
            route=self._joined("route") if len(self._routes) > 1 else None,
            routes=tuple(self._routes) if len(self._routes) > 1 else (),
            server=self._joined("server") if several else None,
            servers=tuple(self._servers) if several else (),
            attempt=attempt if len(self._attempts) > 1 else None,
            attempts=tuple(self._attempts) if len(self._attempts) > 1 else (),
            resolution_ns=resolution,
            facts={"format": f"{layout.writer} access log", "lines": len(latency), "bad_lines": self._bad.count},
            notes=(*self._bad.notes(), note),
        ).sorted()


def _order_of_ends(layout: Layout, stamp: Ints, latency: Ints, resolution: int) -> tuple[bool, str]:
    """True if the stamps are those of ends, by the order of lines if the layout leaves it open; why it may be wrong.

    If stamps of arrivals are in order, the lines were sorted, or these are ends.

    :param stamp: in order of lines; ``resolution`` nanoseconds of its unit.
    """
    if layout.writer not in ("Apache", _OF_MILLISECONDS):
        return layout.stamps_end, ""
    as_ends = np.count_nonzero(np.diff(stamp) < 0)
    as_arrivals = np.count_nonzero(np.diff(stamp + latency) < -resolution)
    if layout.stamps_end:
        return bool(as_ends < _BACK or as_arrivals > _SIDE_BY_SIDE * as_ends), ""
    if as_arrivals >= _BACK and as_ends <= _SIDE_BY_SIDE * as_arrivals:
        todo = "; lines are in order of it: if it is when it ended, as in gunicorn's logs, read that with --pattern"
        return False, f"{todo} '\\[(?P<end>[^\\]]+)\\].* (?P<latency_us>[0-9]+)$'"
    return False, ""


def _attempts_in_words(number: int, answers: str) -> str:
    """How many upstreams a request was sent to, and what the first answered, if each one's answer is known."""
    known = _SEVERAL.split(answers)
    first = f", the first answered {known[0]}" if len(known) == number else ""
    return f"{_NUMBERS.get(number, number)} upstreams{first}"


def _tables(file: Any, layout: Layout, invalid: Any) -> Any:
    names, wanted = map(str, range(layout.fields)), dict.fromkeys(map(str, layout.places.values()))
    return csv_batches(file, list(names), wanted, invalid, 1 << 24, delimiter=" ", escape_char="\\")


def _numbers(text: Any, kind: Any, pattern: str = "[0-9]{1,18}") -> Any:
    """Numbers; -1 if invalid."""
    import pyarrow as pa
    import pyarrow.compute as pc

    digits = pc.match_substring_regex(text, f"^{pattern}$")
    return np.array(pc.cast(pc.if_else(digits, text, "-1"), pa.from_numpy_dtype(kind)))


def _durations(text: Any, unit_ns: int) -> Ints:
    """Nanoseconds, the sum for several upstreams; :data:`UNKNOWN` if invalid."""
    import pyarrow.compute as pc

    values = _numbers(text, np.float64, r"[0-9]{1,10}(\.[0-9]{1,9})?")
    for row in np.flatnonzero(pc.match_substring_regex(text, "[0-9], ?[0-9-]|[0-9] : ")).tolist():
        values[row] = sum(map(float, re.findall(r"[0-9]+\.[0-9]+", text[row].as_py())))
    known = (values >= 0) & (values <= LONGEST_NS / unit_ns)
    return np.where(known, np.rint(values * unit_ns), UNKNOWN).astype(np.int64)


def _route_codes(text: Any, routes: dict[str, int]) -> Any:
    """Routes: method and path, without the query, numbers and ids."""
    import pyarrow.compute as pc

    path = pc.replace_substring_regex(text, r"( HTTP/[0-9.]+|\?.*)$", "")
    path = pc.replace_substring_regex(path, NUMBER_IN_PATH.pattern, "/*")
    return _codes(path, routes)


def _codes(text: Any, known: dict[str, int]) -> Any:
    """The place of each text among the known ones, which are extended."""
    encoded = text.dictionary_encode()
    codes = [known.setdefault(word if len(known) < _MOST_ROUTES or word in known else "other", len(known))
             for word in encoded.dictionary.to_pylist()]  # fmt: skip
    return np.array(codes, np.int32)[np.asarray(encoded.indices)] if codes else np.zeros(0, np.int32)
