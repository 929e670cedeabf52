"""One side of a gate that latfix does not host: a command that starts a service which answers at an address."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from latfix.errors import InputError, LatfixError, RunnerError
from latfix.run_record.run_record import RunRecord
from latfix.runners.http_target import http_session
from latfix.runners.http_target.http_session import HttpReplay
from latfix.runners.replay.arm import Watch
from latfix.runners.replay.run_session import new_folder
from latfix.traffic.schedule import Traffic

#: What a service may take from its start to its first answers.
_START_LIMIT_S = 180.0
_ASK_AGAIN_S = 0.05
#: What a service may take to end after it was asked to.
_END_LIMIT_S = 10.0


@dataclass(slots=True)
class ServedArm:
    """A service that is started for each replay and ended after it: both sides answer at the same address.

    :param command: for the shell; it stays in the foreground while the service runs.
    :param log: file that collects its output; what warms it up is recorded beside it.
    :param warm: what warms it up.
    :param reach: sees that somebody listens at the address, else raises :class:`InputError`.
    :param make: the replay of some traffic, where the service's process is known.
    :ivar start_s: seconds from the start to the first answer, last time.
    """

    label: str
    command: str
    log: Path
    warm: Traffic
    reach: Callable[[], object]
    make: Callable[[Traffic, int], HttpReplay]
    start_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def replay(self, folder: Path, traffic: Traffic, watch: Watch, *, seed: int) -> RunRecord:
        """Start the service, warm it up, replay, and end it.

        :raises LatfixError: it does not start, or no request ended ok.
        """
        del seed  # bodies are the traffic's
        try:
            replay = self.make(traffic, self._started())
            with watch(self.label, traffic, folder) as on_event:
                return http_session.run(folder, replay, on_event=on_event)
        finally:
            self.close()

    def running(self) -> None:
        """See that it starts, and how long that takes.

        :raises LatfixError: it does not.
        """
        try:
            self._started()
        finally:
            self.close()

    def _started(self) -> int:
        """Start the service and send it some requests until it answers; its process.

        :raises LatfixError: it does not answer in time, or has ended.
        """
        if self._answers():
            raise RunnerError(f"{self.label}: found somebody who answers there already; stop it, latfix starts both")
        begun = time.monotonic()
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self.command, shell=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        attempt, why = 0, ""
        while time.monotonic() - begun < _START_LIMIT_S:
            if (code := process.poll()) is not None:
                raise RunnerError(f"{self.label}: {self.command!r} ended with {code}{self._last_line()}")
            try:
                self.reach()
                attempt += 1
                place = new_folder(self.log.with_name(f"{self.label}-warm"))
                http_session.run(place, self.make(self.warm, process.pid))
            except LatfixError as error:
                why = error.message
                time.sleep(_ASK_AGAIN_S * 2 ** min(attempt, 6))
            else:
                self.start_s = time.monotonic() - begun
                return process.pid
        raise RunnerError(f"{self.label}: {self.command!r} did not answer within {_START_LIMIT_S:.0f} s: {why}")

    def _last_line(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f": {lines[-1][:200]} (all of it: {self.log})" if lines else ""

    def restart(self) -> None:
        """Nothing: it is gone after each replay."""

    def close(self) -> None:
        """End the service and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        for asked in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, asked)
            until = time.monotonic() + _END_LIMIT_S
            # The shell may be gone while what it started still closes its connections.
            while (process.poll() is None or self._answers()) and time.monotonic() < until:
                time.sleep(_ASK_AGAIN_S)
        process.wait()

    def _answers(self) -> bool:
        try:
            self.reach()
        except InputError:
            return False
        return True
