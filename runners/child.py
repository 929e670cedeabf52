"""The runner's process: loads the service, replays traffic against it, records. Started by ``runners.process``.

Nothing else runs here: the measured service, the replayer and the probes share this process and no other.
User code may print; standard output and error go to ``runner.log`` in the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from latfix.columns import PROCESS_ACCOUNT, THREAD_ACCOUNT
from latfix.errors import EXIT_RUNNER, LatfixError, RunnerError
from latfix.profilers.allocator import cuda_reader, host_heap_reader
from latfix.profilers.gc_pauses import GcPauses
from latfix.profilers.host import ThreadCounters, memory_cost_ns, process_clock_cost_ns, snapshot_cost_ns
from latfix.profilers.interpreter_lock import PERIOD_S, LockProbe
from latfix.profilers.nvml import Nvml
from latfix.profilers.recorder import SampleLog, SegmentWriter, StageRecorder
from latfix.profilers.sampler import (
    Probe,
    Sampler,
    cgroup_reader,
    host_reader,
    pressure_reader,
    process_reader,
    thread_reader,
)
from latfix.profilers.unit_costs import cpu_model, unit_costs
from latfix.record import SCHEDULE
from latfix.runners.accuracy import evaluate, save_outputs
from latfix.runners.adapter import describe
from latfix.runners.engine import Engine
from latfix.runners.model import pool_applies
from latfix.runners.protocol import STALL_S, LineReader, LineWriter
from latfix.runners.replay import give_priority_back, replay, take_priority
from latfix.runners.service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.model import Traffic
from latfix.traffic.store import load_schedule

_STATUS_INTERVAL_S = 0.25
#: Requests that bring a fresh service into use before a replay that is not about its first ones.
_PRIMING = 24
_LEAD_IN_NS = 250_000_000
_PR_SET_PDEATHSIG = 1


class Child:
    """Executes the parent's commands, one at a time."""

    def __init__(self, job: dict[str, Any], commands: LineReader, parent: LineWriter) -> None:
        self._parent = parent
        self._home = Path.cwd()  # user code may change it
        self._commands = commands
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._service = Service(Path(job["folder"]), job["entry"], RunnerSettings(**job["settings"]))
        self._warmed = False

    def run(self) -> None:
        """Load, say so, and serve commands until told to exit or the parent is gone."""
        threading.Thread(target=self._listen, name="latfix-commands", daemon=True).start()
        self._service.load()
        self._parent.send({"event": "ready", **self._ready()})
        while (command := self._queue.get()) is not None:
            action = command["do"]
            if action == "exit":
                return
            result = getattr(self, f"do_{action}")(command)
            self._parent.send({"event": "done", "do": action, **result})

    def _ready(self) -> dict[str, Any]:
        models = self._service.models
        return {
            "load_s": models.load_s,
            "device": models.device,
            "default_collate": pool_applies(models.adapter),
            "evaluates": models.adapter.has_evaluate(),
            "machine": machine(),
        }

    def _listen(self) -> None:
        while not self._commands.ended:
            for command in self._commands.read():
                if command["do"] == "interrupt":
                    self._stop.set()
                else:
                    self._stop.clear()  # here, so that an interrupt that follows at once is not forgotten
                    self._queue.put(command)
        self._stop.set()
        self._queue.put(None)

    def _warm(self, traffic: Traffic) -> None:
        if not self._warmed:
            self._warmed = True
            self._service.warm_shapes(traffic)
            self._service.protect()

    def do_prime(self, command: dict[str, Any]) -> dict[str, Any]:
        """Serve some requests of the schedule untimed, so that the next replay meets a service in use."""
        traffic = self._schedule(command)
        self._warm(traffic)
        picks = np.unique(np.linspace(0, len(traffic) - 1, min(_PRIMING, len(traffic))).astype(int))
        self._service.predict([traffic.request(int(pick)) for pick in picks])
        return {"primed": len(picks)}

    def do_evidence(self, command: dict[str, Any]) -> dict[str, Any]:
        """What can be seen of the settings; asked for after a replay, because looking warms the service."""
        return {"evidence": self._service.evidence(self._schedule(command))}

    def do_evaluate(self, command: dict[str, Any]) -> dict[str, Any]:
        """The accuracy: the adapter's own score, or agreement with saved outputs of the original."""
        traffic = self._schedule(command)
        self._warm(traffic)
        reference = command.get("reference")
        return vars_of(evaluate(self._service, traffic, self._home / reference if reference else None))

    def do_outputs(self, command: dict[str, Any]) -> dict[str, Any]:
        """Save this service's outputs on a sample of the schedule, for others to agree with."""
        return {"saved": save_outputs(self._service, self._schedule(command), self._home / command["file"])}

    def do_replay(self, command: dict[str, Any]) -> dict[str, Any]:
        """Replay the schedule in ``folder`` and record into it."""
        traffic = self._schedule(command)
        self._warm(traffic)
        folder = self._home / command["folder"]
        return _Replay(self._service, traffic, folder, self._parent, self._stop, first=command["first"]).run()

    def _schedule(self, command: dict[str, Any]) -> Traffic:
        return load_schedule(self._home / command["folder"] / SCHEDULE)


class _Replay:
    """One replay: warm-up requests, the schedule, the drain, and what it all cost."""

    def __init__(
        self,
        service: Service,
        traffic: Traffic,
        folder: Path,
        parent: LineWriter,
        stop: threading.Event,
        *,
        first: bool,
    ) -> None:
        self._service = service
        self._traffic = traffic
        self._folder = folder
        self._parent = parent
        self._stop = stop
        # Warm-up belongs to the start of a service: a later replay in the same process finds it warm.
        self._warmup = service.settings.warmup_requests if first else 0
        self._samples = SampleLog()
        self._recorder = StageRecorder(len(traffic), self._warmup)
        self._probe_lines: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        service, recorder = self._service, self._recorder
        pools = service.models.pools
        hits = sum(pool.hits for pool in pools), sum(pool.misses for pool in pools)
        compiled = service.compiles.count
        calibration = unit_costs().flat()
        engine = service.engine(recorder, self._request_of)
        pauses = GcPauses(service.events)
        service.events.drain(0)  # what happened while loading is no event of this run
        engine.start()
        self._warm_up(engine)
        service.compiles.attach()
        nvml, line = Nvml.open()
        self._probe_lines["nvml"] = line
        lock = LockProbe(self._samples)
        self._probe_lines["gil"] = f"gil: wait for the interpreter lock, every {PERIOD_S * 1000:g} ms"
        for name, value in calibration.items():  # so that they are in every record, also of an interrupted run
            self._samples.add(time.perf_counter_ns(), f"cost.{name}", value)
        try:
            with pauses, self._samplers(engine, nvml) as samplers, lock:
                cost = self._measured(engine)
        finally:
            if nvml is not None:
                nvml.close()
        return {
            "state": "interrupted" if self._stop.is_set() else "complete",
            "calibration": calibration,
            "overhead": self._overhead(cost, pauses, samplers, lock, engine.memory.reads),
            "probes": self._probe_lines,
            "threads": engine.thread_ids(),
            "torch_threads": torch_threads(),
            "cores": usable_cores(),
            "probe_polls_us": {
                name: {"polls": len(times), "median": float(np.median(times)) / 1e3, "max": max(times) / 1e3}
                for sampler in samplers
                for name, times in sampler.polls.items()
                if times
            },
            "compilations_in_run": service.compiles.count - compiled,
            "pool_hits": sum(pool.hits for pool in pools) - hits[0],
            "pool_misses": sum(pool.misses for pool in pools) - hits[1],
            "sent": cost["sent"],
            "t0_ns": recorder.t0_ns,
            "warmup": vars_of(service.warmup),
        }

    def _request_of(self, slot: int) -> Any:
        traffic, warmup = self._traffic, self._warmup
        return traffic.request(slot - warmup if slot >= warmup else slot % len(traffic))

    def _warm_up(self, engine: Engine) -> None:
        """Send the first requests one at a time, before the clock of the run starts."""
        for slot in range(self._warmup):
            if self._stop.is_set():
                return
            self._recorder.scheduled_ns[slot] = time.perf_counter_ns()
            engine.submit(slot)
            if not engine.drain(self._stop, timeout_s=STALL_S) and not self._stop.is_set():
                raise RunnerError(f"warm-up request {slot + 1} did not end within {STALL_S:.0f} s; gave up")
            if slot % 8 == 0:
                self._parent.send({"event": "warmup", "sent": slot + 1, "of": self._warmup})

    @contextlib.contextmanager
    def _samplers(self, engine: Engine, nvml: Nvml | None) -> Any:
        fast = [
            Probe("host", 0.2, host_reader()),
            Probe("process", 0.5, process_reader()),
            Probe("runner", 0.1, engine.load),
            Probe("threads", 0.5, thread_reader()),
        ]
        lines = self._probe_lines
        counters = ThreadCounters()
        lines["threads"] = (
            "thread counters: on-CPU, run-queue delay, switches, faults"
            if counters.has_run_delay
            else "thread counters: the kernel keeps no run-queue delay (CONFIG_SCHED_INFO); contention is not seen"
        )
        counters.close()
        for name, reader, period, missing in (
            ("cgroup", cgroup_reader(), 0.1, "cgroup: no cpu.stat with throttling; host.throttle is not seen"),
            ("pressure", pressure_reader(), 0.5, "pressure: this kernel reports none (/proc/pressure)"),
            ("malloc", host_heap_reader(engine.memory.heap), 0.5, "malloc: no mallinfo2 in this C library"),
            ("cuda", cuda_reader(engine.workers[0].device), 0.5, "cuda: not in use"),
        ):
            if reader is None:
                lines[name] = missing
            else:
                lines[name] = f"{name}: every {period * 1000:g} ms"
                fast.append(Probe(name, period, reader))
        slow = [] if nvml is None else [Probe("nvml", 1.0, nvml.read)]
        events = self._service.events
        with (
            Sampler(fast, self._samples, events, name="sampler") as first,
            Sampler(slow, self._samples, events, name="nvml") as second,
        ):
            yield [first, second]

    def _measured(self, engine: Engine) -> dict[str, Any]:
        recorder, traffic, warmup = self._recorder, self._traffic, self._warmup
        start = time.perf_counter_ns() + _LEAD_IN_NS
        recorder.t0_ns = start - int(traffic.start_s * 1e9)
        recorder.scheduled_ns[warmup:] = recorder.t0_ns + traffic.arrival_ns
        began = time.thread_time_ns()
        with SegmentWriter(self._folder, recorder, self._service.events, self._samples) as writer:
            with _StatusLines(self._parent, engine, recorder, self._stop, writer) as status:
                self._probe_lines["replayer"] = take_priority()
                sent = replay(recorder.scheduled_ns[warmup:], lambda k: engine.submit(warmup + k), self._stop)
                give_priority_back()
                status.sent_all = True
                replayer_ns = time.thread_time_ns() - began
                engine.drain(self._stop)
            interrupted = self._stop.is_set()
            if not interrupted:
                engine.shutdown()
            writer.check()
            if status.stalled:
                raise RunnerError(f"no request ended for {STALL_S:.0f} s with {engine.in_flight} in flight; gave up")
            wall = time.perf_counter_ns() - start
        writer.check()
        return {"sent": sent, "replayer_ns": replayer_ns, "writer_ns": writer.cpu_ns, "wall_ns": max(wall, 1)}

    def _overhead(
        self,
        cost: dict[str, Any],
        pauses: GcPauses,
        samplers: list[Sampler],
        lock: LockProbe,
        memory_reads: int,
    ) -> dict[str, Any]:
        """What latfix itself cost: on the requests' path, and on threads of its own."""
        snapshot = snapshot_cost_ns()
        requests = max(self._recorder.completed, 1)
        reads = sum(thread.reads for thread in self._recorder.counters)
        stamps = _stamp_cost_ns() * requests
        sampler_ns = sum(sampler.cpu_ns for sampler in samplers)
        # The process's clock is read about once for each reading of a thread's counters.
        process = process_clock_cost_ns() * reads + memory_cost_ns() * memory_reads
        aside = cost["replayer_ns"] + cost["writer_ns"] + sampler_ns + lock.cpu_ns
        return {
            "per_request_us": (snapshot * reads + process + stamps + pauses.cost_ns) / requests / 1000,
            "core_share": aside / cost["wall_ns"],
            "thread_snapshot_us": snapshot / 1000,
            "thread_snapshots": reads,
            "process_counters_us_per_request": process / requests / 1000,
            "memory_readings": memory_reads,
            "stamps_us_per_request": stamps / requests / 1000,
            "gc_callback_us": pauses.cost_ns / 1000,
            "replayer_core_share": cost["replayer_ns"] / cost["wall_ns"],
            "writer_core_share": cost["writer_ns"] / cost["wall_ns"],
            "sampler_core_share": sampler_ns / cost["wall_ns"],
            "lock_probe_core_share": lock.cpu_ns / cost["wall_ns"],
        }


class _StatusLines:
    """Tells the parent four times a second how the replay goes, and ends it where nothing moves any more."""

    def __init__(
        self,
        parent: LineWriter,
        engine: Engine,
        recorder: StageRecorder,
        stop: threading.Event,
        writer: SegmentWriter,
    ) -> None:
        self._parent = parent
        self._engine = engine
        self._recorder = recorder
        self._stop = stop
        self._writer = writer
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="latfix-status", daemon=True)
        self.sent_all = False
        self.stalled = False

    def __enter__(self) -> _StatusLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        done, since = -1, time.monotonic()
        while not self._ended.wait(_STATUS_INTERVAL_S):
            completed = self._recorder.completed
            if completed != done or not self._engine.in_flight:
                done, since = completed, time.monotonic()
            elif time.monotonic() - since > STALL_S:
                self.stalled = True
                self._stop.set()
            if self._writer.error is not None:  # nothing more can be kept: do not go on as if it were
                self._stop.set()
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


def _stamp_cost_ns(rounds: int = 200) -> float:
    """Cost of the recorder's own writes for one request in a batch of one, in nanoseconds."""
    recorder = StageRecorder(rounds)
    account = (0,) * len((*THREAD_ACCOUNT, *PROCESS_ACCOUNT))
    values = dict.fromkeys(("worker", "size", "warmup", "free_ns", "open_ns", "close_ns", "real_elements"), 1)
    start = time.perf_counter_ns()
    for slot in range(rounds):
        recorder.handed[slot] = recorder.prepare_start[slot] = recorder.enqueued[slot] = time.perf_counter_ns()
        recorder.prepare_thread[slot] = recorder.input_elements[slot] = recorder.input_length[slot] = 1
        recorder.account("prepare", slot, account)
        batch = recorder.new_batch()
        recorder.batch_id[slot] = recorder.taken[slot] = recorder.finish_start[slot] = batch
        for part in ("collate", "compute"):
            recorder.batch_values(batch, values)
            recorder.batch_account(part, batch, account)
        recorder.batch_done(batch, start)
        recorder.request_done(slot, 0, start)
    return (time.perf_counter_ns() - start) / rounds


def torch_threads() -> int:
    """Threads that the framework runs one operator on, as it says itself."""
    import torch

    return torch.get_num_threads()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def vars_of(value: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass, as plain values."""
    from dataclasses import asdict

    return asdict(value)


def machine() -> dict[str, Any]:
    """What this machine is, for the run's record and to see whether two runs can be compared."""
    import torch

    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _die_with_parent(parent_pid: int) -> None:
    """A runner must not outlive the program that would read its record."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died while this process was starting
            os._exit(EXIT_RUNNER)


def _first_message(commands: LineReader) -> dict[str, Any] | None:
    """The job, which the parent sends before any command; ``None`` where the parent is gone."""
    while not commands.ended:
        for message in commands.read():
            return message
    return None


def main() -> int:
    """``python -m latfix.runners.child PARENT_PID COMMAND_FD EVENT_FD``; the job is the first command."""
    parent_pid, command_fd, event_fd = (int(argument) for argument in sys.argv[1:])
    _die_with_parent(parent_pid)
    for fd in (command_fd, event_fd):  # programs that user code starts must not hold the pipes open
        os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    parent, commands = LineWriter(event_fd), LineReader(command_fd)
    try:
        job = _first_message(commands)
        if job is not None:
            Child(job, commands, parent).run()
    except LatfixError as error:
        parent.send({"event": "failed", "message": error.message, "exit_code": error.exit_code})
        return error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}the runner could not write its record ({error.strerror}); free space and run again"
        parent.send({"event": "failed", "message": message, "exit_code": EXIT_RUNNER})
        return EXIT_RUNNER
    except Exception as error:  # told to the parent in one line, and whole in runner.log
        parent.send({"event": "failed", "message": f"the runner failed: {describe(error)}", "exit_code": EXIT_RUNNER})
        raise
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # worker threads of an interrupted run may still be inside the model
