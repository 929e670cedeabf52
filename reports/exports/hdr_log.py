"""An HdrHistogram log: latencies in nanoseconds with three exact digits, one histogram for each second of arrivals.

Requests that did not end ``ok`` are in histograms tagged with their status, with the time until they were lost: a
histogram cannot hold lower bounds. Encoding: HdrHistogram's V2, ``ZigZag LEB128`` counts with runs of zeros as
negative numbers, compressed by zlib, in base64 (HdrHistogram/AbstractHistogram.java).
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from latfix import __version__
from latfix.arrays import Ints
from latfix.formatting import visible
from latfix.reports.exports.otlp_spans import started_ns
from latfix.run_record.chunked_record import RecordSource
from latfix.stages import STATUS_NAMES

_SECOND = 10**9
_DIGITS = 3
#: Counters of the first bucket for three digits, and half of that: each further bucket adds the half.
_SUB_BUCKETS, _HALF = 2048, 1024
#: An hour, in nanoseconds.
HIGHEST = 3600 * _SECOND
_COOKIE, _COMPRESSED = 0x1C849303 | 0x10, 0x1C849304 | 0x10
_COLUMNS = '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"'


def hdr_log(source: RecordSource) -> Iterator[str]:
    """The lines; measured requests only.

    :raises InputError: ``run.json`` has no start time.
    """
    start = started_ns(source) / 1e9
    yield f"#[latfix {__version__}: latency of {visible(source.meta.workload, limit=120)}, ns]\n"
    yield "#[Histogram log format version 1.3]\n"
    yield f"#[StartTime: {start:.3f} (seconds since epoch), {visible(source.meta.started, limit=60)}]\n"
    yield f"{_COLUMNS}\n"
    kept: dict[str, Ints] = {name: np.zeros(0, np.int64) for name in ("second", "status", "latency_ns")}
    for rows in source.scan(("arrival_ns", "latency_ns", "status", "warmup")):
        measured = rows["warmup"] == 0
        found = {name: rows[name][measured] for name in ("latency_ns", "status")}
        found["second"] = rows["arrival_ns"][measured] // _SECOND
        kept = {name: np.concatenate([kept[name], found[name]]) for name in kept}
        if len(kept["second"]):  # rows are sorted by arrival: all seconds but the last are complete
            yield from _lines({name: values[kept["second"] < kept["second"][-1]] for name, values in kept.items()})
            kept = {name: values[kept["second"] >= kept["second"][-1]] for name, values in kept.items()}
    yield from _lines(kept)


def _lines(rows: dict[str, Ints]) -> Iterator[str]:
    order = np.lexsort((rows["status"], rows["second"]))
    key = rows["second"][order] * len(STATUS_NAMES) + rows["status"][order]
    for some in np.split(order, np.flatnonzero(np.diff(key)) + 1):
        if len(some):
            status, second = STATUS_NAMES[int(rows["status"][some[0]])], int(rows["second"][some[0]])
            values = rows["latency_ns"][some]
            tag = "" if status == "ok" else f"Tag={status},"
            yield f"{tag}{second:.3f},1.000,{int(values.max()) / 1e6:.3f},{encoded(np.bincount(places_of(values)))}\n"


def places_of(values_ns: Ints) -> Ints:
    """The index of the counter of each value; values above an hour share the last."""
    values = np.clip(values_ns, 0, HIGHEST)
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)  # exact: an hour has 42 bits
    bucket = np.maximum(bits - _SUB_BUCKETS.bit_length() + 1, 0)
    return np.asarray((bucket + 1) * _HALF + (values >> bucket) - _HALF, dtype=np.int64)


def encoded(counts: Ints) -> str:
    """A histogram in V2, compressed, in base64."""
    body = b"".join(map(_zigzag, _runs(counts)))
    header = struct.pack(">iiiiqqd", _COOKIE, len(body), 0, _DIGITS, 1, HIGHEST, 1.0)
    packed = zlib.compress(header + body)
    return base64.b64encode(struct.pack(">ii", _COMPRESSED, len(packed)) + packed).decode()


def _runs(counts: Ints) -> Iterator[int]:
    """The counters, with each run of zeros as its negative length."""
    before = -1
    for place in np.flatnonzero(counts).tolist():
        if place - before > 1:
            yield before + 1 - place
        yield int(counts[place])
        before = place


def _zigzag(number: int) -> bytes:
    """A signed number as LEB128 of its ZigZag form."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])
