"""One side of a gate whose service latfix does not host: a command that starts it at an address."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from latfix.errors import InputError, LatfixError, RunnerError
from latfix.run_record.run_record import RunRecord
from latfix.runners.host.process_family import ProcessFamily
from latfix.runners.http_target import http_session
from latfix.runners.http_target.http_session import HttpReplay
from latfix.runners.replay.arm import Watch
from latfix.runners.replay.run_session import new_folder
from latfix.runners.replay.runner_process import LOAD_TIMEOUT_S
from latfix.traffic.schedule import Traffic

_RETRY_S = 0.05
#: How long a service may answer with errors; one that is loading (HTTP 503) may do so until the limit of its start.
_ERRORS_LIMIT_S = 20.0
_LOADING = "HTTP 503"
#: Time limit for a service to end after a signal.
_END_LIMIT_S = 10.0


@dataclass(slots=True)
class ServedArm:
    """A service that a command starts.

    :param command: for the shell; it stays in the foreground while the service runs.
    :param shared: the other side uses the same address, so the service starts for each replay and ends after it.
    :param log: file for its output; warm-up requests are recorded next to it.
    :param warm: requests that warm it up.
    :param reach: raises :class:`InputError` if no process listens at the address.
    :param make: makes the replay of some traffic for a process id.
    :param patience_s: seconds from its start until it must answer.
    :ivar start_s: seconds from its last start to the first answer.
    """

    label: str
    command: str
    log: Path
    warm: Traffic
    reach: Callable[[], object]
    make: Callable[[Traffic, int], HttpReplay]
    shared: bool = True
    patience_s: Callable[[], float] = lambda: LOAD_TIMEOUT_S
    start_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _ready: bool = field(default=False, init=False)
    _launched: float = field(default=0.0, init=False)
    _family: ProcessFamily = field(default_factory=ProcessFamily, init=False)

    def replay(self, folder: Path, traffic: Traffic, watch: Watch, *, seed: int) -> RunRecord:
        """Replay, after starting the service and warming it up if that has not been done.

        :raises LatfixError: it does not start, ends before the replay does, or no request ended ok.
        """
        del seed  # the bodies come from the traffic
        try:
            pid = self._started()
            try:
                replay = self.make(traffic, pid)
                with watch(self.label, traffic, folder) as on_event:
                    return http_session.run(folder, replay, on_event=on_event)
            finally:
                self._check_running()  # its end explains whatever else failed
        finally:
            if self.shared:
                self.close()

    def launch(self) -> None:
        """Start the service without waiting for it, unless the other one needs the address first."""
        if not self.shared:
            self._launch()

    def start(self) -> None:
        """Wait until a launched service is warm.

        :raises LatfixError: it does not start.
        """
        if not self.shared:
            self._started()

    def running(self) -> None:
        """Start and end it once, to measure how long it takes to start.

        :raises LatfixError: it does not start.
        """
        try:
            self._started()
        finally:
            self.close()

    def _started(self) -> int:
        """Start the service and send requests until it answers; returns its process id."""
        self._launch()
        begun, process = self._launched, self._process
        assert process is not None
        if self._ready:
            return process.pid
        attempt, why, erring = 0, "nothing listens there", math.inf
        limit_s = self.patience_s()
        while time.monotonic() - begun < limit_s:
            self._check_running()
            if not self._answers():
                time.sleep(_RETRY_S)
                continue
            attempt += 1
            folder = self.log.with_name(f"{self.label}-warm")
            shutil.rmtree(folder, ignore_errors=True)
            try:
                http_session.run(new_folder(folder), self.make(self.warm, process.pid))
            except LatfixError as error:
                why = error.message.removesuffix(f"; what was recorded is in {folder}")  # it is replaced or deleted
                erring = min(erring, time.monotonic())
                if _LOADING not in why and time.monotonic() - erring > _ERRORS_LIMIT_S:
                    raise type(error)(f"{self.label}: {self.command!r} answers with errors only: {why}") from error
                time.sleep(_RETRY_S * 2 ** min(attempt, 6))
            else:
                self.start_s, self._ready = time.monotonic() - begun, True
                return process.pid
        raise RunnerError(
            f"{self.label}: {self.command!r} did not start within {limit_s:.0f} s (a larger --budget waits longer): "
            f"{why}{self._last_line()}"
        )

    def _launch(self) -> None:
        """Start the command, if it does not run."""
        if self._process is not None:
            return
        if self._answers():
            raise RunnerError(
                f"{self.label}: found a service that already answers at this address; stop it, latfix starts both"
            )
        self._launched = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._family.environment},
            )

    def _check_running(self) -> None:
        """:raises RunnerError: the command has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise RunnerError(f"{self.label}: {self.command!r} ended with {code}{self._last_line()}")

    def _last_line(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f": {lines[-1][:200]} (with --out, all of its output is in {self.log.name})" if lines else ""

    def restart(self) -> None:
        """End the service; the next use starts another process."""
        self.close()

    def close(self) -> None:
        """End the service and all processes that it started."""
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._family.send(process.pid, number)
            until = time.monotonic() + _END_LIMIT_S
            # The shell may have ended while its children still close their connections.
            while (process.poll() is None or self._family.marked() or self._answers()) and time.monotonic() < until:
                time.sleep(_RETRY_S)
        process.wait()

    def _answers(self) -> bool:
        try:
            self.reach()
        except InputError:
            return False
        return True
