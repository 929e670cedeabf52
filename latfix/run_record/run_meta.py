"""``run.json``: what was replayed, on which machine, with which settings, and what the run showed of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from latfix.files.json_documents import Document, json_key

#: A key that is written once the run has got so far, or by versions that know it.
_WHEN_KNOWN: Mapping[str, Any] = json_key(omit_empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObjective(Document):
    """The workload's objective.

    :param slo_ms: the limit of the percentile; ``None`` where none is stated.
    :param max_accuracy_drop: the most that a fix may cost, in the unit of the workload's score.
    """

    percentile: float = 99.0
    slo_ms: float | None = None
    max_accuracy_drop: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeta(Document):
    """A run without its rows: ``run.json``. Keys that a run did not get to are left out.

    :param rows: columns of the binary segments, which have no header of their own.
    :param state: ``running`` (or killed), ``complete``, ``interrupted`` or ``failed``.
    :param failure: why it failed.
    :param settings: of the runner, by name.
    :param fixes: ids of the plan's fixes; ``plan`` is its path.
    :param scheduled: requests of the schedule; ``sent`` those handed over.
    :param traffic: where the traffic is from, and how it was transformed.
    :param traffic_arguments: options of the command line that give the same traffic again.
    :param traffic_sha256: digest of the schedule: runs with the same one replayed the same requests.
    :param started: ISO 8601, with the time zone; ``ended`` likewise.
    :param accuracy: the workload's score, where it was measured.
    :param calibration: costs of system calls on this machine, nanoseconds.
    :param overhead: what recording cost.
    :param probes: by probe, what it watched or why it did not.
    :param threads: by role, ids of threads.
    :param t0_ns: the monotonic clock at the schedule's zero.
    :param memory: resident bytes and page faults of the process.
    :param placement: by role, each thread's cores, priority and moves between cores.
    :param device_profile: kernels of some batches, profiled apart from the replay.
    """

    SCHEMA: ClassVar[str] = "latfix.run/1"

    rows: Mapping[str, tuple[str, ...]] | None = field(default=None, metadata=_WHEN_KNOWN)
    state: str = "running"
    failure: str | None = field(default=None, metadata=_WHEN_KNOWN)
    pid: int | None = field(default=None, metadata=_WHEN_KNOWN)
    workload: str = ""
    workload_folder: str = ""
    entry: str = ""
    device: str = "cpu"
    settings: Mapping[str, Any] = field(default_factory=dict)
    fixes: tuple[str, ...] = ()
    plan: str | None = None
    objective: RunObjective = field(default_factory=RunObjective)
    seed: int = 0
    scheduled: int | None = field(default=None, metadata=_WHEN_KNOWN)
    sent: int | None = field(default=None, metadata=_WHEN_KNOWN)
    traffic: Mapping[str, Any] = field(default_factory=dict)
    traffic_arguments: tuple[str, ...] = ()
    traffic_sha256: str | None = field(default=None, metadata=_WHEN_KNOWN)
    versions: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    ended: str | None = field(default=None, metadata=_WHEN_KNOWN)
    accuracy: float | None = field(default=None, metadata=_WHEN_KNOWN)
    machine: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    load_s: float | None = field(default=None, metadata=_WHEN_KNOWN)
    calibration: Mapping[str, float] | None = field(default=None, metadata=_WHEN_KNOWN)
    overhead: Mapping[str, float] | None = field(default=None, metadata=_WHEN_KNOWN)
    probes: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    probe_polls_us: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    threads: Mapping[str, tuple[int, ...]] | None = field(default=None, metadata=_WHEN_KNOWN)
    torch_threads: int | None = field(default=None, metadata=_WHEN_KNOWN)
    cores: int | None = field(default=None, metadata=_WHEN_KNOWN)
    t0_ns: int | None = field(default=None, metadata=_WHEN_KNOWN)
    warmup: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    compilations_in_run: int | None = field(default=None, metadata=_WHEN_KNOWN)
    pool_hits: int | None = field(default=None, metadata=_WHEN_KNOWN)
    pool_misses: int | None = field(default=None, metadata=_WHEN_KNOWN)
    pool_answers: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    memory: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    device_memory: Any = field(default=None, metadata=_WHEN_KNOWN)
    device_clocks: Any = field(default=None, metadata=_WHEN_KNOWN)
    device_waits: Any = field(default=None, metadata=_WHEN_KNOWN)
    device_profile: Any = field(default=None, metadata=_WHEN_KNOWN)
    device_profile_failure: str | None = field(default=None, metadata=_WHEN_KNOWN)
    placement: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    residence: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    embeddings: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    collections: Mapping[str, Any] | None = field(default=None, metadata=_WHEN_KNOWN)
    environment: Mapping[str, str] | None = field(default=None, metadata=_WHEN_KNOWN)
    worker_devices: tuple[str, ...] | None = field(default=None, metadata=_WHEN_KNOWN)
    setup_notes: tuple[str, ...] | None = field(default=None, metadata=_WHEN_KNOWN)
