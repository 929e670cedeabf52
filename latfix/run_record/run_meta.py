"""``run.json``: what was replayed, on which machine, with which settings, and facts about the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from latfix.errors import InputError
from latfix.files.atomic_write import write_json
from latfix.files.json_documents import OTHER_KEYS, Document, json_key, plain, read_document
from latfix.formatting import percent
from latfix.run_record.process_facts import (
    DeviceWork,
    EmbeddingTables,
    Placement,
    PoolAnswers,
    ProcessMemory,
    Residence,
)
from latfix.run_record.validation import check_document
from latfix.settings import Objective, RunnerSettings, rules_of

#: The file of a run's folder.
RUN_FILE = "run.json"
#: Threshold of :attr:`RunMeta.waited_before` for a machine that was busy before the run.
BUSY_BEFORE = 0.1
#: A key that is written once the run has reached it, and only by versions that know it.
_WHEN_KNOWN: Mapping[str, Any] = json_key(omit_empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeta(Document):
    """A run without its rows: ``run.json``. Keys that a run did not reach are left out.

    :param rows: columns of the binary segments, which have no header of their own.
    :param state: ``running`` (or killed), ``complete``, ``interrupted`` or ``failed``.
    :param failure: why it failed.
    :param behind_s: seconds after which a complete replay was ended because of its backlog, whose requests are
        ``timeout``; left out if it had none by then.
    :param source: ``kind`` and ``path`` of a service that latfix does not run: ``http`` and its address.
    :param http: how requests were sent to it, and what was watched; without values of headers.
    :param settings: of the runner.
    :param fixes: ids of the plan's fixes; ``plan`` is its path.
    :param scheduled: requests of the schedule; ``sent`` those handed over.
    :param traffic: the source of the traffic, and how it was transformed.
    :param traffic_arguments: command-line options that select the same traffic again.
    :param traffic_sha256: digest of the schedule: runs with the same one replayed the same requests.
    :param waited_before: share of the preceding minute in which some runnable task waited for a core (PSI).
    :param started: ISO 8601, with the time zone; ``ended`` likewise.
    :param origin: ``host``, ``command`` as it was typed, ``commit`` and ``branch`` of the workload's folder, if
        known; a commit with uncommitted changes ends in ``+``.
    :param accuracy: the workload's score, if it was measured.
    :param load_s: seconds until the model was loaded.
    :param calibration: costs of system calls on this machine, nanoseconds.
    :param overhead: the cost of recording.
    :param probes: by probe, what it watched or why it did not.
    :param threads: thread ids by role.
    :param torch_threads: threads of one operator; ``cores`` that the process may use.
    :param t0_ns: the monotonic clock at the schedule's zero.
    :param compilations_in_run: compilations of the model's code while requests were served.
    :param pool_hits: batch tensors written into reused buffers; ``pool_misses`` those that needed a new one.
    :param memory: resident bytes and page faults of the process.
    :param device_memory: of the workers' first device, and by name of others; empty on the CPU.
    :param device_profile: the device's work for some batches, profiled separately from the replay.
    :param device_waits: places in the model's code where the host waits for the device.
    :param placement: by role, each thread's cores, priority and moves between cores.
    :param residence: the cost of keeping the workers warm.
    :param collections: work of the collector between batches; empty if Python's own ran.
    :param environment: variables that allocators and pools read when the process started.
    :param worker_devices: each worker's device.
    :param setup_notes: settings that the machine or the model did not allow.
    :param stacks: sampled Python stacks of the user's code (``stack.*`` in the samples index them from zero),
        innermost frame first, as ``file:line function``.
    :param model: evidence of the service before any fix, and its layers' times if requested.
    :param others: keys of other versions.
    """

    SCHEMA: ClassVar[str] = "latfix.run/1"

    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    state: str = "running"
    failure: str | None = field(default=None, metadata=_WHEN_KNOWN)
    behind_s: float | None = field(default=None, metadata=_WHEN_KNOWN)
    pid: int | None = field(default=None, metadata=_WHEN_KNOWN)
    source: Mapping[str, str] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    http: Mapping[str, Any] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    workload: str = ""
    workload_folder: str = ""
    entry: str = ""
    device: str = "cpu"
    settings: RunnerSettings = field(default_factory=RunnerSettings)
    fixes: tuple[str, ...] = ()
    plan: str | None = None
    objective: Objective = field(default_factory=Objective)
    seed: int = 0
    scheduled: int | None = field(default=None, metadata=_WHEN_KNOWN)
    sent: int | None = field(default=None, metadata=_WHEN_KNOWN)
    traffic: Mapping[str, Any] = field(default_factory=dict)
    traffic_arguments: tuple[str, ...] = ()
    traffic_sha256: str | None = field(default=None, metadata=_WHEN_KNOWN)
    versions: Mapping[str, str] = field(default_factory=dict)
    waited_before: float | None = field(default=None, metadata=_WHEN_KNOWN)
    started: str = ""
    ended: str | None = field(default=None, metadata=_WHEN_KNOWN)
    origin: Mapping[str, str] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    accuracy: float | None = field(default=None, metadata=_WHEN_KNOWN)
    machine: Mapping[str, Any] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    load_s: float | None = field(default=None, metadata=_WHEN_KNOWN)
    calibration: Mapping[str, int | float] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    overhead: Mapping[str, int | float] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    probes: Mapping[str, Any] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    probe_polls_us: Mapping[str, Any] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    threads: Mapping[str, tuple[int, ...]] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    torch_threads: int | None = field(default=None, metadata=_WHEN_KNOWN)
    cores: int | None = field(default=None, metadata=_WHEN_KNOWN)
    t0_ns: int | None = field(default=None, metadata=_WHEN_KNOWN)
    warmup: Mapping[str, Any] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    compilations_in_run: int | None = field(default=None, metadata=_WHEN_KNOWN)
    pool_hits: int | None = field(default=None, metadata=_WHEN_KNOWN)
    pool_misses: int | None = field(default=None, metadata=_WHEN_KNOWN)
    pool_answers: PoolAnswers | None = field(default=None, metadata=_WHEN_KNOWN)
    memory: ProcessMemory = field(default=ProcessMemory(), metadata=_WHEN_KNOWN)
    device_memory: Mapping[str, Any] = field(default_factory=dict)
    device_clocks: Mapping[str, Any] = field(default_factory=dict)
    device_waits: tuple[str, ...] = field(default=(), metadata=_WHEN_KNOWN)
    device_profile: tuple[DeviceWork, ...] = field(default=(), metadata=_WHEN_KNOWN)
    device_profile_failure: str | None = field(default=None, metadata=_WHEN_KNOWN)
    placement: Placement = field(default=Placement(), metadata=_WHEN_KNOWN)
    residence: Residence | None = field(default=None, metadata=_WHEN_KNOWN)
    embeddings: EmbeddingTables = field(default=EmbeddingTables(), metadata=_WHEN_KNOWN)
    collections: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    worker_devices: tuple[str, ...] = ()
    setup_notes: tuple[str, ...] = ()
    stacks: tuple[tuple[str, ...], ...] = field(default=(), metadata=_WHEN_KNOWN)
    model: Mapping[str, Any] = field(default_factory=dict, metadata=_WHEN_KNOWN)
    others: Mapping[str, Any] = field(default_factory=dict, metadata=OTHER_KEYS)

    @property
    def is_http(self) -> bool:
        """True if the service is reached by an address, so that it is seen only from outside."""
        return self.source.get("kind") == "http"

    @property
    def program(self) -> str:
        """The program of a service behind an address, such as ``node``; empty if it is not known."""
        listening = self.http.get("listening", {})
        return str(self.http.get("program") or next(iter(listening.values()), ""))

    def updated(self, **found: Any) -> RunMeta:
        """A copy with more keys, typed or as in ``run.json``."""
        return self.from_json({**self.to_json(), **plain(found)})


def read_meta(folder: Path) -> RunMeta:
    """Read ``run.json`` of a run's folder, of any version.

    :raises InputError: there is none, or it is not one of latfix.
    """
    path = folder / RUN_FILE
    if not path.exists():
        found = f"no {RUN_FILE}" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: found {found}; expected the folder of a run, as latfix diagnose --out writes it")
    document = read_document(path)
    if document.get("schema") != RunMeta.SCHEMA:
        raise InputError(f"{path}: found schema {document.get('schema')!r}; expected {RunMeta.SCHEMA!r}")
    check_document(path, document)
    try:
        meta = RunMeta.from_json(document)
    except InputError as error:
        raise InputError(f"{path}: {error.message}") from error
    for table in ("settings", "objective"):
        _check_rules(path, table, document.get(table, {}))
    return meta


def write_meta(folder: Path, meta: RunMeta) -> None:
    """Write ``run.json`` into a run's folder."""
    write_json(folder / RUN_FILE, meta.to_json())


def busy_words(waited: float | None) -> str:
    """How busy a machine was, in words; empty if it was not, or if that is unknown."""
    if waited is None or waited < BUSY_BEFORE:
        return ""
    return f"in {percent(waited)} of the last minute some runnable task waited for a core"


def _check_rules(path: Path, table: str, values: Mapping[str, Any]) -> None:
    """Validate settings or an objective by the rules of a workload; a limit of the objective may be open.

    :raises InputError: naming the first invalid value.
    """
    rules = rules_of(RunnerSettings if table == "settings" else Objective)
    for name, value in values.items():
        open_limit = value is None and table == "objective" and name != "percentile"
        if name in rules and not open_limit and not rules[name].check(value):
            raise InputError(f"{path}: found {table}.{name} = {value!r}; expected {rules[name].expected}")
