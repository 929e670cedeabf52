"""The form of a cause: what it claims, how it is known, what treats it, and how it is put into words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.cause_catalogue import CATALOGUE, EvidenceClass
from latfix.formatting import from_ns, milliseconds
from latfix.profilers.evidence.units import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Nanoseconds of one unit's three components that a cause asks for; ``None`` asks for nothing.

    What it gets is capped at what earlier, more specific causes left of that component.
    """

    cpu: Ints | None = None
    runq: Ints | None = None
    blocked: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one cause claims.

    :param units: for a unit of work (``prepare``, ``lag``, ``collate``, ``h2d``, ``compute``, ``d2h``,
        ``finish``) the components it asks for; per request for prepare and finish, per batch otherwise.
    :param disturbance: what ``units`` holds is no part of a typical request, so that all of it counts; otherwise
        what exceeds its quiet median does.
    :param expected: the on-CPU time it asks for is among what its unit is expected to take (declared spans).
    :param own: per request and stage, signed nanoseconds that are not taken from a component (modelled work,
        waits); counted against the quiet median of the same figure.
    :param usual: by stage of ``own``, the reference in nanoseconds where it is not that median; zero for waits
        that a quiet request does not have.
    :param behind: per batch, signed nanoseconds that ``own`` of its compute costs those who wait for it.
    :param doubt: per request, the standard error in nanoseconds of what is claimed, where it rests on a fitted or
        calibrated figure; one draw of it moves all requests alike.
    """

    units: Mapping[str, Parts] = field(default_factory=dict)
    disturbance: bool = True
    expected: bool = False
    own: Mapping[str, Ints] = field(default_factory=dict)
    usual: Mapping[str, int] = field(default_factory=dict)
    behind: Ints | None = None
    doubt: Floats | None = None


class Left(Protocol):
    """What earlier claims left of every unit's components, for a cause to look at."""

    def cpu(self, unit: str) -> Ints:
        """On-CPU nanoseconds left."""

    def runq(self, unit: str) -> Ints:
        """Run-queue delay left."""

    def blocked(self, unit: str) -> Ints:
        """Blocked nanoseconds left."""

    def cpu_excess(self, unit: str) -> Ints:
        """On-CPU nanoseconds left above what the unit's inputs need, never negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailFigures:
    """Figures of one cause that its evidence sentence may use. Milliseconds are means over tail requests.

    :param requests: measured ``ok`` requests with a part of it on their own path.
    :param largest_ms: the largest own part of one request.
    """

    own_ms: float
    propagated_ms: float
    requests: int
    largest_ms: float


#: Of what a device's allocator did, calls are counted; what each cost is not.
_MODELLED_ON_DEVICES = ("memory.allocator", "memory.fragmentation")


def no_claim(_evidence: Evidence, _left: Left) -> Claim:
    """The claim of a cause that is computed elsewhere: from the queue's replay, or as the remainder."""
    return Claim()


def nobody(_evidence: Evidence) -> str:
    """No culprit is known."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of :data:`latfix.cause_catalogue.CATALOGUE`.

    :param fixes: ids of fixes that treat it, the likeliest first.
    :param claim: what it claims of a run.
    :param sentence: its evidence, one sentence with the figures.
    :param outside: what it claims of a service behind an address, of which only its client and the kernel's counters
        tell; nothing where that takes a look inside.
    :param outside_sentence: its evidence there; ``sentence`` where that fits.
    :param culprit: who had what it waited for, in words; empty where that is not known.
    """

    id: str
    fixes: tuple[str, ...]
    claim: Callable[[Evidence, Left], Claim]
    sentence: Callable[[Evidence, TailFigures], str]
    outside: Callable[[Evidence, Left], Claim] = no_claim
    outside_sentence: Callable[[Evidence, TailFigures], str] | None = None
    culprit: Callable[[Evidence], str] = nobody

    def told(self, evidence: Evidence, figures: TailFigures) -> str:
        """The sentence for a run."""
        outside = self.outside_sentence if evidence.setup.outside else None
        return (outside or self.sentence)(evidence, figures)

    @property
    def evidence_class(self) -> EvidenceClass:
        """How its own part is known."""
        return CATALOGUE[self.id].evidence_class

    def class_in(self, evidence: Evidence) -> EvidenceClass:
        """How its own part is known in a run: of calls of a device's driver only the number is."""
        modelled = evidence.setup.on_device and self.id in _MODELLED_ON_DEVICES
        return "modelled" if modelled else self.evidence_class


#: Fixes by which the model itself computes faster.
FASTER_MODEL = (
    "quantize.int8_dynamic",
    "quantize.int8_weight_only",
    "quantize.fp8_dynamic",
    "quantize.bf16",
    "quantize.fp16",
    "fuse.compile",
    "fuse.onnxruntime",
    "fuse.openvino",
    "fuse.tensorrt",
)


def own_and_behind(figures: TailFigures) -> str:
    """The two parts of a cause in the tail, in words."""
    own, propagated = f"{milliseconds(figures.own_ms)}", f"{milliseconds(figures.propagated_ms)}"
    return f"{own} of a slow request is its own and {propagated} reached it in a queue or at a lock"


def typical_and_p99(values_ns: Ints) -> str:
    """Median and p99 of nanoseconds, in words."""
    return f"{from_ns(np.median(values_ns))} in the median and {from_ns(np.quantile(values_ns, 0.99))} at p99"
