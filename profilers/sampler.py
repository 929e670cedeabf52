"""Readings of machine and process over time, on threads of their own, each poll's own duration logged."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from latfix.profilers.host import CgroupThrottle
from latfix.profilers.recorder import EventLog, SampleLog

Reading = dict[str, float]

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: A poll longer than this is an event of its own: a probe that stalls is a cause (``observer``).
SPIKE_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Probe:
    """A periodic reading.

    :param name: as it appears in ``poll.<name>_ns`` and in the run's list of probes.
    :param period_s: seconds between polls.
    :param read: returns values by series.
    """

    name: str
    period_s: float
    read: Callable[[], Reading]


class Sampler:
    """Polls a group of probes on one thread.

    :param probes: polled in turn; the thread wakes at the shortest period.
    """

    def __init__(self, probes: list[Probe], samples: SampleLog, events: EventLog, *, name: str) -> None:
        self._probes = probes
        self._samples = samples
        self._events = events
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"latfix-{name}", daemon=True)
        self.cpu_ns = 0
        self.polls: dict[str, list[int]] = {probe.name: [] for probe in probes}

    def __enter__(self) -> Sampler:
        if self._probes:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._probes:
            self._thread.join()

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

    def _poll(self, probe: Probe) -> None:
        start = time.perf_counter_ns()
        cpu = time.thread_time_ns()
        reading = probe.read()
        end = time.perf_counter_ns()
        for series, value in reading.items():
            self._samples.add(start, series, float(value))
        self._samples.add(start, f"poll.{probe.name}_ns", float(end - start))
        self.polls[probe.name].append(end - start)
        # Only a poll that itself burned the time can have held anybody up; a preempted one is a victim.
        if time.thread_time_ns() - cpu > SPIKE_NS:
            thread = threading.get_native_id()
            self._events.add("spike", start, end - start, thread=thread, detail={"probe": probe.name})


def host_reader() -> Callable[[], Reading]:
    """Machine-wide busy and stolen time, from ``/proc/stat``."""

    def read() -> Reading:
        with Path("/proc/stat").open("rb") as file:
            fields = [int(field) for field in file.readline().split()[1:]]
        busy = sum(fields[:3]) + sum(fields[5:8])
        steal = fields[7] if len(fields) > 7 else 0
        return {"host.cpu_busy_ns": busy * _TICK_NS, "host.steal_ns": steal * _TICK_NS}

    return read


def process_reader() -> Callable[[], Reading]:
    """This process's CPU time, resident memory, threads, page faults, and how many objects Python keeps."""
    page_faults = _page_faults

    def read() -> Reading:
        resident = int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
        minor, major = page_faults()
        return {
            "process.cpu_ns": time.process_time_ns(),
            "process.rss_bytes": resident,
            "process.threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
            "process.minflt": minor,
            "process.majflt": major,
            "python.blocks": sys.getallocatedblocks(),
        }

    return read


#: Distinct names of Python threads that get a series of their own; threads beyond them are counted together.
_NAMED_THREADS = 32
_LONGEST_NAME = 48


def thread_reader() -> Callable[[], Reading]:
    """CPU time and run-queue delay of this process's threads, Python's by name, all others as ``native``."""
    names: set[str] = set()

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
        reading: Reading = {}
        for entry in os.listdir("/proc/self/task"):  # noqa: PTH208
            try:
                fields = Path(f"/proc/self/task/{entry}/schedstat").read_bytes().split()
            except OSError:  # the thread ended meanwhile
                continue
            series = f"thread.{label(python.get(int(entry)))}"
            for name, value in (("cpu_ns", fields[0]), ("runq_ns", fields[1])):
                key = f"{series}.{name}"
                reading[key] = reading.get(key, 0.0) + int(value)
        return reading

    return read


def _page_faults() -> tuple[int, int]:
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt


def cgroup_reader() -> Callable[[], Reading] | None:
    """Throttling of this process's cgroup; ``None`` where it reports none."""
    throttle = CgroupThrottle()
    if not throttle.available:
        return None

    def read() -> Reading:
        stat = throttle.read()
        return {
            "cgroup.throttled_ns": throttle.throttled_ns(),
            "cgroup.nr_throttled": stat.get("nr_throttled", 0),
            "cgroup.cpu_ns": stat.get("usage_usec", 0) * 1000,
        }

    return read


def pressure_reader() -> Callable[[], Reading] | None:
    """Pressure-stall totals of the machine (PSI); ``None`` where the kernel keeps none."""
    folder = Path("/proc/pressure")
    kinds = [kind for kind in ("cpu", "memory", "io") if (folder / kind).exists()]
    if not kinds:
        return None

    def read() -> Reading:
        reading: Reading = {}
        for kind in kinds:
            some = (folder / kind).read_text().partition("\n")[0]
            reading[f"pressure.{kind}_some_us"] = int(some.rpartition("total=")[2])
        return reading

    try:
        read()
    except (OSError, ValueError):  # present but disabled at boot
        return None
    return read
