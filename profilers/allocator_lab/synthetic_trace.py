"""Synthetic allocation traffic of a service with variable lengths, which fragments memory.

Each conversation keeps a cache that grows with its length: a larger block is allocated, then the smaller one freed.
Each turn needs temporary working memory by the length of its input. Both lengths are log-normal. A rare long input
needs one large block. Memory in use stays below the device's capacity, so a large block fails only because of where
small ones lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.profilers.allocator_lab.trace import AllocationTrace, Event

_MIB = 1 << 20
#: Maximum share of the capacity in use: any request fits, except for fragmentation.
_MOST_USED = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Parameters of the traffic.

    :param turns: number of requests.
    :param capacity: bytes of the device.
    :param filled: mean share of it that caches of conversations use.
    :param piece: median size of a cache, in bytes; ``spread`` the standard deviation of its logarithm.
    :param large: share of the capacity that a long input's block needs.
    :param large_each: mean number of turns per long input.
    :param turns_a_conversation: mean number; geometrically distributed.
    """

    turns: int = 4000
    capacity: int = 4 << 30
    filled: float = 0.6
    piece: int = 24 * _MIB
    spread: float = 0.9
    large: float = 0.18
    large_each: int = 40
    turns_a_conversation: float = 6.0


def generate(seed: int, traffic: Traffic | None = None) -> AllocationTrace:
    """A trace; equal seeds give equal traces."""
    want = traffic or Traffic()
    rng = np.random.default_rng(seed)
    maker = _Maker(int(_MOST_USED * want.capacity))
    held: list[tuple[int, int]] = []  # key and size of each conversation's cache
    working: list[int] = []  # keys of the previous turn's working memory
    for turn in range(want.turns):
        maker.t_us = turn * 1000.0
        for key in working:
            maker.free(key)
        working.clear()
        sizes = [max(int(_length(rng, want) * 0.2), 1) for _ in range(int(rng.integers(2, 5)))]
        if rng.random() < 1.0 / want.large_each:
            sizes.append(int(want.large * want.capacity * rng.uniform(0.8, 1.0)))
        for size in sizes:
            if maker.fits(size):
                working.append(maker.take(size)[0])
        begun = _length(rng, want)
        if sum(size for _, size in held) < want.filled * want.capacity and maker.fits(begun):
            held.append(maker.take(begun))
        if not held:
            continue
        place = int(rng.integers(len(held)))
        key, size = held[place]
        grown = int(size * rng.uniform(1.05, 1.4))
        ends_now = rng.random() < 1.0 / want.turns_a_conversation or grown > want.capacity // 8
        if ends_now or not maker.fits(grown):
            maker.free(key)
            del held[place]
        else:
            held[place] = maker.take(grown)
            maker.free(key)
    return AllocationTrace(events=maker.events, source=f"made up, seed {seed}")


class _Maker:
    def __init__(self, limit: int) -> None:
        self.events: list[Event] = []
        self.t_us = 0.0
        self._live: dict[int, int] = {}
        self._left = limit
        self._next = 0

    def fits(self, size: int) -> bool:
        return size <= self._left

    def take(self, size: int) -> tuple[int, int]:
        key, self._next = self._next, self._next + 1
        self._live[key] = size
        self._left -= size
        self.events.append(Event(key=key, size=size, t_us=self.t_us))
        return key, size

    def free(self, key: int) -> None:
        self._left += self._live.pop(key)
        self.events.append(Event(key=key, size=0, t_us=self.t_us))


def _length(rng: np.random.Generator, want: Traffic) -> int:
    return max(int(want.piece * np.exp(rng.normal(0.0, want.spread))), 1)
