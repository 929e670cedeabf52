"""Backends compared on one model: what ``latfix backends --json`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from latfix.files.json_documents import Document, json_key
from latfix.results.answer_check import AnswerCheck
from latfix.statistics.decision import RatioEstimate

_WHERE_RUN: Mapping[str, Any] = json_key(omit_empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRow(Document):
    """One backend; where it cannot serve the model, ``missing`` says why and the figures are left out.

    :param load_s: seconds to load the model; ``convert_s`` to convert it before.
    :param single_rps: requests a second in batches of one; ``batched_rps`` in batches of ``batch_size``.
    :param agreeing: of ``compared`` answers, to each request alone and in a batch, how many say what the model's own
        backend says to the request alone; ``agreement`` is the mean share of an answer that does.
    :param deviation: the largest difference of a number, as a share of the largest one in that answer.
    :param single_speedup: over the model's own backend.
    """

    backend: str
    load_s: float | None
    convert_s: float | None
    missing: str = ""
    rounds: int | None = field(default=None, metadata=_WHERE_RUN)
    single_rps: Mapping[str, Any] | None = field(default=None, metadata=_WHERE_RUN)
    batched_rps: Mapping[str, Any] | None = field(default=None, metadata=_WHERE_RUN)
    agreeing: int | None = field(default=None, metadata=_WHERE_RUN)
    compared: int | None = field(default=None, metadata=_WHERE_RUN)
    agreement: float | None = field(default=None, metadata=_WHERE_RUN)
    deviation: float | None = None
    single_speedup: RatioEstimate | None = field(default=None, metadata=_WHERE_RUN)
    batched_speedup: RatioEstimate | None = field(default=None, metadata=_WHERE_RUN)

    def to_json(self) -> dict[str, Any]:
        """``deviation`` is ``null`` where it ran and answers were not finite, and left out where it did not run."""
        document = Document.to_json(self)
        if self.rounds is None:
            del document["deviation"]
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendsTable(Document):
    """What ``latfix backends`` found.

    :param entry: the adapter, or the model file.
    :param requests: how many were served in each round.
    :param answers: what answers are compared as, and whether the model answers a request otherwise in a batch.
    :param inputs: what a model file takes, as it was found out.
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
    backends: tuple[BackendRow, ...]
