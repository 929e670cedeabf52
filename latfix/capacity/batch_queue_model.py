"""A queue served in batches: Poisson arrivals, service that depends on the batch's size, and a batch window.

A free worker takes up to ``most`` waiting requests; with a window it holds the batch open until it is full or the
oldest member has waited that long. Looked at when batches end, the number left waiting is a Markov chain (Bailey,
1954; Neuts, 1967), which is solved here numerically. With batches of one and no window its mean wait is Pollaczek
and Khinchine's, exactly. How long the oldest of several waiting requests has waited is not part of the chain: it is
taken to have come when it would have on average.

Arrivals that are not independent, and several workers, are allowed for by factors (see :func:`batch_wait`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.capacity.queueing_models import Service, Wait, erlang_c

Floats = npt.NDArray[np.float64]

#: Longest queue that is solved for; beyond it, the diffusion limit is taken.
_MOST_STATES = 1200
_LEAST_STATES = 48
_PASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchService:
    """What a batch takes, by its size: ``fixed + each * size`` on average.

    :param scv: variance around that, over its square.
    """

    fixed: float
    each: float
    scv: float

    def mean(self, size: npt.ArrayLike) -> Floats:
        """Mean service of batches of these sizes."""
        return np.asarray(self.fixed + self.each * np.asarray(size, dtype=np.float64), dtype=np.float64)

    def capacity(self, most: int, workers: int = 1) -> float:
        """Requests a unit of time that full batches can serve; infinite for a service without length."""
        full = float(self.mean(most))
        return workers * most / full if full > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWait:
    """A request's time before its batch is closed, and the batch that it gets.

    :param wait: in the queue, at random; ``wait.held``: in a batch that is held open.
    :param size_share: ``(most + 1,)`` share of requests in batches of each size.
    """

    wait: Wait
    size_share: Floats

    @property
    def mean_size(self) -> float:
        """Mean size of a batch: requests over batches."""
        sizes = np.arange(1, len(self.size_share))
        batches = float((self.size_share[1:] / sizes).sum())
        return 1.0 / batches if batches > 0 else 1.0


def batch_wait(
    rate: float, service: BatchService, *, most: int, window: float = 0.0, arrival_scv: float = 1.0, workers: int = 1
) -> BatchWait | None:
    """Mean wait and batch sizes; ``None`` where full batches cannot keep up.

    Burstier arrivals multiply the queue's wait by ``(arrival_scv + k scv) / (1 + k scv)``, with ``k`` the arrivals
    during a full batch: the ratio of the variances of the work that arrives meanwhile, as in Kingman's formula, to
    which it comes down for batches of one at full load. Several workers are one that is as fast as all, times
    Erlang's chance of waiting over that one's (Lee and Longton, 1959). Both are heavy-traffic approximations.

    :param most: largest batch.
    :param window: how long a batch is held open after its oldest member came.
    """
    if rate >= service.capacity(most, workers):
        return None
    fast = BatchService(fixed=service.fixed / workers, each=service.each / workers, scv=service.scv)
    solved = _solved(rate, fast, most, window)
    during = rate * float(fast.mean(most))
    bursts = (arrival_scv + during * service.scv) / (1 + during * service.scv) if during > 0 else 1.0
    if most == 1:
        bursts = (arrival_scv + service.scv) / (1 + service.scv)
    busy = during / most
    shared = erlang_c(workers, busy * workers) / busy if workers > 1 and busy > 0 else 1.0
    wait = solved.wait
    return BatchWait(
        wait=Wait(mean=wait.mean * bursts * shared, probability=min(1.0, wait.probability * shared), held=wait.held),
        size_share=solved.size_share,
    )


def _solved(rate: float, service: BatchService, most: int, window: float) -> BatchWait:
    """The chain's answer; how old waiting requests are follows from the usual service, and that from the answer."""
    usual = float(service.mean(1))
    for _ in range(_PASSES if window > 0 and most > 1 else 1):
        found = _chain(rate, service, most, window, usual)
        usual = float(service.mean(found.mean_size))
    return found


def _chain(rate: float, service: BatchService, most: int, window: float, usual: float) -> BatchWait:
    size = np.arange(most + 1)
    mean = service.mean(size)
    states = _states(rate, service, most)
    if states > _MOST_STATES:
        return _diffusion(rate, service, most)
    arrivals = np.stack([_arrivals(rate * float(mean[k]), service.scv, states) for k in range(most + 1)])
    remaining, hold = _holds(rate, usual, most, window)
    chance = _sizes(rate, remaining, most)
    move = np.zeros((states, states))
    for n in range(states):
        if n < most:
            move[n] = chance[n] @ arrivals
        else:
            move[n, n - most :] = arrivals[most, : states - n + most]
        move[n, -1] += max(0.0, 1.0 - float(move[n].sum()))  # longer queues are counted as the longest
    share = _stationary(move)
    left = np.arange(states)
    inside = np.minimum(left, most - 1)
    sizes = np.where((left < most)[:, None], chance[inside], np.eye(most + 1)[most])
    held = np.where(left < most, hold[inside], 0.0)
    served, squared = sizes @ mean, sizes @ (mean**2 * (1 + service.scv))
    length = np.where(left == 0, 1 / rate, 0.0) + held + served
    waiting_held = np.maximum(left, 1) * held + rate * held**2 / 2
    waiting = np.maximum(left - most, 0) * served + rate * squared / 2
    cycle = float(share @ length)
    by_request = share @ (sizes * size)
    return BatchWait(
        wait=Wait(
            mean=float(share @ waiting) / cycle / rate,
            probability=min(1.0, float(share @ served) / cycle),
            held=float(share @ waiting_held) / cycle / rate,
        ),
        size_share=np.asarray(by_request / by_request.sum(), dtype=np.float64),
    )


def _states(rate: float, service: BatchService, most: int) -> int:
    """Queue lengths to solve for: a dozen times the tail's mean, beyond one batch and what arrives in it."""
    during = rate * float(service.mean(most))
    variance = during + during**2 * service.scv
    return max(_LEAST_STATES, math.ceil(2 * most + during + 12 * variance / max(2 * (most - during), 1e-12)))


def _diffusion(rate: float, service: BatchService, most: int) -> BatchWait:
    """Close to full load the queue is a reflected random walk: variance over twice the drift, in full batches."""
    during = rate * float(service.mean(most))
    variance = during + during**2 * service.scv
    share = np.zeros(most + 1)
    share[most] = 1.0
    wait = Wait(mean=variance / (2 * (most - during)) / rate, probability=min(1.0, during / most))
    return BatchWait(wait=wait, size_share=share)


def _arrivals(mean: float, scv: float, states: int) -> Floats:
    """Chances of 0, 1, … arrivals during a gamma-distributed service (negative binomial, Poisson for ``scv`` 0)."""
    j = np.arange(states, dtype=np.float64)
    if mean <= 0:
        return np.asarray(j == 0, dtype=np.float64)
    if scv < 1e-6:
        steps = np.log(mean) - np.log(j[1:])
        first = -mean
    else:
        shape = 1 / scv
        steps = np.log((j[:-1] + shape) / j[1:]) + math.log(mean / (shape + mean))
        first = shape * math.log(shape / (shape + mean))
    return np.asarray(np.exp(first + np.concatenate([[0.0], np.cumsum(steps)])), dtype=np.float64)


def _holds(rate: float, usual: float, most: int, window: float) -> tuple[Floats, Floats]:
    """``(most,)`` by requests left waiting: what is left of the window, and how long the batch is held on average."""
    n = np.arange(most)
    age = usual * n / (n + 1)  # of the oldest of n that came at random during a service
    remaining = np.maximum(window - age, 0.0)
    remaining[0] = window
    missing = most - np.maximum(n, 1)
    hold = np.zeros(most)
    for k in range(most):
        count = _arrivals(rate * remaining[k], 0.0, most + 1)
        above = 1.0 - np.cumsum(count)[: missing[k]]
        hold[k] = float(above.sum()) / rate
    return remaining, hold


def _sizes(rate: float, remaining: Floats, most: int) -> Floats:
    """``(most, most + 1)`` chances of each batch size, by requests left waiting."""
    chance = np.zeros((most, most + 1))
    for n in range(most):
        there = max(n, 1)
        more = _arrivals(rate * remaining[n], 0.0, most - there + 1)
        chance[n, there:] = more
        chance[n, most] += max(0.0, 1.0 - float(more.sum()))
    return chance


def _stationary(move: Floats) -> Floats:
    """The chain's stationary distribution."""
    states = len(move)
    system = move.T - np.eye(states)
    system[-1] = 1.0
    target = np.zeros(states)
    target[-1] = 1.0
    share = np.maximum(np.linalg.solve(system, target), 0.0)
    return np.asarray(share / share.sum(), dtype=np.float64)


def fit_batch_service(sizes: npt.ArrayLike, times: npt.ArrayLike) -> BatchService:
    """The line ``fixed + each * size`` through measured batches, both not negative, by least relative squares.

    Where all batches have one size, nothing is known of others: then each request is taken to need its share, so
    that batching is never credited with a gain that was not seen.

    :param times: of each batch, in the order of ``sizes``; none may be zero.
    """
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(times, dtype=np.float64)
    if not len(size):
        return BatchService(fixed=0.0, each=0.0, scv=0.0)
    one = np.ones(len(size))
    fixed, each = _line(size, time, one / np.maximum(time, float(np.median(time)) * 0.1) ** 2)
    level = fixed + each * size
    for _ in range(4):  # weights by the fitted level, not by the noise of each batch
        fixed, each = _line(size, time, one / np.maximum(level, 1e-12) ** 2)
        level = fixed + each * size
    relative = Service.of(time / np.maximum(level, 1e-12))
    return BatchService(fixed=fixed, each=each, scv=relative.scv)


def _line(size: Floats, time: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted least squares of a line with both coefficients at least zero."""
    total = float(weight.sum())
    center, middle = float(weight @ size) / total, float(weight @ time) / total
    spread = float(weight @ (size - center) ** 2)
    slope = float(weight @ ((size - center) * (time - middle))) / spread if spread > 1e-12 * total else 0.0
    fixed = middle - slope * center
    if spread <= 1e-12 * total:
        return 0.0, middle / max(center, 1e-12)
    if slope < 0:
        return middle, 0.0
    if fixed < 0:
        return 0.0, float(weight @ (size * time)) / float(weight @ size**2)
    return fixed, slope
