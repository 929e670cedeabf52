"""The cores and priority of the service's threads: planned once, applied by each thread as it starts.

Threads that the framework starts for its operators (OpenMP) inherit cores and priority from the thread that runs the
first operator, so a worker applies its placement before its first operator.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from latfix.formatting import counted
from latfix.runners.host.cpu_topology import Cores, Domain, Topology, cores_text, read_topology
from latfix.settings import Pinning, RunnerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Cores by thread; a thread with an empty tuple runs on any core.

    :param workers: by worker.
    :param prepare: by prepare thread.
    :param aside: for latfix's own threads.
    :param obstacle: why nothing is placed; empty if something is.
    """

    workers: tuple[Cores, ...]
    prepare: tuple[Cores, ...]
    aside: Cores = ()
    obstacle: str = ""


def plan_placement(topology: Topology, settings: RunnerSettings, pin: Pinning | None = None) -> Placement:
    """Place workers, prepare threads and latfix's own threads by ``pin``, which defaults to ``settings.pin``."""
    pin, workers, prepare = pin or settings.pin, settings.workers, settings.prepare_threads
    if pin == "off":
        return _nowhere(workers, prepare, "pin is off")
    if not topology.cores:
        return _nowhere(workers, prepare, "this system has no processor affinity")
    if pin == "locality":
        return _by_domain(topology, workers, prepare)
    return _by_worker(topology, workers, prepare, settings.intra_op_threads)


def _nowhere(workers: int, prepare: int, obstacle: str) -> Placement:
    return Placement(workers=((),) * workers, prepare=((),) * prepare, obstacle=obstacle)


def _by_worker(topology: Topology, workers: int, prepare: int, threads: int) -> Placement:
    """Physical cores of its own for each worker; the remaining cores serve all other threads.

    One core stays free for those if there are more cores than workers. The first cores serve most interrupts, so
    workers take the last ones.
    """
    count = len(topology.physical)
    if count < 2 or workers > count:
        obstacle = f"{counted(workers, 'worker')} on {counted(count, 'core')}: a worker cannot have a core to itself"
        return _nowhere(workers, prepare, obstacle)
    each = (count - 1) // workers if count > workers else 1
    if threads:
        each = min(each, threads)
    free = {domain: list(topology.physical_of(domain)) for domain in topology.domains}
    placed: list[Cores] = []
    for _ in range(workers):
        # A worker whose threads share a cache is faster than one that spans two caches.
        chosen: list[Cores] = []
        # Domains that hold all of its cores come first, those with the most free cores before others.
        for domain in sorted(free, key=lambda domain: (len(free[domain]) < each, -len(free[domain]))):
            while free[domain] and len(chosen) < each:
                chosen.append(free[domain].pop())
        placed.append(tuple(sorted(group[0] for group in chosen)))
    free_cores = [core for groups in free.values() for group in groups for core in group]
    threads_of_theirs = set(topology.cores) - {core for cores in placed for core in cores}
    aside = tuple(sorted(free_cores or threads_of_theirs))
    return Placement(workers=tuple(placed), prepare=(aside,) * prepare, aside=aside)


def _by_domain(topology: Topology, workers: int, prepare: int) -> Placement:
    """Each worker and a prepare thread on one domain; several workers spread over the domains."""
    if len(topology.domains) < 2:
        cores = cores_text(topology.cores)
        return _nowhere(
            workers,
            prepare,
            f"cores {cores} share one memory node and one last-level cache, so all placements are equal",
        )
    held = dict.fromkeys(topology.domains, 0)
    placed: list[Cores] = []
    for _ in range(workers):
        # The most physical cores per worker; among equals the last domain, away from the cores that serve interrupts.
        best = max(
            reversed(topology.domains), key=lambda domain: len(topology.physical_of(domain)) / (held[domain] + 1)
        )
        held[best] += 1
        placed.append(best.cores)
    aside = tuple(core for domain, used in held.items() if not used for core in domain.cores)
    return Placement(
        workers=tuple(placed), prepare=tuple(placed[k % workers] for k in range(prepare)), aside=tuple(sorted(aside))
    )


def domain_of(topology: Topology, cores: Cores) -> Domain | None:
    """The domain that holds all of ``cores``, or ``None``."""
    return next((domain for domain in topology.domains if cores and set(cores) <= set(domain.cores)), None)


class Places:
    """Places the threads of one engine; each thread calls its method as it starts.

    If the system refuses, the thread runs unplaced and :attr:`notes` reports it.

    :ivar notes: what was refused, one line each.
    """

    def __init__(self, settings: RunnerSettings, topology: Topology | None = None) -> None:
        self._nice = settings.nice
        self._threads = settings.intra_op_threads
        self._lock = threading.Lock()
        self.notes: list[str] = []
        if settings.pin == "off":
            self.placement = _nowhere(settings.workers, settings.prepare_threads, "")
        else:
            self.placement = plan_placement(topology or read_topology(), settings)
            if self.placement.obstacle:
                self.notes.append(f"pin = {settings.pin}: {self.placement.obstacle}")

    def worker(self, number: int) -> int:
        """Place the calling worker thread; returns how many threads its operators may use, 0 for any number."""
        return self._place(self.placement.workers, number)

    def prepare(self, number: int) -> int:
        """Place the calling prepare thread; returns how many threads its operators may use, 0 for any number."""
        return self._place(self.placement.prepare, number)

    def _place(self, places: tuple[Cores, ...], number: int) -> int:
        cores = places[number] if number < len(places) else ()
        self._take(cores)
        return min(len(cores), self._threads or len(cores))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Keep the calling thread, and threads that it starts within, off the workers' cores."""
        before = os.sched_getaffinity(0) if self.placement.aside else set()
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._take(self.placement.aside)
        try:
            yield
        finally:
            if before:
                with contextlib.suppress(OSError):  # some of the cores are no longer available
                    os.sched_setaffinity(0, before)
            if self._nice:
                with contextlib.suppress(OSError):  # an unprivileged thread cannot raise its priority again
                    os.setpriority(os.PRIO_PROCESS, 0, nice)

    def _take(self, cores: Cores) -> None:
        if cores:
            try:
                os.sched_setaffinity(0, cores)
            except OSError as error:  # the cores are no longer available to this process
                self._note(f"cores {cores_text(cores)} were refused ({error.strerror})")
        if self._nice:
            try:
                os.setpriority(os.PRIO_PROCESS, 0, self._nice)
            except OSError as error:
                self._note(f"nice = {self._nice} was refused ({error.strerror})")

    def _note(self, note: str) -> None:
        with self._lock:
            if note not in self.notes:
                self.notes.append(note)


def limit_operator_threads(settings: RunnerSettings, cores: int) -> int:
    """Set the operator threads and denormal mode of the calling thread; returns the number of threads.

    Every thread that calls a model uses the same number: a graph is compiled for it. Threads that this one starts for
    its operators inherit the denormal mode; existing ones do not.

    :param cores: maximum number of threads; 0 for any.
    """
    import torch

    if settings.flush_denormal:
        torch.set_flush_denormal(True)
    if settings.intra_op_threads:
        torch.set_num_threads(settings.intra_op_threads)
    if 0 < cores < torch.get_num_threads():
        torch.set_num_threads(cores)
    return torch.get_num_threads()
