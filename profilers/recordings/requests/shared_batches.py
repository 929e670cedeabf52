"""What batches add to the latencies of a log: the wait for the timer, the others in the batch, the batches ahead.

The computation of a batch is fitted on its size and on the sums and maxima of its members' inputs. What a member
alone would need is its own; the remainder of the fit, and finishing after others, is ``batching.size``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import counted, from_ns, share
from latfix.profilers.evidence.work_model import WorkModel, fit_work_model, folds_of
from latfix.profilers.evidence.work_shapes import Sample
from latfix.profilers.recordings.requests.text_source import LONGEST_NS
from latfix.queueing.inference.batch_inference import Batches
from latfix.queueing.inference.queue_inference import served_from, starts
from latfix.queueing.queue_simulator import Policy, replay

#: Batches that the model is fitted to, and requests that are predicted at once.
_SAMPLE, _AT_ONCE = 100_000, 500_000
#: A standstill: the least excess of a batch, as a share of a usual batch, and in median deviations (as for 8 sigma).
_STOOD, _FAR = 0.5, 12.0
#: Runs, and requests of each, that show what chance produces.
_RUNS, _SIMULATED = 40, 4_000
#: Log-likelihood by which slow batches must follow their sizes better than their durations: then a member was slow.
_MEMBERS = 2.0

#: The design of requests, without a constant: ``(k, columns)`` for row numbers or a slice.
Design = Callable[[Any], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatches:
    """The batches of ``n`` requests in order of arrival. Times in nanoseconds.

    :param size: ``(m,)`` members.
    :param window: ``(n,)`` waited for the timer, or for the batch to fill, while a worker was free; ``behind`` for
        batches ahead.
    """

    batches: Batches
    size: Ints
    window: Ints
    behind: Ints

    @classmethod
    def of(cls, batches: Batches, arrival: Ints, latency: Ints) -> SharedBatches:
        """The waits for batches.

        :param arrival: ``(n,)`` at the queue; ``latency`` ``(n,)``.
        """
        size = batches.size(len(arrival))
        waited = np.clip(np.repeat(batches.begin_ns, size) - arrival, 0, latency)
        behind = np.clip(np.repeat(batches.free_ns, size) - arrival, 0, waited)
        return cls(batches=batches, size=size, window=waited - behind, behind=behind)

    def sampled(self, base: Ints, most: int) -> Sample:
        """At most twice so many batches as units of work, evenly over time.

        :param base: ``(n,)`` latency without waits and other known parts.
        """
        first, m = self.batches.first, len(self.size)
        chosen = np.arange(0, m, max(m // most, 1))
        size = self.size[chosen]
        rows = np.repeat(first[chosen], size) + _within(size)
        time = np.maximum(np.minimum.reduceat(base, first)[chosen], 0).astype(np.float64)
        return Sample(rows, np.repeat(np.arange(len(chosen)), size), time, lambda members: _of_batches(members, size))

    def fit(self, design: Design, base: Ints) -> tuple[FittedBatches, Floats, Ints]:
        """What batches need, ``(n,)`` the service each request needs alone, ``(n,)`` that it shares with others.

        :param base: ``(n,)`` latency without waits and other known parts.
        """
        first, m, n = self.batches.first, len(self.size), len(base)
        computed = np.minimum.reduceat(base, first)
        sample = self.sampled(base, _SAMPLE)
        members = design(sample.rows)
        model = fit_work_model(sample.design_of(members), sample.time_ns, sample.time_ns > 0)
        typical = np.median(members, axis=0)
        fold = folds_of(m)
        alone, expected, at_rest = np.empty(n), np.empty(m), np.empty(m)
        per_part = max(int(_AT_ONCE * m / n), 1)
        for low in range(0, m, per_part):
            part = slice(low, min(low + per_part, m))
            begin, size = int(first[low]), self.size[part]
            inside = slice(begin, begin + int(size.sum()))
            members = design(inside)
            expected[part] = np.minimum(model.predict(_of_batches(members, size), fold[part]), LONGEST_NS)
            usual = np.column_stack([np.ones(len(size)), size[:, None] * typical, size[:, None] * typical[1:]])
            at_rest[part] = model.predict(usual, fold[part])
            ones = np.ones(len(members), np.int64)
            alone[inside] = np.minimum(
                model.predict(_of_batches(members, ones), np.repeat(fold[part], size)), LONGEST_NS
            )
        others = np.rint(np.repeat(expected, self.size) - alone).astype(np.int64)
        fitted = FittedBatches(shared=self, model=model, computed=computed, expected=expected, at_rest=at_rest)
        return fitted, alone, others + base - np.repeat(computed, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBatches:
    """How long batches take. Times in nanoseconds.

    :param computed: ``(m,)`` how long each took, until its first member ended.
    :param expected: ``(m,)`` how long each takes by its inputs, ``at_rest`` with typical ones.
    """

    shared: SharedBatches
    model: WorkModel
    computed: Ints
    expected: Floats
    at_rest: Floats

    @property
    def batches(self) -> Batches:
        return self.shared.batches

    @property
    def size(self) -> Ints:
        """``(m,)`` members."""
        return self.shared.size

    def standstills(self) -> tuple[Ints, int]:
        """``(n,)`` time lost in standstills of whole batches, and how many there were.

        Slow batches that are the more frequent the larger they are do not count: then single members are slow.
        """
        excess = self.computed - self.expected
        usual = float(np.median(self.expected))
        far = _FAR * float(np.median(np.abs(excess - np.median(excess))))
        slow = excess > max(_STOOD * usual, far)
        shared = slow & (self.size > 1)
        if not shared.any() or _likelihood(self.size, slow) > _likelihood(self.expected, slow) + _MEMBERS:
            shared[:] = False
        lost = np.where(shared, np.rint(excess), 0).astype(np.int64)
        return np.repeat(lost, self.size), int(np.count_nonzero(shared))

    def waits_at_rest(self, arrival: Ints, scatter_ns: float) -> Ints:
        """``(n,)`` the wait for batches ahead if each had typical inputs, the same members and the same timer.

        :param scatter_ns: mean of the ordinary scatter of a batch's time.
        """
        batches = self.batches
        last = arrival[batches.first + self.size - 1]
        ready = np.where(batches.begin_ns > batches.free_ns, batches.begin_ns, last)
        takes = np.rint(np.maximum(self.at_rest + scatter_ns, 1)).astype(np.int64)
        begin = served_from(ready, takes, batches.rule.workers)
        free = starts(arrival[batches.first], begin + takes, batches.rule.workers)
        return np.asarray(np.maximum(np.repeat(free, self.size) - arrival, 0))

    @property
    def by_size(self) -> Floats:
        """``(largest + 1,)`` how long a batch with typical inputs takes, by its size."""
        sizes, rows = np.unique(self.size, return_index=True)
        return np.asarray(np.interp(np.arange(int(sizes[-1]) + 1), sizes, self.at_rest[rows]))

    @property
    def rate(self) -> float:
        """Requests per nanosecond that batches of the largest size serve, all workers together."""
        takes = self.by_size
        return self.batches.rule.workers * (len(takes) - 1) / max(float(takes[-1]), 1.0)

    def chance_wait_ns(self, span_ns: float, scatter_ns: float, tail: float, seed: int) -> float:
        """The tail's mean wait for batches ahead if requests came independently at this rate: 39 of 40 stay below.

        :param tail: share of requests in the tail.
        """
        n, rule, takes = int(self.size.sum()), self.batches.rule, self.by_size + scatter_ns
        many = min(n, _SIMULATED)
        policy = Policy(workers=rule.workers, max_batch=len(takes) - 1, window=float(rule.window_ns), reference=takes)
        rng, means = np.random.default_rng(seed), np.zeros(_RUNS)
        for run in range(_RUNS):
            arrival = np.cumsum(rng.exponential(span_ns / n, many))
            served = replay(policy, arrival, np.zeros(many), np.zeros(many, np.int64))
            free = np.where(served.previous < 0, 0.0, served.end[served.previous])
            wait = np.sort(np.maximum(np.asarray(served.by_request(free)) - arrival, 0))
            means[run] = wait[int(many * (1 - tail)) :].mean()
        return float(np.quantile(means, 0.975))

    def evidence(self) -> dict[str, str]:
        """By cause, one sentence with the figures."""
        rule, most = self.batches.rule, int(self.size.max())
        at_once = counted(rule.workers, "batch") + (" was" if rule.workers == 1 else " were")
        takes, least = self.by_size, int(self.size.min())
        middle, late = np.quantile(self.shared.window, (0.5, 0.99)).tolist()
        others = counted(int(np.median(np.repeat(self.size, self.size))) - 1, "other")
        ahead = share(float(np.mean(self.shared.behind > 0)))
        return {
            "traffic.burst": f"inferred: {at_once} computed at a time; {ahead} waited for one ahead",
            "batching.window": (
                f"{rule.sentence}; with a free worker, requests waited {from_ns(middle)} in the median, "
                f"{from_ns(late)} at p99."
            ),
            "batching.size": (
                f"inferred from who ended together: the median request shared its batch with {others}; a batch of "
                f"{least} takes {from_ns(float(takes[least]))}, one of {most} {from_ns(float(takes[most]))}."
            ),
        }


def _within(size: Ints) -> Ints:
    """Positions within groups of these sizes."""
    return np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)


def _of_batches(members: Floats, size: Ints) -> Floats:
    """Designs of batches: a constant, sums over the members, and sizes times the largest (what padding computes)."""
    first = np.cumsum(size) - size
    padded = size[:, None] * np.maximum.reduceat(members[:, 1:], first) if members.shape[1] > 1 else members[:0, 1:]
    sums = np.add.reduceat(members, first)
    return np.column_stack([np.ones(len(size)), sums, padded.reshape(len(size), -1)])


def _likelihood(weight: Floats | Ints, slow: Bools) -> float:
    """Log-likelihood of which batches were slow, if that is as likely as their weights."""
    weights = np.maximum(weight.astype(np.float64), 1e-9)
    return float(np.log(weights[slow] / weights.sum()).sum())
