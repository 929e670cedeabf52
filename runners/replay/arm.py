"""An arm of a comparison: a live runner process that takes turns with others and is stopped while idle."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import LatfixError
from latfix.run_record.run_record import RunRecord
from latfix.runners.replay.run_session import Replay, device_profile, prepare_folder, replay_into
from latfix.runners.replay.runner_process import LEAST_START_S, LOAD_TIMEOUT_S, OnEvent, RunnerProcess
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

#: Shows one replay: called with its label, its schedule and the record's folder.
Watch = Callable[[str, Traffic, Path], AbstractContextManager[OnEvent]]
#: A service may take this many times as long to start or to be scored as the workload as it is.
_PATIENT = 3.0
#: A backlog is waited for until this many times the length of the traffic at least.
_BEHIND = 1.25


def patience_s(share_s: float, left_s: float, usual_s: float) -> float:
    """How long a service that is tried may take to start (load, compile, warm up) or to be scored.

    Its share of the budget, but not beyond the end; in any case a minute, or three times as long as usual.

    :param share_s: budget by arm, seconds; ``left_s`` what is left of all of it.
    :param usual_s: in which the workload as it is loads, or is scored.
    """
    return max(min(share_s, left_s, LOAD_TIMEOUT_S), LEAST_START_S, _PATIENT * usual_s)


class Startable(Protocol):
    """A service whose process starts in two steps."""

    def launch(self) -> None:
        """Start the process without waiting for it."""

    def start(self) -> None:
        """Wait until the service is ready."""


def start_at_once(*services: Startable) -> None:
    """Start the processes of services at the same time."""
    for service in services:
        service.launch()
    for service in services:
        service.start()


@dataclass(slots=True)
class Arm:
    """A service with some fixes applied, in a process that lives while it is needed.

    :param label: for progress output.
    :param fixes: ids of the fixes in ``settings``, in order.
    :param log: receives the process's output.
    :param latest: its last replay of the search's windows, joined; ``None`` before the first.
    :param primed: its process has served requests before.
    :param settled: its process has served the search's windows before, so one-time costs are paid.
    :param failed: its last process did not start, failed or died; the next use starts another.
    :param profiled: its process was profiled on a device. The profiler leaves CUPTI attached, which slows everything
        after it, so nothing more is timed in it.
    :param worn: its process has prepared far more requests than a replay brings, so whatever grows with each request
        is larger there.
    :param alone: why no other arm may be on the device at the same time; empty if one may.
    :param start_s: seconds that its last process took to load; 0 before the first.
    :param ready_message: the ``ready`` message of its last process; empty before the first.
    :param most_s: seconds of a replay after which a backlog is not waited for, or 1.25 times its traffic if longer.
    :param patience_s: how long its process may be silent while it starts, or is asked; ``None`` for the usual limits.
    """

    label: str
    spec: WorkloadSpec
    settings: RunnerSettings
    fixes: tuple[str, ...]
    log: Path
    accuracy: float | None = None
    latest: RunRecord | None = None
    primed: bool = False
    settled: bool = False
    failed: bool = False
    profiled: bool = False
    worn: bool = False
    alone: str = ""
    ready_message: Mapping[str, Any] = field(default_factory=dict)
    start_s: float = 0.0
    most_s: float = math.inf
    patience_s: Callable[[], float | None] = field(default=lambda: None, repr=False)
    _process: RunnerProcess | None = field(default=None, repr=False)
    _launched: float = field(default=0.0, repr=False)

    @property
    def ready(self) -> Mapping[str, Any]:
        """The ``ready`` message of the process, which is started if needed."""
        return self.running().ready

    @property
    def loaded(self) -> bool:
        """True if its process exists and occupies memory."""
        return self._process is not None

    def launch(self) -> None:
        """Start the process if needed, without waiting until it has loaded."""
        if self._process is None:
            self._process = RunnerProcess(self.spec.folder, self.spec.entry, self.settings, self.log)
            self._launched = time.monotonic()
            try:
                self._process.launch()
            except LatfixError:
                self._give_up()
                raise

    def running(self) -> RunnerProcess:
        """The process, started if needed."""
        self.launch()
        assert self._process is not None
        if not self._process.ready:
            try:
                self.ready_message = self._process.start(self.patience_s())
            except BaseException as error:
                self.close()
                self.failed = isinstance(error, LatfixError)
                raise
            self.failed, self.start_s = False, time.monotonic() - self._launched
        return self._process

    def start(self) -> None:
        """Start the process if needed, and pause it."""
        self.running().pause()

    def restart(self) -> None:
        """End the process; the next use starts a fresh one, cold."""
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None
            self.primed = self.settled = self.profiled = self.worn = False

    def prime(self, folder: Path) -> None:
        """Serve some requests untimed, so that the first timed request is not the service's first."""
        self.ask("prime", folder=str(folder))
        self.primed = True

    def replay(self, folder: Path, traffic: Traffic, watch: Watch, *, seed: int) -> RunRecord:
        """Replay ``traffic`` on this arm while every other arm is stopped."""
        replay = Replay(spec=self.spec, traffic=traffic, settings=self.settings, seed=seed, fixes=self.fixes)
        run = prepare_folder(folder, replay)
        with self._awake() as process, watch(self.label, traffic, folder) as on_event:
            most_s = max(self.most_s, _BEHIND * (traffic.duration_s - traffic.start_s))
            return replay_into(process, run, on_event=on_event, most_s=most_s, starts_s=self.patience_s())

    def ask(self, do: str, **more: Any) -> Any:
        """Run a command that measures no time: accuracy, outputs, evidence."""
        with self._awake() as process:
            if do == "evidence" and process.ready.get("device", "cpu") != "cpu":  # it profiles batches there
                self.profiled = True
            return process.command(do, timeout_s=self.patience_s(), **more)

    def profile(self, record: RunRecord) -> dict[str, Any]:
        """Profile some batches of a replay on the device, for ``run.json``; empty if the model is on the CPU."""
        if record.meta.device == "cpu":
            return {}
        with self._awake() as process:
            self.profiled = True
            fields = device_profile(process, record)
        if "device_profile" not in fields:  # the profiler hangs, or the process died: the next use needs another
            self.close()
        return fields

    @contextmanager
    def _awake(self) -> Iterator[RunnerProcess]:
        """The process, which runs inside the context. A failure there ends it: the next use starts another."""
        process = self.running()
        process.resume()
        try:
            yield process
        except LatfixError:
            self._give_up()
            raise
        finally:
            process.pause()

    def _give_up(self) -> None:
        """End a process that failed, so that the next use starts another."""
        self.close()
        self.failed = True
