"""Requests that share the cores of a service's process: how long each waited for the work of the others.

An event loop, the interpreter's lock or too few cores let a process compute only so much at once. What it computed
between two readings is divided evenly among the requests that were there, as in processor sharing (Kleinrock 1967);
the rest of the time in which it computed, each of them waited for the others. In another order of service, single
requests wait less or longer than that, but all of them together do not.

How much of that is due to the arrivals alone is simulated: requests arrive as they did, and each needs the same work.

Without counters of the process, the times of answers may show that requests share cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.evidence.outside.event_loop import computes_in_loop
from latfix.profilers.evidence.outside.outside_view import piles_up
from latfix.profilers.evidence.outside.service_process import (
    CORES,
    INTERPRETER,
    PROCESSES,
    Counter,
    ServiceProcess,
    cumulative,
)
from latfix.queueing.inference.queue_inference import chance_wait_ns
from latfix.queueing.inference.sharing_inference import equal_work_waits, infer_sharing
from latfix.run_record.schema import Columns

#: Times of answers are known to a microsecond.
_RESOLUTION_NS = 1_000
#: Least readings with exactly one request, to know how many cores one can use; with several, to know that they share
#: one interpreter, the share of these in which a thread waits for its lock, and the most cores that it uses then.
_LEAST, _SHARE_LOCK, _ONE_CORE = 10, 1 / 3, 1.2
#: From this load on, waits are due to it, and are named for any arrivals.
_BUSY = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCores:
    """Waits of requests for each other's work in one process.

    :param others: time that the process computed for the other requests, as a counter.
    :param lost: time in which cores that it wanted were taken by others, as a counter.
    :param burst: ``(n,)`` share of a request's waits for others that is due to their arrivals alone; ``slowed`` the
        share that was added because cores were taken.
    :param known_ns: ``(n,)`` nanoseconds of these waits, and those without a core.
    :param cores: the most that the process uses at once; 0 if it is not known.
    :param work_ns: on-CPU time of a typical request; ``alone`` the cores that one uses at once.
    :param growing: the backlog that arrivals alone cause grows all the time.
    :param watched: known from counters of the process, not from the times of answers.
    """

    others: Counter
    lost: Counter
    burst: Floats
    slowed: Floats
    known_ns: Ints
    cores: float = 0.0
    work_ns: float = 0.0
    alone: float = 1.0
    growing: bool = False
    watched: bool = True

    def waits(self, request: Ints, start: Ints, end: Ints, runq: Ints) -> tuple[Ints, Ints, Ints]:
        """Nanoseconds of waits for other requests within intervals, in three parts.

        Due to arrivals, on threads that wanted a core; due to arrivals otherwise; added because others took cores.

        :param request: row of the request that each interval belongs to; ``runq`` its run-queue delay.
        """
        others = self.others.grown(start, end)
        burst = self.burst[request] * others
        among_them = np.clip(runq - self.lost.grown(start, end), 0, burst)
        parts = (among_them, burst - among_them, self.slowed[request] * others)
        runnable, blocked, slowed = (np.rint(part).astype(np.int64) for part in parts)
        return runnable, blocked, slowed

    def chance_wait_ns(self, requests: int, span_ns: float, tail: float, seed: int) -> float:
        """As :func:`~latfix.queueing.inference.queue_inference.chance_wait_ns`; 0 above a load of :data:`_BUSY`."""
        if not 0 < requests * self.work_ns < _BUSY * self.cores * span_ns:
            return 0.0

        def waits(arrival: Ints) -> Ints:
            found = equal_work_waits(arrival.astype(np.float64), self.work_ns, self.cores, self.alone)
            return np.rint(found).astype(np.int64)

        return chance_wait_ns(requests, span_ns, waits, tail, seed)


def nothing_shared(requests: int) -> SharedCores:
    """No request waited for another, or it is not known."""
    none = Counter(at_ns=np.zeros(0), value=np.zeros(0))
    zero = np.zeros(requests)
    return SharedCores(others=none, lost=none, burst=zero, slowed=zero, known_ns=zero.astype(np.int64))


def find_shared_cores(samples: Columns, at: Ints, end: Ints, moved: Ints | int = 0) -> SharedCores:
    """Find how long requests waited for each other's work.

    :param at: ``(n,)`` when each request reached the service; ``end`` its last byte.
    :param moved: by how much these are later than in the run.
    """
    process = ServiceProcess(samples, at, end)
    if not (process.known and len(at)):
        return _as_answers_show(at, end)
    times, there, work = process.cpu.at_ns, process.there, process.typical_work
    allowed = Counter.of(samples, CORES).value
    cores = max(min(process.most_at_once, float(allowed.min(initial=np.inf))), 1.0)
    # Short bursts are too few readings to show that nothing else runs beside a loop.
    in_loop = process.most_at_once == np.inf and computes_in_loop(samples, at, end)
    if in_loop or _share_an_interpreter(samples, process):
        cores = 1.0
    alone = _used_alone(process, cores)
    used = np.maximum(np.minimum(there * alone, cores), 1e-9)
    others = process.ran * np.maximum(1 / used - 1 / np.maximum(there * alone, 1e-9), 0.0)
    each = np.diff(process.delay_of_each.value)
    lost = np.minimum(each, np.maximum(process.step - process.ran / np.maximum(used, 1.0), 0.0))
    shared, taken = cumulative(times, others), cumulative(times, lost)
    met = np.maximum(shared.grown(at, end), 1.0)
    waits = equal_work_waits(at.astype(np.float64), work, cores, alone)
    burst = np.minimum(waits / met, 1.0)
    # While cores are taken, the service stands still, and arrivals come closer together.
    slowed = np.minimum(equal_work_waits(at - taken.at(at), work, cores, alone) / met, 1.0)
    slowed = np.maximum(slowed - burst, 0.0)
    return SharedCores(
        others=shared,
        lost=taken,
        burst=burst,
        slowed=slowed,
        known_ns=np.rint((burst + slowed) * met + taken.grown(at, end)).astype(np.int64),
        cores=cores,
        work_ns=work,
        alone=alone,
        growing=piles_up(at - moved, at - moved + waits + work / alone),
    )


def _as_answers_show(at: Ints, end: Ints) -> SharedCores:
    sharing = infer_sharing(at, end - at, _RESOLUTION_NS)
    if sharing is None:
        return nothing_shared(len(at))
    met = np.maximum(sharing.wait_ns, 1)
    work = float(np.mean(end - at - sharing.wait_ns))
    waits = equal_work_waits(at.astype(np.float64), work, sharing.cores)
    burst = np.minimum(waits / met, 1.0)
    return replace(
        nothing_shared(len(at)),
        others=Counter(at_ns=sharing.at_ns.astype(np.float64), value=sharing.others_ns),
        burst=burst,
        known_ns=np.rint(burst * met).astype(np.int64),
        cores=sharing.cores,
        work_ns=work,
        growing=piles_up(at, at + waits + work),
        watched=False,
    )


def _share_an_interpreter(samples: Columns, process: ServiceProcess) -> bool:
    """True if threads of one process often wait for the interpreter's lock while several requests are there.

    That shows its limit with few requests at once, too, where readings are too coarse to show how much runs at once.
    """
    several = np.flatnonzero(process.there > 1)
    if len(several) < _LEAST or Counter.of(samples, PROCESSES).value.max(initial=0) != 1:
        return False
    waits = np.isin(process.cpu.at_ns[several + 1], Counter.of(samples, INTERPRETER).at_ns)
    cores = process.ran[several].sum() / process.step[several].sum()
    return bool(np.mean(waits) >= _SHARE_LOCK and cores <= _ONE_CORE)


def _used_alone(process: ServiceProcess, cores: float) -> float:
    """Cores that a single request uses at once; 1 if that was not seen."""
    single = np.abs(process.there - 1) < 1e-3
    if np.count_nonzero(single) < _LEAST:
        return 1.0
    wanted = (process.ran + process.waited)[single].sum()
    return float(np.clip(wanted / process.step[single].sum(), 1.0, cores))
