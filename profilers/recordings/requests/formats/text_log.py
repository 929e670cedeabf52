"""Text logs, one line per request, read by a regular expression with named groups.

The groups are columns as in :mod:`mapped_log`: named after roles (``latency_ms``, ``end``, ``queue_ms``, ``status``,
``route``), or given roles by ``--map``. Built in: HAProxy (``option httplog``), AWS load balancers, gin (Ollama),
TorchServe, Ray Serve, BentoML, text-generation-inference and text-embeddings-inference, k6, Gatling's
``simulation.log``, Traefik's common format, Squid's, S3's, uWSGI's, PostgreSQL's, Rails', AWS Lambda's reports, the
W3C's extended format (IIS, CloudFront), tables padded with blanks, and lines of ``key=value`` pairs (logfmt, Heroku's
router). ``--pattern`` reads any other format. Lines that do not match are skipped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import InputError, input_error
from latfix.formatting import shown
from latfix.profilers.recordings.reader import ReadOptions, Recorded, opened
from latfix.profilers.recordings.requests.columns.column_roles import Block, dependencies_among
from latfix.profilers.recordings.requests.columns.mapped_requests import EXPECTED_ROW, read_blocks
from latfix.profilers.recordings.requests.columns.usual_names import LATENCY, is_called, unit_in
from latfix.profilers.recordings.requests.formats import access_log
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.text_source import BadLines, column_name
from latfix.traffic.derived_features import parse_map_option

NAME = (
    "a text log of HAProxy, AWS, gin or Ollama, TorchServe, Ray Serve, BentoML, TGI, k6, Gatling, Traefik, Squid, "
    "S3, uWSGI, Rails, AWS Lambda, PostgreSQL, IIS or CloudFront, a table with blanks, key=value "
    "lines, or any other (--pattern REGEX)"
)
_CHUNK_BYTES = 1 << 24
#: Characters of a line by which its format is recognized.
_LOOKED_AT = 1 << 13
#: A line of ``key=value`` pairs has at least this many.
_LEAST_PAIRS = 3
#: Rows by which a table with blanks is recognized.
_ROWS = 50
_PAIR = re.compile(r'(?:^|\s)([A-Za-z_][\w.\-]*)=("(?:[^"\\]|\\.)*"|[^\s"]*)')
#: The time at the start of a line, and the name of its column. Loggers write a line when the request ends.
_LINE_TIME, _LINE_STARTS = "line_time", r"^(?P<quoted>\d{4}-\d\d-\d\d[T ][\d:.,]{8,}(?:Z|[+-]\d\d:?\d\d)?)"
_FIELDS = "#Fields:"
_K6_HEADER = "metric_name,timestamp,metric_value,"
#: A terminal's codes of colors.
_COLORS = re.compile(rb"\x1b\[[0-9;]*m")
#: A cell of CSV, which may hold commas between quotes.
_CELL = r'(?:"(?:[^"]|"")*"|[^",]*)'
_WRITTEN_AT = ("time", "ts", "timestamp", _LINE_TIME)
_STARTS = {"start", "start_time", "started_at", "arrival"}


@dataclass(frozen=True, slots=True)
class _Format:
    """One built-in format.

    :param pattern: in the syntax that Python and RE2 share.
    :param meaning: roles as ``--map`` gives them; groups that are named after a role need none.
    :param header: a line that matches, but is no request.
    """

    writer: str
    pattern: str
    meaning: Mapping[str, str] = field(default_factory=dict)
    header: str = ""


_FORMATS: tuple[_Format, ...] = (
    # TR/Tw/Tc/Tr/Ta in milliseconds, -1 where a request did not get so far; the time of arrival. The first letter of
    # how it ended is C if the client left: the status is -1 then, 503 until 2.4.
    _Format(
        "HAProxy",
        r"\[(?P<arrival>\d+/[A-Z][a-z]{2}/\d{4}:[\d:]{8}\.\d+)\] \S+ (?P<server>\S+) "
        r"(?P<receive_ms>-?\d+)/(?P<queue_ms>-?\d+)/(?P<connect_ms>-?\d+)/-?\d+/\+?"
        r"(?P<latency_ms>\d+) (?P<status>-?\d+) \+?(?P<response_bytes>\d+) \S+ \S+ (?P<cancelled>C?)\S* "
        r'.*?"(?P<route>[A-Z]+ [^ "]+)',
        {"receive_ms": "receive_ms", "connect_ms": "connect_ms", "cancelled": "cancelled"},
    ),
    # Seconds until the request was sent to the target, until its answer began, and until that was passed on. The end;
    # of a classic balancer, whose lines do not begin with a protocol, the arrival.
    *(
        _Format(
            "an AWS load balancer",
            rf"^{protocol}(?P<{moment}>\d{{4}}-\d\d-\d\dT[\d:.]+Z) \S+ \S+:\d+ (?P<server>\S+) "
            r"(?P<request_s>-?[\d.]+) (?P<target_s>-?[\d.]+) (?P<response_s>-?[\d.]+) "
            r'(?P<status>\d+|-) \S+ (?P<request_bytes>\d+) \d+ "(?P<route>[A-Z-]+ [^ "]+)',
            {"latency_s": "request_s+target_s+response_s", "balancer_s": "request_s+response_s"},
        )
        for protocol, moment in ((r"\w+ ", "end"), ("", "arrival"))
    ),
    _Format(
        "gin",
        r"\[GIN\] (?P<end>\d{4}/\d\d/\d\d - [\d:]{8}) \|[^|]*?(?P<status>\d{3})[^|]*\| *(?P<latency>[0-9][^ |]*)[^|]*"
        r'\|[^|]*\|[^"]*?(?P<method>[A-Z]+)[^"]*"(?P<route>[^"]+)"',
    ),
    _Format(
        "TorchServe",
        r"^(?P<end>\d{4}-\d\d-\d\d[T ][\d:]{8},\d+) (?:\[\w+ *\] \S+ ACCESS_LOG )?- \S+ "
        r'"(?P<route>[A-Z]+ [^ "]+)[^"]*" (?P<status>\d{3}) (?P<latency_ms>\d+)$',
    ),
    _Format(
        "Ray Serve",
        r"(?P<end>\d{4}-\d\d-\d\d [\d:]{8},\d+) .* -- (?P<route>\S+ \S+) (?P<status>\d{3}|OK|ERROR) "
        r"(?P<latency_ms>[\d.]+)ms$",
    ),
    _Format(
        "BentoML",
        r"(?P<end>\d{4}-\d\d-\d\d[T ][\d:]{8}\S*) .*\(scheme=\w*,method=\w+,path=(?P<route>[^,)]+)"
        r"(?:[^)]*,length=(?P<request_bytes>\d+))?[^)]*\) \(status=(?P<status>\d+)[^)]*\) (?P<latency_ms>[\d.]+)ms",
    ),
    # text-generation-inference and text-embeddings-inference
    _Format(
        "TGI",
        r'^(?P<end>\d{4}-\d\d-\d\dT[\d:.]+Z) +\w+ (?:.*: )?(?P<route>\w+)\{.*total_time="(?P<latency>[^"]+)".*'
        r'queue_time="(?P<queue>[^"]+)"',
        {"queue": "queue"},
    ),
    # The status 0 is no answer. It is read with the character behind it: a 0 alone is a success if all are 0.
    *(
        _Format(
            "k6",
            rf'^\{{{before}"type":"Point","data":\{{"time":"(?P<end>[^"]+)","value":(?P<latency_ms>[\d.]+),"tags":'
            rf'\{{.*"name":"(?P<route>[^"]*)".*"status":"(?P<status>[1-9]\d*|0").*\}}{after}\}}$',
        )
        for before, after in (('"metric":"http_req_duration",', ""), ("", ',"metric":"http_req_duration"'))
    ),
    # Without a header, as vegeta encode --to csv writes it. The status 0 is no answer, as in k6's.
    _Format(
        "vegeta",
        r"^(?P<arrival>\d{19}),(?P<status>[1-9]\d*|0,),?(?P<latency_ns>\d+),(?P<request_bytes>\d+),(?P<response_bytes>\d+),"
        r"(?:.*,[A-Z]+,(?P<route>[^,]+),[^,]*)?",
    ),
    _Format(
        "Squid",
        r"^(?P<end>\d{9,10}\.\d{3}) +(?P<latency_ms>\d+) \S+ [A-Z_]+/(?P<status>\d{3}) (?P<response_bytes>\d+) "
        r"(?P<route>[A-Z]+ \S+) ",
    ),
    # When the request was received.
    _Format(
        "S3",
        r'\[(?P<arrival>[^\]]+)\] \S+ \S+ \S+ (?P<operation>(?:REST|SOAP|BATCH)\.\S+) \S+ "[^"]*" '
        r"(?P<status>\d{3}) \S+ (?P<response_bytes>\d+|-) \S+ (?P<latency_ms>\d+) ",
        {"route": "operation"},
    ),
    # The time at which the request began, to the second.
    _Format(
        "uWSGI",
        r"\[pid: (?P<server>\d+)\|app: [^\]]*\] \S+ \([^)]*\) \{[^}]*\} \[(?P<arrival>[^\]]+)\] "
        r"(?P<route>[A-Z]+ \S+) => generated (?P<response_bytes>\d+) bytes in (?P<latency_ms>\d+) msecs "
        r"\(\S+ (?P<status>\d{3})\)",
    ),
    _Format(
        "Traefik",
        r'\[(?P<arrival>[^\]]{9,40})\] "(?P<route>[A-Z]+ [^ "]+)[^"]*" (?P<status>\d{3}) (?P<response_bytes>\d+|-) '
        r'.*" (?P<latency_ms>\d+)ms$',
    ),
    # Rails, with the time that its logger writes. Other lines of a request have its route.
    _Format(
        "Rails",
        r"^\w, \[(?P<end>\d{4}-\d\d-\d\dT[\d:.]+) .*Completed (?P<status>\d{3}) .*?in (?P<latency_ms>\d+)ms"
        r"(?:.*ActiveRecord: (?P<db_ms>[\d.]+)ms)?",
        {"db_ms": "db_ms"},
    ),
    # Behind the time that CloudWatch writes. The duration is without that of a cold start's initialization.
    _Format(
        "AWS Lambda",
        r"^(?P<end>\d{4}-\d\d-\d\dT[\d:.]+\S*|\d{13})\s.*REPORT RequestId: (?P<id>\S+)\s+"
        r"Duration: (?P<latency_ms>[\d.]+) ms",
    ),
    # On standard error, or as CSV. The time at which the statement ended, in a zone with a name.
    _Format(
        "PostgreSQL",
        r'^(?P<end>\d{4}-\d\d-\d\d [\d:.]{8,12}) .*\bduration: (?P<latency_ms>[\d.]+) ms'
        r'(?:  (?:statement|execute [^:]*): (?P<route>\w+)|\s*$|",)',
    ),
    # Before the name the groups; until 3.3 also the number of the user, until 2.3 also the scenario.
    _Format(
        "Gatling",
        r"^REQUEST\t(?:[^\t]*\t){1,3}(?P<route>[^\t]+)\t(?P<arrival>\d{13})\t(?P<end>\d{13})\t(?P<status>OK|KO)",
    ),
)  # fmt: skip


def knows(head: bytes) -> bool:
    """True if a line among the first is of a built-in format, or if most are pairs and no access log."""
    lines = _lines(head)
    return _format_of(lines) is not None or (_are_pairs(lines) and not access_log.knows(head))


def read(file: Recorded, options: ReadOptions) -> RequestTable:
    """The requests of a log.

    :raises InputError: the pattern is none, matches no line, or its groups hold no latency.
    """
    path, lines = file.path, _lines(file.head)
    pattern, mapping = options.pattern, parse_map_option(options.mapping)
    known = None if pattern else _format_of(lines)
    bad = BadLines(path, EXPECTED_ROW)
    if pattern or known is not None:
        expression = _compiled(known.pattern if known else pattern)
        names = tuple(expression.groupindex)
        extract = _by_groups(expression.pattern, names)
        sample = [found.groupdict("") for line in lines if (found := expression.search(line))]
        mapped = " ".join(mapping.values())
        groups = dependencies_among([name for name in names if name not in mapped])
        meaning = dict(known.meaning) if known else groups
    else:
        sample = [_pairs(line) for line in lines]
        names = tuple(dict.fromkeys(name for found in sample for name in found))
        extract = _by_keys
        written = next((name for name in _WRITTEN_AT if name in names), None)
        meaning = {"end": written} if written and not _STARTS & set(names) else {}
    first = {name: next((row[name] for row in sample if row.get(name)), "") for name in names}

    def blocks(wanted: Sequence[str], needed: Collection[str], _marks: Collection[str]) -> Iterator[Block]:
        return _blocks(path, extract, wanted, needed, bad, known.header if known else "")

    table = read_blocks(path, first, meaning | mapping, blocks, bad, times_only=options.times_only)
    notes = (*table.notes, *bad.notes_on_others())
    writer = known.writer if known else "key=value pairs" if not pattern else "a format of its own (--pattern)"
    return replace(table, notes=notes, facts={**table.facts, "format": f"log of {writer}"})


def _lines(head: bytes) -> list[str]:
    lines = [line[:_LOOKED_AT] for line in _COLORS.sub(b"", head).decode("utf-8", "replace").splitlines()]
    return lines[:-1] or lines  # the last one may be cut off


def _format_of(lines: Sequence[str]) -> _Format | None:
    if extended := next((line for line in lines if line.startswith(_FIELDS)), None):
        return _extended(extended, lines)
    if header := next((line for line in lines if line.startswith(_K6_HEADER)), None):
        return _k6(header)
    found = next((each for each in _FORMATS if any(re.search(each.pattern, line) for line in lines)), None)
    return found or _aligned([line for line in lines if line.strip()])


def _k6(header: str) -> _Format:
    """The CSV of k6, up to the status; the columns between are those of the tags that the test kept, sorted."""
    groups = {"timestamp": "(?P<end>[^,]+)", "metric_value": "(?P<latency_ms>[0-9.]+)", "name": f"(?P<route>{_CELL})",
              "status": "(?P<status>[1-9][0-9]*|0,|)"}  # fmt: skip
    names = header.strip().split(",")[1:]
    last = max(k for k, name in enumerate(names) if name in groups)
    return _Format("k6", ",".join(["^http_req_duration", *(groups.get(name, _CELL) for name in names[: last + 1])]))


def _extended(header: str, lines: Sequence[str]) -> _Format | None:
    """The W3C's extended format, whose header names the fields. IIS counts milliseconds, CloudFront seconds."""
    fields = header.removeprefix(_FIELDS).split()
    first = next((line.split() for line in lines if line[:1] != "#" and len(line.split()) == len(fields)), None)
    if first is None or not {"date", "time", "time-taken"} <= set(fields):
        return None
    unit = "s" if "." in first[fields.index("time-taken")] else "ms"
    groups = {"time-taken": f"latency_{unit}", "sc-status": "status", "cs-uri-stem": "route", "date": "date",
              "time": "time", "cs-bytes": "request_bytes", "sc-bytes": "response_bytes"}  # fmt: skip
    parts = [rf"(?P<{groups[name]}>\S+)" if name in groups else r"\S+" for name in fields]
    pattern = r"\s+".join(parts).replace(r"(?P<date>\S+)\s+(?P<time>\S+)", r"(?P<end>\d\S+\s+\S+)")
    return _Format("the W3C's extended format", rf"^{pattern}\s*$")  # a later header may name other fields


def _aligned(lines: Sequence[str]) -> _Format | None:
    """A table whose cells are padded with blanks, as ``column -t``, kubectl and pandas (with an index) print it."""
    header, rows = "".join(lines[:1]), lines[1 : _ROWS + 1]
    for between, cell in ((r"\s{2,}", r"\S+(?: \S+)*"), (r"\s+", r"\S+(?: \d\d:\S+)?")):
        names = [column_name(name) for name in re.split(between, header.strip())]
        has_latency = any(is_called(name, LATENCY) and unit_in(name) for name in names)
        if not has_latency or re.search(r"[,;|\t]", header) or len({*filter(str.isidentifier, names)}) < len(names):
            continue
        cells = between.join(f"(?P<{name}>{cell})" for name in names)
        for index in ("", r"\S+\s+"):
            pattern = rf"^\s*{index}{cells}\s*$"
            if rows and len(names) > 1 and all(re.search(pattern, row) for row in rows):
                return _Format("a table with blanks", pattern, header=header)
    return None


def _are_pairs(lines: Sequence[str]) -> bool:
    filled = [line for line in lines if line.strip() and line.lstrip()[0] not in "{[<"]
    return bool(filled) and sum(len(_PAIR.findall(line)) >= _LEAST_PAIRS for line in filled) > len(filled) / 2


def _pairs(line: str) -> dict[str, str]:
    start = re.match(_LINE_STARTS, line)
    pairs = {name: value.strip('"') for name, value in _PAIR.findall(line)}
    return pairs if start is None or len(pairs) < _LEAST_PAIRS else {_LINE_TIME: start[1], **pairs}


def _compiled(pattern: str) -> re.Pattern[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        expression = re.compile(pattern)
        if expression.groupindex:
            pc.extract_regex(pa.array([""]), pattern)
    except (re.error, pa.ArrowInvalid) as error:
        why = " ".join(str(error).split())[:120]
        raise InputError(f"--pattern: found {shown(pattern, 60)} ({why}); expected a regular expression") from error
    if not expression.groupindex or len(expression.groupindex) < expression.groups:
        raise InputError(
            f"--pattern: found {shown(pattern, 60)}; expected named groups, such as (?P<latency_ms>[0-9.]+) and "
            "(?P<end>\\S+), and (?:…) for all others"
        )
    return expression


#: From lines, wanted and needed columns to which lines matched, and the columns, as long as the lines.
_Extract = Callable[[Any, Sequence[str], Collection[str]], tuple[Any, dict[str, Any]]]


def _by_groups(pattern: str, names: Sequence[str]) -> _Extract:
    def extract(lines: Any, wanted: Sequence[str], _needed: Collection[str]) -> tuple[Any, dict[str, Any]]:
        import pyarrow.compute as pc

        found = pc.extract_regex(lines, pattern)
        return found.is_valid(), {name: pc.struct_field(found, [names.index(name)]) for name in wanted}

    return extract


def _by_keys(lines: Any, wanted: Sequence[str], needed: Collection[str]) -> tuple[Any, dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {}
    matched = pa.repeat(True, len(lines))
    for name in wanted:
        pair = rf'(?:^|\s){re.escape(name)}=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s"]*))'
        found = pc.extract_regex(lines, f"{_LINE_STARTS}(?P<bare>)" if name == _LINE_TIME else pair)
        parts = [pc.fill_null(pc.struct_field(found, [k]), "") for k in (0, 1)]
        columns[name] = pc.binary_join_element_wise(*parts, "")
        if name in needed and name != _LINE_TIME:
            matched = pc.and_(matched, found.is_valid())
    return matched, columns


def _blocks(
    path: Path,
    extract: _Extract,
    wanted: Sequence[str],
    needed: Collection[str],
    bad: BadLines,
    header: str,
) -> Iterator[Block]:
    import pyarrow as pa
    import pyarrow.compute as pc

    at, requests = 1, 0
    with opened(path, "a text log") as file:
        while chunk := file.read(_CHUNK_BYTES):
            lines = pa.array(_COLORS.sub(b"", chunk + file.readline()).splitlines(), pa.string())
            matched, columns = extract(lines, wanted, needed)
            nothing = pc.match_substring_regex(lines, r"^(#|\s*$)")  # such as the W3C's directives
            if header:
                nothing = pc.or_(nothing, pc.equal(lines, header))
            matched = pc.and_not(matched, nothing)
            others = pc.filter(lines, pc.invert(pc.or_(matched, nothing)))
            bad.skip(next(iter(others.slice(0, 1).to_pylist()), ""), len(others))
            requests += matched.true_count
            if matched.true_count:
                numbers = (at + np.flatnonzero(matched.to_numpy(zero_copy_only=False))).tolist()
                yield {name: pc.filter(column, matched) for name, column in columns.items()}, numbers
            at += len(lines)
    if not requests:
        raise input_error(path, 1, shown(bad.first_other, 60), "lines that the pattern matches", "correct --pattern")
