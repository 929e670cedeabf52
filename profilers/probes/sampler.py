"""Periodic readings of machine and process on separate threads; each poll's duration is logged."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from latfix.profilers.probes.kept_files import KeptOpen
from latfix.profilers.probes.own_thread import OwnThread
from latfix.profilers.probes.stage_recorder import EventLog, SampleLog
from latfix.profilers.probes.thread_counters import ThreadCounters
from latfix.run_record.schema import PACE, THREAD_ACCOUNT

Reading = dict[str, float]

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: A longer poll is logged as an event: a slow probe is a cause (``observer``).
SPIKE_NS = 1_000_000
#: Seconds between readings of the machine's pace; a reading takes about 0.1 ms.
PACE_S = 0.05
_PACE_NUMBERS = 600
_RUNQ = THREAD_ACCOUNT.index("runq_ns")
#: Time of all cores of the machine in use, and taken by its hypervisor.
BUSY_SERIES, STOLEN_SERIES = "host.cpu_busy_ns", "host.steal_ns"
#: Time of this process on cores. Of its Python threads by name, time on cores and run-queue delay:
#: ``thread.NAME.cpu_ns``, ``thread.NAME.runq_ns``.
PROCESS_CPU, THREAD_SERIES, THREAD_CPU, THREAD_RUN_QUEUE = "process.cpu_ns", "thread.", ".cpu_ns", ".runq_ns"


@dataclass(frozen=True, slots=True)
class Probe:
    """A periodic reading.

    :param name: in ``poll.<name>_ns`` and in the run's list of probes.
    :param period_s: seconds between polls.
    :param read: returns values by series.
    :param in_driver: it calls a driver, which may sleep with a lock that the service's own calls need.
    """

    name: str
    period_s: float
    read: Callable[[], Reading]
    in_driver: bool = False


class Sampler(OwnThread):
    """Polls a group of probes on one thread.

    :param probes: polled in turn; the thread wakes at the shortest period.
    """

    def __init__(self, probes: list[Probe], samples: SampleLog, events: EventLog, *, name: str) -> None:
        super().__init__(name)
        self._probes, self._samples, self._events = probes, samples, events
        self._counters: ThreadCounters | None = None
        self.polls: dict[str, list[int]] = {probe.name: [] for probe in probes}

    def __enter__(self) -> Self:
        return super().__enter__() if self._probes else self

    def _run(self) -> None:
        due = {probe.name: time.monotonic() for probe in self._probes}
        shortest = min(probe.period_s for probe in self._probes)
        while True:
            now = time.monotonic()
            for probe in self._probes:
                if due[probe.name] <= now:
                    due[probe.name] += probe.period_s
                    self._poll(probe)
            self.cpu_ns = time.thread_time_ns()
            if self._stop.wait(max(0.001, shortest - (time.monotonic() - now))):
                for probe in self._probes:
                    self._poll(probe)
                return

    def _queued_ns(self) -> int:
        """Run-queue delay of this thread so far."""
        if self._counters is None:
            self._counters = ThreadCounters()
        return self._counters.snapshot()[_RUNQ]

    def _poll(self, probe: Probe) -> None:
        start = time.perf_counter_ns()
        cpu, queued = time.thread_time_ns(), self._queued_ns() if probe.in_driver else 0
        reading = probe.read()
        end = time.perf_counter_ns()
        for series, value in reading.items():
            self._samples.add(start, series, float(value))
        self._samples.add(start, f"poll.{probe.name}_ns", float(end - start))
        self.polls[probe.name].append(end - start)
        # A poll delays others only if it used the CPU, or slept in a driver with its lock. One that waited for a core
        # is itself delayed.
        spent = end - start - (self._queued_ns() - queued) if probe.in_driver else time.thread_time_ns() - cpu
        if spent > SPIKE_NS:
            thread = threading.get_native_id()
            self._events.add("spike", start, end - start, thread=thread, detail={"probe": probe.name})


def host_reader() -> Callable[[], Reading]:
    """Machine-wide busy and stolen time, from ``/proc/stat``."""
    file = KeptOpen("/proc/stat", size=256)  # the first line is enough

    def read() -> Reading:
        fields = [int(field) for field in file.read().split(b"\n", 1)[0].split()[1:]]
        busy = sum(fields[:3]) + sum(fields[5:8])
        steal = fields[7] if len(fields) > 7 else 0
        return {BUSY_SERIES: busy * _TICK_NS, STOLEN_SERIES: steal * _TICK_NS}

    return read


def pace_reader() -> Callable[[], Reading]:
    """The machine's pace: on-CPU time of a small fixed computation, without waiting for a core.

    It takes longer when the processor clocks lower, another tenant uses the core's second thread or the caches, or
    the hypervisor takes the core away. The computation is a compression: it branches and reads memory as ordinary
    code does, and runs without the interpreter lock.
    """
    text = " ".join(str(k * k % 9973) for k in range(_PACE_NUMBERS)).encode()

    def read() -> Reading:
        begun = time.thread_time_ns()
        zlib.compress(text)
        return {PACE: time.thread_time_ns() - begun}

    return read


def process_reader() -> Callable[[], Reading]:
    """This process's CPU time, resident memory, page faults, and Python's allocated memory blocks."""
    file = KeptOpen("/proc/self/statm")

    def read() -> Reading:
        resident = int(file.read().split()[1]) * _PAGE
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            PROCESS_CPU: time.process_time_ns(),
            "process.rss_bytes": resident,
            "process.minflt": usage.ru_minflt,
            "process.majflt": usage.ru_majflt,
            "python.blocks": sys.getallocatedblocks(),
        }

    return read


#: Distinct names of Python threads with separate series; further threads share one.
_NAMED_THREADS = 32
_LONGEST_NAME = 48


def thread_reader() -> Callable[[], Reading]:
    """Number of threads; CPU time and run-queue delay of Python threads by name, and of all others in total."""
    names: set[str] = set()
    files: dict[str, KeptOpen] = {}

    def label(thread: threading.Thread | None) -> str:
        if thread is None:
            return "native"
        name = thread.name[:_LONGEST_NAME]
        if name not in names and len(names) >= _NAMED_THREADS:
            return "other"
        names.add(name)
        return name

    def read() -> Reading:
        python = {thread.native_id: thread for thread in threading.enumerate()}
        entries = os.listdir("/proc/self/task")  # noqa: PTH208
        reading: Reading = {"process.threads": len(entries)}
        for ended in files.keys() - set(entries):
            files.pop(ended).close()
        for entry in entries:
            try:
                if entry not in files:
                    files[entry] = KeptOpen(f"/proc/self/task/{entry}/schedstat", size=128)
                fields = files[entry].read().split()
            except OSError:  # the thread ended, or another one has its number
                if entry in files:
                    files.pop(entry).close()
                continue
            series = f"{THREAD_SERIES}{label(python.get(int(entry)))}"
            for name, value in ((THREAD_CPU, fields[0]), (THREAD_RUN_QUEUE, fields[1])):
                key = f"{series}{name}"
                reading[key] = reading.get(key, 0.0) + int(value)
        return reading

    return read


def pressure_reader() -> Callable[[], Reading] | None:
    """Pressure-stall totals of the machine (PSI); ``None`` if the kernel has none."""
    folder = Path("/proc/pressure")
    kinds = [kind for kind in ("cpu", "memory", "io") if (folder / kind).exists()]
    if not kinds:
        return None

    try:
        files = {kind: KeptOpen(folder / kind) for kind in kinds}

        def read() -> Reading:
            totals = {kind: file.read().partition(b"\n")[0].rpartition(b"total=")[2] for kind, file in files.items()}
            return {f"pressure.{kind}_some_us": int(total) for kind, total in totals.items()}

        read()
    except (OSError, ValueError):  # present but disabled at boot
        return None
    return read
