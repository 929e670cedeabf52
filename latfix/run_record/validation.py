"""Invariants of every record: each request once, stages that add up, and documents of sane numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from latfix.errors import InputError
from latfix.files.strict_json import MALFORMED
from latfix.run_record.schema import Columns
from latfix.stages import STAGES, STATUS_NAMES

#: Most warm-up requests that a runner can be set to send.
_MOST_WARMUP = 1_000_000
_LARGEST_BATCH = 4096
#: With continuous batching, each place of a worker counts as one.
_MOST_WORKERS = 256 * _LARGEST_BATCH
_DEEPEST = 50
_LARGEST_NUMBER = 2**63
#: Two years: sums over all requests of a run then fit into 64 bits.
_LONGEST_NS = 2**56


@contextlib.contextmanager
def damaged(where: Path) -> Iterator[None]:
    """Convert exceptions from a record's content into a one-line message.

    :param where: the folder or file that is read.
    :raises InputError: its content is not what latfix writes.
    """
    try:
        yield
    except MALFORMED as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{where}: found a damaged record ({type(error).__name__}: {reason}); expected what latfix wrote"
        ) from error


class RequestCheck:
    """Validates a run's requests, some at a time, in order.

    :param where: the run's folder.
    :param scheduled: requests of its schedule.
    :ivar measured: requests seen so far that are not warm-up.
    """

    def __init__(self, where: Path, scheduled: int) -> None:
        self._where, self._scheduled = where, scheduled
        self._last = -(2**62)
        self.measured = 0

    def see(self, rows: Columns) -> None:
        """Check the next rows.

        :param rows: ``index``, ``status``, ``latency_ns`` and the stages at least.
        :raises InputError: naming the first row that is invalid.
        """
        index = rows["index"]
        if not len(index):
            return
        self._see_index(index)
        total = np.sum([rows[f"{stage}_ns"] for stage in STAGES], axis=0)
        if (wrong := total != rows["latency_ns"]).any():
            k = int(np.argmax(wrong))
            raise self._refusal(
                f"request {index[k]} with latency_ns {rows['latency_ns'][k]}; "
                f"expected {total[k]}, the sum of its stages"
            )
        status = rows["status"]
        if (wrong := (status < 0) | (status >= len(STATUS_NAMES))).any():
            k = int(np.argmax(wrong))
            raise self._refusal(f"request {index[k]} with status {status[k]}; expected what latfix wrote")
        self.measured += int(np.count_nonzero(index >= 0))

    def _see_index(self, index: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        before = np.concatenate([[self._last], index[:-1]])
        if (wrong := index <= before).any():
            k = int(np.argmax(wrong))
            again = f"request {index[k]} twice; expected each request once"
            order = f"request {index[k]} after request {before[k]}; expected them in order"
            raise self._refusal(again if index[k] == before[k] else order)
        if index[0] < -_MOST_WARMUP:
            raise self._refusal(f"request {index[0]}; expected at most {_MOST_WARMUP} of warm-up")
        if index[-1] >= self._scheduled:
            raise self._refusal(
                f"request {index[-1]}, which is not in traffic.parquet; expected one of its {self._scheduled}"
            )
        self._last = int(index[-1])

    def _refusal(self, found: str) -> InputError:
        return InputError(f"{self._where}: found {found}")


def check_batches(where: Path, batches: Columns) -> None:
    """Validate that every batch occurs once, with a possible size and worker.

    :param batches: ``batch_id``, ``size`` and, if recorded, ``worker``, sorted by id.
    :raises InputError: naming the first that is invalid.
    """
    ids, size = batches["batch_id"], batches["size"]
    if not len(ids):
        return
    if (wrong := np.diff(ids) <= 0).any():
        raise InputError(f"{where}: found batch {ids[int(np.argmax(wrong)) + 1]} twice; expected each batch once")
    if not 1 <= size.min() <= size.max() <= _LARGEST_BATCH:
        odd = size.max() if size.max() > _LARGEST_BATCH else size.min()
        raise InputError(f"{where}: found a batch of {odd}; expected what latfix wrote")
    worker = batches.get("worker", np.zeros(1, np.int64))
    if not 0 <= worker.min() <= worker.max() < _MOST_WORKERS:
        odd = worker.min() if worker.min() < 0 else worker.max()
        raise InputError(f"{where}: found a batch of worker {odd}; expected what latfix wrote")
    check_times(where, batches)


def check_times(where: Path, batches: Columns) -> None:
    """Validate that no time of a batch is longer than a run can be.

    :param batches: any columns; those whose names end in ``_ns`` are nanoseconds.
    :raises InputError: naming the first column in which one is.
    """
    for name, values in batches.items():
        if name.endswith("_ns") and len(values):
            odd = values.max() if values.max() >= _LONGEST_NS else values.min()
            if abs(int(odd)) >= _LONGEST_NS:
                raise InputError(f"{where}: found a batch with {name} {odd}; expected what latfix wrote")


def check_detail(where: Path, detail: object) -> None:
    """Validate that the detail of an event is a JSON object that can be read.

    :param where: the file of the events.
    :raises InputError: it is not.
    """
    if not isinstance(detail, dict):
        raise InputError(f"{where}: found {str(detail)[:40]} as detail of an event; expected a JSON object")
    check_document(where, detail, "detail")


def check_document(where: Path | str, value: object, key: str = "", depth: int = 0) -> None:
    """Validate that a JSON document is not nested too deep, and that its numbers can be calculated with.

    :param where: its file, or what it describes.
    :raises InputError: naming the invalid key.
    """
    if depth > _DEEPEST:
        raise InputError(f"{where}: found values nested more than {_DEEPEST} deep; expected what latfix wrote")
    if isinstance(value, dict):
        for name, inner in value.items():
            check_document(where, inner, f"{key}.{name}" if key else name, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check_document(where, inner, key, depth + 1)
    elif isinstance(value, int | float) and (abs(value) > _LARGEST_NUMBER or math.isnan(value)):
        raise InputError(f"{where}: found {key} = {str(value)[:40]}; expected a number of at most 2^63")
