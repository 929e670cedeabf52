"""The stage recorder of a live service: rows are reused, and the latest stay readable."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Ints
from latfix.profilers.probes.stage_recorder import StageRecorder


class RingRecorder(StageRecorder):
    """Stamps of open requests and of the last ended ones, in columns of fixed size.

    Rows are reused in the order of their release. With ``window`` + 2 × ``inside`` rows, a row is reused only after
    ``window`` more requests have ended, so the latest ``window`` are always intact. The same holds for batches: a
    request is in at most two, one that failed and its own.

    :param inside: most open requests.
    :param window: number of ended requests that :meth:`recent` returns.
    """

    #: A batch's row is reused as soon as it has ended.
    defers = False

    def __init__(self, inside: int, window: int) -> None:
        super().__init__(window + 2 * inside)
        self.window = window
        self._free = deque(range(self.slots))
        self._request_views = tuple(self._views.values())
        self._free_batches = deque(range(len(self._batches["batch_id"])))
        self._batch_views = tuple(self.batch.values())
        # Ended requests are not drained to a disk: the oldest are dropped.
        self._done = deque(maxlen=window)
        self._done_batches = deque(maxlen=1)

    def open(self, arrival_ns: int) -> int:
        """A row for a request that arrived at ``arrival_ns``; release it with :meth:`give_back`.

        :raises IndexError: more than ``inside`` are open.
        """
        slot = self._free.popleft()
        for view in self._request_views:
            view[slot] = 0
        self.batch_id[slot] = self.prepare_thread[slot] = -1
        self.scheduled_ns[slot] = arrival_ns
        return slot

    def give_back(self, slot: int) -> None:
        """Release a row after the last write to it."""
        self._free.append(slot)

    def new_batch(self) -> int:
        """A row for the next batch."""
        batch_id = self._free_batches.popleft()
        for view in self._batch_views:
            view[batch_id] = 0
        return batch_id

    def batch_done(self, batch_id: int, finish_end_ns: int) -> None:
        """Complete and release a batch's row, after its last member was finished."""
        super().batch_done(batch_id, finish_end_ns)
        self._free_batches.append(batch_id)

    def forget(self) -> None:
        """Discard all ended requests: :meth:`recent` starts empty."""
        self._done.clear()

    def recent(self) -> npt.NDArray[Any]:
        """Rows of :data:`latfix.run_record.schema.REQUEST_DTYPE` of the last ended requests, oldest first.

        ``index`` is a row's place in the ring, ``batch_id`` its batch's.
        """
        slots = np.array(self._done.copy(), dtype=np.int64)  # copied first, as requests keep ending
        ends = self._columns["end"][slots]
        rows = self._rows(slots)
        # A row that was reused meanwhile has another end, or none.
        whole: npt.NDArray[Any] = rows[(self._columns["end"][slots] == ends) & (ends != 0)]
        return whole


class RecordedRing(RingRecorder):
    """A ring whose rows are also written to disk: requests and batches have consecutive numbers.

    Rows that were reused before they were drained, ``window`` requests later, are left out.
    """

    def __init__(self, inside: int, window: int) -> None:
        super().__init__(inside, window)
        self._numbers = itertools.count()
        self._number = np.zeros(self.slots, dtype=np.int64)
        self._round = np.zeros(len(self._batches["batch_id"]), dtype=np.int64)
        self._fresh: deque[int] = deque(maxlen=window)
        self._done_batches = deque(maxlen=window)

    def open(self, arrival_ns: int) -> int:
        """A row for a request that arrived at ``arrival_ns``; also numbers the request."""
        slot = super().open(arrival_ns)
        self._number[slot] = next(self._numbers)
        return slot

    def index_of(self, slot: int) -> int:
        """The number of the request in a row."""
        return int(self._number[slot])

    def new_batch(self) -> int:
        """A row for the next batch; also numbers the batch."""
        batch_id = super().new_batch()
        self._round[batch_id] += 1
        return batch_id

    def request_done(self, slot: int, status: int, end_ns: int) -> None:
        """A request ended; it is kept for the next drain."""
        super().request_done(slot, status, end_ns)
        self._fresh.append(slot)

    def forget(self) -> None:
        """Discard all ended requests and batches, also for the disk."""
        super().forget()
        self._fresh.clear()
        self._done_batches.clear()

    def drain_requests(self) -> npt.NDArray[Any]:
        """Rows of requests that ended since the last call, by their numbers and their batches'."""
        slots = np.array([self._fresh.popleft() for _ in range(len(self._fresh))], dtype=np.int64)
        rows = self._rows(slots)
        rows["index"] = self._number[slots]
        rows["batch_id"] = np.where(rows["batch_id"] >= 0, self._batch_numbers(rows["batch_id"]), -1)
        # Before a request is handed over, its caller waits in line for a slot: for the service, not for latfix.
        line = np.where(rows["prepare_thread"] >= 0, rows["dispatch_ns"], 0)
        rows["dispatch_ns"] -= line
        for name in ("prepare_ns", "prepare_wait_ns"):
            rows[name] += line
        return rows

    def drain_batches(self) -> npt.NDArray[Any]:
        """Rows of batches that ended since the last call, by their numbers."""
        rows = super().drain_batches()
        rows["batch_id"] = self._batch_numbers(rows["batch_id"])
        return rows

    def _batch_numbers(self, batch_ids: Ints) -> Ints:
        return np.asarray(self._round[batch_ids] * len(self._round) + batch_ids)
