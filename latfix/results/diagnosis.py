"""The diagnosis of a run: a ledger of milliseconds, and its JSON document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from latfix.arrays import Ints
from latfix.cause_catalogue import EvidenceClass
from latfix.files.json_documents import HIDDEN, Document, json_key
from latfix.formatting import counted, html_table, interval, milliseconds, percent, share, significant
from latfix.gates.evaluate import GateResult
from latfix.gates.reference_level import Level
from latfix.results.request_explanation import Story
from latfix.results.worker_summary import WorkerRow

#: A tail within this share of the median is steady, whatever its causes.
HARDLY_ABOVE = 0.15
#: Unexplained share of the excess from which no cause is named.
MOST_UNEXPLAINED = 0.25
#: Number of causes that a notebook shows.
_SHOWN = 10
#: Least share of the slowest requests' excess for a cause to be reported.
_WORTH_REPORTING = 0.1
#: Share of a cause's milliseconds below which the low end of its interval is hardly anything.
_FEW = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity(Document):
    """When a cause was active, in seconds from the run's start.

    :param throughout: no time of the run clearly had more of it than another.
    :param intervals_s: when it was active; the whole run if ``throughout``; empty if it never was.
    :param text: the same in a phrase.
    :param period_s: length of a cycle if it is periodic.
    :param duty: the share of the cycle in which it is active.
    """

    throughout: bool
    intervals_s: tuple[tuple[float, float], ...]
    text: str
    period_s: float | None = field(default=None, metadata=json_key(omit_empty=True))
    duty: float | None = field(default=None, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseSummary(Document):
    """One cause's share of the tail. All figures are milliseconds per tail request, unless stated otherwise.

    :param tail_ms: mean over tail requests of own + propagated.
    :param tail_share: ``tail_ms`` over the tail's excess.
    :param own_ms: the part on the request's own path.
    :param propagated_ms: the part that reached it through the queue or the interpreter lock.
    :param ci95_ms: interval of ``tail_ms``.
    :param named: the interval's lower end satisfies the naming rule.
    :param evidence_class: how it is known.
    :param requests: how many measured requests it touched (own part nonzero).
    :param evidence: one sentence with the figures.
    :param whatif_ms: percentiles predicted with the cause removed.
    :param fixes: ids of fixes that treat it.
    :param active: when it was active; ``None`` if not analyzed.
    :param culprit: what held the resource that the requests waited for, in words, or the slow line of the user's
        code; empty if unknown.
    """

    cause: str
    tail_ms: float
    tail_share: float
    own_ms: float
    propagated_ms: float
    ci95_ms: tuple[float, float]
    named: bool
    evidence_class: EvidenceClass = field(metadata=json_key("class"))
    requests: int
    evidence: str
    whatif_ms: Mapping[str, float]
    fixes: tuple[str, ...]
    active: Activity | None = field(default=None, metadata=json_key(omit_empty=True))
    culprit: str = field(default="", metadata=json_key(omit_empty=True))

    @property
    def rests_on_few(self) -> bool:
        """True if it happened so seldom that the interval reaches almost down to nothing."""
        return self.ci95_ms[0] < _FEW * self.tail_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Document):
    """Percentiles predicted with several causes removed together, in milliseconds.

    :param without: ids of the causes.
    """

    without: tuple[str, ...]
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Document):
    """One stretch of the run; latencies of its ``ok`` requests by scheduled arrival.

    :param start_s: from the run's start.
    :param end_s: belongs to the next window.
    :param requests: how many ended ``ok``.
    :param offered_rps: counts every scheduled request that was recorded.
    :param p50_ms: ``None`` if based on too few requests; the other percentiles likewise.
    :param causes_ms: by cause, mean milliseconds per request, own and propagated; negative for a speedup.
    """

    COMPUTED: ClassVar[tuple[str, ...]] = ("note",)

    start_s: float
    end_s: float
    requests: int
    offered_rps: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    causes_ms: Mapping[str, float]

    @property
    def note(self) -> str:
        """Which percentiles are omitted; empty if none is."""
        figures = {"p50": self.p50_ms, "p95": self.p95_ms, "p99": self.p99_ms}
        omitted = [name for name, value in figures.items() if value is None]
        return f"{', '.join(omitted)} omitted: {counted(self.requests, 'request')}" if omitted else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses(Document):
    """Requests that ended in one status other than ``ok``: where they were then, and what they had waited for.

    :param requests: how many; ``share`` of all that arrived.
    :param waited_ms: until they were lost: p50 and max.
    :param in_stage: how many were in each stage then; ``admission`` if refused on arrival, ``unknown`` if the record
        was cut off before.
    :param stages_ms: mean of each stage until then.
    :param waited_for_ms: of the mean wait in ``prepare`` and ``queue``, what the work ahead of them spent: ``work``
        is its usual duration, then by cause its excess, ``hang`` a batch that never ended, and ``unrecorded`` the
        rest. They add up to the wait.
    :param errors: the most frequent messages, with their number.
    :param outage_s: first and last arrival of the lost, in seconds of the run, if nearly all that arrived between
        them were lost, as with a service that was away; else empty.
    """

    status: str
    requests: int
    share: float
    waited_ms: Mapping[str, float]
    in_stage: Mapping[str, int]
    stages_ms: Mapping[str, float]
    waited_for_ms: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    outage_s: tuple[float, ...] = field(default=(), metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Every entry of every measured ``ok`` request, in nanoseconds.

    ``latency − reference = Σ_c (own[c] + propagated[c])`` holds exactly for each request, ``unexplained``
    being one of the causes.

    :param request: ``(n,)`` schedule index.
    :param latency_ns: ``(n,)`` int64.
    :param reference_ns: one number: the latency of a quiet, typical request.
    :param causes: ``K`` ids, ``unexplained`` last.
    :param own_ns: ``(K, n)`` int64.
    :param propagated_ns: ``(K, n)`` int64.
    :param classes: ``K`` evidence classes.
    :param ids: ``n`` ids of the requests in their traffic; empty if unknown.
    """

    request: Ints
    latency_ns: Ints
    reference_ns: int
    causes: tuple[str, ...]
    own_ns: Ints
    propagated_ns: Ints
    classes: tuple[EvidenceClass, ...]
    ids: tuple[str, ...] = ()

    @classmethod
    def empty(cls) -> Ledger:
        """The ledger of no requests, for diagnoses read from a document."""
        none, table = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
        return cls(
            request=none, latency_ns=none, reference_ns=0, causes=(), own_ns=table, propagated_ns=table, classes=()
        )

    def conservation_error_ns(self) -> int:
        """The largest absolute gap between excess and entries; zero unless latfix has a bug."""
        if not len(self.request):
            return 0
        gap = self.latency_ns - self.reference_ns - (self.own_ns + self.propagated_ns).sum(axis=0)
        return int(np.abs(gap).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident(Document):
    """The single incident that contains all requests of the tail.

    :param start_s: from the run's start, when the first of them arrived; ``end_s`` when the last had ended. Of a tail
        of two requests the next slowest one is among them.
    :param requests: number of requests in the tail.
    :param batch: the batch that held a worker for most of it; ``None`` if no single one did.
    :param held_ms: for how long; ``typical_ms`` is the typical time of a batch of its size.
    """

    start_s: float
    end_s: float
    requests: int
    batch: int | None = None
    worker: int | None = None
    held_ms: float | None = None
    typical_ms: float | None = None

    def sentence(self, percentile: str, *, outside: bool = False) -> str:
        """``All of p99 is one moment: 15.13–15.23 s, batch 302 held worker 0 for 176 ms where 3.80 is typical.``

        :param outside: the service is seen only from outside, so that its batches and workers are unknown.
        """
        digits = max(0, min(3, 2 - math.floor(math.log10(max(self.end_s - self.start_s, 1e-3)))))
        when = f"{self.start_s:.{digits}f}–{self.end_s:.{digits}f} s"
        opening = f"All of {percentile} is one moment: {when}, {counted(self.requests, 'request')}"
        if outside:
            return f"{opening}."
        if self.batch is None:
            return f"{opening} behind each other; no single batch delayed them."
        held, typical = significant(self.held_ms), significant(self.typical_ms)
        return f"{opening}; batch {self.batch} held worker {self.worker} for {held} ms where {typical} is typical."


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowest(Document):
    """The largest ten latencies among requests that ended ``ok``, for any percentile.

    :param requests: how many there are, ten or all.
    :param least_ms: the shortest of them, ``most_ms`` the longest.
    :param excess_ms: their mean excess over the reference.
    :param causes_ms: each cause's part of that, own and propagated, the largest first.
    """

    MOST: ClassVar[int] = 10

    requests: int
    least_ms: float
    most_ms: float
    excess_ms: float
    causes_ms: Mapping[str, float]

    @classmethod
    def of(cls, ledger: Ledger) -> Slowest | None:
        """The slowest requests of a ledger; ``None`` for an empty one."""
        chosen = np.argsort(-ledger.latency_ns, kind="stable")[: cls.MOST]
        if not len(chosen):
            return None
        latency = ledger.latency_ns[chosen] / 1e6
        means = (ledger.own_ns + ledger.propagated_ns)[:, chosen].mean(axis=1) / 1e6
        order = np.argsort(-means, kind="stable")
        return cls(
            requests=len(chosen),
            least_ms=float(latency.min()),
            most_ms=float(latency.max()),
            excess_ms=float(latency.mean()) - ledger.reference_ns / 1e6,
            causes_ms={ledger.causes[k]: float(means[k]) for k in order.tolist() if means[k]},
        )

    def sentence(self) -> str:
        """``the 10 slowest took 1,200 ms to 40 s: external.dependency is 91 % of their excess``."""
        worth = [(cause, ms) for cause, ms in self.causes_ms.items() if ms > _WORTH_REPORTING * self.excess_ms][:2]
        parts = " and ".join(f"{cause} is {percent(ms / self.excess_ms)}" for cause, ms in worth)
        opening = f"the {self.requests} slowest took {milliseconds(self.least_ms)} to {milliseconds(self.most_ms)}"
        return f"{opening}: {parts} of their excess" if parts else opening


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine(Document):
    """A line of the user's code in slow units of work, the slowest twentieth of their kind, and in the faster half.

    :param unit: ``prepare`` of a request; ``collate`` or ``compute`` of a batch, ``finish`` of a request.
    :param file: relative to the workload's folder if inside it.
    :param inside: file and function that it had called, if not the user's code; empty for the line itself.
    :param slow_ms: mean time on it in a slow unit; ``typical_ms`` in a typical one.
    :param looks: number of samples in slow units.
    """

    unit: str
    file: str
    line: int
    function: str
    inside: str
    slow_ms: float
    typical_ms: float
    looks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTime:
    """Time in one sampled stack: milliseconds of a slow and of a typical unit of work, as in :class:`CodeLine`.

    :param frames: ``file:line function``, the innermost first.
    """

    unit: str
    frames: tuple[str, ...]
    slow_ms: float
    typical_ms: float
    looks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts(Document):
    """How much a percentile differs from run to run of the same service, each in a fresh process.

    :param source: ``rounds`` of this command, or ``history``: earlier runs of the same traffic on this machine.
    :param key: which of ``latency_ms``.
    :param values_ms: of each run, the first one first; ``None`` if it falls among lost requests.
    :param level: median and spread of the known ones; ``None`` for fewer than two.
    """

    source: str
    key: str
    values_ms: tuple[float | None, ...]
    level: Level | None

    @classmethod
    def of(cls, source: str, key: str, values_ms: Sequence[float]) -> Restarts:
        """From the values of some runs; one that is not finite is lost."""
        known = [value for value in values_ms if math.isfinite(value)]
        return cls(
            source=source,
            key=key,
            values_ms=tuple(value if math.isfinite(value) else None for value in values_ms),
            level=Level.of(known, key) if len(known) > 1 else None,
        )

    @property
    def next_ms(self) -> tuple[float, float] | None:
        """The 95 % interval of one more run; ``None`` if unknown."""
        if self.level is None or not self.level.by_factor:
            return None
        factor = math.exp(min(self.level.one_more(), 700.0))
        return self.level.value / factor, self.level.value * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Document):
    """The source of a diagnosis' figures.

    :param kind: ``replay``; for a recording, its detected kind: ``kineto``, ``nsys``, ``memory``, ``engine_steps``,
        ``requests``, ``spans``; ``http`` or ``live``.
    :param path: the file, the folder or the address.
    :param unit: what has a latency in it: ``request``, or ``step`` of work on a device.
    :param read: what was read, by name: counts, names, versions.
    :param origin: of the diagnosis of a recording: ``started``, ``host`` and ``command``, if known.
    """

    kind: str
    path: str
    unit: str = "request"
    read: Mapping[str, Any] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    origin: Mapping[str, str] = field(default_factory=dict, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLedger(Document):
    """How the time of one request or step of a recording was spent.

    :param id: as in the recording.
    :param start_ms: from the recording's start; ``None`` for one that represents many.
    :param causes_ms: by cause; together exactly ``latency_ms``.
    :param stages_ms: the same time by the host's activity; empty if the recording does not show it.
    """

    id: str
    start_ms: float | None
    latency_ms: float
    causes_ms: Mapping[str, float]
    stages_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures(Document):
    """Answers that came in parts.

    :param requests: that were streamed and ended ``ok``.
    :param first_token_ms: scheduled arrival to the first part with output: mean, p50, p90, p95, p99, p99_9, max.
    :param gap_ms: between two parts of an answer, over all gaps of all answers: the same keys.
    :param output_tokens: as stated by the answers, otherwise their parts.
    :param output_tokens_per_s: over the run.
    """

    requests: int
    first_token_ms: Mapping[str, float]
    gap_ms: Mapping[str, float]
    output_tokens: int
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Document):
    """What to change in the settings of a server that latfix does not run.

    :param server: the server with these settings; ``told_by`` how it was identified; empty for a program
        that goes by its own name.
    :param cause: what they treat: a named cause, or a metric of the server's own; ``evidence`` for it.
    """

    server: str
    told_by: str
    cause: str
    change: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput(Document):
    """Requests that ended ``ok`` within every limit.

    :param limits_ms: on ``latency``, ``ttft``, ``gap`` (the longest between parts of an answer) and ``tpot`` (mean
        time per output token after the first).
    :param rps: per second; ``share`` of all that arrived.
    """

    limits_ms: Mapping[str, float]
    rps: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures(Document):
    """The service's process with all threads and children, from the first reading to the last.

    :param cpu_cores: mean number of busy cores; ``waiting_cores`` of threads that waited for one.
    :param throttled_ms: by the quota of its control group; ``None`` if unknown.
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
class ServingProcess(Document):
    """One of several processes that hold the service's connections.

    :param connections: that it accepted; ``requests`` that ended ``ok``, and ``slow`` those of them in the tail.
    """

    pid: int
    connections: int
    requests: int
    slow: int
    latency_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPart(Document):
    """A part of the latency of requests to a service that reports where their time went. Milliseconds.

    :param part: ``client`` (late, connect, send), ``network`` (outside of the time that the service reports),
        ``queue``, ``prefill``, ``compute``, ``decode``, ``dependency``, or ``other``, the remainder.
    :param slow_ms: mean over the requests of the tail; ``typical_ms`` over all others. Over all parts, each sums to
        the mean latency.
    :param source: the metric or recording with it; empty for what the client measures, and for the remainder.
    :param p99_ms: upper bound of p99 by the service's own histogram; ``None`` without one.
    """

    part: str
    slow_ms: float
    typical_ms: float
    source: str = ""
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredBatches(Document):
    """How a service behind an address gathers requests in batches, as the times of its answers show.

    :param timer: since when a batch is held open for ``window_ms``: ``arrival`` of its first request, ``worker`` (a
        worker takes it up), or ``batcher`` (as ``arrival``, with batches that line up for a worker).
    :param limit: the most requests of one batch; ``None`` if it was never reached.
    :param explained_share: of batches with company, those with the members that this rule says.
    """

    timer: str
    window_ms: float
    limit: int | None
    explained_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFigures(Document):
    """Facts about a service besides its requests' latency; ``None`` if unknown.

    :param connections: number of opened connections; ``connect_ms`` the time to open one, by percentile.
    :param servers: the number of servers that one queue was observed to feed.
    :param batches: how they gather requests in batches, if they do.
    :param metrics: by name, its reported values before, after, and at most.
    :param parts: of the latency, if the service reports where its requests' time went.
    :param parts_known: how: the means of intervals, or by request.
    :param processes: that served, if there are several and it is known which of them served each request;
        ``unused`` the number of others that listen and got no connection.
    :param beside_idle: share of the slow requests that came to a process with others, while another one had none.
    """

    connections: int
    connect_ms: Mapping[str, float] | None = None
    servers: int | None = None
    streams: StreamFigures | None = None
    goodput: Goodput | None = None
    process: ProcessFigures | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parts: tuple[LatencyPart, ...] = field(default=(), metadata=json_key(omit_empty=True))
    parts_known: str = field(default="", metadata=json_key(omit_empty=True))
    batches: InferredBatches | None = field(default=None, metadata=json_key(omit_empty=True))
    processes: tuple[ServingProcess, ...] = field(default=(), metadata=json_key(omit_empty=True))
    unused: int = field(default=0, metadata=json_key(omit_empty=True))
    beside_idle: float | None = field(default=None, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Document):
    """The result of :func:`latfix.profilers.diagnose.diagnose`: ``diagnosis.json``.

    What a source cannot know is ``null`` (NaN, ``None``), never 0. If a recording holds a single unit there is
    nothing to compare with: ``reference_ms`` is unknown, the excess is the whole unit, and causes sum to that.

    :param requests: how many measured requests (or steps) ended in each status; ``None`` if not recorded.
    :param latency_ms: p50, p90, p95, p99, p99_9 and max of all that arrived, and the mean of those that ended
        ``ok``. Other requests count as slower than they had waited: a percentile that falls among those is ``null``,
        with its lower bound in a second key (``p99_at_least``).
    :param latency_ms_ok: the same keys over the requests that ended ``ok`` alone.
    :param latency_ci95_ms: intervals of the same keys (moving-block bootstrap).
    :param stages_ms: for each stage mean, p50, p99, ``reference`` and ``tail``.
    :param percentile: where the tail begins.
    :param slo_ms: the workload's limit on that percentile; ``None`` without one.
    :param excess_ms: mean latency of a tail request beyond ``reference_ms``.
    :param reference_ms: the latency of a quiet, typical request.
    :param causes: sorted by ``tail_ms``, including ``unexplained``.
    :param seen: of a service behind an address and of a recording, the causes that it could show; the share of any
        other is unknown.
    :param lost: requests that did not end ``ok``, by status; empty if all did.
    :param dispatch_ms: the replayer's own lag: p50, p99, max.
    :param trustworthy: false if the replay itself was too late for the percentiles to mean anything.
    :param notes: warnings a reader must see, one sentence each (dispatch lag too large, partial run,
        warm-up missing, too few requests for the percentile, …).
    :param reference_gap_ms: the reference less the median of the quiet requests; ``quiet_requests`` their number.
    :param queue_closure_ms: the part of a tail request's wait that the replayed queue does not explain.
    :param lock_closure_ms: the part of its waits for the interpreter lock for which no known thread held it.
    :param models: fit quality of the models of service times, by stage.
    :param whatif: the two and the three largest causes removed together.
    :param another_worker_ms: p50, p95 and p99 predicted with one more worker, as fast as the others; empty if slow
        requests do not mostly wait for one, the run is in chunks, or it cannot be predicted.
    :param workers: one row per worker; none if there was only one.
    :param learned_from: number of requests that references and models were fitted on.
    :param pieces: the number of chunks of the run; one if it fits into memory.
    :param gates: gates that the run was evaluated against.
    :param incident: the incident that contains all of the tail; ``None`` if there is none, or the run is in chunks.
    :param largest: the ten slowest requests explained; ``None`` in documents of earlier versions.
    :param disturbed: how other processes disturbed the run, in words; empty if none is known.
    :param lines: of the user's code, on which slow work spends longer than typical, the largest difference first.
    :param stacks: the source of ``lines``; not in the document.
    :param recorded_ms: p50, p90, p95, p99 of the same requests where imported traffic was recorded, of those that
        ended ok there.
    :param restarts: how runs of this service differ; ``None`` if only this one is known.
    :param source: the source of the figures; ``None`` in documents of earlier versions: a replay.
    :param typical: the ledger of a quiet unit of a recording, the reference of the causes' milliseconds.
    :param slowest: the ledgers of a recording's slowest units.
    :param service: for a service behind an address, facts besides latency.
    :param advice: for a service that latfix does not run, changes of its own settings, if known.
    :param requests_explained: only in the output of ``--json``, if requests were selected.
    :param ledger: not in the document.
    """

    SCHEMA: ClassVar[str] = "latfix.diagnosis/1"
    COMPUTED: ClassVar[tuple[str, ...]] = ("tail.unexplained_share",)

    workload: str
    device: str
    requests: Mapping[str, int | None]
    latency_ms: Mapping[str, float]
    latency_ms_ok: Mapping[str, float] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    latency_ci95_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    stages_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    verdict: str
    sentence: str
    percentile: float = field(metadata=json_key("tail.percentile"))
    slo_ms: float | None = field(default=None, metadata=json_key(omit_empty=True))
    excess_ms: float = field(default=math.nan, metadata=json_key("tail.excess_ms"))
    reference_ms: float = field(default=math.nan, metadata=json_key("tail.reference_ms"))
    unexplained_ms: float = field(default=math.nan, metadata=json_key("tail.unexplained_ms"))
    causes: tuple[CauseSummary, ...] = ()
    seen: tuple[str, ...] = field(default=(), metadata=json_key(omit_empty=True))
    dispatch_ms: Mapping[str, float] = field(default_factory=dict)
    throughput_rps: float = math.nan
    overhead: Mapping[str, float] = field(default_factory=dict)
    lost: tuple[Losses, ...] = field(default=(), metadata=json_key(omit_empty=True))
    partial: bool = False
    trustworthy: bool = True
    notes: tuple[str, ...] = ()
    reference_gap_ms: float = 0.0
    quiet_requests: int = 0
    queue_closure_ms: float = 0.0
    lock_closure_ms: float = 0.0
    models: Mapping[str, Any] = field(default_factory=dict)
    whatif: tuple[WhatIf, ...] = ()
    another_worker_ms: Mapping[str, float] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    windows: tuple[Window, ...] = ()
    workers: tuple[WorkerRow, ...] = field(default=(), metadata=json_key(omit_empty=True))
    learned_from: int | None = field(default=None, metadata=json_key(omit_empty=True))
    pieces: int | None = field(default=None, metadata=json_key(omit_empty=True))
    gates: tuple[GateResult, ...] = field(default=(), metadata=json_key(omit_empty=True))
    incident: Incident | None = field(default=None, metadata=json_key(omit_empty=True))
    largest: Slowest | None = field(default=None, metadata=json_key(omit_empty=True))
    disturbed: str = field(default="", metadata=json_key(omit_empty=True))
    lines: tuple[CodeLine, ...] = field(default=(), metadata=json_key(omit_empty=True))
    stacks: tuple[StackTime, ...] = field(default=(), metadata=HIDDEN)
    recorded_ms: Mapping[str, float] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    restarts: Restarts | None = field(default=None, metadata=json_key(omit_empty=True))
    source: Source | None = field(default=None, metadata=json_key(omit_empty=True))
    typical: UnitLedger | None = field(default=None, metadata=json_key(omit_empty=True))
    slowest: tuple[UnitLedger, ...] = field(default=(), metadata=json_key(omit_empty=True))
    service: ServiceFigures | None = field(default=None, metadata=json_key(omit_empty=True))
    advice: tuple[Advice, ...] = field(default=(), metadata=json_key(omit_empty=True))
    requests_explained: tuple[Story, ...] | None = field(default=None, metadata=json_key(omit_empty=True))
    ledger: Ledger = field(default_factory=Ledger.empty, metadata=HIDDEN)

    @property
    def unit(self) -> str:
        """What has a latency: ``request`` or ``step``."""
        return "request" if self.source is None else self.source.unit

    @property
    def counts(self) -> dict[str, int]:
        """The known ones among :attr:`requests`."""
        return {name: number for name, number in self.requests.items() if number is not None}

    @property
    def is_single(self) -> bool:
        """True if there was one unit, and nothing to compare it with."""
        return self.source is not None and math.isnan(self.reference_ms) and sum(self.counts.values()) == 1

    @property
    def is_timed(self) -> bool:
        """False if a recording has no durations."""
        return not self.latency_ms or not all(map(math.isnan, self.latency_ms.values()))

    @property
    def unexplained_share(self) -> float:
        """Of the tail's excess; 0 if there is none, NaN if it is unknown."""
        return 0.0 if self.excess_ms <= 0 else self.unexplained_ms / self.excess_ms

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, and the causes with their milliseconds."""
        rows = [
            (
                f"{entry.cause}{'' if entry.named else ' (not named)'}",
                significant(entry.tail_ms),
                interval(entry.ci95_ms),
                share(entry.tail_share),
                entry.evidence,
            )
            for entry in self.causes[:_SHOWN]
        ]
        columns = ("cause", "tail, ms", "95 % interval", "share of the tail", "evidence")
        where = f" on {self.device}" if self.device else ""
        return html_table(f"{self.workload}{where}: {self.sentence}", self.notes, columns, rows)
