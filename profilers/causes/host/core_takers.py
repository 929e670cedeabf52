"""What ran on the cores while the service's threads waited for one, and if others disturbed the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.formatting import counted, from_ns, percent, significant
from latfix.profilers.evidence.outside.service_process import CPU, WHOLE_CPU, by_name
from latfix.profilers.probes.neighbor_watch import ALL_SERIES, LATFIX_SERIES, PREFIX, SUFFIX, TURN
from latfix.profilers.probes.sampler import (
    BUSY_SERIES,
    PROCESS_CPU,
    STOLEN_SERIES,
    THREAD_CPU,
    THREAD_RUN_QUEUE,
    THREAD_SERIES,
)
from latfix.run_record.schema import Columns

UNSEEN = "processes that are not visible from here (another container, or too short-lived)"
STOLEN = "a neighbor of this virtual machine (stolen by the hypervisor)"
OPERATORS = "the service's own operator threads"
WORKERS = "the service's workers"
SIBLINGS = "other processes of the service"
BACKGROUND = "threads of the service that serve no request, such as a background job"
PREPARERS = "its prepare threads"
REPLAYER = "latfix's replayer"
PROBES = "latfix's probes and progress"
#: Owner by prefix of a thread's name; the first match counts. The replayer runs on the runner's main thread.
_THREADS = (
    ("native", OPERATORS),
    ("MainThread", REPLAYER),
    ("latfix-worker", WORKERS),
    ("latfix-prepare", PREPARERS),
    ("latfix-", PROBES),
)
#: Least cores, and least share of the largest taker's cores, to be listed; and the most that are listed.
_LEAST, _OF_LARGEST = 0.05, 0.2
_NAMED = 3
#: Readings farther apart are of different pieces of a run: they are made once a second.
_APART_NS = 10_000_000_000
#: A run is disturbed if the service waited for a core for more than this share of its runnable time ...
_WAITED = 0.05
#: ... while others used more than this many cores.
_TAKEN = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """A process or group of threads that used cores.

    :param cores: mean over the requested time.
    :param outside: neither the service nor latfix.
    :param turn_ns: mean length of a turn on a core, if it is so long that a thread waits noticeably for its end.
    """

    name: str
    cores: float
    outside: bool
    turn_ns: float = 0.0

    @property
    def words(self) -> str:
        """``stress (process 4711), 1.2 cores``; turns are told of those that use little."""
        turns = f" in turns of {from_ns(self.turn_ns)}" if self.turn_ns and self.cores < _LEAST else ""
        return f"{self.name}, {significant(self.cores, 2)} cores{turns}"


def core_takers(
    samples: Columns, at: Ints | None = None, weight: Ints | None = None, background: tuple[str, ...] = ()
) -> tuple[Taker, ...]:
    """All takers of cores, the largest first; empty if other processes were not watched.

    :param at: times of interest and their ``weight``; the whole run if ``None``.
    :param background: series of the threads of a service behind an address that serve no request.
    """
    series = _Series.of(samples)
    if series is None:
        return ()
    share = series.shares(at, weight)
    others: dict[str, float] = {}
    numbers: dict[str, set[str]] = {}
    own: dict[str, float] = {}
    turns: dict[str, float] = {}
    for name in series.names:
        if name.startswith(PREFIX) and name != ALL_SERIES:
            number, _, comm = name.removeprefix(PREFIX).removesuffix(SUFFIX).removesuffix(TURN).partition(".")
            if name.endswith(TURN):
                turns[comm] = float(series.names[name][1].max())
                continue
            others[comm] = others.get(comm, 0.0) + float(share @ series.spent(name))
            numbers.setdefault(comm, set()).add(number)
        elif name.startswith(THREAD_SERIES) and name.endswith(THREAD_CPU):
            thread = name.removeprefix(THREAD_SERIES).removesuffix(THREAD_CPU)
            owner = next((owner for start, owner in _THREADS if thread.startswith(start)), f"its thread {thread}")
            own[owner] = own.get(owner, 0.0) + float(share @ series.grown(name))
    latfix = float(share @ series.spent(LATFIX_SERIES))
    stolen = float(share @ series.grown(STOLEN_SERIES))
    process = float(share @ series.grown(PROCESS_CPU)) or float(share @ series.grown(CPU))
    if WHOLE_CPU in series.names:
        own[SIBLINGS] = float(share @ series.grown(WHOLE_CPU)) - process
        process += own[SIBLINGS]
    seen = float(share @ series.spent(ALL_SERIES)) + process + latfix + stolen
    unseen = float(share @ series.grown(BUSY_SERIES)) - seen
    own[PROBES] = own.get(PROBES, 0.0) + latfix
    own[BACKGROUND] = sum(float(share @ series.spent(name)) for name in background)
    found = [
        *(
            Taker(name=_named(comm, numbers[comm]), cores=cores, outside=True, turn_ns=turns.get(comm, 0.0))
            for comm, cores in others.items()
        ),
        *(Taker(name=name, cores=cores, outside=False) for name, cores in own.items()),
        Taker(name=STOLEN, cores=stolen, outside=True),
        Taker(name=UNSEEN, cores=unseen, outside=True),
    ]
    return tuple(sorted((taker for taker in found if taker.cores > 0), key=lambda taker: -taker.cores))


def _named(comm: str, numbers: set[str]) -> str:
    return f"{comm} (process {next(iter(numbers))})" if len(numbers) == 1 else f"{comm} ({len(numbers)} processes)"


def describe_takers(takers: tuple[Taker, ...], *, but: tuple[str, ...] = (), turns: bool = False) -> str:
    """The largest takers as text; empty if processes were not watched.

    :param but: names to leave out, because they are the victims.
    :param turns: also those with long turns, which explain waits but not a busy machine.
    """
    if not takers:
        return ""
    long = {taker.name for taker in takers if turns and taker.turn_ns}
    some = [taker for taker in takers if taker.name not in but and (taker.cores >= _LEAST or taker.name in long)]
    if not some:
        return "no process that is visible from here"
    listed = [taker for taker in some if taker.name in long or taker.cores >= _OF_LARGEST * some[0].cores]
    return "; ".join(taker.words for taker in listed[:_NAMED])


def disturbance(samples: Columns) -> str:
    """How others disturbed the run, as text; empty if they did not, or processes were not watched."""
    takers = tuple(taker for taker in core_takers(samples) if taker.outside)
    taken = sum(taker.cores for taker in takers)
    series = _Series.of(samples)
    if series is None or taken < _TAKEN:
        return ""
    share = series.shares(None, None)
    ran = sum(float(share @ series.grown(name)) for name in series.own(THREAD_CPU))
    waited = sum(float(share @ series.grown(name)) for name in series.own(THREAD_RUN_QUEUE))
    if waited <= _WAITED * (ran + waited):
        return ""
    return (
        f"others used {significant(taken, 2)} cores ({describe_takers(takers)}), and the service's threads waited "
        f"for a core for {percent(waited / (ran + waited))} of the time that they could have run"
    )


def last_takers(readings: Sequence[tuple[int, str, float]]) -> str:
    """What others used between the last two readings of a neighbor watch, as text; empty if hardly any or unknown.

    :param readings: :attr:`latfix.profilers.probes.neighbor_watch.NeighborWatch.samples`.
    """
    if not readings:
        return ""
    at, series, value = zip(*readings, strict=True)
    columns = {"t_ns": np.array(at), "series": np.array(series, dtype=object), "value": np.array(value)}
    takers = tuple(taker for taker in core_takers(columns, np.array(at[-1:]), np.ones(1, np.int64)) if taker.outside)
    taken = sum(taker.cores for taker in takers)
    return f"others used {significant(taken, 2)} cores ({describe_takers(takers)})" if taken >= _TAKEN else ""


def disturbed_replays(found: Sequence[str]) -> str:
    """How others disturbed several replays, from the :func:`disturbance` of each; empty if they disturbed none."""
    known = [words for words in found if words]
    if not known or len(found) == 1:
        return "".join(known)
    return f"{len(known)} of {counted(len(found), 'replay')}; in the first of them {known[0]}"


@dataclass(frozen=True, slots=True)
class _Series:
    """Samples by series, cut into stretches by the readings of other processes.

    :param edges: times of these readings.
    """

    edges: Ints
    names: dict[str, tuple[Ints, Floats]]

    @classmethod
    def of(cls, samples: Columns) -> _Series | None:
        """``None`` if other processes were read less than twice."""
        names = by_name(samples)
        if ALL_SERIES not in names:
            return None
        edges = np.asarray(names[ALL_SERIES][0], dtype=np.int64)
        return cls(edges, names) if len(edges) > 1 else None

    def own(self, suffix: str) -> Iterator[str]:
        """Counters of the service's threads, or of its process if it is seen from outside."""
        kinds = (*(THREAD_SERIES + kind for kind in ("latfix-worker", "latfix-prepare", "native")), "server.")
        return (name for name in self.names if name.startswith(kinds) and name.endswith(suffix))

    def shares(self, at: Ints | None, weight: Ints | None) -> Floats:
        """Weight of each stretch over its length: multiplied with nanoseconds by stretch they give cores."""
        length = np.maximum(np.diff(self.edges), 1).astype(np.float64)
        if at is None or weight is None or not weight.sum():
            read = length <= _APART_NS
            return np.asarray(read / max(float(length[read].sum()), 1.0), dtype=np.float64)
        stretch = np.clip(np.searchsorted(self.edges, at) - 1, 0, len(length) - 1)
        counted = np.bincount(stretch, weights=weight.astype(np.float64), minlength=len(length))
        return np.asarray(counted / counted.sum() / length, dtype=np.float64)

    def spent(self, name: str) -> Floats:
        """Nanoseconds by stretch, of a series of times since the previous reading."""
        times, values = self.names.get(name, (np.zeros(0, np.int64), np.zeros(0)))
        stretch = np.clip(np.searchsorted(self.edges, times) - 1, 0, len(self.edges) - 2)
        return np.asarray(np.bincount(stretch, weights=values, minlength=len(self.edges) - 1), dtype=np.float64)

    def grown(self, name: str) -> Floats:
        """Nanoseconds by stretch, of a counter."""
        times, values = self.names.get(name, (np.zeros(0, np.int64), np.zeros(0)))
        if len(times) < 2:
            return np.zeros(len(self.edges) - 1)
        return np.asarray(np.diff(np.interp(self.edges, times, values)), dtype=np.float64)
