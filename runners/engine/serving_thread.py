"""The thread of one worker: its warm-up, captures, measurements and every replay run on it, one after the other.

Libraries keep state by thread: torch the plans of cuDNN for each shape, cuBLAS its workspaces, OpenMP its pool,
malloc its arena. After a warm-up on another thread, requests would pay for that again: 20 ms for each new shape of a
small convolutional network on an H200 (docs/gpu.md). An executor of the standard library would not do: it waits for a
model that hangs when the process ends, and hides what kills a worker.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

T = TypeVar("T")
#: The name of a thread that waits for work.
IDLE = "latfix-idle"
Jobs: TypeAlias = "queue.SimpleQueue[Job | None]"


class Job:
    """Work for a :class:`ServingThread`."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work: Callable[[], None] | None = work
        self._name = name
        #: Its thread's id in the kernel; 0 before it has begun.
        self.native_id = 0
        self._ended = threading.Event()
        #: It raised, which ends its thread.
        self.died = False

    @property
    def ended(self) -> bool:
        """It has returned or raised."""
        return self._ended.is_set()

    def join(self) -> None:
        """Wait until it has ended."""
        self._ended.wait()

    def do(self) -> None:
        """Do the work on the calling thread. What it raises ends the thread, like an error on a thread of its own."""
        thread = threading.current_thread()
        thread.name, self.native_id = self._name, threading.get_native_id()
        work, self._work = self._work, None  # an ended job keeps nothing alive
        assert work is not None, "it is done once"
        try:
            work()
        except BaseException:
            self.died = True
            raise
        finally:
            self._ended.set()


class ServingThread:
    """A thread that outlives each piece of work; it ends when told to, at the latest with this object.

    While a piece still runs, hanging in the model for example, the next one gets a thread of its own.
    """

    def __init__(self) -> None:
        self._jobs: Jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Job | None = None
        self._lock = threading.Lock()

    def start(self, work: Callable[[], None], name: str) -> Job:
        """Begin some work; returns at once.

        :param name: the thread's meanwhile.
        """
        job = Job(work, name)
        with self._lock:
            if self._last is not None and not self._last.ended:
                threading.Thread(target=job.do, name=name, daemon=True).start()
                return job
            if self._thread is None or (self._last is not None and self._last.died):
                self._jobs = queue.SimpleQueue()
                weakref.finalize(self, self._jobs.put, None)
                self._thread = threading.Thread(target=_loop, args=(self._jobs,), name=name, daemon=True)
                self._thread.start()
            self._last = job
            self._jobs.put(job)
        return job

    def end(self) -> None:
        """End the thread, after the work that it does; more work would begin another."""
        with self._lock:
            thread, self._thread = self._thread, None
            idle = self._last is None or self._last.ended
            self._jobs.put(None)
        if thread is not None and idle:
            thread.join()

    def run(self, work: Callable[[], T], name: str) -> T:
        """The result of some work, or the exception that it raised."""
        result = Future[T]()

        def keep() -> None:
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised to the caller
                result.set_exception(error)

        self.start(keep, name)
        return result.result()


def _loop(jobs: Jobs) -> None:
    """Do jobs until ``None``; without a reference to the object whose end ends it, nor to a job that is done."""
    while (job := jobs.get()) is not None:
        job.do()
        del job
        threading.current_thread().name = IDLE
