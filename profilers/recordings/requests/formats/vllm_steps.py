"""vLLM's iteration log: one line per step, among the other lines of the server's log.

``Iteration(7): 2 context requests, 7957 context tokens, 43 generation requests, 43 generation tokens, iteration
elapsed time: 1125.94 ms, …``, after the logger's ``INFO 11-22 10:00:00 [file.py:1]`` and, in newer versions,
``Engine 000:``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from latfix.errors import input_error
from latfix.profilers.recordings.requests.request_table import EngineSteps
from latfix.profilers.recordings.requests.text_source import LONGEST_NS, entry_of, lines_of

NAME = "vLLM iteration log"
_EXPECTED = "vLLM's log with its iterations"
_STEP = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([0-9.]+) ms"
)
_STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")


def knows(head: bytes) -> bool:
    """True if a step is among the first lines."""
    return _STEP.search(head.decode("utf-8", "replace")) is not None


def read(path: Path, *, year: int | None = None) -> EngineSteps:
    """The steps. Their ends are the log's times, to the second or better; without times, steps are put end to end.

    :param year: of times without one.
    :raises InputError: no line is a step.
    """
    ends: list[int] = []
    lengths: list[int] = []
    prefill: list[int] = []
    streams: list[int] = []
    dated = True
    for number, line in lines_of(path):
        step = _STEP.search(line)
        if step is None:
            continue
        stamp = _STAMP.search(line[: step.start()])
        dated &= stamp is not None
        with entry_of(path, "a step", _EXPECTED, number):
            ends.append(_instant(stamp, year) if stamp is not None else 0)
            lengths.append(min(round(float(step[6]) * 1e6), LONGEST_NS))
            prefill.append(min(int(step[3]), LONGEST_NS))
            streams.append(min(int(step[4]), LONGEST_NS))
    if not ends:
        raise input_error(path, None, "no line with Iteration(N)", _EXPECTED)
    length = np.array(lengths, np.int64)
    end = np.array(ends, np.int64) if dated else np.cumsum(length)
    return EngineSteps(
        end_ns=end, length_ns=length, prefill_tokens=np.array(prefill, np.int64), streams=np.array(streams, np.int64)
    )


def _instant(stamp: re.Match[str], year: int | None) -> int:
    when = int(stamp[1]) if stamp[1] else year or datetime.now(UTC).year
    month, day, hour, minute, second = (int(stamp[k]) for k in range(2, 7))
    if not stamp[1] and (month, day) == (2, 29):
        when -= when % 4  # the latest year with this day
    moment = datetime(when, month, day, hour, minute, second, tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int((stamp[7] or "0").ljust(9, "0"))
