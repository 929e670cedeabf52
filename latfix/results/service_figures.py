"""Figures of a service behind an address that no latency holds: streams, connections, its process, what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from latfix.files.json_documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures(Document):
    """Answers that came in parts.

    :param requests: that were streamed and ended ``ok``.
    :param first_token_ms: scheduled arrival to the first part with output: mean, p50, p90, p95, p99, p99_9, max.
    :param gap_ms: between two parts of an answer, over all gaps of all answers: the same keys.
    :param output_tokens: that the answers say they have; their parts where they do not say.
    :param output_tokens_per_s: over the run.
    """

    requests: int
    first_token_ms: Mapping[str, float]
    gap_ms: Mapping[str, float]
    output_tokens: int
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput(Document):
    """Requests that ended ``ok`` within every limit.

    :param limits_ms: on ``latency``, ``ttft`` and ``gap``, the mean wait between parts of an answer.
    :param rps: a second; ``share`` of all that arrived.
    """

    limits_ms: Mapping[str, float]
    rps: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures(Document):
    """The service's process with all threads and children, from the first reading to the last.

    :param cpu_cores: cores that it kept busy on average; ``waiting_cores`` threads that wanted one and had none.
    :param throttled_ms: by the quota of its control group; ``None`` where that does not tell.
    :param gpu_util: of the GPU that it shares or has, per cent on average; ``None`` without NVML.
    """

    pid: int
    cpu_cores: float
    waiting_cores: float
    throttled_ms: float | None
    minor_faults: int
    major_faults: int
    voluntary_switches: int
    involuntary_switches: int
    resident_bytes: int
    gpu_util: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFigures(Document):
    """What is known of a service beside its requests' latency. What is not known is ``None``.

    :param connections: that were opened; ``connect_ms`` what opening one took, by percentile.
    :param servers: that one queue was seen to feed.
    :param metrics: by name, what it told before, after, and at most.
    """

    connections: int
    connect_ms: Mapping[str, float] | None = None
    servers: int | None = None
    streams: StreamFigures | None = None
    goodput: Goodput | None = None
    process: ProcessFigures | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
