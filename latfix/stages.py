"""The stages of a request and the ways it can end. Order and names are part of the published contract."""

from __future__ import annotations

from enum import IntEnum

#: In order; each starts where the last ended. ``dispatch`` is latfix's own lag.
STAGES: tuple[str, ...] = ("dispatch", "prepare", "queue", "batch", "h2d", "compute", "d2h", "finish")


class Status(IntEnum):
    """How a request ended. Percentiles are over ``OK``; the others are counted beside them."""

    OK = 0
    ERROR = 1
    TIMEOUT = 2
    SHED = 3


STATUS_NAMES: tuple[str, ...] = ("ok", "error", "timeout", "shed")
