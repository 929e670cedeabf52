"""Sees while a replay goes on that its backlog tells nothing more, so that it need not be worked off."""

from __future__ import annotations

#: A request that waits this many times the limit is far beyond it.
FAR = 4.0
#: Before so many seconds, and so large a share of the schedule, nothing is concluded.
_LEAST_S, _LEAST_SHARE = 2.0, 0.3
#: Least backlog, as a share of all requests: with and without a limit on latency.
_SHARE, _SHARE_WITHOUT = 0.1, 0.3
#: A backlog that is served goes on ending at least such a share of what it did.
_STOPPED = 0.5


class BacklogWatch:
    """Fed with the runner's own status lines.

    :param requests: in the schedule, which lasts ``scheduled_s``.
    :param at_once: how many requests the workers take together.
    :param limit_s: the objective's limit in seconds; ``None`` where there is none.
    """

    def __init__(self, *, requests: int, scheduled_s: float, at_once: int, limit_s: float | None) -> None:
        self._requests = requests
        self._scheduled_s = scheduled_s
        self._at_once = at_once
        self._limit_s = limit_s
        self._seen: list[tuple[float, int, int]] = []

    def hopeless(self, at_s: float, in_flight: int, done: int) -> bool:
        """Whether the backlog grows for good and is past what can be of interest.

        It grows where its minimum rose from each quarter of the time so far to the next and a tenth of all requests
        are inside. It is past interest where a request that came now would wait several times the limit at the pace
        of the last half; without a limit, where three tenths of all requests are inside. Where far fewer requests
        ended in the last half than in the first, something stopped the service, and load is not what it shows.

        :param at_s: seconds of the schedule; ``done`` requests have ended and ``in_flight`` are inside.
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
        """Whether waiting for those inside, after the last arrival, can tell nothing more.

        A tenth of all requests are inside, and all of them are past four times the limit; without a limit, three
        tenths are, and the drain takes longer than the schedule did.
        """
        drained = at_s - self._scheduled_s
        if self._limit_s is None:
            return in_flight >= _SHARE_WITHOUT * self._requests and drained > max(self._scheduled_s, _LEAST_S)
        return in_flight >= _SHARE * self._requests and drained > FAR * self._limit_s

    def _least(self, begin: float, end: float) -> int | None:
        return min((inside for at, inside, _ in self._seen if begin < at <= end), default=None)
