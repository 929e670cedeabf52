"""A discrete-event simulator of the runner that injects known faults."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, Columns
from latfix.traffic.schedule import Traffic
from tests.records import build_record

MS = 1_000_000
WORKER, PREPARE, OTHER = 9000, 9100, 9200


@dataclass(kw_only=True)
class Plan:
    """What to simulate. Times in milliseconds; faults by request index, in the unit that handles it.

    ``compute_faults`` and ``prepare_faults`` map a request to ``(kind, ms)``; kinds: ``gc`` (a collection in the
    unit's own thread), ``gc_elsewhere`` (in another thread that kept this one waiting), ``runq``, ``throttle``,
    ``blocked``, ``cpu``, ``span`` (declared, blocked), ``compile``, ``faults`` (page faults at 0.5 us),
    ``denormals`` (``cpu``, with the processor's flag set). Batches are padded to the largest of ``widths``, and of
    ``lengths`` over them. The first batch takes ``cold`` longer, the first of each shape ``new_shape``.
    A batch that begins while another runs takes ``together`` times as long.
    """

    n: int = 600
    rate: float = 40.0
    seed: int = 1
    lengths: npt.NDArray[np.int64] | None = None
    widths: npt.NDArray[np.int64] | None = None
    arrivals_ms: npt.NDArray[np.float64] | None = None
    priority: npt.NDArray[np.int8] | None = None
    max_batch: int = 1
    window: float = 0.0
    workers: int = 1
    prepare_threads: int = 1
    base: float = 6.0
    per_request: float = 0.5
    per_item: float = 0.03
    prepare: float = 1.0
    finish: float = 0.2
    noise: float = 0.01
    dispatch: dict[int, float] = field(default_factory=dict)
    intake: dict[int, float] = field(default_factory=dict)
    compute_faults: dict[int, tuple[str, float]] = field(default_factory=dict)
    prepare_faults: dict[int, tuple[str, float]] = field(default_factory=dict)
    cold: float = 0.0
    new_shape: float = 0.0
    together: float = 1.0
    status: dict[int, int] = field(default_factory=dict)
    name_threads: bool = True
    meta: dict[str, Any] = field(default_factory=dict)


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = np.random.default_rng(plan.seed)
        n = plan.n
        if plan.arrivals_ms is not None:
            arrivals = plan.arrivals_ms
        else:
            arrivals = np.cumsum(self.rng.exponential(1000.0 / plan.rate, n))
        self.arrival = (np.asarray(arrivals, dtype=np.float64) * MS).astype(np.int64)
        self.length = plan.lengths if plan.lengths is not None else np.full(n, 100, np.int64)
        self.width = plan.widths if plan.widths is not None else np.ones(n, np.int64)
        self.priority = plan.priority if plan.priority is not None else np.ones(n, np.int8)
        self.rows = np.zeros(n, REQUEST_DTYPE)
        self.batches: list[np.ndarray[Any, Any]] = []
        self.events: list[tuple[int, int, str, int]] = []

    def noisy(self, ms: float) -> int:
        return int(ms * MS * (1 + self.plan.noise * abs(self.rng.standard_normal())))

    def strike(
        self, prefix: str, row: Any, begin: int, work: int, fault: tuple[str, float] | None, thread: int
    ) -> int:
        """Book work and a fault into one account; returns the wall time."""
        row[f"{prefix}_cpu_ns"] += work
        row[f"{prefix}_minflt"] += 20
        if fault is None:
            return work
        kind, ns = fault[0], int(fault[1] * MS)
        if kind in ("gc", "compile"):
            row[f"{prefix}_cpu_ns"] += ns
            self.events.append((begin + work // 2, ns, kind, thread))
        elif kind == "gc_elsewhere":
            self.events.append((begin + work // 2, ns, "gc", OTHER))
        elif kind in ("runq", "throttle"):
            row[f"{prefix}_runq_ns"] += ns
            if kind == "throttle":
                row["throttled_ns"] += ns
        elif kind == "span":
            row["prepare_span_ns"] += ns
        elif kind in ("cpu", "denormals"):
            row[f"{prefix}_cpu_ns"] += ns
            row[f"{prefix}_denormals"] = kind == "denormals"
        elif kind == "faults":
            row[f"{prefix}_cpu_ns"] += ns
            row[f"{prefix}_minflt"] += ns // 500
        else:
            assert kind == "blocked"
        return work + ns

    def prepare_all(self) -> npt.NDArray[np.int64]:
        plan, rows = self.plan, self.rows
        rows["index"] = np.arange(plan.n)
        rows["arrival_ns"] = self.arrival
        rows["input_elements"], rows["input_width"] = self.length, self.width
        rows["input_length"] = self.length // self.width
        rows["batch_id"] = -1
        for i, ms in plan.dispatch.items():
            rows["dispatch_ns"][i] = int(ms * MS)
        for i, ms in plan.intake.items():
            rows["intake_ns"][i] = int(ms * MS)
        handed = rows["arrival_ns"] + rows["dispatch_ns"]
        entered = handed + rows["intake_ns"]
        free = [(-(10**18), k) for k in range(plan.prepare_threads)]
        for i in np.argsort(entered, kind="stable"):
            idle, thread = heapq.heappop(free)
            begin = max(int(entered[i]), idle)
            wall = self.strike(
                "prepare", rows[i], begin, self.noisy(plan.prepare), plan.prepare_faults.get(int(i)), PREPARE + thread
            )
            rows["prepare_thread"][i] = thread
            rows["prepare_wait_ns"][i] = begin - handed[i]
            rows["prepare_ns"][i] = begin - handed[i] + wall
            heapq.heappush(free, (begin + wall, thread))
        return np.asarray(handed + rows["prepare_ns"], dtype=np.int64)

    def serve_all(self, enqueue: npt.NDArray[np.int64]) -> None:
        plan = self.plan
        order = [int(k) for k in np.argsort(enqueue, kind="stable")]
        free = [(-(10**15), w) for w in range(plan.workers)]
        waiting: list[tuple[int, int, int]] = []
        i = 0

        def admit(until: int, at: int) -> int:
            while at < len(order) and enqueue[order[at]] <= until:
                r = order[at]
                heapq.heappush(waiting, (int(self.priority[r]), int(enqueue[r]), r))
                at += 1
            return at

        while i < len(order) or waiting:
            idle, worker = heapq.heappop(free)
            opened = idle if waiting else max(idle, int(enqueue[order[i]]))
            i = admit(opened, i)
            members = [heapq.heappop(waiting)[2]]
            while waiting and len(members) < plan.max_batch:
                members.append(heapq.heappop(waiting)[2])
            close = opened
            due = int(enqueue[members].min()) + int(plan.window * MS)
            if len(members) < plan.max_batch and due > opened:
                while i < len(order) and enqueue[order[i]] <= due and len(members) < plan.max_batch:
                    members.append(order[i])
                    i += 1
                close = int(enqueue[members[-1]]) if len(members) == plan.max_batch else due
            heapq.heappush(free, (self.run_batch(worker, idle, opened, close, members, enqueue), worker))

    def run_batch(
        self, worker: int, idle: int, opened: int, close: int, members: list[int], enqueue: npt.NDArray[np.int64]
    ) -> int:
        plan, rows = self.plan, self.rows
        batch = np.zeros((), BATCH_DTYPE)
        size, longest = len(members), int(rows["input_length"][members].max())
        padded = size * longest * int(self.width[members].max())
        number = len(self.batches)
        batch["batch_id"], batch["worker"], batch["size"] = number, worker, size
        batch["free_ns"], batch["open_ns"], batch["close_ns"] = idle, opened, close
        begin = close + self.strike("collate", batch, close, self.noisy(0.05), None, WORKER + worker)
        batch["collated_ns"] = batch["h2d_end_ns"] = begin
        struck = [plan.compute_faults[m] for m in members if m in plan.compute_faults]
        work = self.noisy(plan.base + plan.per_request * size + plan.per_item * padded)
        if not any(int(b["worker"]) == worker for b in self.batches):
            work += int(plan.cold * MS)
            batch["first_shape"] = int(plan.cold > 0)
        if plan.new_shape and not any(
            (int(b["size"]), int(b["padded_elements"])) == (size, padded) for b in self.batches
        ):
            work += int(plan.new_shape * MS)
            batch["first_shape"] = 1
        if any(int(b["finish_end_ns"]) > close for b in self.batches):
            work = int(work * plan.together)
        wall = self.strike("compute", batch, begin, work, struck[0] if struck else None, WORKER + worker)
        for fault in struck[1:]:
            wall += self.strike("compute", batch, begin + wall, 0, fault, WORKER + worker)
        done = begin + wall
        batch["compute_end_ns"] = batch["d2h_end_ns"] = done
        batch["real_elements"] = int(self.length[members].sum())
        batch["padded_elements"], batch["padded_length"] = padded, longest
        batch["process_cpu_ns"] = batch["compute_cpu_ns"]
        end = done
        for m in members:
            took = self.strike("finish", rows[m], end, self.noisy(plan.finish), None, WORKER + worker)
            rows["queue_ns"][m] = max(opened - enqueue[m], 0)
            rows["batch_ns"][m] = begin - max(opened, int(enqueue[m]))
            rows["compute_ns"][m] = done - begin
            rows["finish_wait_ns"][m] = end - done
            rows["finish_ns"][m] = end + took - done
            rows["batch_id"][m] = number
            rows["status"][m] = plan.status.get(m, 0)
            end += took
        batch["finish_end_ns"] = end
        self.batches.append(batch)
        return end

    def record(self) -> RunRecord:
        plan = self.plan
        self.serve_all(self.prepare_all())
        stages = [name for name in REQUEST_DTYPE.names or () if name in _STAGE_COLUMNS]
        self.rows["latency_ns"] = sum(self.rows[name] for name in stages)
        batches = np.array(self.batches, BATCH_DTYPE) if self.batches else np.zeros(0, BATCH_DTYPE)
        meta: dict[str, Any] = {
            "workload": "simulated",
            "device": "cpu",
            "state": "complete",
            "scheduled": plan.n,
            "torch_threads": 1,
            "settings": {
                "max_batch_size": plan.max_batch,
                "batch_window_ms": plan.window,
                "workers": plan.workers,
                "prepare_threads": plan.prepare_threads,
            },
            "calibration": {"minor_fault_ns": 500.0},
            "objective": {"percentile": 99},
        }
        if plan.name_threads:
            meta["threads"] = {
                "worker": [WORKER + w for w in range(plan.workers)],
                "prepare": [PREPARE + k for k in range(plan.prepare_threads)],
            }
        return build_record(
            **(meta | plan.meta),
            requests=_columns(self.rows),
            batches=_columns(batches),
            events=self.event_columns(),
            traffic=Traffic.plain(self.arrival, priority=self.priority),
        )

    def event_columns(self) -> Columns:
        self.events.sort()
        columns: Columns = {name: np.full(len(self.events), -1, np.int64) for name in EVENT_FIELDS}
        columns["t_ns"] = np.array([event[0] for event in self.events], np.int64)
        columns["duration_ns"] = np.array([event[1] for event in self.events], np.int64)
        columns["thread"] = np.array([event[3] for event in self.events], np.int64)
        columns["kind"], columns["detail"] = (np.empty(len(self.events), object) for _ in range(2))
        columns["kind"][:] = [event[2] for event in self.events]
        columns["detail"][:] = [{} for _ in self.events]
        return columns


_STAGE_COLUMNS = tuple(
    f"{s}_ns" for s in ("dispatch", "prepare", "queue", "batch", "h2d", "compute", "d2h", "finish")
)


def _columns(rows: npt.NDArray[Any]) -> Columns:
    return {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}


def simulate(**plan: Any) -> RunRecord:
    """Simulate a run; keyword arguments are the fields of :class:`Plan`."""
    return _Run(Plan(**plan)).record()
