"""One case of the self-test: the injected faults, their intensity, and the traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from latfix.runners.selftest.faults.background import Phases
from latfix.traffic.schedule import Traffic

Intensity = Literal["weak", "small", "medium", "large"]
Group = Literal["single", "mixed", "unlisted", "quiet"]
INTENSITIES: tuple[Intensity, ...] = ("weak", "small", "medium", "large")
#: A pause, as a multiple of a typical request's latency.
FACTORS: dict[Intensity, float] = {"weak": 1.0, "small": 2.0, "medium": 5.0, "large": 10.0}
#: Items of a typical request.
ITEMS = 64
#: Requests at the start without faults, because warm-up also sends them.
CLEAN_START = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A replay with known faults.

    :param recipes: keys of :data:`latfix.runners.selftest.recipes.RECIPES`.
    :param seed: determines traffic and the places of faults.
    :param seconds: length of the traffic.
    """

    recipes: tuple[str, ...]
    group: Group
    intensity: Intensity
    seed: int
    seconds: float

    @property
    def id(self) -> str:
        """The case's name, also of its folder."""
        return f"{'+'.join(self.recipes)}-{self.intensity}-{self.seed}"


@dataclass(slots=True)
class Draft:
    """Traffic and settings of a case, into which recipes write.

    :param typical_ms: latency of a typical request on this machine; pauses are multiples of it.
    :param rng: the case's random generator.
    :param gaps: ``(n,)`` seconds before each arrival.
    :param items: ``(n,)`` lengths of the inputs.
    :param taken: ``(n,)`` requests that already carry a fault, or must not.
    :param env: environment of the runner's process.
    :param overrides: changes to the runner's settings.
    :param hogs: phases of processes that compete for the runner's cores, one entry per process.
    :param quota: phases of a cgroup quota, with the share of one core that it allows.
    :param neighbor: a process in another control group is needed, see
        :class:`latfix.runners.selftest.faults.neighbor.Neighbor`.
    :param numbered: requests have a running number as a feature, like ids and sequence numbers.
    """

    typical_ms: float
    intensity: Intensity
    rng: np.random.Generator
    gaps: npt.NDArray[np.float64]
    items: npt.NDArray[np.int64]
    taken: npt.NDArray[np.bool_]
    faults: dict[int, list[tuple[str, str, float]]] = field(default_factory=dict)
    priority: npt.NDArray[np.int8] | None = None
    sessions: list[str | None] | None = None
    env: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, float] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    hogs: list[Phases] = field(default_factory=list)
    quota: tuple[Phases, float] | None = None
    neighbor: bool = False
    numbered: bool = False

    def __len__(self) -> int:
        return len(self.gaps)

    @property
    def pause_ms(self) -> float:
        """Duration of a fault of the case's intensity."""
        return FACTORS[self.intensity] * self.typical_ms

    def choose(self, share: float, apart: int = 4) -> npt.NDArray[np.int64]:
        """Random requests without a fault, no two within ``apart`` of each other; marks them as taken."""
        wanted = max(4, round(share * len(self)))
        chosen: list[int] = []
        for k in self.rng.permutation(len(self)).tolist():
            if self.taken[max(k - apart, 0) : k + apart + 1].any():
                continue
            self.taken[k] = True
            chosen.append(k)
            if len(chosen) == wanted:
                break
        return np.sort(np.array(chosen, dtype=np.int64))

    def plan(self, where: str, kind: str, share: float, ms: float | None = None) -> None:
        """Plan a fault for a share of the requests."""
        length = self.pause_ms if ms is None else ms
        self.kinds[kind] = max(self.kinds.get(kind, 0.0), length)
        for k in self.choose(share).tolist():
            # The duration of a collection depends on the heap; other durations vary, like real pauses.
            ms_here = length if kind == "gc" else length * float(self.rng.uniform(0.7, 1.3))
            self.faults.setdefault(k, []).append((where, kind, round(ms_here, 3)))
        if kind != "gc":
            self.kinds[kind] = max(self.kinds[kind], 1.3 * length)

    def traffic(self) -> Traffic:
        n = len(self)
        arrival = np.rint(np.cumsum(self.gaps) * 1e9).astype(np.int64)
        return Traffic(
            arrival_ns=arrival,
            ids=[f"r{k:06d}" for k in range(n)],
            priority=np.ones(n, dtype=np.int8) if self.priority is None else self.priority,
            sessions=[None] * n if self.sessions is None else self.sessions,
            deadline_ms=np.full(n, np.nan),
            features={"items": self.items} | ({"number": np.arange(n)} if self.numbered else {}),
            payloads=[
                {"items": int(self.items[k]), "faults": [list(fault) for fault in self.faults.get(k, ())]}
                for k in range(n)
            ],
            metadata={"source": "latfix selftest"},
        )


def steady_gaps(rng: np.random.Generator, n: int, mean_s: float) -> npt.NDArray[np.float64]:
    """Gamma-distributed gaps between arrivals with shape 4, more regular than a Poisson process (shape 1)."""
    return np.asarray(rng.gamma(4.0, mean_s / 4.0, n), dtype=np.float64)
