"""One request of recorded traffic, as a workload's adapter sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Priority = Literal["high", "normal", "low"]
FeatureValue = int | float | str

PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A recorded request.

    :param id: unique within the traffic.
    :param arrival_s: seconds from the start of the traffic.
    :param features: properties of the request besides its payload, e.g. its length in tokens.
    :param priority: class of service; ``high`` overtakes ``normal`` overtakes ``low``.
    :param session: shared by the requests of one conversation.
    :param deadline_ms: milliseconds after the scheduled arrival at which the caller gives up.
    :param payload: any JSON value that the adapter needs besides the features.
    """

    id: str
    arrival_s: float
    features: Mapping[str, FeatureValue] = field(default_factory=dict)
    priority: Priority = "normal"
    session: str | None = None
    deadline_ms: float | None = None
    payload: Any = None
