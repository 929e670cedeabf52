"""A plan in a user's own service: the measured engine, answering callers instead of a replay."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from latfix.config.plan import Plan
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import RunnerError
from latfix.profilers.probes.ring_recorder import RecordedRing, RingRecorder
from latfix.request import Request
from latfix.runners.engine.worker import Outcome
from latfix.runners.host.start_environment import Variable
from latfix.runners.live.intake import Call, Intake
from latfix.runners.live.live_record import LiveRecord
from latfix.runners.live.requests import LONGEST_MS, RequestReader, RequestShed, RequestTimedOut, RunnerClosed
from latfix.runners.live.stats import RunnerStats, window_figures
from latfix.runners.replay.run_facts import RunFacts
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

WhenFull = Literal["shed", "wait"]

#: Number of ended requests that :meth:`Runner.stats` covers.
WINDOW = 4096
#: How long :meth:`Runner.close` waits for requests inside, and then for threads.
CLOSE_S = 30.0
_THREADS_S = 5.0
#: How often to check for dead threads, and to collect garbage if the runner does that.
_WATCH_S = 0.25
#: Presented to the engine for a request that was given up: its deadline has passed, so the engine drops it.
_GONE_MS = 1e-6
_GONE = Request(id="", arrival_s=0.0, deadline_ms=_GONE_MS)


class Runner:
    """Serves requests in this process, from any number of threads and event loops. Made by :func:`load_runner`.

    It uses the engine of a replay: the same threads, queue, batcher, workers, admission and accounting. It holds at
    most ``slots`` requests, in memory allocated at the start. Close it, or use it as a plain or asynchronous context
    manager.

    :ivar plan: the plan in use, if any.
    :ivar settings: the workload's settings with those of the plan and the overrides applied.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        service: Service,
        *,
        plan: Plan | None,
        evidence: Mapping[str, Any],
        environment: list[Variable],
        slots: int,
        when_full: WhenFull,
        record: LiveRecord | None = None,
    ) -> None:
        self.workload = spec.name
        self.plan = plan
        self.settings: RunnerSettings = service.settings
        self._service = service
        self._evidence = evidence
        self._environment = environment
        self._may_wait = when_full == "wait"
        self._started_ns = time.perf_counter_ns()
        self._reader = RequestReader(spec.traffic_map, self._started_ns)
        # One slot more than the service's own limit, so that the service's limit decides.
        self.slots = max(slots, self.settings.max_queue + 1) if self.settings.max_queue else slots
        self._record = record
        self._recorder = RingRecorder(self.slots, WINDOW) if record is None else RecordedRing(self.slots, WINDOW)
        self._recorder.t0_ns = self._started_ns
        self._intake = Intake(self._recorder, self.slots)
        self._engine = service.engine(self._recorder, self._request_of, self._on_done, given_up=self._given_up)
        self._counting = threading.Lock()
        self._starting = threading.local()
        self._pid = os.getpid()
        self._closing = threading.Lock()
        self._closed = self._ended = False
        self._failure = ""
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="latfix-watch", daemon=True)
        self._engine.start()
        self._facts = RunFacts(service, self._engine)
        self._begin()
        self._watcher.start()
        # Threads in native code while the interpreter ends can kill the process with a signal.
        atexit.register(self.close, timeout_s=0.0)

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Serve requests one at a time on the serving threads, as before a replay; they are not counted.

        :raises RunnerError: none of them succeeded.
        """
        patient = (replace(request, deadline_ms=LONGEST_MS) for request in requests)
        errors = [self.submit(request).exception() for request in patient]
        if errors and None not in errors:
            raise RunnerError(f"warm-up: none of {len(errors)} requests succeeded; {errors[0]}")
        self._engine.drain()
        self._begin()

    def start_record(self) -> None:
        """Start the record, if one was requested."""
        if self._record is not None and isinstance(self._recorder, RecordedRing):
            self._begin()
            self._record.begin(self._recorder, self._engine)

    async def infer(self, request: Request | Mapping[str, Any]) -> Any:
        """The result of the adapter's ``finish`` for this request; other tasks of the event loop run meanwhile.

        Cancelling the task gives the request up: if it has not reached the model, it never will.

        :param request: a :class:`latfix.Request`, or a mapping (:meth:`RequestReader.read
            <latfix.runners.live.requests.RequestReader.read>`), whose id and arrival are filled in.
        :raises RequestFailed: ``prepare``, the model or ``finish`` raised.
        :raises RequestTimedOut: its ``deadline_ms``, or ``timeout_ms`` of the settings, has passed.
        :raises RequestShed: it was not admitted.
        :raises RunnerClosed: the runner no longer serves.
        :raises InputError: the mapping is not a valid request.
        """
        call = self._send(request)
        answer = asyncio.wrap_future(call.future)
        left_s = call.left_s
        if left_s is None:
            return await answer
        try:
            async with asyncio.timeout(left_s):
                return await answer
        except TimeoutError:
            raise _late(call) from None

    def infer_sync(self, request: Request | Mapping[str, Any]) -> Any:
        """Like :meth:`infer`, but blocks the calling thread. Never call it in an event loop."""
        call = self._send(request)
        try:
            return call.future.result(call.left_s)
        except TimeoutError:
            raise _late(call) from None
        finally:
            call.future.cancel()  # however the wait ended; no effect on an answered request

    def submit(self, request: Request | Mapping[str, Any]) -> concurrent.futures.Future[Any]:
        """Hand a request over and return at once a future of what :meth:`infer` returns or raises.

        A missed deadline is reported when the engine reaches the request.
        """
        return self._send(request).future

    def stats(self) -> RunnerStats:
        """Counts, and latencies of the latest requests. Takes a few milliseconds, off the request path."""
        with self._counting:
            requests = dict(self._requests)
        return RunnerStats(
            uptime_s=(time.perf_counter_ns() - self._started_ns) / 1e9,
            requests=requests,
            in_flight=self._intake.inside,
            queued=len(self._engine.queue),
            waiting=self._intake.waiting,
            **window_figures(self.recent()),
        )

    def recent(self) -> npt.NDArray[Any]:
        """The latest requests as a replay records them: :data:`schema.REQUEST_DTYPE` rows, oldest first."""
        return self._recorder.recent()

    def evidence(self) -> dict[str, Any]:
        """What took effect, as fixes verify it (:meth:`latfix.runners.service.loaded_service.Service.evidence`).

        Whatever needs a forward pass, such as kernels by type, was gathered when the runner was loaded. The rest is
        current: batch counters, compilations and pool misses in requests, the collector, memory, placement of
        threads, and ``environment`` by variable. Takes some tens of milliseconds.
        """
        hits, misses = self._service.models.pool_counts()
        self._facts.end()
        return {
            **self._facts.found,
            **self._evidence,
            **self._service.evidence(no_traffic()),
            "torch_threads": self._evidence["torch_threads"],  # counted per thread: the caller's own is meaningless
            "compilations_in_run": self._service.compiles.count - self._compiled,
            "pool_hits": hits - self._pooled[0],
            "pool_misses": misses - self._pooled[1],
            "threads": self._engine.thread_ids(),
            "environment": {
                item.name: {"wanted": item.wanted, "in_effect": item.in_effect, "why_not": item.why_not}
                for item in self._environment
            },
        }

    @property
    def serving(self) -> bool:
        """True if it accepts requests: it is neither closed nor failed, and this process is not a fork."""
        return not self._closed and not self._failure and os.getpid() == self._pid

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Accept no more requests, wait for those inside, and end the threads. A second call has no effect.

        Callers that still wait after ``timeout_s`` seconds get :class:`~latfix.runners.live.requests.RunnerClosed`.
        """
        if os.getpid() != self._pid:  # in a fork, the threads belong to the parent
            return
        with self._closing:
            if self._ended:
                return
            self._closed = True
            self._intake.close("the runner was closed")
            drained = self._drain(timeout_s)
            self._over.set()
            self._watcher.join()
            if self._record is not None:
                self._record.close()
            if drained and not self._engine.ended_threads():
                self._engine.shutdown()
            else:
                self._refuse_all("the runner was closed")
                self._engine.abandon(_THREADS_S)
            self._service.release()
            atexit.unregister(self.close)
            self._ended = True

    async def aclose(self, timeout_s: float = CLOSE_S) -> None:
        """Like :meth:`close`, while other tasks of the event loop run."""
        await asyncio.to_thread(self.close, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _begin(self) -> None:
        """Reset all counters."""
        self._requests = dict.fromkeys(("ok", "error", "timeout", "shed", "cancelled"), 0)
        self._recorder.forget()
        self._compiled, self._pooled = self._service.compiles.count, self._service.models.pool_counts()
        self._facts.begin()

    def _send(self, given: Request | Mapping[str, Any]) -> Call:
        arrival_ns = time.perf_counter_ns()
        request = self._reader.read(given, arrival_ns)
        limit_ms = self.settings.timeout_ms if request.deadline_ms is None else request.deadline_ms
        call = Call(request, arrival_ns, limit_ms)
        if os.getpid() != self._pid:
            raise call.error(RunnerClosed, "this process is a fork of the runner's; load a runner in each process")
        row = self._intake.enter(call, may_wait=self._may_wait)
        if row is not None:
            self._engine.submit(row)
        elif self._may_wait:
            call.future.add_done_callback(functools.partial(self._left_line, call))
        else:
            self._count("shed")
            raise call.error(RequestShed, f"shed: {self.slots} requests are inside, the maximum (slots)")
        return call

    def _request_of(self, row: int) -> Request:
        call = self._intake.at(row)
        if call is None:
            return _GONE
        return replace(call.request, deadline_ms=_GONE_MS) if call.future.cancelled() else call.request

    def _given_up(self, row: int) -> bool:
        """True if no caller waits for the request in a row any more."""
        call = self._intake.at(row)
        return call is None or call.future.cancelled()

    def _on_done(self, row: int, outcome: Outcome) -> None:
        number = self._recorder.index_of(row)
        call = self._intake.leave(row)
        if call is not None:
            if self._record is not None:
                self._record.ended(number, call.request)
            self._count(call.answer(outcome))
        if self._intake.waiting:
            self._start_waiting()

    def _start_waiting(self) -> None:
        """Admit callers in line. A nested call, from one that ends at once, leaves the work to the outer loop."""
        if getattr(self._starting, "under_way", False):
            return
        self._starting.under_way = True
        try:
            while (following := self._intake.next()) is not None:
                row, call = following
                if row is None:
                    self._count(call.gave_up())
                else:
                    self._engine.submit(row)
        finally:
            self._starting.under_way = False

    def _left_line(self, call: Call, future: concurrent.futures.Future[Any]) -> None:
        if future.cancelled() and self._intake.drop(call):
            self._count(call.gave_up())

    def _count(self, ended: str) -> None:
        with self._counting:
            self._requests[ended] += 1

    def _watch(self) -> None:
        collector = self._service.collector
        while not self._over.wait(_WATCH_S):
            if dead := self._engine.ended_threads():
                self._fail(f"thread {dead[0]} of the runner died; standard error has its traceback; load a new one")
                return
            # As in a replay, batches trigger collections; a service also needs them while there are no requests.
            if collector is not None and not self._engine.in_flight:
                collector.between_batches(idle=True)

    def _fail(self, why: str) -> None:
        self._failure = why
        self._intake.close(why)
        self._refuse_all(why)

    def _refuse_all(self, why: str) -> None:
        for call in self._intake.take_all():
            self._count("error" if call.refuse(call.error(RunnerClosed, why)) else "cancelled")

    def _drain(self, timeout_s: float) -> bool:
        """Wait until no request is inside; a dead thread's requests are not waited for."""
        deadline = time.monotonic() + timeout_s
        while not self._intake.empty.wait(min(_WATCH_S, max(deadline - time.monotonic(), 0.0))):
            if self._failure or time.monotonic() >= deadline:
                return False
        return not self._failure


def no_traffic() -> Traffic:
    """Traffic without requests."""
    return Traffic.plain(np.zeros(0, dtype=np.int64))


def _late(call: Call) -> RequestTimedOut:
    return call.error(RequestTimedOut, f"its deadline of {call.limit_ms:g} ms passed")
