"""``batch.adaptive``: a controller of the batch size, and of how long a batch waits for more requests.

Every few batches it compares the smoothed tail of the measured latency with its target, and examines the cost of
batches per request:

- The **size** starts at one, where decisions come fast. It grows while requests are left behind and larger batches
  cost less per request: it doubles until its first retreat, then grows by an eighth. It shrinks to three quarters if
  larger batches do not cost less, if batches themselves, not the queue, keep the latency above the target, or if the
  cost of smaller ones is unknown. After each retreat it waits twice as long before the next attempt, so a size that
  does not pay is tried ever more rarely.
- The **window** stays at its minimum unless the workers are busy most of the time, batches pay, and latency is well
  below its target; then it grows by a sixteenth of its range. It shrinks to seven tenths if latency is above the
  target, if waiting gains nothing, or if latency rose by more than a tenth since it grew. It halves while the workers
  are idle half of the time. Retreats delay its growth like that of the size.

Known costs are dropped if batches cost half as much again, or a third less, as others of their size did: the service
has changed, and a comparison of costs from before and after would show that change instead of the size's effect. If
the limit binds, the size then shrinks until it is known again if larger batches pay.

The controller's state is what it sets, within bounds, and a limit that does not bind is not moved further (no
integral that could wind up). Additive increase, multiplicative decrease and a dead band in between prevent
oscillation (Chiu and Jain, Analysis of the Increase and Decrease Algorithms, Computer Networks and ISDN Systems 17,
1989).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from latfix.queueing.queue_simulator import SimulatedBatch
from latfix.settings import RunnerSettings

#: Batches between two decisions.
EVERY = 8
#: Number of latencies whose tail is taken, and the weight of a new value in the smoothed tail.
_RECENT, _SMOOTHING = 128, 0.3
_TAIL = 0.95
#: Latency below this share of the target is well below it.
_WELL = 0.7
#: Workers that are busy for less than the first share of the time are idle; for more than the second, overloaded.
_IDLE, _BUSY = 0.5, 0.8
#: A size pays if its requests cost less than the first share of those in batches half as large, and does not pay if
#: they cost more than the second.
_PAYS, _PAYS_NOT = 0.95, 0.98
_SHRINK, _GROWTH = 0.75, 8
_WINDOW_DOWN, _WINDOW_IDLE, _WINDOW_STEPS = 0.7, 0.5, 16
#: A rise of latency by this factor since the window grew is attributed to the window.
_ROSE = 1.1
#: Batches of about a size before its cost is known, and standard errors by which a larger cost must exceed another.
_KNOWN, _ERRORS = 4.0, 1.0
#: A cost's weight halves over this many batches.
_FORGET = 0.5 ** (1 / 256)
#: The service has changed if batches cost this factor more or less than earlier ones of their size, smoothed over
#: this many batches.
_CHANGED, _CHANGE_SPAN = math.log(1.5), 20
#: Decisions to wait after the first retreat, and maximum.
_PATIENCE, _MOST_PATIENCE = 4, 128
#: Without a target: this multiple of the latency of a quiet service.
_QUIET_TIMES = 3.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch, as the controller sees it. Times in nanoseconds, on any single clock.

    :param free_ns: when its worker became free; ``close_ns`` when its membership was fixed; ``end_ns`` its end.
    :param full: at least as many requests waited as it could hold; ``left`` is how many more.
    :param latencies_ns: of its members.
    """

    size: int
    free_ns: int
    close_ns: int
    end_ns: int
    full: bool
    left: int
    latencies_ns: Sequence[int]

    @classmethod
    def of(cls, batch: SimulatedBatch, arrival: Sequence[float]) -> Seen:
        """A batch of a simulation.

        :param arrival: when each simulated request was sent.
        """
        return cls(
            size=len(batch.members),
            free_ns=batch.free_ns,
            close_ns=batch.close_ns,
            end_ns=batch.end_ns,
            full=batch.full,
            left=batch.left,
            latencies_ns=[batch.end_ns - int(arrival[member]) for member in batch.members],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Between which limits a controller moves, and its target.

    :param most: maximum size of a batch; the size starts at one.
    :param least_window_ns: minimum of the window, where it starts; ``most_window_ns`` is its maximum.
    :param target_ns: upper bound for the tail of the latency; 0 for three times that of a quiet service.
    """

    most: int
    least_window_ns: int
    most_window_ns: int
    target_ns: int

    @classmethod
    def of(cls, settings: RunnerSettings) -> Bounds | None:
        """``None`` if the settings have fixed limits."""
        if settings.batching != "adaptive":
            return None
        return cls(
            most=settings.max_batch_size,
            least_window_ns=int(settings.window_least_ms * 1e6),
            most_window_ns=int(settings.window_most_ms * 1e6),
            target_ns=int(settings.target_ms * 1e6),
        )


class _Costs:
    """Cost per request by batch size: geometric means with decaying weights."""

    def __init__(self, most: int) -> None:
        self._weight = [0.0] * (most + 1)
        self._log = [0.0] * (most + 1)
        self._square = [0.0] * (most + 1)
        self._unit = 1.0
        self._drift = 0.0

    def add(self, size: int, each_ns: float) -> bool:
        """Add a batch. True if the service has changed, so that all costs were dropped.

        A mix of costs from before and after a slowdown would make the size tried last look expensive.
        """
        # New entries grow instead of old ones decaying, so only one entry is touched.
        self._unit /= _FORGET
        log = math.log(max(each_ns, 1.0))
        if self._weight[size] >= _KNOWN * self._unit:
            self._drift += (log - self._log[size] / self._weight[size] - self._drift) / _CHANGE_SPAN
        changed = abs(self._drift) > _CHANGED
        if changed:
            self._drift = 0.0
            for sums in (self._weight, self._log, self._square):
                sums[:] = [0.0] * len(sums)
        self._weight[size] += self._unit
        self._log[size] += self._unit * log
        self._square[size] += self._unit * log * log
        if self._unit > 1e12:
            for sums in (self._weight, self._log, self._square):
                sums[:] = [value / self._unit for value in sums]
            self._unit = 1.0
        return changed

    def ratio(self, size: int) -> tuple[float, float] | None:
        """Cost in batches of about ``size``, divided by that in batches of about half the size; and its lower bound.

        ``None`` if one of them is unknown.
        """
        if size < 2:
            return None
        large = self._mean(math.floor(0.75 * size) + 1, size)
        half = self._mean(math.ceil(size / 3), math.floor(size * 2 / 3))
        if large is None or half is None:
            return None
        log = large[0] - half[0]
        return math.exp(log), math.exp(log - _ERRORS * math.sqrt(large[1] + half[1]))

    def _mean(self, least: int, most: int) -> tuple[float, float] | None:
        """The mean of the logarithms and its squared standard error."""
        weight, log, square = (
            sum(sums[least : most + 1]) / self._unit for sums in (self._weight, self._log, self._square)
        )
        if weight < _KNOWN:
            return None
        mean = log / weight
        return mean, max(square / weight - mean * mean, 0.0) / weight


class BatchController:
    """Moves the limits of batches; implements :class:`latfix.queueing.serving_order.Limits`.

    Call :meth:`observe` for each batch, from one thread at a time. It reads no clock.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._most = bounds.most
        self._least_window = bounds.least_window_ns
        self._most_window = max(bounds.most_window_ns, bounds.least_window_ns)
        self._target = float(bounds.target_ns)
        self._size = 1.0
        self._window = float(bounds.least_window_ns)
        self._costs = _Costs(bounds.most)
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._tail = 0.0
        self._quiet = math.inf
        self._wait, self._patience = 0, _PATIENCE
        self._grown = 0
        self._retreated = False
        self._tail_then = math.inf
        self._window_wait, self._window_patience = 0, _PATIENCE
        self._reset()

    @property
    def size(self) -> int:
        """Maximum number of requests in the next batch."""
        return max(int(self._size), 1)

    @property
    def window_ns(self) -> int:
        """How long the oldest request waits for more requests to fill the batch."""
        return int(self._window)

    @property
    def tail_ns(self) -> float:
        """The smoothed tail of the latency, the controlled value."""
        return self._tail

    def _reset(self) -> None:
        self._batches = self._behind = self._timed = 0
        self._work = self._time = 0

    def observe(self, seen: Seen) -> None:
        """Add a batch that ended; decide every few batches."""
        busy = seen.end_ns - seen.close_ns
        if self._costs.add(min(seen.size, self._most), busy / seen.size):
            # Lessons from retreats refer to the previous state of the service, too.
            self._wait, self._patience, self._grown, self._retreated = 0, _PATIENCE, 0, False
            self._tail_then = math.inf
        self._recent.extend(seen.latencies_ns)
        self._batches += 1
        self._behind += seen.left > 0
        self._timed += not seen.full
        self._work += busy
        self._time += max(seen.end_ns - seen.free_ns, busy)
        if self._batches >= EVERY:
            self._decide()
            self._reset()

    def _decide(self) -> None:
        ordered = sorted(self._recent)
        tail = float(ordered[min(int(_TAIL * len(ordered)), len(ordered) - 1)]) if ordered else 0.0
        self._tail = tail if self._tail == 0.0 else self._tail + _SMOOTHING * (tail - self._tail)
        self._quiet = min(self._quiet * 1.002, max(self._tail, 1.0))
        pressure = self._tail / (self._target or _QUIET_TIMES * self._quiet)
        used = self._work / max(self._time, 1)
        self._steer_size(pressure, used)
        self._steer_window(pressure, used)

    def _steer_size(self, pressure: float, used: float) -> None:
        here = self._costs.ratio(self.size)
        in_vain = here is not None and here[1] > _PAYS_NOT
        themselves = pressure > 1.0 and used < _BUSY and self._work / self._batches > 0.5 * self._tail
        if self.size > 1 and (in_vain or themselves):
            self._shrink()
            self._wait, self._patience = self._patience, min(2 * self._patience, _MOST_PATIENCE)
            self._grown, self._retreated = 0, True
        elif self._wait > 0:
            self._wait -= 4 if pressure > 1.0 and used > _BUSY else 1
        elif 4 * self._behind < self._batches:
            return  # the limit does not bind: moving it has no effect now, and too much of one later
        elif here is None and self.size > 1:
            above = self._costs.ratio(min(2 * self.size, self._most))
            if above is not None and above[0] < _PAYS:
                self._grow()
            else:
                self._shrink()
        elif here is None or here[0] < _PAYS:
            self._grow()

    def _shrink(self) -> None:
        self._size = max(min(self._size - 1.0, _SHRINK * self._size), 1.0)

    def _grow(self) -> None:
        more = max(1.0, self._size / _GROWTH) if self._retreated else self._size
        self._size = min(self._size + more, float(self._most))
        self._grown += 1
        if self._grown > _PATIENCE:  # larger sizes have paid for a while: earlier retreats are outdated
            self._patience = max(self._patience // 2, _PATIENCE)

    def _steer_window(self, pressure: float, used: float) -> None:
        ratio = self._costs.ratio(self.size)
        in_vain = self.size == 1 or (ratio is not None and ratio[0] > _PAYS_NOT)
        if used < _IDLE:
            self._window *= _WINDOW_IDLE
        elif pressure > 1.0 or in_vain or self._tail > _ROSE * self._tail_then:
            self._window *= _WINDOW_DOWN
            if self._window_wait == 0 and self._tail_then < math.inf:
                self._window_wait = self._window_patience
                self._window_patience = min(2 * self._window_patience, _MOST_PATIENCE)
        elif self._window_wait > 0:
            self._window_wait -= 1
            self._tail_then = math.inf
        elif used > _BUSY and pressure < _WELL and 2 * self._timed > self._batches:
            self._tail_then = min(self._tail, self._tail_then)
            self._window += (self._most_window - self._least_window) / _WINDOW_STEPS
        self._window = min(max(self._window, self._least_window), self._most_window)
