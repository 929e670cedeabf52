"""A replay in which every request fails in the same way: nothing is measured by replaying the rest."""

from __future__ import annotations

import re

#: So many requests, over so long, and nothing else, end a replay.
_REQUESTS, _SPAN_NS = 50, 1_000_000_000
#: What differs between messages of one failure: numbers, and what looks like an id.
_VARYING = re.compile(r"[0-9a-fA-F-]*\d[0-9a-fA-F-]*")


class SameFailure:
    """What failed requests said, as long as they all say the same.

    :ivar first: what the first one said.
    """

    def __init__(self) -> None:
        self.first = ""
        self._key, self._count, self._since_ns = "", 0, 0
        self._alike = True

    def add(self, message: str, now_ns: int) -> None:
        """One more failed."""
        key = _VARYING.sub("0", message)
        if not self._count:
            self.first, self._key, self._since_ns = message, key, now_ns
        self._alike = self._alike and key == self._key
        self._count += 1

    def given_up(self, ended: int, now_ns: int) -> str:
        """Why the replay is to be ended; empty where it is not.

        :param ended: requests that have ended, in whatever way.
        """
        if not self._alike or self._count < max(ended, _REQUESTS) or now_ns - self._since_ns < _SPAN_NS:
            return ""
        return f"given up after {ended} requests, all of which failed in the same way: {self.first}"
