"""Reads the kernel's counters (``proc(5)``) of another process, its threads and its children, without changing it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from latfix.errors import InputError
from latfix.profilers.evidence.outside.service_process import (
    COLLECTED,
    CORES,
    CPU,
    DISK,
    MAJOR_FAULTS,
    MINOR_FAULTS,
    PREEMPTIONS,
    PROCESSES,
    RESIDENT,
    RUN_QUEUE,
    STOPPED,
    SWITCHES,
    THREAD,
    THREADS,
    THROTTLED,
    of_process,
)
from latfix.profilers.probes.control_groups import CgroupThrottle, ControlGroups
from latfix.profilers.probes.kept_files import KeptOpen
from latfix.profilers.services.listening_processes import descendants
from latfix.profilers.services.thread_waits import ThreadWaits, summed

Reading = dict[str, float]

#: Nanoseconds of the kernel's clock tick; place in ``stat`` of the ticks in which a thread waited for a disk, which
#: are counted with ``kernel.task_delayacct``.
_TICK_NS, _DISK_TICKS = 1_000_000_000 // os.sysconf("SC_CLK_TCK"), 39
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Most threads to read at every poll; least time on a core by which a thread ran between two polls.
_MOST_THREADS, _RAN_NS = 512, 1_000_000
#: Most processes with series of their own.
_MOST_PROCESSES = 24
#: How names of a JVM's threads begin that compute while all its others are stopped (HotSpot's safepoints).
_COLLECTORS = ("VM Thread", "GC Thread#")


@dataclass(slots=True)
class _Process:
    """What is kept of one process.

    :param stat: of its main thread.
    :param ended: the counters of its threads that ended.
    :param begun_ns: its time on cores at the first reading; ``ran`` whether that has grown.
    """

    stat: KeptOpen
    ended: list[int] = field(default_factory=lambda: [0] * 5)
    begun_ns: int = -1
    ran: bool = False
    stopped_ns: int = 0
    collected_ns: int = 0


class ProcessWatch:
    """Counters summed over a process and its descendants, including threads that have ended.

    If there are several processes, also those of each that runs meanwhile. Different threads may call
    :meth:`read_fast` and :meth:`read_slow`.

    :param pid: its number on this machine.
    :param beside: other processes that serve with it.
    :ivar throttling: True if its control group reports the time for which a quota stopped it.
    :ivar shows_calls: True if the system shows the lock for which a thread waits.
    :raises InputError: there is no such process, or its counters cannot be read.
    """

    def __init__(self, pid: int, root: Path = Path("/"), beside: Iterable[int] = ()) -> None:
        self._root, self._proc = root, root / "proc"
        self.pid, self._roots = pid, (pid, *beside)
        if not (self._proc / str(pid) / "task").is_dir():
            raise InputError(f"--pid: found no process {pid}; expected the number of the service's process")
        if not (self._proc / str(pid) / "task" / str(pid) / "schedstat").exists():
            raise InputError(f"--pid: found no schedstat of process {pid}; expected a kernel with CONFIG_SCHED_INFO")
        #: For the threads that are read.
        self._lock = threading.Lock()
        self._throttle = CgroupThrottle(ControlGroups(root, str(pid)))
        self._waits = ThreadWaits(self._proc, pid)
        self.throttling, self.shows_calls = self._throttle.available, self._waits.shows_calls
        #: By thread, its file and counters: on-CPU time, run-queue delay, voluntary and involuntary switches, disk
        #: ticks; and their sums of threads that ended.
        self._threads: dict[str, tuple[KeptOpen, list[int]]] = {}
        self._ended = [0] * 5
        #: By thread, its number in :data:`THREAD`.
        self._numbers: dict[str, int] = {}
        self._own: dict[int, _Process] = {}
        self._seen_ns = time.perf_counter_ns()
        self._collectors: set[str] = set()
        self._collected_ns = 0
        self._faults: dict[int, tuple[int, int]] = {}
        self.processes: tuple[int, ...] = ()
        self._counted = 0
        self.look_around()

    @property
    def command(self) -> str:
        """The process's name from the kernel, without arguments; empty if it cannot be read."""
        with contextlib.suppress(OSError):
            return (self._proc / str(self.pid) / "comm").read_text(errors="replace").strip()
        return ""

    @property
    def alive(self) -> bool:
        return (self._proc / str(self.pid)).is_dir()

    def look_around(self) -> None:
        """Update the lists of threads and children."""
        found = [descendants(each, self._root) for each in self._roots]
        self.processes = processes = tuple(dict.fromkeys(itertools.chain(*found)))
        result: set[str] = set()
        for pid in processes:
            with contextlib.suppress(OSError):
                tasks = (self._proc / str(pid) / "task").iterdir()
                result.update(f"{pid}/task/{thread.name}" for thread in tasks)
        with self._lock:
            for gone in self._threads.keys() - result:
                self._forget(gone)
            for pid in self._own.keys() - set(processes):
                self._own.pop(pid).stat.close()
            for pid in set(processes) - self._own.keys():
                with contextlib.suppress(OSError):
                    self._own[pid] = _Process(KeptOpen(self._proc / str(pid) / "task" / str(pid) / "stat", size=128))
            for thread in sorted(result - self._threads.keys())[: _MOST_THREADS - len(self._threads)]:
                with contextlib.suppress(OSError):
                    self._threads[thread] = KeptOpen(self._proc / thread / "schedstat", size=128), [0] * 5
                    self._numbers[thread] = min(set(range(_MOST_THREADS)).difference(self._numbers.values()))
                    if (self._proc / thread / "comm").read_text(errors="replace").startswith(_COLLECTORS):
                        self._collectors.add(thread)
            self._waits.look_around(self._threads)
            self._counted = self._count_threads()

    def read_fast(self) -> Reading:
        """On-CPU time of all threads and of each that ran, run-queue delay, time while stopped, and waits."""
        if self._count_threads() != self._counted:
            self.look_around()
        ran: dict[int, Reading] = defaultdict(dict)
        collected_ns: dict[int, int] = defaultdict(int)
        with self._lock:
            for thread, (file, counters) in list(self._threads.items()):
                try:
                    words, before, pid = file.read().split(), counters[0], _process_of(thread)
                    counters[:2] = int(words[0]), int(words[1])
                    grown = counters[0] - before if before else 0
                    if grown >= _RAN_NS:
                        ran[pid][f"{THREAD}{self._numbers[thread]}"] = grown
                    if thread in self._collectors:
                        collected_ns[pid] = max(collected_ns[pid], grown)
                except (OSError, IndexError):  # the thread ended
                    self._forget(thread)
                    self._counted = 0
            waits = self._waits.read()
            cpu, runq, *_ = self._sums()
            reading: Reading = {CPU: cpu, RUN_QUEUE: runq, THREADS: len(self._threads)}
            if self._collectors:
                self._collected_ns += max(collected_ns.values(), default=0)
                reading[COLLECTED] = self._collected_ns
            if self.throttling:
                reading[THROTTLED] = self._throttle.throttled_ns()
            found = self._by_process(ran, waits, collected_ns)
            if stopped_ns := found.get(self.pid, {}).get(STOPPED):
                reading[STOPPED] = stopped_ns
            return reading | summed(ran) | summed(waits) | self._waits.loops | self._apart(found)

    def _by_process(
        self, ran: Mapping[int, Reading], waits: Mapping[int, Reading], collected_ns: Mapping[int, int]
    ) -> dict[int, Reading]:
        """The reading of each process."""
        before_ns, self._seen_ns = self._seen_ns, time.perf_counter_ns()
        counters = {pid: [own.ended] for pid, own in self._own.items()}
        for thread, (_, each) in self._threads.items():
            counters.get(_process_of(thread), []).append(each)
        found: dict[int, Reading] = {}
        for pid, own in self._own.items():
            cpu, runq, *_ = (sum(each) for each in zip(*counters[pid], strict=True))
            own.begun_ns = cpu if own.begun_ns < 0 else own.begun_ns
            own.ran = own.ran or cpu > own.begun_ns
            own.stopped_ns += (self._seen_ns - before_ns) * _is_stopped(own.stat)
            own.collected_ns += collected_ns.get(pid, 0)
            series = {STOPPED: own.stopped_ns, COLLECTED: own.collected_ns}
            found[pid] = {CPU: cpu, RUN_QUEUE: runq, THREADS: len(counters[pid]) - 1}
            found[pid] |= {name: value for name, value in series.items() if value}
            found[pid] |= {**ran.get(pid, {}), **waits.get(pid, {})}
        return found

    def _apart(self, found: Mapping[int, Reading]) -> Reading:
        """The series of each process that runs, if there are several."""
        ran = [pid for pid, own in self._own.items() if own.ran and pid in found]
        if not 2 <= len(self.processes) <= _MOST_PROCESSES:
            return {}
        return {of_process(pid, name): value for pid in ran for name, value in found[pid].items()}

    def read_slow(self) -> Reading:
        """Page faults, waits for disks, context switches, resident memory, processes and usable cores.

        Also does :meth:`look_around`.
        """
        self.look_around()
        cores: set[int] = set()
        resident = 0
        for pid in self.processes:
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = _fields(self._proc / str(pid) / "stat")
                self._faults[pid] = (int(fields[7]), int(fields[9]))
                resident += int((self._proc / str(pid) / "statm").read_text().split()[1]) * _PAGE
        with self._lock:
            threads = list(self._threads.items())
        for thread, (_, counters) in threads:  # takes milliseconds, for which no other poll waits
            with contextlib.suppress(OSError, ValueError):
                status = (self._proc / thread / "status").read_text(errors="replace")
                counters[2:4] = _switches(status)
                cores |= _cores(status)
            with contextlib.suppress(OSError, ValueError, IndexError):
                counters[4] = int(_fields(self._proc / thread / "stat")[_DISK_TICKS])
        with self._lock:
            _, _, voluntary, involuntary, disk_ticks = self._sums()
            apart: dict[int, Reading] = {}
            for pid, own in self._own.items():
                ticks = own.ended[4] + sum(each[4] for thread, (_, each) in threads if _process_of(thread) == pid)
                minor, major = self._faults.get(pid, (0, 0))
                apart[pid] = {MINOR_FAULTS: minor, MAJOR_FAULTS: major, DISK: ticks * _TICK_NS}
        return {
            MINOR_FAULTS: sum(minor for minor, _ in self._faults.values()),
            MAJOR_FAULTS: sum(major for _, major in self._faults.values()),
            DISK: disk_ticks * _TICK_NS,
            SWITCHES: voluntary,
            PREEMPTIONS: involuntary,
            RESIDENT: resident,
            PROCESSES: len(self.processes),
            **({CORES: min(len(cores), os.cpu_count() or len(cores))} if cores else {}),
            **self._apart(apart),
        }

    def close(self) -> None:
        self._waits.close()
        for file in (*(own.stat for own in self._own.values()), *(file for file, _ in self._threads.values())):
            file.close()

    def _count_threads(self) -> int:
        """A quick check for new threads: the link count of ``task`` grows with each."""
        result = 0
        for pid in self.processes:
            with contextlib.suppress(OSError):
                result += (self._proc / str(pid) / "task").stat().st_nlink
        return result

    def _forget(self, thread: str) -> None:
        """Close an ended thread's file, and keep its counters in the sums."""
        file, counters = self._threads.pop(thread)
        del self._numbers[thread]
        self._collectors.discard(thread)
        file.close()
        if own := self._own.get(_process_of(thread)):
            own.ended = [before + more for before, more in zip(own.ended, counters, strict=True)]
        self._ended = [before + more for before, more in zip(self._ended, counters, strict=True)]

    def _sums(self) -> list[int]:
        """The counters of all threads, including those that ended."""
        return [sum(each) for each in zip(self._ended, *(own for _, own in self._threads.values()), strict=True)]


def _process_of(thread: str) -> int:
    return int(thread.partition("/")[0])


def _is_stopped(stat: KeptOpen) -> bool:
    """True if a signal or a tracer stopped the process."""
    with contextlib.suppress(OSError):  # it ended
        return stat.read().rpartition(b")")[2].lstrip()[:1] in (b"T", b"t")
    return False


def _fields(stat: Path) -> list[str]:
    """The fields of ``stat`` from the third on; the second, a name, may contain spaces."""
    return stat.read_text(errors="replace").rpartition(")")[2].split()


def _cores(status: str) -> set[int]:
    """Cores on which a thread may run, from a mask of 32-bit words."""
    found = re.search(r"^Cpus_allowed:\s*([0-9a-f,]+)$", status, re.MULTILINE)
    mask = int(found[1].replace(",", ""), 16) if found else 0
    return {core for core in range(mask.bit_length()) if mask >> core & 1}


def _switches(status: str) -> tuple[int, int]:
    result = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(result.get("voluntary_ctxt_switches", 0)), int(result.get("nonvoluntary_ctxt_switches", 0))
