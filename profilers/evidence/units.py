"""A record laid out for attribution: units of work with their components, batches, members, known intervals.

A unit is the work of one thread over an interval. Units of a request: ``dispatch`` (the replayer was late),
``intake`` (arrived but not yet accepted), ``prepare`` and ``finish``. Units of a batch: ``lag`` (the worker started
late), ``collate``, ``h2d``, ``compute`` and ``d2h``. Its wall time is split exactly into on-CPU, run-queue delay and
blocked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints, places
from latfix.profilers.evidence.expected_work import ExpectedWork, Members
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.evidence.known_pauses import Pauses, collect_pauses
from latfix.profilers.evidence.outside.first_uses import slow_first_uses
from latfix.profilers.evidence.outside.lock_waits import LockWaits, find_lock_waits
from latfix.profilers.evidence.outside.outside_view import (
    MOVED,
    Serving,
    as_served,
    delayed_acknowledgments,
    long_as_acknowledgments,
    presence,
    process_of,
    stage_values,
)
from latfix.profilers.evidence.outside.server_account import BY_THREAD, ServerAccount, server_account
from latfix.profilers.evidence.outside.service_process import (
    DISK,
    MAJOR_FAULTS,
    STOPPED,
    THROTTLED,
    Counter,
    ServiceProcess,
)
from latfix.profilers.evidence.outside.service_queue import serving_of
from latfix.profilers.evidence.outside.serving_processes import find_processes, laid_apart
from latfix.profilers.evidence.outside.serving_threads import ServingThreads, find_serving_threads, nothing_computed
from latfix.profilers.evidence.outside.shared_cores import SharedCores, find_shared_cores, nothing_shared
from latfix.profilers.evidence.outside.standstills import (
    Standstills,
    find_standstills,
    no_standstills,
    own_prefill_ns,
    streamed_parts,
)
from latfix.profilers.evidence.predictive_features import error_of_work, numeric, predictive_features, with_features
from latfix.profilers.evidence.run_baselines import Norms, whole_median
from latfix.profilers.evidence.run_settings import Setup
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns
from latfix.stages import Status
from latfix.traffic.parsed_fields import RECORDED

Number = TypeVar("Number", np.int64, np.float64)

#: Units of a service behind an address: until the first byte of an answer, and from then to the last.
OUTSIDE_UNITS: tuple[str, ...] = ("compute", "finish")
BATCH_UNITS: tuple[str, ...] = ("lag", "collate", "h2d", "compute", "d2h")
REQUEST_UNITS: tuple[str, ...] = ("dispatch", "intake", "prepare", "finish")
#: Blocked time up to this may be an artifact of the stamps' positions.
_STILL_NS = 1_000_000
#: Least number of batches other than first uses that the model learns from; fewer if first uses are far slower: most
#: exceed later batches of their shape by so many typical ones.
_SETTLED, _FEW_SETTLED, _FAR = 100, 10, 2.0
#: Thread number of latfix's own threads.
_LATFIX = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Unit:
    """One kind of unit, a row per request or batch. All times in nanoseconds.

    :param cpu: on-CPU; ``runq`` runnable without a core; ``blocked`` the rest of the wall time.
    :param thread: number of the worker or prepare thread; -1 for none.
    :param expected_cpu: on-CPU time that the inputs need; empty until it is known.
    """

    start: Ints
    end: Ints
    cpu: Ints
    runq: Ints
    blocked: Ints
    minflt: Ints
    majflt: Ints
    thread: Ints
    expected_cpu: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def wall(self) -> Ints:
        """Wall nanoseconds."""
        return self.cpu + self.runq + self.blocked

    @property
    def span(self) -> tuple[Ints, Ints]:
        """Begin and end."""
        return self.start, self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The data that causes are computed from.

    :param rows: the record's requests, warm-up included.
    :param ok: ``(n,)`` measured requests that ended ``ok``: the rows of the ledger.
    :param batch_of: ``(n,)`` row of the request's batch, -1 without one.
    :param head: ``(m,)`` row of the batch's first member, -1 if none is recorded.
    :param window: ``(n,)`` nanoseconds that the request waited in an open batch with an idle worker.
    :param ahead_in_batch: ``(n,)`` number of members of its batch that finished before it.
    :param priority: ``(n,)`` class of service, 0 the highest.
    :param sessions: ``(n,)`` number of the request's session, -1 without one.
    :param quiet: ``(n,)`` undisturbed requests, from which references are taken.
    :param quiet_batch: ``(m,)`` the batches of quiet requests.
    :param norms: of the whole run.
    :param process: of a service behind an address.
    :param standstills: when a service behind an address answered no request; empty in other runs.
    :param locks: waits for locks in a service behind an address; zeros in other runs.
    :param late_acks: by stage of a service behind an address, ``(n,)`` answers that waited for an acknowledgment.
    :param own_prefill: ``(n,)`` nanoseconds to the first output that a large input needs, where streams show it.
    :param shared: waits for other requests in a service behind an address whose queue is unknown.
    :param threads: what threads of a service behind an address computed for long; nothing in other runs.
    :param told: what a service behind an address itself reports of its requests' time, and how long the thread of
        each computed if it does not report its work; empty in other runs.
    :param begins: true if these requests are the run's first.
    """

    setup: Setup
    rows: Columns
    batches: Columns
    samples: Columns
    ok: Bools
    batch_of: Ints
    head: Ints
    members: Members
    units: Mapping[str, Unit]
    window: Ints
    ahead_in_batch: Ints
    priority: Ints
    sessions: Ints
    pauses: Mapping[str, Pauses]
    spikes: Intervals
    expected: ExpectedWork
    quiet: Bools
    quiet_batch: Bools
    norms: Norms
    begins: bool
    process: ServiceProcess
    standstills: Standstills
    locks: LockWaits
    shared: SharedCores
    late_acks: Mapping[str, Bools]
    own_prefill: Ints
    threads: ServingThreads
    told: ServerAccount = field(default_factory=ServerAccount)

    def moved(self, name: str) -> Ints:
        """By how much each unit is later than in the run, nanoseconds: each process has its own line of time."""
        moved = self.rows.get(MOVED)
        if moved is None:
            return np.zeros(1, np.int64)
        return moved[np.maximum(self.head, 0)] if name in BATCH_UNITS else moved

    def usually_blocked(self, unit: str) -> int:
        """Median blocked nanoseconds of a unit: its usual wait."""
        return self.norms.of(f"blocked.{unit}", partial(whole_median, self.units[unit].blocked))

    def account(self, name: str) -> Columns:
        """The columns that hold a unit's account: those of batches or of requests."""
        return self.batches if name in BATCH_UNITS else self.rows

    def beyond_usual(self, name: str, blocked: Ints) -> Ints:
        """The part of each unit's blocked time beyond its usual wait and its declared spans."""
        span = self.rows[f"{name}_span_ns"] if name in ("prepare", "finish") else 0
        return np.maximum(blocked - np.maximum(self.usually_blocked(name), span), 0)

    def stood_still(self, name: str) -> Ints:
        """Blocked nanoseconds of units whose thread made no voluntary switch: the machine stopped under them.

        A thread that waits for anything makes a voluntary switch. Zero if switches were not counted.
        """
        unit, switches = self.units[name], self.account(name).get(f"{name}_vcsw")
        if switches is None or not switches.any():
            return np.zeros(len(unit.blocked), np.int64)
        return np.where((switches == 0) & (unit.blocked > _STILL_NS), unit.blocked, 0)

    def places(self, name: str) -> Ints:
        """The thread of each unit: prepare threads from 0 up, workers from -1 down, latfix's own threads apart.

        Each slot of a worker with continuous batching counts as a thread.
        """
        if name in ("dispatch", "intake"):
            return np.full(len(self.ok), _LATFIX, np.int64)
        if name == "prepare":
            return self.rows["prepare_thread"]
        worker = self.batches["worker"]
        return -1 - (worker if name in BATCH_UNITS else self.of_batch(worker))

    def met_denormals(self, name: str) -> Bools:
        """True for units whose own thread (not a pool's) met denormal numbers, by the processor's flag."""
        return np.asarray(
            self.account(name).get(f"{name}_denormals", np.zeros(len(self.units[name].cpu), np.int64)) > 0
        )

    @property
    def released_ns(self) -> Ints:
        """``(m,)`` when the next batch could begin. With overlap, that is before answers are handed out."""
        name = "compute_end_ns" if self.setup.overlapped else "finish_end_ns"
        ended = self.batches[name] - self.setup.outside_ns
        return np.asarray(np.maximum(ended, self.batches["open_ns"]), dtype=np.int64)

    def of_batch(self, per_batch: Ints) -> Ints:
        """A batch's figure at each of its members; zero for requests without a batch."""
        return spread(per_batch, self.batch_of)

    def stage_ns(self, stage: str) -> Ints:
        """``(n,)`` duration of a stage of the runner, or of a stage as a client sees it."""
        if self.setup.outside:
            return stage_values(self.rows)[stage]
        return np.asarray(self.rows[f"{stage}_ns"], dtype=np.int64)

    def process_idle(self, name: str) -> Ints:
        """Nanoseconds of each unit in which the process of a service behind an address was idle."""
        return self.process.idle(self.units[name].start, self.units[name].end)

    def process_ran(self, name: str) -> Ints:
        """On-CPU nanoseconds of that process in each unit."""
        return np.rint(self.process.cpu.grown(self.units[name].start, self.units[name].end)).astype(np.int64)

    def worked(self, name: str) -> Ints:
        """Nanoseconds of each unit in which a service behind an address worked for its request, as far as known."""
        return self.at_units(name, self.told.worked(self.rows)[name])

    def least_idle(self, name: str) -> Ints:
        """Least nanoseconds of each unit in which a service behind an address did nothing for its request.

        Without the time that the service reports as its own work: its process is idle while a device computes.
        """
        unit = self.units[name]
        least = np.minimum(self.process.least_idle(unit.start, unit.end), unit.wall - self.worked(name))
        return np.asarray(least, dtype=np.int64)

    def at_units(self, name: str, per_request: Ints) -> Ints:
        """Requests' figures as those of units: of a batch, the largest of its members."""
        if name not in BATCH_UNITS:
            return per_request
        served = self.batch_of >= 0
        figures = np.zeros(len(self.batches["batch_id"]), np.int64)
        np.maximum.at(figures, self.batch_of[served], per_request[served])
        return figures

    def paged_in(self, name: str) -> Ints:
        """Nanoseconds of each unit in which a service behind an address waited for a disk because of page faults.

        The kernel's count of waits for disks, where memory was read from one; at most the unit's unusual idle time.
        """
        unit, idle = self.units[name], self.process_idle(name)
        usual = self.norms.of(f"idle.{name}", partial(whole_median, idle))
        disk, faults = Counter.of(self.samples, DISK), self.grown_around(MAJOR_FAULTS, unit.start, unit.end)
        waited = np.where(faults > 0, disk.grown_around(unit.start, unit.end), 0.0)
        return disk.apportioned(unit.end, np.maximum(idle - usual, 0), waited)

    def not_waited(self, name: str) -> Floats:
        """Idle nanoseconds of each unit of a service behind an address that are no wait: for pages, or stopped."""
        unit = self.units[name]
        series = (THROTTLED, STOPPED)
        throttled, stopped = (Counter.of(self.samples, each).grown(unit.start, unit.end) for each in series)
        return self.paged_in(name) + throttled + stopped

    def waits_for_others(self, name: str) -> tuple[Ints, Ints, Ints]:
        """:meth:`SharedCores.waits` in each unit of a service behind an address."""
        unit = self.units[name]
        request = self.head if name in BATCH_UNITS else np.arange(len(unit.start))
        return self.shared.waits(request, unit.start, unit.end, unit.runq)

    def series(self, name: str) -> tuple[Ints, Floats]:
        """One sampled series: times and values."""
        counter = Counter.of(self.samples, name)
        return counter.at_ns.astype(np.int64), counter.value

    def latest(self, name: str, default: float = 0.0) -> float:
        """A sampled series' last value; ``default`` if it was not read or is not positive."""
        _, values = self.series(name)
        return float(values[-1]) if len(values) and values[-1] > 0 else default

    def before(self, name: str, at: Ints) -> Floats:
        """A sampled series' last value before each time, else its first; 0 if it was not read."""
        times, values = self.series(name)
        if not len(times):
            return np.zeros(len(at))
        return values[np.maximum(np.searchsorted(times, at, side="right") - 1, 0)]

    def grown_around(self, name: str, start: Ints, end: Ints) -> Floats:
        """Growth of a counter from the reading before each span to the one after; 0 if it was not read."""
        return Counter.of(self.samples, name).grown_around(start, end)


def spread(per_batch: npt.NDArray[Number], batch_of: Ints) -> npt.NDArray[Number]:
    """A batch's figure at each of its members; zero for requests without a batch."""
    if not len(per_batch):
        return np.zeros(len(batch_of), per_batch.dtype)
    return np.where(batch_of >= 0, per_batch[np.maximum(batch_of, 0)], 0).astype(per_batch.dtype)


def gather(record: RunRecord, norms: Norms | None = None) -> Evidence:
    """Lay out a record, or a piece of one, for attribution.

    :param norms: figures learned from other pieces of the run; missing ones are learned here.
    """
    norms = Norms() if norms is None else norms
    serving, told, threads = None, ServerAccount(), nothing_computed(len(record.requests["index"]))
    processes: tuple[tuple[int, ...], str] = ((), "")
    if record.meta.is_http:
        told, processes = server_account(record), norms.of("processes", partial(find_processes, record))
        record = laid_apart(record, processes[0])
        serving = norms.of("serving", partial(serving_of, record))
        threads = find_serving_threads(record.samples, *presence(record.requests), _answers(record))
        if threads.known and not told.works:
            parts, sources = {**told.parts, "compute": threads.computed}, {**told.sources, "compute": BY_THREAD}
            told = replace(told, parts=parts, sources=sources)
        record = as_served(record, serving, told.parts.get("queue"), threads.background)
    rows, batches = record.requests, record.batches
    setup = norms.of("setup", lambda: Setup(record.meta, batches, rows, serving, processes))
    n, m = len(rows["index"]), len(batches["batch_id"])
    batch_of = places(rows["batch_id"], batches["batch_id"])
    position = _positions(rows["index"] - record.first_index, len(record.traffic))
    ok = np.asarray((rows["warmup"] == 0) & (rows["status"] == Status.OK) & (batch_of >= 0))
    members = _members(rows, batch_of, m, ok)
    process, late_acks = process_of(record, serving, threads.background), dict[str, Bools]()
    if record.meta.is_http:
        stages = norms.of("late_acks", partial(delayed_acknowledgments, rows, process, ok))
        late_acks = {stage: late for stage, late in long_as_acknowledgments(rows, ok).items() if stage in stages}
    waited = late_acks.get("finish", np.zeros(n, bool))
    rows = {**rows, **{name: np.where(waited, 0, rows[name]) for name in ("finish_cpu_ns", "finish_runq_ns")}}
    features = {name: column for name, column in record.traffic.features.items() if name != RECORDED}
    if record.meta.is_http and record.begins:
        sizes = [rows["sent_bytes"], *(column[position] for column in features.values())]
        first = slow_first_uses(sizes, rows["arrival_ns"], rows["compute_ns"] + rows["finish_ns"], ok)
        batches["first_shape"][batch_of[first]] = 1
    elif record.begins:
        first = _first_uses(batches)
        batches = {**batches, "first_shape": np.maximum(batches["first_shape"], first)}
        norms.of("slow_first_uses", lambda: bool(_first_uses(batches, longer=_FAR).any()))
    priority = record.traffic.priority[position].astype(np.int64) if len(record.traffic) else np.zeros(n, np.int64)
    enqueue = presence(rows)[0]
    head = _heads(batch_of, enqueue, priority, m)
    ideal = _ideal_close(batches, members, enqueue, head, setup)
    lag = np.maximum(batches["close_ns"] - ideal, 0)
    pauses = collect_pauses(record)
    units = {**_request_units(rows, batches, batch_of, setup), **_batch_units(batches, lag, setup)}
    clean = {} if "models" in norms else _clean(units, pauses, batches, rows, norms)
    spans = {"prepare": span_cpu(units["prepare"], rows["prepare_span_ns"])}
    spans["finish"] = span_cpu(units["finish"], rows["finish_span_ns"])
    times = _work_times(units, setup, spans)
    names = norms.of(
        "features",
        lambda: predictive_features(
            features,
            position,
            [times["prepare"], times["finish"], spread(times["compute"], batch_of)],
            partial(error_of_work, members, batches, times, clean),
        ),
    )
    members = with_features(members, [numeric(features[name], position) for name in names])
    expected = ExpectedWork(members, batches, times, clean, setup.max_batch, norms)
    units = _with_expectations(units, expected, spans, norms)
    if setup.on_device:
        units["compute"] = _less_hidden(units["compute"], units["compute"].expected_cpu)
    opened = spread(batches["open_ns"], batch_of)
    window = np.where(ok, np.maximum(spread(batches["close_ns"] - lag, batch_of) - np.maximum(opened, enqueue), 0), 0)
    quiet, quiet_batch = _quiet(ok, batch_of, units, pauses, batches, norms, waited)
    standstills, locks, shared = _seen_from_outside(record, serving, threads)
    return Evidence(
        setup=setup,
        rows=rows,
        batches=batches,
        samples=record.samples,
        ok=ok,
        batch_of=batch_of,
        head=head,
        members=members,
        units=units,
        window=window.astype(np.int64),
        ahead_in_batch=_ahead(rows, batch_of, members),
        priority=priority,
        sessions=_sessions(record.traffic.sessions, position),
        pauses=pauses,
        spikes=_spikes(record),
        expected=expected,
        quiet=quiet,
        quiet_batch=quiet_batch,
        norms=norms,
        begins=record.begins,
        process=process,
        standstills=standstills,
        locks=locks,
        shared=shared,
        late_acks=late_acks,
        own_prefill=own_prefill_ns(standstills, spread(units["compute"].wall, batch_of), members.attributes),
        threads=threads,
        told=told,
    )


def _answers(record: RunRecord) -> Ints:
    """First and last bytes of answers, and all streamed parts."""
    rows, (_, end) = record.requests, presence(record.requests)
    return np.concatenate([end - rows["finish_ns"], end, *streamed_parts(record.events).values()])


def _seen_from_outside(
    record: RunRecord, serving: Serving | None, threads: ServingThreads
) -> tuple[Standstills, LockWaits, SharedCores]:
    """Standstills, lock waits and waits for other requests of a service behind an address.

    Standstills need a service that serves many requests at once: in a queue all requests wait anyway.
    """
    rows = record.requests
    standstills, shared = no_standstills(len(rows["index"])), nothing_shared(len(rows["index"]))
    if serving is None:
        none = np.zeros(len(rows["index"]), np.int64)
        return standstills, LockWaits(lock=none, python=none), shared
    at, end = presence(rows)
    answers = None
    if serving.servers == 0:
        standstills = find_standstills(at, end - rows["finish_ns"], end, rows["index"], record.events)
        shared = find_shared_cores(record.samples, at, end, rows.get(MOVED, 0))
        answers = _answers(record)
    return standstills, find_lock_waits(record.samples, at, end, standstills.everyone, answers, threads), shared


def _positions(index: Ints, scheduled: int) -> Ints:
    if not scheduled:
        return np.zeros(len(index), np.int64)
    return np.where(index < 0, (-index - 1) % scheduled, np.minimum(index, scheduled - 1)).astype(np.int64)


def _sessions(names: Sequence[str | None], position: Ints) -> Ints:
    numbers: dict[str | None, int] = {None: -1}
    codes = np.array([numbers.setdefault(name, len(numbers) - 1) for name in names], dtype=np.int64)
    return np.asarray(codes[position] if len(codes) else np.full(len(position), -1), dtype=np.int64)


def _members(rows: Columns, batch_of: Ints, m: int, ok: Bools) -> Members:
    attributes = np.column_stack([rows["input_elements"], rows["input_length"]]).astype(np.float64)
    order = np.flatnonzero(batch_of >= 0)
    order = order[np.argsort(batch_of[order], kind="stable")]
    count = np.bincount(batch_of[order], minlength=m).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64) if m else np.zeros(0, np.int64)
    return Members(attributes=np.maximum(attributes, 0.0), order=order, first=first, count=count, usable=ok)


def _heads(batch_of: Ints, enqueue: Ints, priority: Ints, m: int) -> Ints:
    rows = np.flatnonzero(batch_of >= 0)
    rows = rows[np.lexsort((enqueue[rows], priority[rows], batch_of[rows]))]
    head = np.full(m, -1, np.int64)
    if len(rows):
        batch, first = np.unique(batch_of[rows], return_index=True)
        head[batch] = rows[first]
    return head


def _ideal_close(batches: Columns, members: Members, enqueue: Ints, head: Ints, setup: Setup) -> Ints:
    """When a batch was due to close, full or at the end of the window; at most its actual close."""
    if setup.outside:  # only inferred, by the same rule
        return np.asarray(batches["close_ns"], dtype=np.int64)
    opened = batches["open_ns"]
    last = np.maximum(opened, members.largest(enqueue - enqueue.min(initial=0)) + enqueue.min(initial=0))
    if setup.window_most_ns > setup.window_ns:
        return _moved_close(batches, members, enqueue, last, setup)
    if setup.window_ns <= 0 or setup.max_batch <= 1:
        due = opened
    else:
        begun = np.where(head >= 0, enqueue[np.maximum(head, 0)] if len(enqueue) else 0, opened)
        due = np.where(batches["size"] >= setup.max_batch, last, np.maximum(opened, begun + setup.window_ns))
    return np.asarray(np.minimum(due, batches["close_ns"]), dtype=np.int64)


def _moved_close(batches: Columns, members: Members, enqueue: Ints, last: Ints, setup: Setup) -> Ints:
    """When a batch was due to close under an adaptive window, whose length is not in the record.

    A batch that closed before the least window was full. Any other counts as held open until it closed, up to the
    largest window, so that a late worker counts as window.
    """
    opened, close = batches["open_ns"], batches["close_ns"]
    latest = enqueue.max(initial=0)
    oldest = latest - members.largest(latest - enqueue)
    held = np.clip(
        close, np.maximum(opened, oldest + setup.window_ns), np.maximum(opened, oldest + setup.window_most_ns)
    )
    due = np.where(close < np.maximum(opened, oldest + setup.window_ns), np.maximum(opened, last), held)
    return np.asarray(np.minimum(due, close), dtype=np.int64)


def _split(wall: Ints, cpu: Ints, runq: Ints) -> tuple[Ints, Ints, Ints]:
    wall = np.maximum(wall, 0)
    on = np.clip(cpu, 0, wall)
    delayed = np.clip(runq, 0, wall - on)
    return on, delayed, wall - on - delayed


def _read_late(batches: Columns, setup: Setup) -> Ints:
    """Per batch, run-queue delay in the counters of its compute that came after it, in the first member's finish.

    The counters are read after the end is stamped, in the first system call since the model began: there a kernel
    takes the core from a thread whose turn is over.
    """
    if setup.on_device:
        return np.zeros(len(batches["batch_id"]), np.int64)
    runq, wall = batches["compute_runq_ns"], batches["compute_end_ns"] - batches["h2d_end_ns"]
    return np.asarray(np.clip(batches["compute_cpu_ns"] + runq - wall, 0, runq), dtype=np.int64)


def _split_on_device(batches: Columns, setup: Setup) -> tuple[Ints, Ints, Ints]:
    """Compute on a device: its wall time is the device's work, except for waits of the launching thread.

    If that thread was neither on a core nor runnable during the issuing call, it waited for a lock, most likely the
    interpreter's. This does not hold if the model itself waits for the device. Without a profile that is unknown, and
    what a typical batch waits does not count.
    """
    wall = np.maximum(batches["compute_end_ns"] - batches["h2d_end_ns"], 0)
    runq = np.clip(batches["compute_runq_ns"], 0, wall)
    blocked = np.zeros(len(wall), np.int64)
    profile = setup.device_profile
    if profile is None or not profile.waits:
        waited = np.maximum(batches["issue_ns"] - batches["compute_cpu_ns"] - runq, 0)
        usual = whole_median(waited) if profile is None else 0
        blocked = np.clip(waited - usual, 0, wall - runq)
    return wall - runq - blocked, runq, blocked


def _less_hidden(unit: Unit, expected: Ints) -> Unit:
    """A device's batch with only those delays of its host that the device did not hide.

    While the device computes queued work, the launching thread can wait without delaying the batch.
    """
    late = np.maximum(unit.wall - expected, 0)
    runq = np.minimum(unit.runq, late)
    blocked = np.minimum(unit.blocked, late - runq)
    return replace(unit, runq=runq, blocked=blocked, cpu=unit.wall - runq - blocked)


def _split_pooled(wall: Ints, process_cpu: Ints, runq: Ints) -> tuple[Ints, Ints, Ints]:
    """The split if a pool of threads works while the unit's thread waits for it.

    :param process_cpu: CPU time of the whole process; wall time beyond it is blocked.
    """
    wall = np.maximum(wall, 0)
    delayed = np.clip(runq, 0, wall)
    on = wall - delayed
    on = np.where(process_cpu > 0, np.minimum(on, process_cpu), on)
    return on, delayed, wall - delayed - on


def _request_units(rows: Columns, batches: Columns, batch_of: Ints, setup: Setup) -> dict[str, Unit]:
    end, finished = presence(rows)
    handed = end - rows["prepare_ns"]
    prepare = _split(rows["prepare_ns"] - rows["prepare_wait_ns"], rows["prepare_cpu_ns"], rows["prepare_runq_ns"])
    own = np.maximum(rows["finish_ns"] - rows["finish_wait_ns"], 0)
    late = np.where(rows["finish_wait_ns"] == 0, spread(_read_late(batches, setup), batch_of), 0)
    finish = _split(own, rows["finish_cpu_ns"], rows["finish_runq_ns"] + late)
    worker = spread(batches["worker"] // setup.places, batch_of)
    zero = np.zeros(len(handed), np.int64)
    lag = np.maximum(rows["dispatch_ns"], 0)
    until = np.clip(rows["intake_ns"], 0, np.maximum(rows["prepare_wait_ns"], 0))
    intake = _split(until, zero, rows["intake_runq_ns"])
    no_thread = np.full(len(handed), -1, np.int64)
    return {
        "dispatch": Unit(handed - rows["dispatch_ns"], handed, zero, zero, lag, zero, zero, no_thread),
        "intake": Unit(handed, handed + until, *intake, zero, zero, no_thread),
        "prepare": Unit(
            end - sum(prepare), end, *prepare, rows["prepare_minflt"], rows["prepare_majflt"], rows["prepare_thread"]
        ),
        "finish": Unit(finished - own, finished, *finish, rows["finish_minflt"], rows["finish_majflt"], worker),
    }


def _batch_units(batches: Columns, lag: Ints, setup: Setup) -> dict[str, Unit]:
    zero = np.zeros(len(lag), np.int64)
    close, collated = batches["close_ns"], batches["collated_ns"]
    begin, end, out = batches["h2d_end_ns"], batches["compute_end_ns"], batches["d2h_end_ns"]
    runq = batches["compute_runq_ns"]
    collate = _split(collated - close, batches["collate_cpu_ns"], batches["collate_runq_ns"])
    compute = _split(end - begin, batches["compute_cpu_ns"], runq)
    if setup.on_device:
        compute = _split_on_device(batches, setup)
    elif setup.pooled:
        compute = _split_pooled(end - begin, batches["process_cpu_ns"], runq)
    worker = batches["worker"] // setup.places
    return {
        "lag": Unit(close - lag, close, zero, zero, lag, zero, zero, worker),
        "collate": Unit(close, collated, *collate, batches["collate_minflt"], batches["collate_majflt"], worker),
        # Copies have no account: their wall time counts as work.
        "h2d": Unit(collated, begin, np.maximum(begin - collated, 0), zero, zero, zero, zero, worker),
        "compute": Unit(begin, end, *compute, batches["compute_minflt"], batches["compute_majflt"], worker),
        "d2h": Unit(end, out, np.maximum(out - end, 0), zero, zero, zero, zero, worker),
    }


def _clean(
    units: dict[str, Unit], pauses: Mapping[str, Pauses], batches: Columns, rows: Columns, norms: Norms
) -> dict[str, Bools]:
    """Units without a known disturbance of their on-CPU time; the models learn from these."""
    clean: dict[str, Bools] = {}
    for name in ("prepare", "finish", "compute"):
        unit = units[name]
        known = _paused(unit, pauses)
        clean[name] = np.asarray((unit.wall > 0) & (known <= 0.02 * unit.wall) & (unit.majflt == 0))
        if np.count_nonzero(clean[name]) < 0.3 * len(unit.cpu):
            clean[name] = np.asarray(unit.wall > 0)
        met = (batches if name == "compute" else rows).get(f"{name}_denormals")
        without = clean[name] if met is None else clean[name] & (met == 0)
        if np.count_nonzero(without) > 0.5 * np.count_nonzero(clean[name]):
            clean[name] = without
    settled = clean["compute"] & (batches["retried"] == 0) & (batches["first_shape"] == 0)
    if np.count_nonzero(settled) < (_FEW_SETTLED if first_uses_slow(norms) else _SETTLED):
        settled = clean["compute"] & (batches["retried"] == 0)
    clean["compute"] = settled
    for name in ("prepare", "finish"):
        clean[name] &= rows["status"] == Status.OK
    return clean


def first_uses_slow(norms: Norms) -> bool:
    """First batches of their shape take far longer than later ones, in the run's first piece."""
    return norms.of("slow_first_uses", lambda: False)


def _first_uses(batches: Columns, **limit: float) -> Bools:
    """First batches of their shape in this run, if those are slow, although warm-up may have run the shape."""
    shape = batches["size"] << 40 | batches["padded_elements"]
    took = batches["compute_end_ns"] - batches["h2d_end_ns"]
    return slow_first_uses([shape], batches["close_ns"], took, batches["retried"] == 0, **limit)


def late_shapes(batches: Columns) -> tuple[int, int]:
    """New shapes in the second half of the run, and in all of it."""
    fresh = batches["first_shape"] > 0
    return int(np.count_nonzero(fresh[len(fresh) // 2 :])), int(np.count_nonzero(fresh))


def _paused(unit: Unit, pauses: Mapping[str, Pauses]) -> Ints:
    """Nanoseconds of each unit during which a known pause was in progress in any thread."""
    known = [pause.everywhere.covered(unit.start, unit.end) for pause in pauses.values()]
    return np.asarray(np.sum(known, axis=0), dtype=np.int64)


def _work_times(units: dict[str, Unit], setup: Setup, spans: Mapping[str, Ints]) -> dict[str, Floats]:
    """On-CPU nanoseconds by unit, without declared spans and page faults."""
    times: dict[str, Floats] = {}
    for name in ("prepare", "finish", "compute"):
        work = (units[name].cpu - spans.get(name, 0)).astype(np.float64)
        times[name] = np.maximum(work - np.minimum(units[name].minflt * setup.minor_fault_ns, 0.9 * work), 0.0)
    return times


def span_cpu(unit: Unit, span: Ints) -> Ints:
    """The on-CPU part of declared spans: their length beyond the unit's blocked time."""
    return np.asarray(np.clip(span - unit.blocked, 0, unit.cpu), dtype=np.int64)


def _with_expectations(
    units: dict[str, Unit], expected: ExpectedWork, spans: Mapping[str, Ints], norms: Norms
) -> dict[str, Unit]:
    by_name = {
        "prepare": expected.prepare + spans["prepare"],
        "finish": expected.finish + spans["finish"],
        "compute": expected.padded,
    }
    result: dict[str, Unit] = {}
    for name, unit in units.items():
        usual = norms.of(f"on-cpu.{name}", partial(whole_median, unit.cpu))
        plain = np.full(len(unit.cpu), usual, np.int64)
        result[name] = replace(unit, expected_cpu=by_name.get(name, plain))
    return result


def _quiet(
    ok: Bools,
    batch_of: Ints,
    units: Mapping[str, Unit],
    pauses: Mapping[str, Pauses],
    batches: Columns,
    norms: Norms,
    waited: Bools,
) -> tuple[Bools, Bools]:
    """Quiet requests and batches: known disturbances are small compared with a typical service time.

    Queue waits do not count: references do not include them, and under load the few requests that did not wait are
    not a sample of the traffic. In a run disturbed throughout, the least disturbed quarter is used.

    :param waited: ``(n,)`` answers that waited for an acknowledgment.
    """
    quiet_batch = np.zeros(len(batches["size"]), dtype=bool)
    if not ok.any():
        return ok.copy(), quiet_batch
    disturbed = np.zeros(len(ok), np.float64)
    service = np.zeros(len(ok), np.float64)
    for name, unit in units.items():
        known = unit.runq + _paused(unit, pauses)
        disturbed += known if name in REQUEST_UNITS else spread(known, batch_of)
        service += unit.wall if name in REQUEST_UNITS else spread(unit.wall, batch_of)
    if len(batches["size"]):
        fresh = waited | (spread(np.maximum(batches["first_shape"], batches["retried"]), batch_of) > 0)
        settled = int(np.count_nonzero(ok & ~fresh)), int(np.count_nonzero(ok))
        if norms.of("fresh_is_rare", lambda: settled[0] >= max(20, 0.2 * settled[1])):
            disturbed[fresh] = np.inf
    limit = norms.of(
        "quiet_limit",
        lambda: max(0.05 * float(np.median(service[ok])), float(np.quantile(disturbed[ok], 0.25, method="lower"))),
    )
    quiet = ok & (disturbed <= limit)
    quiet_batch[batch_of[quiet]] = True
    return np.asarray(quiet), quiet_batch


def _ahead(rows: Columns, batch_of: Ints, members: Members) -> Ints:
    """Number of members of the request's batch that finished before it."""
    order = members.order
    ahead = np.zeros(len(batch_of), np.int64)
    if len(order):
        by_turn = order[np.lexsort((rows["finish_wait_ns"][order], batch_of[order]))]
        ahead[by_turn] = np.arange(len(order)) - np.repeat(members.first, members.count)
    return ahead


def _spikes(record: RunRecord) -> Intervals:
    keep = np.asarray(record.events["kind"], dtype=object) == "spike"
    return Intervals.merged(record.events["t_ns"][keep], record.events["duration_ns"][keep])
