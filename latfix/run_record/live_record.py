"""The record of a service that may still run: a folder of consecutive parts, read as one run.

``load_runner(..., record=DIR)`` makes a folder in ``DIR`` for each part: ``run.json``, ``segments/`` as for a run
that is being written, and ``schedule.jsonl`` with a line per ended request: number, id, priority and features. Old
parts are deleted. Numbers of requests and batches continue from part to part of a process.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import InputError
from latfix.run_record.run_meta import RUN_FILE, RunMeta, read_meta
from latfix.run_record.run_record import SEGMENTS, RunRecord
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE, Columns
from latfix.run_record.segments import Segment, segment_lines, segment_names
from latfix.run_record.validation import RequestCheck, check_batches, damaged
from latfix.traffic.parsed_fields import NORMAL
from latfix.traffic.schedule import Traffic

LIVE = "live"
SCHEDULE_LINES = "schedule.jsonl"
_PART = re.compile(r"\d{19}-\d+-\d{6,}")


def part_name(number: int) -> str:
    """The name of this process's part with a number, starting now."""
    return f"{time.time_ns()}-{os.getpid()}-{number:06d}"


def part_folders(folder: Path) -> list[Path]:
    """Parts of all processes that wrote to a folder, oldest first; other files are ignored."""
    return sorted(path for path in folder.glob("*-*-*") if _PART.fullmatch(path.name))


def live_parts(folder: Path) -> list[Path]:
    """Parts of the process that wrote last, oldest first; none if the folder holds no live record."""
    parts = [part for part in part_folders(folder) if (part / RUN_FILE).exists() and (part / SEGMENTS).is_dir()]
    metas = [(part, read_meta(part)) for part in parts]
    live = [(part, meta) for part, meta in metas if meta.source.get("kind") == LIVE]
    return [part for part, meta in live if meta.pid == live[-1][1].pid]


def load_live(folder: Path, *, last_s: float | None = None) -> RunRecord:
    """The remaining record of the process that wrote last, as one run; the last second may be missing.

    :param last_s: keep only requests that arrived in the last ``last_s`` seconds.
    :raises InputError: there is no request, or a part is damaged.
    """
    parts = live_parts(folder)
    if not parts:
        raise InputError(f"{folder}: found no record of load_runner(record=...); expected the folder that it writes")
    meta = read_meta(parts[-1])
    read: list[_Part] = []
    since = -(2**62)
    for part in reversed(parts):
        with damaged(part):
            read.insert(0, _Part(part, meta))
        arrivals = np.concatenate([each.requests["arrival_ns"] for each in read])
        if last_s is not None and len(arrivals):
            since = int(arrivals.max() - last_s * 1e9)
            if arrivals.min() < since:
                break
    return _joined(folder, meta, read, since)


class _Part:
    """One part; a torn end is left out."""

    def __init__(self, folder: Path, meta: RunMeta) -> None:
        segments, names = folder / SEGMENTS, segment_names(meta)
        self.requests = Segment(segments / "requests.bin", REQUEST_DTYPE, "index", names["requests"]).columns()
        self.batches = Segment(segments / "batches.bin", BATCH_DTYPE, "batch_id", names["batches"]).columns()
        self.events, self.samples, self.errors = segment_lines(segments)
        self.lines = _schedule_lines(segments / SCHEDULE_LINES)


def _schedule_lines(path: Path) -> dict[int, Sequence[Any]]:
    found: dict[int, Sequence[Any]] = {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        try:
            number, *rest = json.loads(line)
        except (ValueError, TypeError):  # only the last line, which may still be written
            continue
        found[int(number)] = rest
    return found


def _joined(folder: Path, meta: RunMeta, parts: Sequence[_Part], since_ns: int) -> RunRecord:
    requests = _stacked([part.requests for part in parts], "index")
    batches = _stacked([part.batches for part in parts], "batch_id")
    # A request's batch may be in a deleted part.
    keep = (requests["arrival_ns"] >= since_ns) & (
        (requests["batch_id"] < 0) | np.isin(requests["batch_id"], batches["batch_id"])
    )
    requests = {name: column[keep] for name, column in requests.items()}
    if not len(requests["index"]):
        raise InputError(f"{folder}: found no requests yet; expected some that have ended")
    order = np.lexsort((requests["index"], requests["arrival_ns"]))
    requests = {name: column[order] for name, column in requests.items()}
    used = np.isin(batches["batch_id"], requests["batch_id"])
    batches = {name: column[used] for name, column in batches.items()}
    numbers = requests["index"].copy()
    place = {number: k for k, number in enumerate(numbers.tolist())}
    requests["index"] = np.arange(len(numbers))
    begin = int(requests["arrival_ns"][0])
    events = _since(_stacked([part.events for part in parts], "t_ns"), begin)
    events["request"] = np.array([place.get(number, -1) for number in events["request"].tolist()], np.int64)
    traffic = _traffic(requests["arrival_ns"], numbers, {k: v for part in parts for k, v in part.lines.items()})
    RequestCheck(folder, len(traffic)).see(requests)
    check_batches(folder, batches)
    return RunRecord(
        folder=folder,
        meta=meta.updated(scheduled=len(traffic), sent=len(traffic)),
        requests=requests,
        batches=batches,
        events=events,
        samples=_since(_stacked([part.samples for part in parts], "t_ns"), begin),
        traffic=traffic,
        errors={place[k]: words for part in parts for k, words in part.errors.items() if k in place},
        begins=bool(numbers.min() == 0),
    )


def _stacked(parts: Sequence[Columns], key: str) -> Columns:
    stacked = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(stacked[key], kind="stable")
    return {name: column[order] for name, column in stacked.items()}


def _since(columns: Columns, begin_ns: int) -> Columns:
    """Rows since a time, plus ``cost.*``, which are written once per part, and each series' last reading before."""
    keep = columns["t_ns"] >= begin_ns
    if "series" in columns:
        keep |= np.array([str(name).startswith("cost.") for name in columns["series"]], dtype=bool)
        last = {name: k for k, name in enumerate(columns["series"].tolist()) if columns["t_ns"][k] < begin_ns}
        keep[list(last.values())] = True
    return {name: column[keep] for name, column in columns.items()}


def _traffic(arrival_ns: Any, numbers: Any, lines: Mapping[int, Sequence[Any]]) -> Traffic:
    """The schedule of these requests, from the lines that exist."""
    scheduled = [lines.get(number, ("", NORMAL, {})) for number in numbers.tolist()]
    names = sorted({name for _, _, features in scheduled for name in features})
    ids = [str(each[0]) or f"#{number}" for each, number in zip(scheduled, numbers.tolist(), strict=True)]
    return Traffic.plain(
        np.asarray(arrival_ns, dtype=np.int64),
        ids=_unique(ids),
        priority=np.array([int(each[1]) for each in scheduled], dtype=np.int8),
        features={name: _column([each[2].get(name) for each in scheduled]) for name in names},
    )


def _unique(ids: list[str]) -> list[str]:
    """Ids, with a number appended to repeated ones."""
    seen: dict[str, int] = {}
    found = []
    for name in ids:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _column(values: list[Any]) -> Any:
    if any(isinstance(value, str) for value in values):
        return np.array(values, dtype=object)
    return np.array([np.nan if value is None else float(value) for value in values])
