"""Detects during a replay that its backlog shows nothing new, so that the replay can end early."""

from __future__ import annotations

#: A wait of this many times the limit is far beyond it.
FAR = 4.0
#: Minimum time, in seconds and as a share of the schedule, before a replay may end early.
_LEAST_S, _LEAST_SHARE = 2.0, 0.3
#: Minimum backlog, as a share of all requests: with and without a limit on latency.
_SHARE, _SHARE_WITHOUT = 0.1, 0.3
#: If the second half ends fewer requests than this share of the first, something stopped the service.
_STOPPED = 0.5


class BacklogWatch:
    """Watches the backlog by the runner's status events.

    :param requests: number of requests in the schedule, which lasts ``scheduled_s``.
    :param at_once: number of requests that all workers together serve at once.
    :param limit_s: the objective's limit in seconds; ``None`` if there is none.
    """

    def __init__(self, *, requests: int, scheduled_s: float, at_once: int, limit_s: float | None) -> None:
        self._requests = requests
        self._scheduled_s = scheduled_s
        self._at_once = at_once
        self._limit_s = limit_s
        self._seen: list[tuple[float, int, int]] = []

    def hopeless(self, at_s: float, in_flight: int, done: int) -> bool:
        """True if the backlog keeps growing and is too large to be of interest.

        It grows if its minimum rose from each quarter of the time so far to the next, and a tenth of all requests are
        in flight. It is too large if a new request would wait several times the limit at the pace of the last half,
        or without a limit, if three tenths of all requests are in flight. If far fewer requests ended in the last
        half than in the first, something other than load stopped the service.

        :param at_s: seconds of the schedule.
        :param done: number of requests that have ended.
        """
        if at_s <= 0:
            return False
        self._seen.append((at_s, in_flight, done))
        if at_s < max(_LEAST_S, _LEAST_SHARE * self._scheduled_s):
            return False
        second, third, last = (self._least(at_s * k / 4, at_s * (k + 1) / 4) for k in (1, 2, 3))
        if second is None or third is None or last is None or not second < third < last:
            return False
        share = _SHARE if self._limit_s is not None else _SHARE_WITHOUT
        if last <= 2 * self._at_once or in_flight < share * self._requests:
            return False
        then = next(entry for entry in self._seen if entry[0] >= at_s / 2)
        if done - then[2] < _STOPPED * then[2]:
            return False
        if self._limit_s is None:
            return True
        pace = (done - then[2]) / max(at_s - then[0], 1e-9)
        return pace <= 0 or in_flight / pace > FAR * self._limit_s

    def drained_enough(self, at_s: float, in_flight: int) -> bool:
        """True if waiting for the requests in flight, after the last arrival, shows nothing new.

        A tenth of all requests are in flight, and all of them exceed four times the limit; without a limit, three
        tenths are, and draining takes longer than the schedule.
        """
        drained = at_s - self._scheduled_s
        if self._limit_s is None:
            return in_flight >= _SHARE_WITHOUT * self._requests and drained > max(self._scheduled_s, _LEAST_S)
        return in_flight >= _SHARE * self._requests and drained > FAR * self._limit_s

    def _least(self, begin: float, end: float) -> int | None:
        return min((inside for at, inside, _ in self._seen if begin < at <= end), default=None)
