"""Comparisons of answers with those of the original to single requests: a service's own batches, other backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from latfix.files.json_documents import Document, json_key
from latfix.files.toml_writer import toml_key
from latfix.formatting import count, counted, percent, significant


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedOutput(Document):
    """One output of the service.

    :param name: empty if an answer has only one output.
    :param kind: scores, steps, vectors, numbers, images or ids.
    :param told: how the kind was detected; ``declared`` in ``workload.toml``.
    :param bound: the largest distance at which two of them agree, in the kind's own measure.
    :param varies: the largest distance of the service's own answers, in batches and with other numbers of threads.
    :param follows: dimensions, without the batch's, whose length follows the request's input; ``uncut`` those in
        which a batch's answers were longer than alone.
    """

    name: str
    kind: str
    told: str
    bound: float
    varies: float
    follows: tuple[int, ...] = ()
    uncut: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OddAnswer(Document):
    """A request whose answer differs in a batch.

    :param request: its id.
    :param output: the name of the output that differs most.
    :param agreement: the share of it that is the same.
    :param deviation: its distance, in the kind's own measure; ``None`` of labels, texts and other shapes.
    """

    request: str
    output: str
    agreement: float
    deviation: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCheck(Document):
    """Properties of a service's answers, before anything was changed.

    :param compared: requests that were answered alone and in the service's own batches.
    :param differing: those whose answers then differ beyond the bound.
    :param padded: requests differ in size, so that some of each batch are padded.
    :param example: the one that differs most.
    :param repeated: requests that were answered alone twice; ``unrepeatable`` those whose answers then differ.
    :param stateful: the random seed is not why: the model keeps state between requests.
    :param empty: requests whose answer alone was ``None`` or NaN, or held nothing else.
    """

    outputs: tuple[JudgedOutput, ...]
    compared: int
    differing: int
    padded: bool = False
    example: OddAnswer | None = None
    repeated: int = field(default=0, metadata=json_key(omit_empty=True))
    unrepeatable: int = field(default=0, metadata=json_key(omit_empty=True))
    stateful: bool = field(default=False, metadata=json_key(omit_empty=True))
    empty: int = field(default=0, metadata=json_key(omit_empty=True))

    @property
    def incomparable(self) -> bool:
        """True if answers do not repeat, or hold nothing: a difference, or none, says nothing of a change."""
        return bool(self.unrepeatable) or (bool(self.empty) and not self.outputs)

    def faults(self) -> tuple[str, ...]:
        """Faults of the unmodified service; none if a request always gets the same answer, in any batch."""
        found = [] if self.example is None else [self._odd(self.example)]
        if self.incomparable and not self.unrepeatable:
            found.append(
                "This service answers None or NaN, or nothing that can be seen (a generator): there is nothing to "
                "compare, and what may change answers is not kept. Return from finish what matters, or give the "
                "workload an evaluate()."
            )
        elif self.empty:
            found.append(
                f"{counted(self.empty, 'request')} got None or NaN as the answer, before anything was changed. "
                "Nothing is compared for such a request."
            )
        for output in self.outputs:
            if output.uncut:
                axes, called = " and ".join(map(str, output.uncut)), _called(output.name)
                found.append(
                    f"{called[0].upper()}{called[1:]} is as long as the request's input in dimension {axes} "
                    "(without the batch's), and in a batch as long as the longest. Padding is cut before answers are "
                    "compared, but the service returns it: cut it in finish, or declare its shape in [outputs]."
                )
        return tuple(found)

    def judged(self) -> str:
        """What answers are compared as, and how that was detected; empty if nothing is known."""
        kinds = "; ".join(map(_judged, self.outputs))
        return f"Answers are compared as {kinds}." if kinds else ""

    def _odd(self, odd: OddAnswer) -> str:
        agree = f"{percent(odd.agreement)} agree"
        far = f"request {odd.request!r}, {_called(odd.output)}: {self._distance(odd)}, {agree}"
        if self.unrepeatable:
            why, cure = "It samples", "fix the random seed, or"
            if self.stateful:
                why, cure = "The random seed is not why: it keeps state between requests", "to change that,"
            leave = ""
            if odd.output:
                rule = f'{toml_key(odd.output)} = {{ kind = "ignored" }}'
                leave = f", or, if this output is a time or an id, declare {rule} in [outputs]"
            return (
                f"This service answers the same request differently each time: {far}; {count(self.unrepeatable)} of "
                f"{counted(self.repeated, 'request')}. {why}. Answers cannot be compared, and what may change them "
                f"is not kept: {cure} give the workload an evaluate(){leave}."
            )
        how = "a padded request" if self.padded else "a request in a batch"
        cure = "a mask, or batches of one length," if self.padded else "a model that treats requests independently"
        return (
            f"This service answers {how} differently than the request alone: {far}; {count(self.differing)} of "
            f"{counted(self.compared, 'request')}. That is a fault of the unmodified service; {cure} would fix it."
        )

    def _distance(self, odd: OddAnswer) -> str:
        if odd.deviation is None:
            return "another label, text or shape"
        bound = next((output.bound for output in self.outputs if output.name == odd.output), None)
        far = f"deviation {significant(odd.deviation, 2)}, bound {significant(bound, 2)}"
        # Scores agree only if the same entry is the largest.
        return far if bound is None or odd.deviation > bound else f"another largest entry ({far})"


def _called(name: str) -> str:
    return f"output {name!r}" if name else "its output"


def _judged(output: JudgedOutput) -> str:
    source = output.told if output.told == "declared" else f"by {output.told}"
    return f"{output.kind} ({f'{output.name!r}, ' if output.name else ''}{source})"


_WHERE_RUN: Mapping[str, Any] = json_key(omit_empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Document):
    """A figure with its 95 % interval; ``None`` if the data give none."""

    value: float | None
    ci95: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRow(Document):
    """One backend; if it cannot serve the model, ``missing`` is the reason and the figures are left out.

    :param load_s: seconds to load the model; ``convert_s`` to convert it before.
    :param single_rps: requests per second in batches of one; ``batched_rps`` in batches of ``batch_size``.
    :param agreeing: of ``compared`` answers, to each request alone and in a batch, how many agree with the answer of
        the model's own backend to the request alone; ``agreement`` is the mean agreeing share of an answer.
    :param deviation: the largest difference of a number, as a share of the largest one in that answer.
    :param single_speedup: over the model's own backend.
    """

    backend: str
    load_s: float | None
    convert_s: float | None
    missing: str = ""
    rounds: int | None = field(default=None, metadata=_WHERE_RUN)
    single_rps: Estimate | None = field(default=None, metadata=_WHERE_RUN)
    batched_rps: Estimate | None = field(default=None, metadata=_WHERE_RUN)
    agreeing: int | None = field(default=None, metadata=_WHERE_RUN)
    compared: int | None = field(default=None, metadata=_WHERE_RUN)
    agreement: float | None = field(default=None, metadata=_WHERE_RUN)
    deviation: float | None = field(default=None, metadata=_WHERE_RUN)
    single_speedup: Estimate | None = field(default=None, metadata=_WHERE_RUN)
    batched_speedup: Estimate | None = field(default=None, metadata=_WHERE_RUN)

    def to_json(self) -> dict[str, Any]:
        """``deviation`` is ``null`` if answers were not finite, and left out if the backend did not run."""
        return Document.to_json(self) | ({} if self.rounds is None else {"deviation": self.deviation})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendsTable(Document):
    """The result of ``latfix backends``.

    :param entry: the adapter, or the model file.
    :param requests: how many were served in each round.
    :param answers: what answers are compared as, and whether the model's answers depend on the batch.
    :param inputs: the detected inputs of a model file.
    :param disturbed: how other processes disturbed the measurement, in words; empty if none is known.
    """

    SCHEMA: ClassVar[str] = "latfix.backends/1"

    workload: str
    entry: str
    device: str
    threads: int
    versions: Mapping[str, str]
    requests: int
    batch_size: int
    answers: AnswerCheck | None = field(default=None, metadata=_WHERE_RUN)
    inputs: tuple[Any, ...] = ()
    disturbed: str = field(default="", metadata=json_key(omit_empty=True))
    backends: tuple[BackendRow, ...]
