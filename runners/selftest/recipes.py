"""Recipes: each injects one cause by writing its faults into a case's draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from latfix.runners.selftest.case import CLEAN_START, INTENSITIES, ITEMS, Draft, steady_gaps
from latfix.runners.selftest.faults.background import Phases
from latfix.runners.selftest.faults.cpu_hogs import cores
from latfix.runners.selftest.faults.cpu_quota import unavailable as no_quota
from latfix.runners.selftest.faults.injectors import supported

#: Share of requests that a pause strikes, by intensity: longer pauses are rarer.
_SHARES = {"weak": 0.03, "small": 0.03, "medium": 0.02, "large": 0.012}
_ARRIVALS = ("traffic.burst", "traffic.overload")
_BATCHING = ("batching.window", "batching.size", "batching.padding", "input.size")
_THREADS = (*_ARRIVALS, *_BATCHING)
#: Workers and prepare threads of the services of several threads.
_WORKERS, _PREPARE_THREADS = 2, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A way to inject one cause.

    :param cause: the injected cause; empty for quiet cases.
    :param build: writes the faults into a draft.
    :param exact: every fault is logged with the request that it struck, so that its milliseconds are known.
    :param logged: every fault is logged, with or without a request.
    :param load: the worker's utilization without the faults.
    :param side_causes: causes that come with it; naming them is neither required nor wrong.
    :param threads: threads that compete with each other for the interpreter lock, and for cores if there are fewer;
        0 if they do not.
    :param rare: its faults are rarer than the percentile leaves: the ten slowest requests are scored, not the tail.
    :param obstacle: why this machine cannot inject it; empty if it can.
    """

    cause: str
    build: Callable[[Draft], None]
    exact: bool = False
    logged: bool = False
    load: float = 0.35
    side_causes: tuple[str, ...] = ()
    threads: int = 0
    rare: bool = False
    obstacle: Callable[[], str] = lambda: ""


def level(draft: Draft) -> int:
    """The intensity as a number from 0."""
    return INTENSITIES.index(draft.intensity)


def _on_path(where: str, kind: str) -> Callable[[Draft], None]:
    def build(draft: Draft) -> None:
        draft.plan(where, kind, _SHARES[draft.intensity])
        if kind == "fragment":
            draft.env["TRIM_BYTES"] = str(8 << 20)

    return build


def _heavy_inputs(draft: Draft) -> None:
    """A few inputs are many times as long as usual."""
    chosen = draft.choose(_SHARES[draft.intensity])
    factor = (2.0, 3.0, 6.0, 11.0)[level(draft)] * draft.rng.uniform(0.8, 1.2, len(chosen))
    draft.items[chosen] = np.rint(factor * ITEMS / 16).astype(np.int64) * 16


def _burst(draft: Draft) -> None:
    """Every one or two seconds several requests arrive at once."""
    size = (4, 6, 10, 18)[level(draft)]
    mean = float(np.mean(draft.gaps))
    every = max(int(1.5 / mean), 2 * size)
    for start in range(CLEAN_START + every // 2, len(draft) - size, every):
        first = start + int(draft.rng.integers(0, max(every // 4, 1)))
        draft.gaps[first + 1 : first + size] = 2e-4
        draft.taken[first : first + size] = True


def _overload(draft: Draft) -> None:
    """After a third of the run, requests arrive faster than the worker can serve them; less is no overload."""
    start = len(draft) // 3
    service_s = draft.typical_ms / 1e3
    load = (1.25, 1.25, 1.6, 2.2)[level(draft)]
    draft.gaps[start:] = steady_gaps(draft.rng, len(draft) - start, service_s / load)


def _priority(draft: Draft) -> None:
    """Many urgent requests at high load repeatedly overtake the others."""
    urgent = draft.rng.random(len(draft)) < (0.65, 0.75, 0.85, 0.93)[level(draft)]
    draft.priority = np.where(urgent, 0, 1).astype(np.int8)
    draft.gaps[:] = draft.rng.exponential(float(np.mean(draft.gaps)), len(draft))


def _window(draft: Draft) -> None:
    """A batch window of several service times at low load."""
    draft.overrides |= {"max_batch_size": 8, "batch_window_ms": round(draft.pause_ms, 2)}


def _groups(draft: Draft) -> None:
    """Requests that arrive together are computed in one batch."""
    size = (3, 4, 8, 14)[level(draft)]
    draft.overrides |= {"max_batch_size": 16, "batch_window_ms": 1.0}
    for first in draft.choose(0.1 / size, apart=size).tolist():
        draft.gaps[first + 1 : first + size] = 2e-5
        draft.taken[first : first + size] = True


def _padding(draft: Draft) -> None:
    """Occasionally a long input arrives with five short ones, which are padded to its length.

    In units of a short input, padding adds ``5 f - 5`` to such a batch, and sharing it ``4 + f`` for a short one:
    padding is the larger part only above a factor of 2.25.
    """
    factor = (3.0, 3.5, 5.0, 7.0)[level(draft)]
    draft.overrides |= {"max_batch_size": 8, "batch_window_ms": 1.0}
    for first in draft.choose(0.04 / factor, apart=8).tolist():
        draft.gaps[first + 1 : first + 6] = 2e-5
        draft.taken[first : first + 6] = True
        draft.items[first] = round(factor * ITEMS)


def _new_lengths(draft: Draft, share: float) -> None:
    """Lengths that no request had before, near the usual one."""
    chosen = draft.choose(share)
    fresh = np.setdiff1d(np.arange(ITEMS - 24, ITEMS + 8 * len(chosen)), np.unique(draft.items))
    draft.items[chosen] = draft.rng.permutation(fresh[: len(chosen)])


def _lazy(draft: Draft) -> None:
    draft.env["LAZY_MS"] = f"{draft.pause_ms:.3f}"
    _new_lengths(draft, _SHARES[draft.intensity])


def _compile(draft: Draft) -> None:
    draft.env["COMPILED"] = "1"
    _new_lengths(draft, (0.006, 0.012, 0.02, 0.03)[level(draft)])


def _growth(kind: str) -> Callable[[Draft], None]:
    def build(draft: Draft) -> None:
        # A scan holds the interpreter lock, which delays other threads too.
        most_ms = (0.5 if kind == "scan" else 1.0) * (0.5, 0.8, 1.5, 3.0)[level(draft)] * draft.typical_ms
        # Lower the arrival rate, because requests take that much longer at the end.
        room = 1.0 + 0.6 * most_ms / draft.typical_ms
        n = round(len(draft) / room)
        draft.gaps, draft.items, draft.taken = draft.gaps[:n], draft.items[:n], draft.taken[:n]
        draft.gaps *= room
        draft.env["GROWTH"] = f"{kind}/{most_ms:.3f}/{len(draft)}"
        if kind == "sessions":  # other kinds have no sessions, so that growth is not attributed to them
            draft.sessions = [str(k) for k in _sessions(draft).tolist()]

    return build


def _sessions(draft: Draft) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Session numbers of requests; most sessions begin late in the run, not evenly over it."""
    n = len(draft)
    begins = np.sort(draft.rng.beta(2.0, 1.2, n // 2)) * n
    known = np.searchsorted(begins, np.arange(n), side="right")
    newest = np.diff(known, prepend=0) > 0
    older = (draft.rng.random(n) * np.maximum(known, 1)).astype(np.int64)
    return np.asarray(np.where(newest, known, older) + 1, dtype=np.int64)


def _phases(draft: Draft, on_s: float, period_s: float) -> Phases:
    return Phases(on_s=on_s, period_s=period_s, seed=int(draft.rng.integers(1 << 30)))


def _spinner(draft: Draft) -> None:
    """A Python thread that does not release the interpreter lock by itself."""
    on_s = (0.04, 0.08, 0.15, 0.3)[level(draft)]
    draft.env["SPINNER"] = _phases(draft, on_s, 2.0).text()


def _collector(draft: Draft) -> None:
    """Garbage collections in a background thread, one or two per second."""
    draft.env["COLLECTOR"] = _phases(draft, draft.pause_ms / 1e3, (0.4, 0.4, 0.6, 1.0)[level(draft)]).text()
    draft.env["COLLECTOR_MS"] = f"{draft.pause_ms:.3f}"


def _hogs(draft: Draft) -> None:
    """Processes on the runner's cores: one, two or three per core, all at the same time."""
    phases = _phases(draft, (0.12, 0.25, 0.25, 0.25)[level(draft)], 1.6)
    draft.hogs += [phases] * ((1, 1, 2, 3)[level(draft)] * len(cores()))


def _threads(draft: Draft) -> None:
    """Two prepare threads, two workers, batches, and a ``prepare`` that runs Python bytecode."""
    draft.overrides |= {"workers": _WORKERS, "prepare_threads": _PREPARE_THREADS}
    draft.overrides |= {"max_batch_size": 4, "batch_window_ms": 1.0}
    draft.env["PYTHON_MS"] = f"{0.3 * draft.typical_ms:.3f}"


def _bursts(draft: Draft) -> None:
    """Two processes per core in short bursts: a thread may lose its core while it holds the interpreter lock."""
    on_s, period_s = ((0.02, 1.6), (0.03, 1.2), (0.045, 0.8), (0.06, 0.5))[level(draft)]
    draft.hogs += [_phases(draft, on_s, period_s)] * (2 * len(cores()))
    draft.env.setdefault("PYTHON_MS", f"{0.3 * draft.typical_ms:.3f}")


def _among_threads(alone: Recipe) -> Recipe:
    """The same fault in a service of several threads."""

    def both(draft: Draft) -> None:
        _threads(draft)
        alone.build(draft)

    threads = _WORKERS + _PREPARE_THREADS
    return replace(alone, build=both, side_causes=_THREADS, threads=threads)


def _scan(draft: Draft) -> None:
    """A list that grows with every request; requests carry a running number."""
    _growth("scan")(draft)
    draft.numbered = True


def _quota(draft: Draft) -> None:
    """A CPU quota during parts of the run."""
    draft.quota = (_phases(draft, 0.3, 1.8), (0.4, 0.3, 0.2, 0.12)[level(draft)])


def _neighbor(draft: Draft) -> None:
    """Requests call a process whose control group has a small quota."""
    draft.neighbor = True
    draft.plan("prepare", "neighbor", _SHARES[draft.intensity])


def _giant(draft: Draft) -> None:
    """So few and so long waits that the percentile does not show them; other prepare threads go on meanwhile."""
    draft.overrides |= {"prepare_threads": 4}
    draft.plan("prepare", "sleep", 0.003, (20.0, 40.0, 80.0, 160.0)[level(draft)] * draft.typical_ms)


def _uncompiled(draft: Draft) -> None:
    """Lengths beyond torch's recompile limit, which run uncompiled and so take longer."""
    draft.env |= {"COMPILED": "1", "UNCOMPILED_MS": f"{draft.pause_ms:.3f}"}
    _new_lengths(draft, _SHARES["weak"])


def _nothing(draft: Draft) -> None:
    draft.gaps[:] = draft.rng.exponential(float(np.mean(draft.gaps)), len(draft))


def _varied(draft: Draft) -> None:
    """Normally distributed lengths around the usual one."""
    lengths = draft.rng.normal(ITEMS, ITEMS / 6, len(draft))
    draft.items[:] = np.clip(np.rint(lengths / 4) * 4, ITEMS // 2, 2 * ITEMS)
    _nothing(draft)


def _constant(draft: Draft) -> None:
    draft.items[:] = ITEMS
    _nothing(draft)


def _pause(cause: str, where: str, kind: str) -> Recipe:
    return Recipe(cause=cause, build=_on_path(where, kind), exact=True, logged=True, obstacle=lambda: supported(kind))


_NEIGHBOR = replace(_pause("external.dependency", "prepare", "neighbor"), build=_neighbor, obstacle=no_quota)
_GIANT = Recipe(cause="external.dependency", build=_giant, logged=True, exact=True, rare=True)

RECIPES: Mapping[str, Recipe] = {
    "sleep_prepare": _pause("external.dependency", "prepare", "sleep"),
    "sleep_finish": _pause("external.dependency", "finish", "sleep"),
    "retry_prepare": _pause("external.dependency", "prepare", "retry"),
    "neighbor_prepare": _NEIGHBOR,
    "neighbor_threads": _among_threads(_NEIGHBOR),
    "giant": _GIANT,
    "giant_threads": _among_threads(_GIANT),
    "span_prepare": _pause("external.dependency", "prepare", "span"),
    "gc_prepare": _pause("python.gc", "prepare", "gc"),
    "gc_model": _pause("python.gc", "model", "gc"),
    "gc_background": Recipe(cause="python.gc", build=_collector, logged=True, exact=True),
    "faults_prepare": _pause("memory.page_faults", "prepare", "faults"),
    "faults_model": _pause("memory.page_faults", "model", "faults"),
    "trim_model": _pause("memory.allocator", "model", "trim"),
    "fragment_model": _pause("memory.fragmentation", "model", "fragment"),
    "work_model": _pause("host.slowdown", "model", "work"),
    "denormals_model": _pause("numerics.denormals", "model", "denormals"),
    "denormals_prepare": _pause("numerics.denormals", "prepare", "denormals"),
    "spinner": Recipe(cause="python.gil", build=_spinner, logged=True, side_causes=_ARRIVALS),
    "hogs": Recipe(cause="host.contention", build=_hogs, logged=True, side_causes=_ARRIVALS),
    "bursts": Recipe(cause="host.contention", build=_bursts, logged=True, side_causes=_ARRIVALS),
    "bursts_threads": _among_threads(Recipe(cause="host.contention", build=_bursts, logged=True)),
    "hogs_threads": _among_threads(Recipe(cause="host.contention", build=_hogs, logged=True)),
    "held_threads": _among_threads(_pause("memory.page_faults", "prepare", "held_faults")),
    "retry_threads": _among_threads(_pause("external.dependency", "prepare", "retry")),
    "denormals_threads": _among_threads(_pause("numerics.denormals", "model", "denormals")),
    "quota": Recipe(cause="host.throttle", build=_quota, logged=True, obstacle=no_quota, side_causes=_ARRIVALS),
    "heavy_inputs": Recipe(cause="input.size", build=_heavy_inputs),
    "burst": Recipe(cause="traffic.burst", build=_burst, side_causes=_ARRIVALS),
    "overload": Recipe(cause="traffic.overload", build=_overload, side_causes=_ARRIVALS),
    "priority": Recipe(cause="traffic.priority", build=_priority, load=0.75, side_causes=_ARRIVALS),
    "window": Recipe(cause="batching.window", build=_window, load=0.15, side_causes=_BATCHING),
    "groups": Recipe(cause="batching.size", build=_groups, load=0.25, side_causes=_BATCHING),
    "padding": Recipe(cause="batching.padding", build=_padding, load=0.25, side_causes=_BATCHING),
    "lazy": Recipe(cause="cold.start", build=_lazy, logged=True, exact=True),
    "lazy_threads": _among_threads(Recipe(cause="cold.start", build=_lazy, logged=True, exact=True)),
    "compile": Recipe(
        cause="cold.compile", build=_compile, logged=True, exact=True, load=0.25, side_causes=("cold.start",)
    ),
    "uncompiled": Recipe(
        cause="cold.compile", build=_uncompiled, logged=True, exact=True, load=0.25, side_causes=("cold.start",)
    ),
    "growth_memory": Recipe(cause="drift.memory", build=_growth("memory"), logged=True, side_causes=_ARRIVALS),
    "growth_cache": Recipe(cause="drift.cache", build=_growth("cache"), logged=True, side_causes=_ARRIVALS),
    "growth_sessions": Recipe(cause="drift.sessions", build=_growth("sessions"), logged=True, side_causes=_ARRIVALS),
    "growth_unknown": Recipe(cause="drift.unknown", build=_growth("unknown"), logged=True, side_causes=_ARRIVALS),
    "shift_unknown": Recipe(cause="drift.unknown", build=_growth("shift"), logged=True, side_causes=_ARRIVALS),
    "growth_scan": Recipe(cause="drift.cache", build=_scan, logged=True, load=0.25, side_causes=_ARRIVALS),
    "growth_threads": _among_threads(Recipe(cause="drift.cache", build=_scan, logged=True, load=0.25)),
    "quiet_threads": replace(_among_threads(Recipe(cause="", build=_nothing)), side_causes=_BATCHING),
    "sleep_model": _pause("unexplained", "model", "sleep"),
    "lock_model": _pause("unexplained", "model", "lock"),
    "quiet_low": Recipe(cause="", build=_nothing, load=0.2),
    "quiet_busy": Recipe(cause="", build=_nothing, load=0.6),
    "quiet_varied": Recipe(cause="", build=_varied),
    "quiet_constant": Recipe(cause="", build=_constant, load=0.4),
}

_ON_DEVICES = ("gpu.clocks", "transfer.copy", "transfer.sync", "dispatch.launch", "gpu.contention")
#: Causes that the self-test cannot inject, and why.
NOT_INJECTABLE: Mapping[str, str] = {
    "host.steal": "only a hypervisor can take the core",
    **dict.fromkeys(_ON_DEVICES, "the self-test's service computes on the CPU"),
    **dict.fromkeys(
        (
            *("network.connect", "network.delayed_ack", "network.transit"),
            *("service.compute", "service.lock", "service.loop", "service.queue"),
        ),
        "the self-test's service is no server",
    ),
    "observer": "latfix does not slow itself down on purpose",
}
