"""Short slices of the traffic for screening, chosen where the tail is, and their records joined into one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from latfix.arrays import Floats, Ints, places
from latfix.profilers.chunked.record_chunks import stacked
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_TIMES, Columns
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import limit, scale_time, slice_time

#: Range of a window's length.
SHORTEST_S = 3.0
_LONGEST_S = 6.0
#: Requests that two windows together should hold.
_ENOUGH = 200
#: Requests that a final replay should hold, and the minimum for a slow service that leaves time for few rounds.
_WANTED_REQUESTS, _LEAST_REQUESTS = 60, 20
#: Requests that the first window should hold.
_FIRST_REQUESTS = 12
#: Requests at or above this percentile are slow.
_TAIL = 95.0
#: Seconds of requests before a stretch of the traffic that a fresh process serves untimed.
LEAD_IN_S = 2.0
#: Maximum work in a slice with the first settings, as a multiple of its length: a longer backlog shows nothing new.
_MOST_WORK = 1.5
#: Number of starts that are compared, evenly spaced over the traffic.
_CANDIDATES = 200


def screening_windows(traffic: Traffic, baseline: RunRecord, latency: Floats | None = None) -> list[Traffic]:
    """Two disjoint slices with as many of the baseline's slow requests as possible; about all of it if it is short.

    A slice without a request (next to a long gap) is left out.

    :param traffic: the schedule that ``baseline`` replayed.
    :param latency: by position in the schedule; ``None`` for the measured one.
    """
    first, last = int(traffic.arrival_ns[0]), int(traffic.arrival_ns[-1])
    span_s = (last - first) / 1e9
    rate = len(traffic) / max(span_s, 1e-9)
    width_s = min(max(SHORTEST_S, _ENOUGH / 2 / rate), _LONGEST_S)
    if 2 * width_s >= 0.8 * span_s:
        return [_whole(traffic, baseline)]
    width = int(width_s * 1e9)
    starts = _starts(traffic, width)
    held = _inside(traffic.arrival_ns, starts, width)
    chosen = _best_pair(starts, _slow(traffic, baseline, starts, width, latency), width)
    kept = [int(starts[k]) for k in chosen if held[k]]
    return [_slice(traffic, baseline, start, width) for start in kept]


def replay_s(traffic: Traffic, baseline: RunRecord, window: Traffic) -> float:
    """Estimated seconds to replay the traffic, or a slice of it, with the first settings."""
    return max(window.duration_s - window.start_s, float(_work_of(traffic, baseline, window).sum()))


def settling_part(traffic: Traffic, baseline: RunRecord, window: Traffic, seconds: float) -> Traffic:
    """The first requests of a window, as many as the first settings compute in ``seconds``."""
    done = np.cumsum(_work_of(traffic, baseline, window))
    return limit(window, max(int(np.searchsorted(done, seconds)), min(_FIRST_REQUESTS, len(window))))


def lead_in(traffic: Traffic, baseline: RunRecord, stretch: Traffic, seconds: float = LEAD_IN_S) -> Traffic | None:
    """The requests right before a stretch, as many as the service computes in ``seconds``, sent within that time.

    A process that has served everything before the stretch has seen most shapes and has its memory. A fresh process
    has not, and would show its first uses in the stretch that is measured.

    :returns: ``None`` if the stretch begins with the traffic, or ``seconds`` is 0.
    """
    if stretch is traffic or seconds <= 0:
        return None
    begin = window_bounds(stretch)[0]
    earlier = int(np.searchsorted(traffic.arrival_ns, begin))
    if not earlier:
        return None
    done = np.cumsum(_work_s(baseline)[:earlier][::-1])
    first = earlier - min(int(np.searchsorted(done, seconds)) + 1, earlier)
    start_s, end_s = traffic.arrival_ns[first] / 1e9, begin / 1e9
    return scale_time(slice_time(traffic, start_s, end_s), max((end_s - start_s) / seconds, 1.0))


def busiest_stretch(traffic: Traffic, seconds: float) -> Traffic:
    """The ``seconds`` of the traffic with the most requests; all of it if it is not longer."""
    width = int(seconds * 1e9)
    if int(traffic.arrival_ns[-1]) - int(traffic.arrival_ns[0]) <= width:
        return traffic
    starts = _starts(traffic, width)
    start = int(starts[np.argmax(_inside(traffic.arrival_ns, starts, width))])
    return slice_time(traffic, start / 1e9, (start + width) / 1e9)


def served_part(record: RunRecord) -> RunRecord:
    """The requests before the first one that had no answer when the replay was ended, with their traffic.

    :returns: the record itself if it was not ended, or if nearly none had an answer.
    """
    rows = record.requests
    ended_ns = rows["arrival_ns"] + rows["latency_ns"]
    left = (rows["status"] == Status.TIMEOUT) & (ended_ns == ended_ns.max(initial=0))  # others timed out before
    count = int(rows["index"][left].min(initial=len(record.traffic)))
    if record.meta.behind_s is None or count < _LEAST_REQUESTS:
        return record
    kept = {name: column[rows["index"] < count] for name, column in rows.items()}
    inside = np.isin(record.batches["batch_id"], kept["batch_id"])
    return replace(
        record,
        meta=record.meta.updated(behind_s=None, scheduled=count, sent=count),
        requests=kept,
        batches={name: column[inside] for name, column in record.batches.items()},
        traffic=limit(record.traffic, count),
        errors={index: text for index, text in record.errors.items() if index < count},
        partial=False,
    )


def slowest_stretch(
    traffic: Traffic,
    baseline: RunRecord,
    wanted_s: float,
    latency: Floats | None = None,
    *,
    most_s: float = math.inf,
) -> Traffic:
    """The stretch of about ``wanted_s`` with most of the baseline's slow requests; about all of it if not longer.

    It is longer if its tail would otherwise be a request or two.

    :param latency: see :func:`screening_windows`.
    :param most_s: maximum length for that reason.
    """
    span_s = traffic.duration_s - traffic.start_s
    should_s, least_s = (count * span_s / max(len(traffic), 1) for count in (_WANTED_REQUESTS, _LEAST_REQUESTS))
    width_s = max(wanted_s, min(should_s, most_s), least_s, SHORTEST_S)
    if width_s >= 0.8 * span_s:
        return _whole(traffic, baseline)
    width = int(width_s * 1e9)
    starts = _starts(traffic, width)
    best = int(np.argmax(_slow(traffic, baseline, starts, width, latency)))
    return _slice(traffic, baseline, int(starts[best]), width)


def window_bounds(window: Traffic) -> tuple[float, float]:
    """Bounds of a slice in the original schedule, in nanoseconds."""
    last = [entry for entry in window.metadata["transforms"] if entry["transform"] == "slice_time"][-1]
    return float(last["start_s"]) * 1e9, float(last["end_s"]) * 1e9


def _starts(traffic: Traffic, width: int) -> Ints:
    """Candidate starts of a stretch of ``width`` nanoseconds."""
    return np.linspace(int(traffic.arrival_ns[0]), int(traffic.arrival_ns[-1]) - width, _CANDIDATES).astype(np.int64)


def _whole(traffic: Traffic, baseline: RunRecord) -> Traffic:
    """All of the traffic, cut where it would bring too much work for two windows."""
    first, last = int(traffic.arrival_ns[0]), int(traffic.arrival_ns[-1])
    longest = max(last - first, int(2 * _LONGEST_S * 1e9))
    fits = len(traffic) <= _LEAST_REQUESTS or _work_s(baseline).sum() <= _MOST_WORK * longest / 1e9
    return traffic if fits else _slice(traffic, baseline, first, longest)


def _slice(traffic: Traffic, baseline: RunRecord, start: int, width: int) -> Traffic:
    """``width`` nanoseconds of the traffic, cut where they would bring too much work."""
    first, last = np.searchsorted(traffic.arrival_ns, (start, start + width)).tolist()
    done = np.cumsum(_work_s(baseline)[first:last])
    fitting = first + max(int(np.searchsorted(done, _MOST_WORK * width / 1e9)), _LEAST_REQUESTS)
    end = int(traffic.arrival_ns[fitting]) if fitting < last else start + width
    return slice_time(traffic, start / 1e9, end / 1e9)


def _work_of(traffic: Traffic, baseline: RunRecord, window: Traffic) -> Floats:
    begin = 0.0 if window is traffic else window_bounds(window)[0]
    first = int(np.searchsorted(traffic.arrival_ns, begin))
    return _work_s(baseline)[first : first + len(window)]


def _work_s(baseline: RunRecord) -> Floats:
    """By request of the schedule, its part of a batch's time in seconds, divided by the number of workers."""
    rows, batches = baseline.requests, baseline.batches
    took = (batches["d2h_end_ns"] - batches["close_ns"]) / np.maximum(batches["size"], 1) / 1e9
    place = places(rows["batch_id"], batches["batch_id"])
    served = (rows["index"] >= 0) & (place >= 0)
    work = np.zeros(len(baseline.traffic))
    work[rows["index"][served]] = took[place[served]]
    return work / baseline.meta.settings.workers


def _slow(traffic: Traffic, baseline: RunRecord, starts: Ints, width: int, latency: Floats | None) -> Ints:
    """Score of a stretch from each start: its slow requests first, then all its requests."""
    rows = baseline.requests
    ok = baseline.measured & (rows["status"] == Status.OK)
    took = rows["latency_ns"] if latency is None else latency[rows["index"]]
    limit = float(np.percentile(took[ok], _TAIL))
    slow = np.sort(rows["arrival_ns"][ok & (took >= limit)])
    return _inside(slow, starts, width) * (len(traffic) + 1) + _inside(traffic.arrival_ns, starts, width)


def first_window(traffic: Traffic) -> Traffic:
    """The start of the traffic, for cold fixes."""
    start = traffic.start_s
    until = float(traffic.arrival_ns[min(_FIRST_REQUESTS, len(traffic)) - 1]) / 1e9
    return slice_time(traffic, start, max(start + SHORTEST_S, min(until, start + 2 * _LONGEST_S) + 0.001))


def join(records: Sequence[RunRecord]) -> RunRecord:
    """Replays of slices on one arm as one record, for a comparison with another arm's.

    Two joined records are paired if their slices are the same. Each begins when the one before has ended.
    """
    first = records[0]
    if len(records) == 1:
        return first
    tables: dict[str, list[Columns]] = {name: [] for name in ("requests", "batches", "events", "samples")}
    position = batch = shift = 0
    for record in records:
        rows = _moved(record.requests, {"arrival_ns": shift})
        rows |= {"index": _numbered(rows["index"], position), "batch_id": _numbered(rows["batch_id"], batch)}
        tables["requests"].append(rows)
        tables["batches"].append(_moved(record.batches, {**dict.fromkeys(BATCH_TIMES, shift), "batch_id": batch}))
        found = _moved(record.events, {"t_ns": shift})
        found |= {"request": _numbered(found["request"], position), "batch_id": _numbered(found["batch_id"], batch)}
        tables["events"].append(found)
        tables["samples"].append(_moved(record.samples, {"t_ns": shift}))
        position += len(record.traffic)
        batch += int(record.batches["batch_id"].max(initial=-1)) + 1
        ended = int(record.batches["finish_end_ns"].max(initial=0))
        shift += max(int(record.traffic.arrival_ns[-1]), ended) + 1_000_000_000
    digests = "+".join(str(record.meta.traffic_sha256) for record in records)
    counters = ("pool_hits", "pool_misses", "compilations_in_run")
    totals = {name: sum(getattr(record.meta, name) or 0 for record in records) for name in counters}
    joined: dict[str, Any] = {name: stacked(parts) for name, parts in tables.items()}
    return replace(
        first,
        meta=records[-1].meta.updated(**totals, traffic_sha256=digests, scheduled=position),
        traffic=Traffic.joined([record.traffic for record in records]),
        **joined,
    )


def _moved(columns: Columns, by: Mapping[str, int]) -> Columns:
    """The columns, some of them increased."""
    return {name: column + by[name] if name in by else column for name, column in columns.items()}


def _numbered(column: Any, first: int) -> Any:
    """Numbers from ``first`` on instead of from 0; negative ones stand for none."""
    return np.where(column >= 0, column + first, column)


def _inside(times: Ints, starts: Ints, width: int) -> Ints:
    """Number of sorted ``times`` in the window of ``width`` from each start."""
    return np.asarray(np.searchsorted(times, starts + width) - np.searchsorted(times, starts), dtype=np.int64)


def _best_pair(starts: Ints, score: Ints, width: int) -> tuple[int, int]:
    """Indices of the two disjoint windows with the highest total score, the earlier one first."""
    pairs = []
    for k, start in enumerate(starts):
        later = int(np.searchsorted(starts, start + width))
        if later < len(starts):
            other = later + int(np.argmax(score[later:]))
            pairs.append((int(score[k] + score[other]), k, other))
    _, one, other = max(pairs, key=lambda pair: pair[0])
    return one, other
