"""The stage recorder of a service without end: rows are used again, and the latest of them stay readable."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Ints
from latfix.profilers.probes.stage_recorder import StageRecorder


class RingRecorder(StageRecorder):
    """Stamps of the requests that are inside and of those that ended last, in columns that never grow.

    Rows leave in the order in which they were given back. With ``window`` + 2 × ``inside`` of them, a row is opened
    again at the earliest when ``window`` more requests have ended, so that the latest ``window`` are always whole.
    The same holds for batches: each request is in two at most, the one that failed and its own.

    :param inside: most requests that are open at once.
    :param window: how many ended requests :meth:`recent` returns.
    """

    #: A batch's row is used again as soon as it has ended.
    defers = False

    def __init__(self, inside: int, window: int) -> None:
        super().__init__(window + 2 * inside)
        self.window = window
        self._free = deque(range(self.slots))
        self._request_views = tuple(self._views.values())
        self._free_batches = deque(range(len(self._batches["batch_id"])))
        self._batch_views = tuple(self.batch.values())
        # What has ended is not drained to a disk: the oldest falls off.
        self._done = deque(maxlen=window)
        self._done_batches = deque(maxlen=1)

    def open(self, arrival_ns: int) -> int:
        """A row for a request that arrived at ``arrival_ns``; :meth:`give_back` ends its use.

        :raises IndexError: more than ``inside`` are open.
        """
        slot = self._free.popleft()
        for view in self._request_views:
            view[slot] = 0
        self.batch_id[slot] = self.prepare_thread[slot] = -1
        self.scheduled_ns[slot] = arrival_ns
        return slot

    def give_back(self, slot: int) -> None:
        """Nobody writes to the row any more."""
        self._free.append(slot)

    def new_batch(self) -> int:
        """A row for the next batch."""
        batch_id = self._free_batches.popleft()
        for view in self._batch_views:
            view[batch_id] = 0
        return batch_id

    def batch_done(self, batch_id: int, finish_end_ns: int) -> None:
        """The last member of a batch was finished: its row is complete, and free."""
        super().batch_done(batch_id, finish_end_ns)
        self._free_batches.append(batch_id)

    def forget(self) -> None:
        """Nobody asks for what has ended so far: :meth:`recent` begins anew."""
        self._done.clear()

    def recent(self) -> npt.NDArray[Any]:
        """Rows of :data:`latfix.run_record.schema.REQUEST_DTYPE` of the requests that ended last, oldest first.

        ``index`` is a row's place in the ring, ``batch_id`` its batch's.
        """
        slots = np.array(self._done.copy(), dtype=np.int64)  # a copy at once: requests go on ending
        ends = self._columns["end"][slots]
        rows = self._rows(slots)
        # A row that was opened again meanwhile has another end, or none.
        whole: npt.NDArray[Any] = rows[(self._columns["end"][slots] == ends) & (ends != 0)]
        return whole


class RecordedRing(RingRecorder):
    """A ring whose rows also go to a disk: each request and each batch has a number of its own, in order of arrival.

    Rows that were used again before they were drained, ``window`` requests later, are left out.
    """

    def __init__(self, inside: int, window: int) -> None:
        super().__init__(inside, window)
        self._numbers = itertools.count()
        self._number = np.zeros(self.slots, dtype=np.int64)
        self._round = np.zeros(len(self._batches["batch_id"]), dtype=np.int64)
        self._fresh: deque[int] = deque(maxlen=window)
        self._done_batches = deque(maxlen=window)

    def open(self, arrival_ns: int) -> int:
        """A row for a request that arrived at ``arrival_ns``, and the request's number."""
        slot = super().open(arrival_ns)
        self._number[slot] = next(self._numbers)
        return slot

    def index_of(self, slot: int) -> int:
        """The number of the request in a row."""
        return int(self._number[slot])

    def new_batch(self) -> int:
        """A row for the next batch, and the batch's number."""
        batch_id = super().new_batch()
        self._round[batch_id] += 1
        return batch_id

    def request_done(self, slot: int, status: int, end_ns: int) -> None:
        """A request ended, and waits for the next drain."""
        super().request_done(slot, status, end_ns)
        self._fresh.append(slot)

    def forget(self) -> None:
        """What has ended so far goes to no disk either."""
        super().forget()
        self._fresh.clear()
        self._done_batches.clear()

    def drain_requests(self) -> npt.NDArray[Any]:
        """Rows of requests that ended since the last call, by their numbers and their batches'."""
        slots = np.array([self._fresh.popleft() for _ in range(len(self._fresh))], dtype=np.int64)
        rows = self._rows(slots)
        rows["index"] = self._number[slots]
        rows["batch_id"] = np.where(rows["batch_id"] >= 0, self._batch_numbers(rows["batch_id"]), -1)
        return rows

    def drain_batches(self) -> npt.NDArray[Any]:
        """Rows of batches that ended since the last call, by their numbers."""
        rows = super().drain_batches()
        rows["batch_id"] = self._batch_numbers(rows["batch_id"])
        return rows

    def _batch_numbers(self, batch_ids: Ints) -> Ints:
        return np.asarray(self._round[batch_ids] * len(self._round) + batch_ids)
