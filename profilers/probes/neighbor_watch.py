"""CPU time of other processes, read once a second by the process that waits for a replay.

The service's own process does not read it: a walk through ``/proc`` takes the interpreter lock again and again. A
container sees only its own processes, and processes that end within a second are missed; ``/proc/stat`` counts both.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from latfix.profilers.probes.own_thread import OwnThread
from latfix.run_record.run_record import SEGMENTS

PERIOD_S = 1.0
PREFIX, SUFFIX = "other.", ".spent_ns"
ALL_SERIES = "other.all.spent_ns"
LATFIX_SERIES = "latfix.spent_ns"
LINE = "neighbors: CPU time of other processes, once a second; a container sees only its own"
TURN = ".turn_ns"
#: Number of the largest processes that are kept per reading, and their minimum share of a core.
_KEPT, _LEAST = 5, 0.02
#: A process that ran is kept too if its turns on a core take so long: a thread on that core waits for their end.
LONG_TURN_NS = 1_000_000
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class NeighborWatch(OwnThread):
    """Reads CPU time of processes.

    :param own: processes of the service; they and their descendants are not neighbors.
    :param latfix: processes of latfix other than this one; their descendants are latfix, too.
    :param proc: the kernel's files; ``clock`` returns nanoseconds.
    :ivar samples: time, series and CPU nanoseconds since the previous reading, as in ``samples.parquet``.
    """

    def __init__(
        self,
        own: Collection[int],
        *,
        latfix: Collection[int] = (),
        proc: Path = Path("/proc"),
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        super().__init__("neighbors")
        self._own, self._latfix, self._proc, self._clock = set(own), set(latfix), proc, clock
        self._before: dict[tuple[int, str], int] = {}
        self._read_ns = 0
        self.samples: list[tuple[int, str, float]] = []

    def _run(self) -> None:
        self.look()
        while not self._stop.wait(PERIOD_S):
            self.look()
        self.look()

    def look(self) -> None:
        """Make one reading; the first is the baseline of the second."""
        now, (result, parents) = self._clock(), self._processes()
        service, latfix = (_family(first, parents) for first in (self._own, self._latfix))
        latfix.add(os.getpid())  # alone: a service that a command starts is its child
        known = self._before or result  # a process that began since then counts from 0
        spent = {
            pid: ticks - known.get((pid, born), 0) for (pid, born), ticks in result.items() if pid not in service
        }
        took = now - self._read_ns if self._read_ns else 0
        if result:
            others = {pid: ticks * _TICK_NS for pid, ticks in spent.items() if pid not in latfix}
            own = sum(ticks * _TICK_NS for pid, ticks in spent.items() if pid in latfix)
            self.samples.append((now, ALL_SERIES, float(sum(others.values()))))
            self.samples.append((now, LATFIX_SERIES, float(own)))
            for pid in sorted(others, key=lambda each: -others[each])[:_KEPT]:
                turn = self._turn_ns(pid) if others[pid] else 0.0
                if others[pid] > _LEAST * took or turn >= LONG_TURN_NS:
                    name = f"{PREFIX}{pid}.{self._name(pid)}"
                    self.samples.append((now, name + SUFFIX, float(others[pid])))
                    if turn >= LONG_TURN_NS:
                        self.samples.append((now, name + TURN, turn))
        self._before, self._read_ns = result, now

    def _processes(self) -> tuple[dict[tuple[int, str], int], dict[int, int]]:
        """CPU ticks by process number and start time (numbers are reused); and each process's parent."""
        result, parents = dict[tuple[int, str], int](), dict[int, int]()
        entries: list[str] = []
        with contextlib.suppress(OSError):
            entries = os.listdir(self._proc)  # noqa: PTH208
        for entry in entries:
            if entry.isdigit() and (stat := self._text(f"{entry}/stat")):
                fields = stat.rpartition(")")[2].split()
                if len(fields) > 19:
                    parents[int(entry)] = int(fields[1])
                    result[int(entry), fields[19]] = int(fields[11]) + int(fields[12])
        return result, parents

    def _turn_ns(self, pid: int) -> float:
        """The mean length of a turn on a core, over the life of the process's main thread; 0 if unknown."""
        fields = self._text(f"{pid}/schedstat").split()
        return int(fields[0]) / int(fields[2]) if len(fields) == 3 and int(fields[2]) else 0.0

    def _name(self, pid: int) -> str:
        """The kernel's name of a process, with unprintable characters replaced."""
        name = self._text(f"{pid}/comm").strip() or "ended"
        return "".join(c if c.isprintable() else "?" for c in name)

    def _text(self, path: str) -> str:
        try:
            return (self._proc / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def write(self, folder: Path, t0_ns: int) -> None:
        """Append the samples to those of a run whose own process no longer writes.

        :param t0_ns: origin of the run's times.
        :raises OSError: they cannot be written.
        """
        with (folder / SEGMENTS / "samples.jsonl").open("a", encoding="utf-8") as file:
            file.write("\n")  # after a line that a kill cut short
            file.writelines(json.dumps([at - t0_ns, *rest]) + "\n" for at, *rest in self.samples)


def _family(first: Collection[int], parents: Mapping[int, int]) -> set[int]:
    """The running processes that are among the first or descend from one, through living parents."""

    def belongs(pid: int) -> bool:
        seen: set[int] = set()
        while pid not in first and pid not in seen and pid in parents:
            seen.add(pid)
            pid = parents[pid]
        return pid in first

    return {pid for pid in parents if belongs(pid)}
