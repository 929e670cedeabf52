"""What the threads of another process wait for, from each thread's system call (``/proc/PID/task/TID/syscall``).

A thread that waits for a lock is in ``futex(2)`` at the lock's address: CPython's interpreter lock lies in the memory
of the interpreter's own file, other locks elsewhere. An idle thread waits in a futex too, but at another place in the
code. Threads that wait at one place have the same stack pointer offset within a page, as stacks begin at pages.
Without permission to trace the process, calls are hidden; the kernel function in which a thread sleeps (``wchan``)
then shows only that it waits in a futex.
"""

from __future__ import annotations

import contextlib
import math
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from latfix.profilers.evidence.outside.service_process import (
    EPOLL,
    FUTEX,
    INTERPRETER,
    LOOP_IN,
    LOOPS,
    ONE_ADDRESS,
    SLEEP,
)
from latfix.profilers.probes.kept_files import KeptOpen

#: By machine: system call numbers of futex and futex_waitv, and of an event loop's waits (epoll_wait,
#: epoll_pwait[2]).
_CALLS: Mapping[str, tuple[frozenset[bytes], frozenset[bytes]]] = {
    "x86_64": (frozenset({b"202", b"449"}), frozenset({b"232", b"281", b"441"})),
    "aarch64": (frozenset({b"98", b"449"}), frozenset({b"22", b"441"})),
}
#: Likewise, calls that may block an event loop.
_BLOCKING: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "x86_64": {"sleep": (35, 230), "fsync": (74, 75), "read": (0, 17, 19), "write": (1, 18, 20), "recv": (45, 47),
               "send": (44, 46), "connect": (42,), "poll": (7, 23, 270, 271), "wait": (61, 247), "flock": (73,)},
    "aarch64": {"sleep": (101, 115), "fsync": (82, 83), "read": (63, 65, 67), "write": (64, 66, 68),
                "recv": (207, 212), "send": (206, 211), "connect": (203,), "poll": (72, 73), "wait": (95, 260),
                "flock": (32,)},
}  # fmt: skip
_PYTHON = re.compile(r"(lib)?python\d(\.\d+)?[a-z]?(\.so[.\d]*)?")
#: Most threads to read: each takes some microseconds. The first half are the oldest, such as an event loop's.
_MOST_THREADS = 64
#: A thread that is away from waiting for events in fewer polls than this share of another's is no event loop.
_AWAY = 0.05

_PAGE = 4096


class ThreadWaits:
    """Reads what each thread waits for.

    :ivar shows_calls: True if system calls and their addresses are visible, not only the kernel's functions.
    """

    def __init__(self, proc: Path, pid: int) -> None:
        self._proc = proc
        self._futex, self._epoll = _CALLS.get(platform.machine(), (frozenset(), frozenset()))
        named = _BLOCKING.get(platform.machine(), {})
        self._names = {b"%d" % number: name for name, numbers in named.items() for number in numbers}
        #: Of threads that have waited for events, the number of polls in which they did something else.
        self._away: dict[str, int] = {}
        #: By thread, its file, and the number of threads that it stands for.
        self._files: dict[str, KeptOpen] = {}
        self._stands_for: dict[str, int] = {}
        self._interpreters: dict[str, tuple[tuple[int, int], ...]] = {}
        self.shows_calls = bool(self._futex) and _readable(proc / str(pid) / "task" / str(pid) / "syscall")

    def look_around(self, threads: Iterable[str]) -> None:
        """Watch these threads (``PID/task/TID``); if there are many, the first ones and an even sample of others."""
        # First threads of processes first: an event loop is often one of them.
        every, half = (
            sorted(threads, key=lambda each: not each.endswith(f"/{each.partition('/')[0]}")),
            _MOST_THREADS // 2,
        )
        step = 1 if len(every) <= _MOST_THREADS else math.ceil((len(every) - half) / half)
        self._stands_for = dict.fromkeys(every[:half], 1) | dict.fromkeys(every[half::step], step)
        for gone in self._files.keys() - self._stands_for.keys():
            self._files.pop(gone).close()
        for thread in self._stands_for:
            if thread not in self._files:
                with contextlib.suppress(OSError):
                    name = "syscall" if self.shows_calls else "wchan"
                    self._files[thread] = KeptOpen(self._proc / thread / name, size=160)
            pid = thread.partition("/")[0]
            if self.shows_calls and pid not in self._interpreters:
                self._interpreters[pid] = _interpreter_memory(self._proc / pid / "maps")

    def read(self) -> dict[int, dict[str, float]]:
        """Number of waiting threads by process and series."""
        found: dict[str, Counter[str]] = defaultdict(lambda: Counter({EPOLL: 0} if self.shows_calls else {}))
        at: Counter[tuple[str, int]] = Counter()
        for thread, file in self._files.items():
            many, pid = self._stands_for[thread], thread.partition("/")[0]
            result = found[pid]
            with contextlib.suppress(OSError, ValueError, IndexError):  # the thread ended
                number, *words = file.read().split()
                if thread in self._away and number not in self._epoll:
                    self._away[thread] += 1
                if not self.shows_calls:
                    result[FUTEX] += many * number.startswith(b"futex")
                elif number in self._futex:
                    address = int(words[0], 16)
                    if any(low <= address < high for low, high in self._interpreters[pid]):
                        result[INTERPRETER] += many
                    else:
                        at[pid, address] += many
                        result[f"{FUTEX}{int(words[6], 16) % _PAGE:x}"] += many
                elif number in self._epoll:
                    result[EPOLL] += 1
                    self._away.setdefault(thread, 0)
                elif name := self._names.get(number):
                    result[SLEEP] += many * (name == "sleep")
                    result[f"{LOOP_IN}{name}"] += thread in self._away
        for pid, result in found.items():
            result[LOOPS] = _loops([away for thread, away in self._away.items() if thread.startswith(f"{pid}/")])
            result[ONE_ADDRESS] = max((many for (own, _), many in at.items() if own == pid), default=0)
        return {
            int(pid): {name: float(count) for name, count in result.items() if count or name == EPOLL}
            for pid, result in found.items()
        }

    @property
    def loops(self) -> dict[str, float]:
        """Number of event loops in all processes, of which one may hardly work, such as that of a pool's parent."""
        many = _loops(self._away.values())
        return {LOOPS: float(many)} if many else {}

    def close(self) -> None:
        self.look_around(())


def summed(found: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """The series of all processes together."""
    result: dict[str, float] = {}
    for each in found.values():
        for name, value in each.items():
            before = result.get(name, 0.0)
            result[name] = max(before, value) if name == ONE_ADDRESS else before + value
    return result


def _loops(away: Collection[int]) -> int:
    return sum(each > _AWAY * max(away) for each in away)


def _readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


def _interpreter_memory(maps: Path) -> tuple[tuple[int, int], ...]:
    """Address ranges of CPython's variables: writable memory of its file, and memory that follows without a gap."""
    result: list[tuple[int, int]] = []
    with contextlib.suppress(OSError, ValueError):
        for line in maps.read_text(errors="replace").splitlines():
            place, rights, _, _, _, *names = line.split(maxsplit=5)
            name = "".join(names)
            low, high = (int(word, 16) for word in place.split("-"))
            own = _PYTHON.fullmatch(name.rpartition("/")[2]) is not None
            follows = bool(result) and result[-1][1] == low and not name.startswith(("/", "["))
            if "w" in rights and (own or follows):
                result.append((low, high))
    return tuple(result)
