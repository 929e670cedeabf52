"""One recorded replay in the runner's process: warm-up, schedule, drain, probes, and latfix's own cost."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import RunnerError
from latfix.profilers.calibration.gpu_memory_calls import device_costs
from latfix.profilers.calibration.microbenchmarks import unit_costs
from latfix.profilers.code_lines.stack_samples import StackLog
from latfix.profilers.gpu.alloc_conf import allocator_conf
from latfix.profilers.gpu.allocator_counters import BatchCounters, cuda_reader
from latfix.profilers.gpu.device_probes import DeviceProbe, allocator_probes, lines_of, nvml_probes, open_devices
from latfix.profilers.gpu.free_block_probe import PERIOD_S as BLOCKS_PERIOD_S
from latfix.profilers.gpu.free_block_probe import REST_S, free_blocks_reader
from latfix.profilers.probes.control_groups import cgroup_reader, neighbor_reader
from latfix.profilers.probes.gil_probe import PERIOD_S, LockProbe
from latfix.profilers.probes.own_thread import OwnThread
from latfix.profilers.probes.pause_probes import GcPauses
from latfix.profilers.probes.sampler import (
    PACE_S,
    Probe,
    Reading,
    Sampler,
    host_reader,
    pace_reader,
    pressure_reader,
    process_reader,
    thread_reader,
)
from latfix.profilers.probes.stage_recorder import SampleLog, SegmentWriter, StageRecorder
from latfix.profilers.probes.thread_counters import ProcessMemory, ThreadCounters, median_cost_ns
from latfix.run_record.schema import PROCESS_ACCOUNT, THREAD_ACCOUNT
from latfix.runners.calls.model_call import describe
from latfix.runners.engine.engine import Engine
from latfix.runners.gpu.copy_costs import copy_costs
from latfix.runners.host.cpu_quota import usable_cores
from latfix.runners.replay.batch_watchdog import BatchWatchdog
from latfix.runners.replay.open_loop import give_priority_back, take_priority
from latfix.runners.replay.pipe_protocol import LineWriter
from latfix.runners.replay.replayer_process import ReplayerProcess
from latfix.runners.replay.run_facts import RunFacts
from latfix.runners.service.loaded_service import Service
from latfix.stages import Status
from latfix.traffic.schedule import Traffic

_STATUS_INTERVAL_S = 0.25
_LEAD_IN_NS = 250_000_000
#: Requests that a replay with a backlog waits for in any case.
_LEAST_ANSWERED = 20
#: Time limit for a service to end its threads without its backlog.
_ABANDON_S = 5.0


class RecordedReplay:
    """One replay: warm-up requests, the schedule, the drain, and latfix's own cost.

    :param most_s: seconds after which a backlog is not waited for once all requests are sent: those in it end as
        ``timeout``.
    """

    def __init__(
        self,
        service: Service,
        traffic: Traffic,
        folder: Path,
        parent: LineWriter,
        stop: threading.Event,
        *,
        first: bool,
        most_s: float,
    ) -> None:
        self._service = service
        self._traffic = traffic
        self._folder = folder
        self._parent = parent
        self._stop = stop
        self._most_s = most_s
        # Warm-up belongs to the start of a service: a later replay in the same process finds it warm.
        self._warmup = service.settings.warmup_requests if first else 0
        self._samples = SampleLog()
        self._recorder = StageRecorder(len(traffic), self._warmup)
        self._probe_lines: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        """Replay, record, and return the fields of ``run.json``; a RunnerError if a thread of the service died."""
        import torch

        service, recorder = self._service, self._recorder
        pooled = service.models.pool_counts()
        compiled = service.compiles.count
        calibration = unit_costs() | device_costs(service.models.device, allocator_conf(os.environ))
        accelerator = service.models.instances[0].accelerator
        if accelerator is not None:
            # Once per process: each measurement leaves memory with the allocator that no request uses.
            service.models.copy_prices = service.models.copy_prices or copy_costs(accelerator)
            calibration |= service.models.copy_prices
        engine = service.engine(recorder, self._request_of)
        facts = RunFacts(service, engine)
        pauses = GcPauses(service.events)
        service.events.drain(0)  # events from loading are not part of this run
        stacks = StackLog(self._samples)
        lock = LockProbe(self._samples, look=stacks.look)
        self._probe_lines["gil"] = f"gil: wait for the interpreter lock, every {PERIOD_S * 1000:g} ms"
        with contextlib.ExitStack() as stack:
            deaths = stack.enter_context(ThreadDeaths(self._stop))
            stack.enter_context(engine.places.aside())
            replayer = stack.enter_context(ReplayerProcess(len(self._traffic)))
            engine.start()
            stacks.watch()
            watchdog = BatchWatchdog(engine, recorder, service.settings.hang_limit_ms / 1e3)
            self._warm_up(engine, watchdog.patience_s)
            deaths.check()
            service.compiles.attach()
            # Reading counters while a worker is in a driver call would block all threads along with it.
            allocator = partial(cuda_reader, inside=engine.device_memory)
            devices = open_devices([worker.device for worker in engine.workers], allocator=allocator)
            self._probe_lines |= lines_of(devices)
            for device in devices:
                if device.nvml is not None:
                    stack.callback(device.nvml.close)
            for name, value in calibration.items():  # as samples too, so that interrupted runs have them
                self._samples.add(time.perf_counter_ns(), f"cost.{name}", value)
            with pauses, self._samplers(engine, devices) as samplers, lock:
                cost = self._measured(engine, facts, replayer, watchdog)
            for name, found in _clocks(engine).items():
                self._probe_lines[name] = (
                    f"{name}: events of {found['batches']} batches, on the host's clock within "
                    f"{found['slack_us']:.3g} µs; {found['events_added']} sets of events added during the run; "
                    f"reading one took {found['read_us']:.3g} µs at most"
                )
            deaths.check()
        return {
            **_ended(cost["stalled"], interrupted=self._stop.is_set()),
            "calibration": calibration,
            "stacks": stacks.stacks,
            "overhead": self._overhead(cost, pauses, samplers, lock, engine),
            "probes": self._probe_lines,
            "threads": engine.thread_ids(),
            "torch_threads": torch.get_num_threads(),
            "cores": usable_cores(),
            "probe_polls_us": {
                name: {"polls": len(times), "median": float(np.median(times)) / 1e3, "max": max(times) / 1e3}
                for sampler in samplers
                for name, times in sampler.polls.items()
                if times
            },
            "compilations_in_run": service.compiles.count - compiled,
            "pool_hits": service.models.pool_counts()[0] - pooled[0],
            "pool_misses": service.models.pool_counts()[1] - pooled[1],
            "device_clocks": _clocks(engine),
            "sent": cost["sent"],
            "behind_s": cost["behind_s"],
            "t0_ns": recorder.t0_ns,
            "warmup": asdict(service.warmup),
            **facts.found,
        }

    def _request_of(self, slot: int) -> Any:
        traffic, warmup = self._traffic, self._warmup
        return traffic.request(slot - warmup if slot >= warmup else slot % len(traffic))

    def _warm_up(self, engine: Engine, patience_s: float) -> None:
        """Send the first requests one at a time, before the run's clock starts."""
        for slot in range(self._warmup):
            if self._stop.is_set():
                return
            self._recorder.scheduled_ns[slot] = time.perf_counter_ns()
            engine.submit(slot)
            if not engine.drain(self._stop, timeout_s=patience_s) and not self._stop.is_set():
                raise RunnerError(f"warm-up request {slot + 1} did not end within {patience_s:.0f} s; gave up")
            if slot % 8 == 0:
                self._parent.send({"event": "warmup", "sent": slot + 1, "of": self._warmup})

    @contextlib.contextmanager
    def _samplers(self, engine: Engine, devices: list[DeviceProbe]) -> Any:
        lines = self._probe_lines
        blocks = free_blocks_reader(engine.workers[0].device, engine.device_memory)
        fast = [*host_probes(engine, lines), Probe("compiler", 0.5, self._service.compiles.read)]
        fast += _probe("cuda-blocks", blocks, BLOCKS_PERIOD_S, "not in use", lines)
        fast += _probe("cuda", devices[0].allocator, 0.5, "not in use", lines)
        if blocks is not None:
            lines["cuda-blocks"] = f"cuda-blocks: at most every {REST_S:g} s, while no batch is served"
        if devices[0].allocator is not None:
            lines["cuda"] += ", while no batch is served, or at the end of one"
        lines["cuda-batches"] = (
            "cuda-batches: the allocator's counters at the end of a batch, where no other worker is at one"
            if isinstance(engine.device_memory, BatchCounters)
            else "cuda-batches: not in use"
        )
        fast += allocator_probes(devices)
        slow = list(nvml_probes(devices, engine.device_taken))
        events = self._service.events
        with (
            Sampler(fast, self._samples, events, name="sampler") as first,
            Sampler(slow, self._samples, events, name="nvml") as second,
        ):
            yield [first, second]

    def _measured(
        self, engine: Engine, facts: RunFacts, replayer: ReplayerProcess, watchdog: BatchWatchdog
    ) -> dict[str, Any]:
        recorder, traffic, warmup = self._recorder, self._traffic, self._warmup
        facts.begin()
        self._probe_lines["replayer"] = replayer.ready()
        start = time.perf_counter_ns() + _LEAD_IN_NS
        recorder.t0_ns = start - int(traffic.start_s * 1e9)
        recorder.scheduled_ns[warmup:] = recorder.t0_ns + traffic.arrival_ns
        replayer.begin(recorder.scheduled_ns[warmup:])
        began = time.thread_time_ns()
        with SegmentWriter(self._folder, recorder, self._service.events, self._samples) as writer:
            with _StatusLines(self._parent, engine, recorder, self._stop, writer, watchdog) as status:
                take_priority()  # a real server's network card does this; only the interpreter lock may delay it
                counters = ThreadCounters()
                sent = replayer.take_in(
                    lambda k, at, runq: engine.submit(warmup + k, at, runq), self._stop, lambda: counters.wake()[1]
                )
                counters.close()
                give_priority_back()
                recorder.arrived(np.array(replayer.arrived, dtype=np.int64))
                status.sent_all = True
                intake_ns = time.thread_time_ns() - began
                drained, behind_s = self._drain(engine, start + self._most_s * 1e9), None
            facts.end()
            if self._stop.is_set():
                watchdog.log()
                recorder.cut(time.perf_counter_ns())
            elif not drained:
                cut_ns = time.perf_counter_ns()
                behind_s = (cut_ns - start) / 1e9
                recorder.cut(cut_ns, Status.TIMEOUT)
                engine.abandon(_ABANDON_S)
            else:
                engine.shutdown()
            writer.check()
            wall = time.perf_counter_ns() - start
        writer.check()
        return {
            "sent": sent,
            "replayer_ns": replayer.cpu_ns,
            "intake_ns": intake_ns,
            "writer_ns": writer.cpu_ns,
            "wall_ns": max(wall, 1),
            "stalled": status.stalled,
            "behind_s": behind_s,
        }

    def _drain(self, engine: Engine, until_ns: float) -> bool:
        """Wait for the last requests; False if a backlog of them is left at ``until_ns``, which is not waited for.

        A service that answered only a few by then is slow rather than behind, and its record would show nothing.
        """
        while not engine.drain(self._stop, _STATUS_INTERVAL_S):
            few = self._recorder.completed - self._warmup < _LEAST_ANSWERED
            if self._stop.is_set() or not (few or time.perf_counter_ns() < until_ns):
                return False
        return True

    def _overhead(
        self,
        cost: dict[str, Any],
        pauses: GcPauses,
        samplers: list[Sampler],
        lock: LockProbe,
        engine: Engine,
    ) -> dict[str, Any]:
        """The cost of latfix itself: on the request path, and on threads of its own."""
        with contextlib.closing(ThreadCounters()) as counters, contextlib.closing(ProcessMemory()) as memory:
            snapshot, reading = median_cost_ns(counters.snapshot), median_cost_ns(memory.read)
        requests = max(self._recorder.completed, 1)
        reads = sum(thread.reads for thread in self._recorder.counters)
        stamps = _stamp_cost_ns() * requests
        sampler_ns = sum(sampler.cpu_ns for sampler in samplers)
        # The process's clock is read about once per reading of a thread's counters.
        process = median_cost_ns(time.process_time_ns) * reads + reading * engine.memory.reads
        device = engine.device_memory
        device_ns = 0 if device is None else device.cost_ns
        aside = cost["replayer_ns"] + cost["intake_ns"] + cost["writer_ns"] + sampler_ns + lock.cpu_ns
        return {
            "per_request_us": (snapshot * reads + process + stamps + pauses.cost_ns + device_ns) / requests / 1000,
            "core_share": aside / cost["wall_ns"],
            "thread_snapshot_us": snapshot / 1000,
            "thread_snapshots": reads,
            "process_counters_us_per_request": process / requests / 1000,
            "memory_readings": engine.memory.reads,
            "device_readings": 0 if device is None else device.reads,
            "device_readings_us_per_request": device_ns / requests / 1000,
            "stamps_us_per_request": stamps / requests / 1000,
            "gc_callback_us": pauses.cost_ns / 1000,
            "replayer_core_share": cost["replayer_ns"] / cost["wall_ns"],
            "intake_core_share": cost["intake_ns"] / cost["wall_ns"],
            "writer_core_share": cost["writer_ns"] / cost["wall_ns"],
            "sampler_core_share": sampler_ns / cost["wall_ns"],
            "lock_probe_core_share": lock.cpu_ns / cost["wall_ns"],
        }


def host_probes(engine: Engine, lines: dict[str, str]) -> list[Probe]:
    """The probes of machine and process while a service runs; adds a line for each to ``lines``."""
    counters = ThreadCounters()
    lines["threads"] = (
        "thread counters: on-CPU, run-queue delay, switches, faults"
        if counters.has_run_delay
        else "thread counters: the kernel keeps no run-queue delay (CONFIG_SCHED_INFO); contention is not seen"
    )
    counters.close()
    probes = [
        Probe("host", 0.2, host_reader()),
        Probe("pace", PACE_S, pace_reader()),
        Probe("process", 0.5, process_reader()),
        Probe("runner", 0.1, engine.load),
        Probe("threads", 0.5, thread_reader()),
    ]
    for name, reader, period, missing in (
        ("cgroup", cgroup_reader(), 0.1, "no cpu.stat with throttling; host.throttle is not seen"),
        ("neighbor-groups", neighbor_reader(), 0.1, "no control group with a quota is visible next to this one"),
        ("pressure", pressure_reader(), 0.5, "this kernel reports none (/proc/pressure)"),
        ("malloc", engine.memory.heap.reader, 0.5, "no mallinfo2 in this C library"),
    ):
        probes += _probe(name, reader, period, missing, lines)
    return probes


def _probe(
    name: str, reader: Callable[[], Reading] | None, period_s: float, missing: str, lines: dict[str, str]
) -> list[Probe]:
    lines[name] = f"{name}: {missing}" if reader is None else f"{name}: every {period_s * 1000:g} ms"
    return [] if reader is None else [Probe(name, period_s, reader)]


class ThreadDeaths:
    """Detects that a thread of the service died of an error, and ends the replay that would wait for it.

    :param stop: set at the first death.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._usual = threading.excepthook
        self._first = ""

    def __enter__(self) -> ThreadDeaths:
        self._usual, threading.excepthook = threading.excepthook, self._note
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._usual

    def _note(self, death: Any) -> None:
        self._usual(death)  # writes the traceback to runner.log
        name = death.thread.name if death.thread is not None else ""
        if name.startswith("latfix-") and not self._first:
            self._first = f"thread {name} of the runner died: {describe(death.exc_value)}"
            self._stop.set()

    def check(self) -> None:
        """Raise a RunnerError if a thread of the service died."""
        if self._first:
            raise RunnerError(f"{self._first}; runner.log has the traceback")


class _StatusLines(OwnThread):
    """Reports progress to the parent four times a second, and ends a stalled replay."""

    def __init__(
        self,
        parent: LineWriter,
        engine: Engine,
        recorder: StageRecorder,
        stop: threading.Event,
        writer: SegmentWriter,
        watchdog: BatchWatchdog,
    ) -> None:
        super().__init__("status")
        self._parent, self._engine, self._recorder = parent, engine, recorder
        self._stop_replay, self._writer, self._watchdog = stop, writer, watchdog
        self.sent_all = False
        #: Why the replay was ended; empty if it was not.
        self.stalled = ""

    def _run(self) -> None:
        done, since = -1, time.monotonic()
        while not self._stop.wait(_STATUS_INTERVAL_S):
            completed = self._recorder.completed
            if completed != done or not self._engine.in_flight:
                done, since = completed, time.monotonic()
            elif time.monotonic() - since > self._watchdog.patience_s:
                stuck = self._watchdog.worst
                self._give_up(stuck.words if stuck else f"no request ended for {self._watchdog.patience_s:.0f} s")
            fresh, beyond = self._watchdog.look()
            if fresh is not None:
                self._parent.send({"event": "hang", "message": fresh.words})
            if beyond is not None:
                self._give_up(beyond.words)
            hopeless = self._engine.failures.given_up(completed, time.perf_counter_ns())
            if hopeless:
                self.stalled = self.stalled or hopeless
                self._stop_replay.set()
            if self._writer.error is not None:  # nothing more can be recorded
                self._stop_replay.set()
            elapsed = time.perf_counter_ns() - self._recorder.t0_ns
            self._parent.send(
                {
                    "event": "status",
                    "done": completed - self._recorder.warmup,
                    "in_flight": self._engine.in_flight,
                    "queued": len(self._engine.queue),
                    "at_ns": elapsed,
                    "draining": self.sent_all,
                }
            )

    def _give_up(self, why: str) -> None:
        self.stalled = self.stalled or f"{why} with {self._engine.in_flight} requests in flight; gave up"
        self._stop_replay.set()


def _ended(stalled: str, *, interrupted: bool) -> dict[str, str]:
    if stalled:
        return {"state": "failed", "failure": stalled}
    return {"state": "interrupted" if interrupted else "complete"}


def _stamp_cost_ns() -> float:
    """Nanoseconds that the recorder's own writes cost for one request in a batch of one."""
    rounds = 200
    recorder = StageRecorder(rounds)
    account = (0,) * len((*THREAD_ACCOUNT, *PROCESS_ACCOUNT))
    values = dict.fromkeys(("worker", "size", "warmup", "free_ns", "open_ns", "close_ns", "real_elements"), 1)
    start = time.perf_counter_ns()
    for slot in range(rounds):
        recorder.handed[slot] = recorder.prepare_start[slot] = recorder.enqueued[slot] = time.perf_counter_ns()
        recorder.prepare_thread[slot] = recorder.input_elements[slot] = recorder.input_length[slot] = 1
        recorder.input_width[slot] = 1
        recorder.account("prepare", slot, account)
        batch = recorder.new_batch()
        recorder.batch_id[slot] = recorder.taken[slot] = recorder.finish_start[slot] = batch
        for part in ("collate", "compute"):
            recorder.batch_values(batch, values)
            recorder.batch_account(part, batch, account)
        recorder.batch_done(batch, start)
        recorder.request_done(slot, 0, start)
    return (time.perf_counter_ns() - start) / rounds


def _clocks(engine: Engine) -> dict[str, dict[str, float]]:
    """By device, how many batches tied its clock to the host's, and how precisely."""
    clocks: dict[str, dict[str, float]] = {}
    for device, clock in engine.clocks.items():
        workers = (worker for worker in engine.workers if worker.device == device)
        flights = [worker.flights for worker in workers if worker.flights is not None]
        clocks[device] = {
            "batches": clock.observed,
            "slack_us": clock.slack_ns / 1e3,
            "events_added": sum(each.events_added for each in flights),
            "read_us": max((each.longest_read_ns for each in flights), default=0) / 1e3,
        }
    return clocks
