"""The parts, how long each may take, and what of them fits into the time that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: For everything that one call does, the start of processes included.
LIMIT_S = 520.0
SAMPLES = ("recommender", "vision", "assistant")
#: A part's process ends its own commands so long before it is ended itself, to write what they left.
GRACE_S = 4.0
#: An optimization may take so much longer than its budget: what is under way is finished, and the report written.
BEYOND_S = 30.0
#: With a smaller budget every fix of a sample would be skipped for it, and nothing would be shown.
SAMPLE_LEAST_S = 115.0 + BEYOND_S + GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that is run in a process of its own.

    :param seconds: that it may take; ``least`` with less left it is not begun.
    """

    name: str
    seconds: float
    least: float

    @property
    def kind(self) -> str:
        """``samples`` of ``samples.vision``; the name of all others."""
        return self.name.partition(".")[0]


#: In the order in which they are run: what others rest on first, what only makes sense with much time last.
PARTS = (
    Part(name="doctor", seconds=30.0, least=10.0),
    Part(name="ceilings", seconds=60.0, least=20.0),
    Part(name="stages", seconds=60.0, least=20.0),
    Part(name="tests", seconds=200.0, least=45.0),
    Part(name="faults", seconds=140.0, least=30.0),
    Part(name="fragmentation", seconds=115.0, least=35.0),
    Part(name="probes", seconds=75.0, least=40.0),
    *(Part(name=f"samples.{name}", seconds=LIMIT_S, least=SAMPLE_LEAST_S) for name in SAMPLES),
)
KINDS = tuple(dict.fromkeys(part.kind for part in PARTS))


def chosen(kinds: Sequence[str] | None, samples: Sequence[str] | None) -> list[Part]:
    """The parts that were asked for, in their order.

    :param kinds: all where ``None``, or ``samples`` alone where only samples are named.
    :param samples: of the samples, these; all where ``None``.
    """
    wanted = kinds if kinds is not None else ("samples",) if samples is not None else KINDS
    named = {f"samples.{name}" for name in (SAMPLES if samples is None else samples)}
    return [part for part in PARTS if part.kind in wanted and (part.kind != "samples" or part.name in named)]


def seconds_for(part: Part, following: Sequence[Part], left: float) -> float:
    """How long a part may take; 0 where it is not to be begun.

    Samples share what is left, as many of them as have enough in it.

    :param following: the parts behind it.
    :param left: seconds for all of them together.
    """
    if left < part.least:
        return 0.0
    if part.kind != "samples":
        return min(part.seconds, left)
    waiting = 1 + sum(other.kind == "samples" for other in following)
    return left / min(waiting, int(left // part.least))


def together(parts: Sequence[Part]) -> float:
    """How long parts may take in all, samples with the least that is of use."""
    return sum(part.least if part.kind == "samples" else part.seconds for part in parts)
