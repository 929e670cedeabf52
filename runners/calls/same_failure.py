"""Detects a replay in which every request fails in the same way, so that it can end early."""

from __future__ import annotations

import re

#: A replay ends after this many requests over this time, all failed.
_REQUESTS, _SPAN_NS = 50, 1_000_000_000
#: The parts of a message that vary between requests: numbers, and what looks like an id.
_VARYING = re.compile(r"[0-9a-fA-F-]*\d[0-9a-fA-F-]*")


class SameFailure:
    """Collects the messages of failed requests as long as they are alike.

    :ivar first: the first message.
    """

    def __init__(self) -> None:
        self.first = ""
        self._key, self._count, self._since_ns = "", 0, 0
        self._alike = True

    def add(self, message: str, now_ns: int) -> None:
        """Add a failed request."""
        key = _VARYING.sub("0", message)
        if not self._count:
            self.first, self._key, self._since_ns = message, key, now_ns
        self._alike = self._alike and key == self._key
        self._count += 1

    def given_up(self, ended: int, now_ns: int) -> str:
        """Why to end the replay; empty if it should go on.

        :param ended: requests that have ended, failed or not.
        """
        if not self._alike or self._count < max(ended, _REQUESTS) or now_ns - self._since_ns < _SPAN_NS:
            return ""
        return f"given up after {ended} requests, all of which failed in the same way: {self.first}"
