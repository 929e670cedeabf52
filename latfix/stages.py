"""The stages of a request and the ways it can end. Order and names are part of the published contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

#: In order; each starts where the previous one ends. ``dispatch`` is latfix's own lag.
STAGES: tuple[str, ...] = ("dispatch", "prepare", "queue", "batch", "h2d", "compute", "d2h", "finish")

#: Stages of a request to a service behind an address, as its client sees them, each with the runner's stage that
#: holds it. ``queue`` is known if answers show how many requests the service takes at once.
OUTSIDE_STAGES: Mapping[str, str] = {
    "late": "dispatch",
    "connect": "prepare",
    "send": "prepare",
    "queue": "queue",
    "first_byte": "compute",
    "stream": "finish",
}
_OUTSIDE_LABELS = {"dispatch": "late", "prepare": "send", "compute": "first_byte", "finish": "stream"}


def stage_label(stage: str, *, outside: bool) -> str:
    """The label of a record's stage; for a service seen from outside, the client's name for it."""
    return _OUTSIDE_LABELS.get(stage, stage) if outside else stage


def stage_number(label: str) -> int:
    """The index of a stage in :data:`STAGES`, by either of its names."""
    return next(k for k, stage in enumerate(STAGES) if label in (stage, _OUTSIDE_LABELS.get(stage)))


class Status(IntEnum):
    """How a request ended. Percentiles treat any but ``OK`` as slower than it waited (:mod:`statistics.censored`)."""

    OK = 0
    ERROR = 1
    TIMEOUT = 2
    SHED = 3
    UNFINISHED = 4  #: in flight when the run ended


STATUS_NAMES: tuple[str, ...] = ("ok", "error", "timeout", "shed", "unfinished")
#: All but ``ok``, in the order in which reports count them.
LOST_NAMES: tuple[str, ...] = STATUS_NAMES[1:]


def status_counts(counts: Sequence[int]) -> dict[str, int]:
    """The number of requests by status name; ``unfinished`` only if there are any."""
    found = dict(zip(STATUS_NAMES, map(int, counts), strict=True))
    return {name: number for name, number in found.items() if number or name != "unfinished"}
