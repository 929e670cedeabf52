"""The form of a cause: its claim, its evidence class, its fixes, and its evidence sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED, EvidenceClass
from latfix.formatting import from_ns, milliseconds
from latfix.profilers.evidence.outside.server_account import BY_THREAD
from latfix.profilers.evidence.outside.service_process import Counter
from latfix.profilers.evidence.units import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Nanoseconds that a cause claims of one unit's three components; ``None`` claims nothing.

    The grant is capped at what earlier, more specific causes left of that component.

    :param excess: instead of ``cpu``: on-CPU time, also capped at what is left beyond the unit's expected time.
    """

    cpu: Ints | None = None
    excess: Ints | None = None
    runq: Ints | None = None
    blocked: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one cause claims.

    :param units: claimed components by unit of work (``prepare``, ``lag``, ``collate``, ``h2d``, ``compute``,
        ``d2h``, ``finish``), per request for prepare and finish, per batch otherwise.
    :param disturbance: true if typical requests have none of this time, so that all of it counts; otherwise only
        the excess over its quiet median counts.
    :param expected: the claimed on-CPU time is part of the unit's expected time (declared spans).
    :param own: per request and stage, signed nanoseconds that no component contains (modelled work, waits); counted
        relative to their quiet median.
    :param usual: by stage of ``own``, the reference in nanoseconds if it is not that median; zero for waits that
        quiet requests do not have.
    :param behind: per batch, signed nanoseconds by which ``own`` delays the requests behind the batch.
    :param doubt: per request, the standard error of the claim in nanoseconds if it rests on a fit or a calibration;
        errors of all requests are fully correlated.
    """

    units: Mapping[str, Parts] = field(default_factory=dict)
    disturbance: bool = True
    expected: bool = False
    own: Mapping[str, Ints] = field(default_factory=dict)
    usual: Mapping[str, int] = field(default_factory=dict)
    behind: Ints | None = None
    doubt: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Nanoseconds granted to a cause by row of one kind of unit; ``blocked`` is part of ``total``."""

    total: Ints
    blocked: Ints


class Left:
    """Unclaimed nanoseconds of every unit's components, by unit.

    :ivar cpu: on-CPU; ``runq`` run-queue delay; ``blocked`` the rest.
    """

    def __init__(self, evidence: Evidence) -> None:
        units = evidence.units.items()
        self.cpu: dict[str, Ints] = {name: unit.cpu.copy() for name, unit in units}
        self.runq: dict[str, Ints] = {name: unit.runq.copy() for name, unit in units}
        self.blocked: dict[str, Ints] = {name: unit.blocked.copy() for name, unit in units}
        self._expected = {name: unit.expected_cpu for name, unit in units}

    def cpu_excess(self, unit: str) -> Ints:
        """On-CPU nanoseconds left beyond the unit's expected time, never negative."""
        return np.asarray(np.maximum(self.cpu[unit] - self._expected[unit], 0), dtype=np.int64)

    def take(self, claim: Claim) -> dict[str, Granted]:
        """Grant a claim; returns the granted time by unit."""
        granted: dict[str, Granted] = {}
        for name, parts in claim.units.items():
            got: dict[str, Ints] = {}
            on_core = parts.cpu if parts.excess is None else np.minimum(parts.excess, self.cpu_excess(name))
            claimed = {"cpu": on_core, "runq": parts.runq, "blocked": parts.blocked}
            for part, wanted in claimed.items():
                left = getattr(self, part)
                got[part] = np.zeros_like(left[name]) if wanted is None else np.clip(wanted, 0, left[name])
                left[name] = left[name] - got[part]
            if claim.expected:
                self._expected[name] = self._expected[name] - got["cpu"]
            granted[name] = Granted(total=np.sum(list(got.values()), axis=0), blocked=got["blocked"])
        return granted


@dataclass(frozen=True, slots=True, kw_only=True)
class TailFigures:
    """Figures of one cause for its evidence sentence. ``own_ms`` and ``propagated_ms`` are means over the tail.

    :param requests: number of measured ``ok`` requests with a part of it on their own path.
    :param largest_ms: the largest own part of one request.
    """

    own_ms: float
    propagated_ms: float
    requests: int
    largest_ms: float

    @property
    def parts(self) -> str:
        """The clause on the two parts of a cause in the tail."""
        own, propagated = milliseconds(self.own_ms), milliseconds(self.propagated_ms)
        return (
            f"in the average slow request, {own} is its own and {propagated} is waiting behind others (queue or lock)"
        )

    @property
    def parts_and_largest(self) -> str:
        """:attr:`parts`, and the largest own part of one request."""
        return f"{self.parts}; at most {milliseconds(self.largest_ms)} in one request"


#: On a device, allocator calls are counted, but their costs are modelled.
_MODELLED_ON_DEVICES = ("memory.allocator", "memory.fragmentation")
#: What a service reports of each request is measured; the means of intervals are only assigned to requests.
_REPORTED = ("service.queue", "service.compute", "network.transit")


#: What a cause claims of a run, given what earlier causes left.
Claiming = Callable[[Evidence, Left], Claim]


def in_units(*names: str) -> Callable[[Callable[[Evidence, Left, str], Parts]], Claiming]:
    """Makes a claim on several kinds of unit from a function that claims parts of one of them, given by name."""

    def each(of_one: Callable[[Evidence, Left, str], Parts]) -> Claiming:
        return lambda evidence, left: Claim(units={name: of_one(evidence, left, name) for name in names})

    return each


def no_claim(_evidence: Evidence, _left: Left) -> Claim:
    """The empty claim of causes computed elsewhere: from the queue's replay, or as the remainder."""
    return Claim()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of :data:`latfix.cause_catalogue.CATALOGUE`.

    :param sentence: its evidence, one sentence with the figures.
    :param fixes: ids of the fixes that treat it, the likeliest first.
    :param claim: its claim on a run.
    :param outside: its claim on a service behind an address, known only from its client and the kernel's counters.
    :param outside_sentence: its evidence there; ``sentence`` if ``None``.
    :param outside_needs: whether what that claim reads was recorded; a cause without it is unknown, not absent.
    :param culprit: which process or thread held what was waited for, or which line of the adapter's code worked;
        empty if unknown.
    :param treatable: whether the fixes can reach it in a run.
    """

    id: str
    sentence: Callable[[Evidence, TailFigures], str]
    fixes: tuple[str, ...] = ()
    claim: Claiming = no_claim
    outside: Claiming = no_claim
    outside_sentence: Callable[[Evidence, TailFigures], str] | None = None
    outside_needs: Callable[[Evidence], bool] = lambda _evidence: True
    culprit: Callable[[Evidence], str] = lambda _evidence: ""
    treatable: Callable[[Evidence], bool] = lambda _evidence: True

    def describe(self, evidence: Evidence, figures: TailFigures) -> str:
        """The evidence sentence for a run."""
        outside = self.outside_sentence if evidence.setup.outside else None
        return (outside or self.sentence)(evidence, figures)

    def shows(self, evidence: Evidence) -> bool:
        """True if a service behind an address shows it, where it happens."""
        return self.id == UNEXPLAINED or (self.outside is not no_claim and self.outside_needs(evidence))

    def class_in(self, evidence: Evidence) -> EvidenceClass:
        """How its own part is known in a run."""
        modelled = evidence.setup.on_device and self.id in _MODELLED_ON_DEVICES
        modelled |= self.id in _REPORTED and evidence.told.interval_ns > 0
        modelled |= self.id == "service.compute" and BY_THREAD in evidence.told.sources.values()
        modelled |= self.id == "batching.window" and evidence.setup.rule is not None  # inferred
        return "modelled" if modelled else CATALOGUE[self.id].evidence_class


def reads(*series: str) -> Callable[[Evidence], bool]:
    """For ``outside_needs``: one of these series was recorded."""
    return lambda evidence: any(Counter.of(evidence.samples, name).known for name in series)


#: Fixes that make the model itself compute faster.
FASTER_MODEL = (
    "quantize.int8_dynamic",
    "quantize.int8_weight_only",
    "quantize.fp8_dynamic",
    "quantize.tf32",
    "quantize.bf16",
    "quantize.fp16",
    "fuse.compile",
    "fuse.onnxruntime",
    "fuse.openvino",
    "fuse.tensorrt",
)


def median_and_p99(values_ns: Ints) -> str:
    """``1.20 ms (median) and 31.0 ms (p99)``."""
    return f"{from_ns(np.median(values_ns))} (median) and {from_ns(np.quantile(values_ns, 0.99))} (p99)"
