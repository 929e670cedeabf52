"""A record laid out for attribution: units of work with their components, batches, members, known intervals.

A unit is what one thread did over an interval: ``dispatch`` (the replayer was late), ``intake`` (what had arrived was
not yet taken up), ``prepare`` and ``finish`` of a request; ``lag`` (a worker that should have started and had not),
``collate``, ``h2d``, ``compute`` and ``d2h`` of a batch. Its wall time splits into on-CPU, run-queue delay and
blocked; the split sums exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.expected_work import ExpectedWork, Members, expect_work
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.evidence.known_pauses import Pauses, collect_pauses
from latfix.profilers.evidence.outside.lock_waits import LockWaits, find_lock_waits, servers_of
from latfix.profilers.evidence.outside.outside_view import as_served, stage_values
from latfix.profilers.evidence.outside.standstills import Standstills, find_standstills, no_standstills
from latfix.profilers.evidence.run_baselines import Norms, whole_median
from latfix.profilers.evidence.run_settings import Setup
from latfix.profilers.evidence.telling_features import error_of_work, numeric, telling_features, with_features
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns
from latfix.stages import Status
from latfix.traffic.parsed_fields import RECORDED

Number = TypeVar("Number", np.int64, np.float64)

BATCH_UNITS: tuple[str, ...] = ("lag", "collate", "h2d", "compute", "d2h")
REQUEST_UNITS: tuple[str, ...] = ("dispatch", "intake", "prepare", "finish")
#: Blocked time up to this may be a matter of where the stamps lie.
_STILL_NS = 1_000_000
#: In place of a thread's number.
_LATFIX = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One kind of work, a row a request or a batch. All times in nanoseconds.

    :param start: when it began; ``end`` when it ended.
    :param cpu: on-CPU; ``runq`` runnable but not running; ``blocked`` the rest of the wall time.
    :param expected_cpu: on-CPU time that its inputs need.
    :param thread: number of the worker or prepare thread that did it; -1 for nobody.
    """

    start: Ints
    end: Ints
    cpu: Ints
    runq: Ints
    blocked: Ints
    minflt: Ints
    majflt: Ints
    expected_cpu: Ints
    thread: Ints

    @property
    def wall(self) -> Ints:
        """Wall nanoseconds."""
        return self.cpu + self.runq + self.blocked


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the causes look at.

    :param rows: the record's requests, warm-up included; ``batches`` its batches.
    :param ok: ``(n,)`` measured requests that ended ``ok``: those the ledger is about.
    :param batch_of: ``(n,)`` row of the request's batch, -1 where it has none.
    :param head: ``(m,)`` row of the batch's first member, -1 where none is recorded.
    :param window: ``(n,)`` nanoseconds that the request waited in an open batch with an idle worker.
    :param ahead_in_batch: ``(n,)`` how many members of its batch were finished before it.
    :param priority: ``(n,)`` class of service, 0 the highest.
    :param sessions: ``(n,)`` a number for each session of the traffic, -1 where the request has none.
    :param quiet: ``(n,)`` undisturbed requests, from which references are taken.
    :param quiet_batch: ``(m,)`` the batches of quiet requests.
    :param norms: what is usual in the run that these requests are of.
    :param standstills: when a service behind an address answered nobody; none in other runs.
    :param locks: waits for locks in a service behind an address; ``None`` in other runs.
    :param begins: these requests are the run's first, or all of it.
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
    standstills: Standstills
    locks: LockWaits | None

    def usually_blocked(self, unit: str) -> int:
        """Nanoseconds that a unit is blocked for in the median: what it always waits for."""
        return self.norms.of(f"blocked.{unit}", partial(whole_median, self.units[unit].blocked))

    def account(self, name: str) -> Columns:
        """The columns that the account of a unit is in: the batches', or the requests'."""
        return self.batches if name in BATCH_UNITS else self.rows

    def beyond_usual(self, name: str, blocked: Ints) -> Ints:
        """Of each unit's blocked time, what is beyond what it always waits for and beyond its declared spans."""
        span = self.rows[f"{name}_span_ns"] if name in ("prepare", "finish") else 0
        return np.maximum(blocked - np.maximum(self.usually_blocked(name), span), 0)

    def stood_still(self, name: str) -> Ints:
        """Nanoseconds of each unit's blocked time in which its thread had never let go of its core by itself.

        Who waits for anything is switched away from of its own will. Where a thread never was, the machine stopped
        under it. Zero where switches were not counted.
        """
        unit, switches = self.units[name], self.account(name).get(f"{name}_vcsw")
        if switches is None or not switches.any():
            return np.zeros(len(unit.blocked), np.int64)
        return np.where((switches == 0) & (unit.blocked > _STILL_NS), unit.blocked, 0)

    def places(self, name: str) -> Ints:
        """Who did each unit: prepare threads from zero up, workers from minus one down; latfix's own are none.

        Whoever does several at a time, as a worker that requests join between steps, counts as several.
        """
        if name in ("dispatch", "intake"):
            return np.full(len(self.ok), _LATFIX, np.int64)
        if name == "prepare":
            return self.rows["prepare_thread"]
        worker = self.batches["worker"]
        return -1 - (worker if name in BATCH_UNITS else self.of_batch(worker))

    def met_denormals(self, name: str) -> Bools:
        """Units whose own thread, a pool's aside, computed with denormal numbers by the processor's flag."""
        return np.asarray(
            self.account(name).get(f"{name}_denormals", np.zeros(len(self.units[name].cpu), np.int64)) > 0
        )

    @property
    def released_ns(self) -> Ints:
        """``(m,)`` when the next batch could begin: where batches overlap, answers are handed out beside it."""
        name = "compute_end_ns" if self.setup.overlapped else "finish_end_ns"
        return np.asarray(self.batches[name], dtype=np.int64)

    def of_batch(self, per_batch: Ints) -> Ints:
        """A batch's figure, at each of its members; zero for requests without a batch."""
        return spread(per_batch, self.batch_of)

    def stage_ns(self, stage: str) -> Ints:
        """``(n,)`` how long each request was in a stage, of the runner's or of those that a client sees."""
        if self.setup.outside:
            return stage_values(self.rows)[stage]
        return np.asarray(self.rows[f"{stage}_ns"], dtype=np.int64)

    def series(self, name: str) -> tuple[Ints, Floats]:
        """One sampled series: times and values."""
        keep = self.samples["series"] == name if len(self.samples["series"]) else np.zeros(0, bool)
        return (
            np.asarray(self.samples["t_ns"][keep], dtype=np.int64),
            np.asarray(self.samples["value"][keep], dtype=np.float64),
        )

    def latest(self, name: str, default: float = 0.0) -> float:
        """A sampled series' last value; ``default`` where it was not read, or is not above zero."""
        _, values = self.series(name)
        return float(values[-1]) if len(values) and values[-1] > 0 else default

    def before(self, name: str, at: Ints) -> Floats:
        """A sampled series' last value before each moment; its first where there is none, 0 where it was not read."""
        times, values = self.series(name)
        if not len(times):
            return np.zeros(len(at))
        return values[np.maximum(np.searchsorted(times, at, side="right") - 1, 0)]

    def grown_around(self, name: str, start: Ints, end: Ints) -> Floats:
        """By how much a counter grew from the reading before each span to the one after; 0 where it was not read."""
        times, values = self.series(name)
        if len(times) < 2:
            return np.zeros(len(start))
        after = np.minimum(np.searchsorted(times, end, side="left"), len(times) - 1)
        return np.maximum(values[after] - self.before(name, start), 0.0)


def spread(per_batch: npt.NDArray[Number], batch_of: Ints) -> npt.NDArray[Number]:
    """A batch's figure at each of its members; zero for requests without a batch."""
    if not len(per_batch):
        return np.zeros(len(batch_of), per_batch.dtype)
    return np.where(batch_of >= 0, per_batch[np.maximum(batch_of, 0)], 0).astype(per_batch.dtype)


def gather(record: RunRecord, norms: Norms | None = None, *, begins: bool = True) -> Evidence:
    """Lay out a record, or a piece of one, for attribution.

    :param norms: what was learned of the run from other pieces; what is missing is learned here.
    :param begins: the piece holds the run's first requests.
    """
    norms = Norms() if norms is None else norms
    servers = None
    if record.meta.is_http:
        servers = norms.of("servers", partial(servers_of, record))
        record = as_served(record, servers)
    rows, batches = record.requests, record.batches
    setup = norms.of("setup", lambda: Setup.of(record.meta, batches, rows, servers))
    n, m = len(rows["index"]), len(batches["batch_id"])
    batch_of = _batch_rows(rows["batch_id"], batches["batch_id"])
    position = _positions(rows["index"] - record.first_index, len(record.traffic))
    ok = np.asarray((rows["warmup"] == 0) & (rows["status"] == Status.OK) & (batch_of >= 0))
    members = _members(rows, batch_of, m, ok)
    priority = record.traffic.priority[position].astype(np.int64) if len(record.traffic) else np.zeros(n, np.int64)
    enqueue = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"]
    head = _heads(batch_of, enqueue, priority, m)
    ideal = _ideal_close(batches, members, enqueue, head, setup)
    lag = np.maximum(batches["close_ns"] - ideal, 0)
    pauses = collect_pauses(record)
    units = {**_request_units(rows, batches, batch_of, setup), **_batch_units(batches, lag, setup)}
    clean = {} if "models" in norms else _clean(units, pauses, batches, rows)
    spans = {"prepare": span_cpu(units["prepare"], rows["prepare_span_ns"])}
    spans["finish"] = span_cpu(units["finish"], rows["finish_span_ns"])
    times = _work_times(units, setup, spans)
    features = {name: column for name, column in record.traffic.features.items() if name != RECORDED}
    names = norms.of(
        "features",
        lambda: telling_features(
            features,
            position,
            [times["prepare"], times["finish"], spread(times["compute"], batch_of)],
            partial(error_of_work, members, batches, times, clean),
        ),
    )
    members = with_features(members, [numeric(features[name], position) for name in names])
    expected = expect_work(members, batches, times, clean, setup.max_batch, norms)
    units = _with_expectations(units, expected, spans, norms)
    if setup.on_device:
        units["compute"] = _less_hidden(units["compute"], units["compute"].expected_cpu)
    opened = spread(batches["open_ns"], batch_of)
    window = np.where(ok, np.maximum(spread(batches["close_ns"] - lag, batch_of) - np.maximum(opened, enqueue), 0), 0)
    quiet, quiet_batch = _quiet(ok, batch_of, units, pauses, batches, norms)
    standstills = _standstills(record, ok, servers)
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
        begins=begins,
        standstills=standstills,
        locks=None if servers is None else _locks(record, standstills),
    )


def _locks(record: RunRecord, standstills: Standstills) -> LockWaits:
    rows = record.requests
    at = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"]
    return find_lock_waits(record.samples, at, rows["arrival_ns"] + rows["latency_ns"], standstills.everyone)


def _standstills(record: RunRecord, ok: Bools, servers: int | None) -> Standstills:
    """Looked for where many are served at once: of those that wait in line behind one, all wait whoever is slow."""
    if servers is None or servers > 0:
        return no_standstills(len(ok))
    rows = record.requests
    at = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"]
    end = rows["arrival_ns"] + rows["latency_ns"]
    return find_standstills(at, end - rows["finish_ns"], end, rows["index"], record.events)


def _batch_rows(wanted: Ints, ids: Ints) -> Ints:
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((wanted >= 0) & (ids[at] == wanted), at, -1).astype(np.int64)


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
    """When a batch had to close: full, or the window past; at most when it did close."""
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
    """When a batch had to close under a window that a controller moved: what that was is not in the record.

    One that closed before the least window was past was full by then. Otherwise it is taken to have been held until
    it closed, as long as that is within the largest window: a worker that was late is then counted to the window.
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


def _split_on_device(batches: Columns, setup: Setup) -> tuple[Ints, Ints, Ints]:
    """Compute on a device: its wall time is the device's work, but for what its launching thread had to wait for.

    In the call that issues the work, that thread was neither on a core nor in want of one: it waited for a lock, most
    likely the interpreter's. Where the model itself waits for the device, or that is not known, it may be that.
    """
    wall = np.maximum(batches["compute_end_ns"] - batches["h2d_end_ns"], 0)
    runq = np.clip(batches["compute_runq_ns"], 0, wall)
    blocked = np.zeros(len(wall), np.int64)
    if setup.device_profile is not None and not setup.device_profile.waits:
        blocked = np.clip(batches["issue_ns"] - batches["compute_cpu_ns"] - runq, 0, wall - runq)
    return wall - runq - blocked, runq, blocked


def _less_hidden(unit: Unit, expected: Ints) -> Unit:
    """A device's batch with those delays of its host that the device did not hide: what it took too long.

    While the device computes what it has, the thread that launches may wait for a core or a lock and delay nothing.
    """
    late = np.maximum(unit.wall - expected, 0)
    runq = np.minimum(unit.runq, late)
    blocked = np.minimum(unit.blocked, late - runq)
    return replace(unit, runq=runq, blocked=blocked, cpu=unit.wall - runq - blocked)


def _split_pooled(wall: Ints, process_cpu: Ints, runq: Ints) -> tuple[Ints, Ints, Ints]:
    """Where a pool of threads works while the thread waits for it.

    :param process_cpu: of the whole process: what it did not use of the wall time, nobody worked in.
    """
    wall = np.maximum(wall, 0)
    delayed = np.clip(runq, 0, wall)
    on = wall - delayed
    on = np.where(process_cpu > 0, np.minimum(on, process_cpu), on)
    return on, delayed, wall - delayed - on


def _unit(start: Ints, end: Ints, parts: tuple[Ints, Ints, Ints], faults: tuple[Ints, Ints], thread: Ints) -> Unit:
    cpu, runq, blocked = parts
    return Unit(
        start=start,
        end=end,
        cpu=cpu,
        runq=runq,
        blocked=blocked,
        minflt=faults[0],
        majflt=faults[1],
        expected_cpu=np.zeros(len(start), np.int64),
        thread=thread,
    )


def _request_units(rows: Columns, batches: Columns, batch_of: Ints, setup: Setup) -> dict[str, Unit]:
    handed = rows["arrival_ns"] + rows["dispatch_ns"]
    end = handed + rows["prepare_ns"]
    prepare = _split(rows["prepare_ns"] - rows["prepare_wait_ns"], rows["prepare_cpu_ns"], rows["prepare_runq_ns"])
    finished = rows["arrival_ns"] + rows["latency_ns"]
    own = np.maximum(rows["finish_ns"] - rows["finish_wait_ns"], 0)
    finish = _split(own, rows["finish_cpu_ns"], rows["finish_runq_ns"])
    worker = spread(batches["worker"] // setup.places, batch_of)
    zero = np.zeros(len(handed), np.int64)
    lag = np.maximum(rows["dispatch_ns"], 0)
    until = np.clip(rows["intake_ns"], 0, np.maximum(rows["prepare_wait_ns"], 0))
    intake = _split(until, zero, rows["intake_runq_ns"])
    nobody = np.full(len(handed), -1, np.int64)
    return {
        "dispatch": _unit(rows["arrival_ns"], handed, (zero, zero, lag), (zero, zero), nobody),
        "intake": _unit(handed, handed + until, intake, (zero, zero), nobody),
        "prepare": _unit(
            end - sum(prepare), end, prepare, (rows["prepare_minflt"], rows["prepare_majflt"]), rows["prepare_thread"]
        ),
        "finish": _unit(finished - own, finished, finish, (rows["finish_minflt"], rows["finish_majflt"]), worker),
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
    none, worker = (zero, zero), batches["worker"] // setup.places
    return {
        "lag": _unit(close - lag, close, (zero, zero, lag), none, worker),
        "collate": _unit(close, collated, collate, (batches["collate_minflt"], batches["collate_majflt"]), worker),
        # No account is taken over the copies: their wall time is work of unknown kind.
        "h2d": _unit(collated, begin, (np.maximum(begin - collated, 0), zero, zero), none, worker),
        "compute": _unit(begin, end, compute, (batches["compute_minflt"], batches["compute_majflt"]), worker),
        "d2h": _unit(end, out, (np.maximum(out - end, 0), zero, zero), none, worker),
    }


def _clean(units: dict[str, Unit], pauses: Mapping[str, Pauses], batches: Columns, rows: Columns) -> dict[str, Bools]:
    """Units without a known disturbance of their on-CPU time, for the models to learn from."""
    clean: dict[str, Bools] = {}
    for name in ("prepare", "finish", "compute"):
        unit = units[name]
        known = sum((p.seen(unit.start, unit.end) for p in pauses.values()), start=np.zeros(len(unit.cpu), np.int64))
        clean[name] = np.asarray((unit.wall > 0) & (known <= 0.02 * unit.wall) & (unit.majflt == 0))
        if np.count_nonzero(clean[name]) < 0.3 * len(unit.cpu):
            clean[name] = np.asarray(unit.wall > 0)
        met = (batches if name == "compute" else rows).get(f"{name}_denormals")
        without = clean[name] if met is None else clean[name] & (met == 0)
        if np.count_nonzero(without) > 0.5 * np.count_nonzero(clean[name]):
            clean[name] = without
    settled = clean["compute"] & (batches["retried"] == 0) & (batches["first_shape"] == 0)
    if np.count_nonzero(settled) < 100:
        settled = clean["compute"] & (batches["retried"] == 0)
    clean["compute"] = settled
    for name in ("prepare", "finish"):
        clean[name] &= rows["status"] == Status.OK
    return clean


def _work_times(units: dict[str, Unit], setup: Setup, spans: Mapping[str, Ints]) -> dict[str, Floats]:
    """Nanoseconds of work by unit: on a core, less declared spans and page faults."""
    times: dict[str, Floats] = {}
    for name in ("prepare", "finish", "compute"):
        work = (units[name].cpu - spans.get(name, 0)).astype(np.float64)
        times[name] = np.maximum(work - np.minimum(units[name].minflt * setup.minor_fault_ns, 0.9 * work), 0.0)
    return times


def span_cpu(unit: Unit, span: Ints) -> Ints:
    """The on-CPU part of declared spans: what of them the unit's blocked time cannot hold."""
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
) -> tuple[Bools, Bools]:
    """Requests whose known disturbances are small beside a typical service time.

    Waiting in a queue is not among them: it has no part in a reference, and under load the few that did not
    wait are no sample of the traffic. Where few are (a run disturbed throughout), the least disturbed quarter serves.
    """
    quiet_batch = np.zeros(len(batches["size"]), dtype=bool)
    if not ok.any():
        return ok.copy(), quiet_batch
    disturbed = np.zeros(len(ok), np.float64)
    service = np.zeros(len(ok), np.float64)
    for name, unit in units.items():
        known = unit.runq + sum(p.seen(unit.start, unit.end) for p in pauses.values())
        disturbed += known if name in REQUEST_UNITS else spread(known, batch_of)
        service += unit.wall if name in REQUEST_UNITS else spread(unit.wall, batch_of)
    if len(batches["size"]):
        fresh = spread(np.maximum(batches["first_shape"], batches["retried"]), batch_of) > 0
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
    """How many members of the request's batch were finished before it."""
    order = members.order
    ahead = np.zeros(len(batch_of), np.int64)
    if len(order):
        by_turn = order[np.lexsort((rows["finish_wait_ns"][order], batch_of[order]))]
        ahead[by_turn] = np.arange(len(order)) - np.repeat(members.first, members.count)
    return ahead


def _spikes(record: RunRecord) -> Intervals:
    kind = record.events["kind"]
    keep = kind == "spike" if len(kind) else np.zeros(0, bool)
    return Intervals.merged(record.events["t_ns"][keep], record.events["duration_ns"][keep])
