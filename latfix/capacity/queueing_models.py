"""Waits that queueing theory predicts for a service whose arrivals and service times were measured.

Any unit of time will do, as long as rates are per the same unit. A *squared coefficient of variation* (SCV) is
a variance over a squared mean: 0 for a constant, 1 for an exponential time.

- **M/M/c**: independent arrivals, exponential service; Erlang (1917). Mean and distribution are exact.
- **M/G/c**: independent arrivals, the measured mean and SCV of service. One server: Pollaczek (1930) and
  Khinchine (1932), whose mean is exact. Several: Lee and Longton's approximation (1959).
- **G/G/c**: measured variability of arrivals too. One server: Kingman's heavy-traffic formula (1961). Several:
  Allen and Cunneen's (1978). With one server and independent arrivals it is Pollaczek and Khinchine's.

Percentiles: in M/M/c a wait is zero with the chance that a server is free, otherwise exponential, exactly. The
other models give a mean alone. There, the same shape is taken, with the model's own mean: exact for one server as
load nears 1 (Kingman), an approximation elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Draws that a percentile of a sum of independent parts is read from.
_DRAWS = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service time's mean and squared coefficient of variation."""

    mean: float
    scv: float

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> Service:
        """Of measured service times; zero and zero where there are none."""
        values = np.asarray(samples, dtype=np.float64)
        mean = float(values.mean()) if len(values) else 0.0
        return cls(mean=mean, scv=float(values.var()) / mean**2 if mean > 0 else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A time before service: zero with chance ``1 - probability``, otherwise exponential, plus a constant.

    :param mean: of the random part over all requests, those that do not wait included.
    :param probability: that a request waits at all.
    :param held: what every request waits beside that, as for a batch's window.
    """

    mean: float
    probability: float
    held: float = 0.0

    @property
    def total_mean(self) -> float:
        """Mean with the constant."""
        return self.mean + self.held

    def quantile(self, q: float) -> float:
        """What a share ``q`` (0..1) of the requests waits at most."""
        if self.mean <= 0 or q <= 1 - self.probability:
            return self.held
        return self.held + self.mean / self.probability * math.log(self.probability / (1 - q))

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        """``n`` waits whose distribution is met evenly, in random order."""
        share = (np.arange(n) + 0.5) / n
        late = share > 1 - self.probability
        waits = np.full(n, self.held)
        if self.mean > 0:
            waits[late] += self.mean / self.probability * np.log(self.probability / (1 - share[late]))
        return np.asarray(rng.permutation(waits), dtype=np.float64)


def erlang_c(servers: int, offered: float) -> float:
    """Chance that an arrival finds every server busy in M/M/c.

    :param offered: rate times mean service, in Erlang; below ``servers``.
    """
    if offered <= 0:
        return 0.0
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def ggc_wait(rate: float, service: Service, *, arrival_scv: float = 1.0, servers: int = 1) -> Wait | None:
    """G/G/c by Allen and Cunneen, Kingman's formula for one server; ``None`` where the servers cannot keep up.

    :param arrival_scv: of the gaps between arrivals, 1 for M/G/c; for bursts, whose gaps depend on each other, the
        index of dispersion of the counts over the queue's own time scale (:func:`relaxation_time`) takes its place.
    """
    busy = rate * service.mean / servers
    if busy >= 1:
        return None
    waits = erlang_c(servers, rate * service.mean)
    mean = waits * (arrival_scv + service.scv) / 2 * service.mean / (servers * (1 - busy))
    return Wait(mean=mean, probability=waits)


def relaxation_time(rate: float, mean: float, servers: int = 1) -> float:
    """How long M/M/1 takes to forget its state: ``mean / (1 - sqrt(busy))**2``; infinite at a load of 1.

    Cohen (1969). It is the time over which counts of arrivals decide a wait, and a measurement that does not last
    many times as long has not seen the queue settle. Several servers are taken for one that is as fast as all.
    """
    busy = rate * mean / servers
    return mean / servers / (1 - math.sqrt(busy)) ** 2 if busy < 1 else math.inf


def percentile_of_sum(
    waits: Sequence[Wait], parts: Sequence[npt.ArrayLike], q: float, *, seed: int, draws: int = _DRAWS
) -> float:
    """The ``q``-th percentile (0..100) of a sum of independent times.

    :param parts: measured samples of each further part, drawn anew with equal chances.
    """
    rng = np.random.default_rng(seed)
    total = np.zeros(draws)
    for wait in waits:
        total += wait.draw(rng, draws)
    for part in parts:
        values = np.sort(np.asarray(part, dtype=np.float64))
        if len(values):
            total += rng.permutation(values[(np.arange(draws) * len(values)) // draws])
    return float(np.percentile(total, q))
