"""Simulated services for ``gates.py``: one queue on a machine that varies.

A replay is a first-come-first-served queue with one worker. Arrivals and sizes are the same in every replay of a
comparison. Effects of the machine (noise, pauses, restarts, neighbors, drift) differ, and continue over the whole
comparison in the order of its replays: A B, B A, A B, ….
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A service, its traffic and its machine. Times are in units of the mean service time.

    :param load: offered load.
    :param sigma: spread of the logarithm of the sizes; 0 is Pareto with exponent 2.5 instead.
    :param burst: arrivals come this many times faster in bursts, a fifth of the time.
    :param noise: spread of the logarithm of a request's service time between replays.
    :param pauses: share of requests hit by a pause, at random in every replay.
    :param collections: a pause after this many requests, at the same ones in every replay; 0: none.
    :param pause: mean length of a pause; exponential for random ones, within a tenth for collections.
    :param restart: standard deviation of the logarithm of a factor on a whole replay.
    :param lottery: a replay is slower by this share with probability one half.
    :param neighbor: slowdown while a neighbor is busy: a tenth of the time, each for 300 requests on average.
    :param drift: how much slower the machine is at the end of twelve rounds, in a random walk.
    """

    load: float = 0.5
    sigma: float = 0.6
    burst: float = 1.0
    noise: float = 0.05
    pauses: float = 0.0
    collections: int = 0
    pause: float = 20.0
    restart: float = 0.0
    lottery: float = 0.0
    neighbor: float = 0.0
    drift: float = 0.0


#: Each is named after its difference from "steady"; "all of it" combines them.
WORLDS: dict[str, World] = {
    "steady": World(),
    "heavy tail": World(sigma=0.0, noise=0.1),
    "bursts": World(burst=3.0, load=0.4, noise=0.1),
    "rare pauses": World(pauses=0.005),
    "frequent pauses": World(pauses=0.02, pause=8.0),
    "restarts 4 %": World(restart=0.04, noise=0.1),
    "restarts 10 %": World(restart=0.10, noise=0.1),
    "restart lottery": World(lottery=0.06, noise=0.02),
    "neighbors": World(neighbor=0.6, noise=0.1),
    "drift": World(drift=0.3, noise=0.1),
    "overloaded": World(load=1.05, noise=0.1, restart=0.04),
    "all of it": World(burst=2.0, load=0.4, noise=0.1, pauses=0.005, restart=0.04, neighbor=0.3, drift=0.1),
}


@dataclass(slots=True)
class Bench:
    """One comparison's traffic and machine; replays are made in order.

    :param factor: on the new arm's service times, or on its pauses if ``lengthen`` is set.
    """

    world: World
    requests: int
    rng: np.random.Generator
    factor: float = 1.0
    lengthen: bool = False

    def rounds(self, count: int) -> tuple[list[Floats], list[Floats]]:
        """Latencies of both arms, ``count`` rounds."""
        return self.controlled_rounds(count)[:2]

    def controlled_rounds(
        self, count: int, *, parts: int = 1, slack: float = 0.02
    ) -> tuple[list[Floats], list[Floats], Floats]:
        """Like :meth:`rounds`, each with one of several parts of the traffic; also the machine's pace.

        :param slack: standard deviation of that pace's logarithm.
        """
        traffic = [self._traffic() for _ in range(parts)]
        machine, restarts = self._machine(2 * count)
        base: list[Floats] = []
        new: list[Floats] = []
        for k in range(count):
            # A B, B A, …: the machine's state continues, and drift does not always favor the same arm.
            for turn, is_new in enumerate((False, True) if k % 2 == 0 else (True, False)):
                at = 2 * k + turn
                replay = self._replay(*traffic[k % parts], machine[at] * restarts[at], is_new)
                (new if is_new else base).append(replay)
        speeds = np.log(machine.mean(axis=1)).reshape(count, 2)
        drift = (speeds[:, 1] - speeds[:, 0]) * np.where(np.arange(count) % 2 == 0, 1.0, -1.0)
        return base, new, drift + (self.rng.normal(0, slack, count) if slack and parts > 1 else 0.0)

    def _traffic(self) -> tuple[Floats, Floats]:
        world, n, rng = self.world, self.requests, self.rng
        if world.sigma > 0:
            sizes = np.exp(rng.normal(0, world.sigma, n) - world.sigma**2 / 2)
        else:
            sizes = (rng.pareto(2.5, n) + 1) * 0.6
        gaps = rng.exponential(1 / world.load, n)
        if world.burst > 1:
            ends = np.cumsum(rng.exponential(np.where(np.arange(2 * n) % 2 == 0, 80.0, 20.0)))
            busy = np.searchsorted(ends, np.arange(n)) % 2 == 1
            gaps = np.where(busy, gaps / world.burst, gaps * 1.2)
        return np.cumsum(gaps), sizes

    def _machine(self, replays: int) -> tuple[Floats, Floats]:
        """How slow the machine is at every request of every replay, ``(replays, requests)``, and each restart."""
        world, n, rng = self.world, self.requests, self.rng
        slow = np.ones((replays, n))
        if world.drift:
            walk = np.cumsum(rng.normal(0, 1, replays * 10)) / math.sqrt(24 * 10)
            at = np.linspace(0, len(walk) - 1, replays * n)
            slow *= np.exp(world.drift * np.interp(at, np.arange(len(walk)), walk)).reshape(replays, n)
        if world.neighbor:
            lengths = rng.exponential(np.where(np.arange(2 * replays * n // 300 + 4) % 2 == 0, 2700.0, 300.0))
            busy = np.searchsorted(np.cumsum(lengths), np.arange(replays * n)) % 2 == 1
            slow *= np.where(busy, 1 + world.neighbor, 1.0).reshape(replays, n)
        restarts = np.exp(rng.normal(0, world.restart, replays)) if world.restart else np.ones(replays)
        if world.lottery:
            restarts = restarts * (1 + world.lottery * rng.integers(0, 2, replays))
        return slow, restarts

    def _replay(self, arrivals: Floats, sizes: Floats, slow: Floats, is_new: bool) -> Floats:
        world, n, rng = self.world, self.requests, self.rng
        faster = self.factor if is_new and not self.lengthen else 1.0
        longer = self.factor if is_new and self.lengthen else 1.0
        service = sizes * np.exp(rng.normal(0, world.noise, n)) * faster
        if world.pauses:
            service = service + (rng.random(n) < world.pauses) * rng.exponential(world.pause, n) * longer
        if world.collections:
            due = np.arange(n) % world.collections == world.collections - 1
            service = service + due * world.pause * np.exp(rng.normal(0, 0.1, n)) * longer
        return queue(arrivals, service * slow)


def queue(arrivals: Floats, service: Floats) -> Floats:
    """Latencies of a first-come-first-served queue with one worker (Lindley, 1952)."""
    done = np.cumsum(service)
    return np.asarray(done + np.maximum.accumulate(arrivals - (done - service)) - arrivals, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A way to make p99 a tenth higher, and the factor that achieves it."""

    world: World
    lengthen: bool

    def factor(self, requests: int, wanted: float = 1.10, *, seed: int = 5) -> float:
        """The factor that makes p99 of many requests ``wanted`` times as high, by bisection."""
        quiet = replace(self.world, restart=0.0, lottery=0.0, neighbor=0.0, drift=0.0)

        def p99(factor: float) -> float:
            rng = np.random.default_rng(seed)
            parts = [
                Bench(quiet, requests, rng, factor, self.lengthen).rounds(1)[1] for _ in range(400_000 // requests)
            ]
            return float(np.quantile(np.concatenate(parts), 0.99))

        return bisect(lambda factor: p99(factor) / usual - wanted, 1.0, 1.6) if (usual := p99(1.0)) > 0 else 1.0


def bisect(value: Callable[[float], float], low: float, high: float) -> float:
    """The zero of an increasing function."""
    for _ in range(18):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) < 0 else (low, middle)
    return (low + high) / 2


#: Reasons for a p99 that is a tenth higher.
PLANTED: dict[str, Planted] = {
    "service scaled, steady": Planted(world=World(noise=0.1), lengthen=False),
    "service scaled, heavy tail": Planted(world=World(sigma=0.0, noise=0.1), lengthen=False),
    "service scaled, restarts 3 %": Planted(world=World(noise=0.1, restart=0.03), lengthen=False),
    "service scaled, restarts 5 %": Planted(world=World(noise=0.1, restart=0.05), lengthen=False),
    "collections lengthened": Planted(world=World(collections=60, pause=8.0, noise=0.1), lengthen=True),
    "collections lengthened, restarts 3 %": Planted(
        world=World(collections=60, pause=8.0, noise=0.1, restart=0.03), lengthen=True
    ),
    "random pauses lengthened": Planted(world=World(pauses=0.02, pause=8.0), lengthen=True),
}

#: Overloads that a faster service ends, with the factor on its service times.
ENDED: dict[str, tuple[World, float]] = {
    "overload ends, rare pauses": (World(load=1.3, noise=0.1, pauses=0.004, pause=15.0, restart=0.05), 0.3),
    "overload ends, neighbors": (World(load=1.2, noise=0.1, neighbor=0.6, restart=0.05), 0.4),
}
