"""The parent's side of a runner process: starts, commands, pauses and resumes it, and reports why it died."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from latfix.errors import EXIT_INPUT, InputError, LatfixError, RunnerError
from latfix.runners.host.process_family import ProcessFamily
from latfix.runners.host.process_setup import process_environment
from latfix.runners.replay.pipe_protocol import STACKS_SIGNAL, STALL_S, LineReader, LineWriter
from latfix.settings import RunnerSettings

OnEvent = Callable[[Mapping[str, Any]], None]

#: A load that takes longer counts as hung.
LOAD_TIMEOUT_S = 1800.0
#: However small the budget, a start may take as long.
LEAST_START_S = 60.0
_EXIT_TIMEOUT_S = 5.0
_FAMILY_TIMEOUT_S = 1.0
#: How often to check a silent runner.
_LOOK_S = 0.5
#: A larger log is cut to this share at its end.
LOG_BYTES, _KEPT = 64 << 20, 1 / 4
#: How long it takes to write the stacks of a process's threads.
_STACKS_S = 1.0


class RunnerProcess:
    """One runner process. Use as a context manager, which ends the process in any case.

    :param folder: the workload's folder.
    :param entry: ``file:Class`` of its adapter.
    :param settings: how the service runs; ``settings.env`` becomes the process's environment.
    :param log: receives the output of user code.
    :param module: the module that the process runs.
    :param job: what it is to do, if it is no runner.
    :raises LatfixError: from :meth:`start` and :meth:`command`, if the runner failed or died.
    """

    def __init__(
        self,
        folder: Path,
        entry: str,
        settings: RunnerSettings,
        log: Path,
        *,
        module: str = "latfix.runners.replay.runner_main",
        job: Mapping[str, Any] | None = None,
    ) -> None:
        runs: Mapping[str, Any] = {"folder": str(folder.absolute()), "entry": entry, "settings": settings.to_json()}
        self._module, self._job = module, dict(runs if job is None else job)
        self._hang_limit_s = settings.hang_limit_ms / 1e3
        # An adapter that makes inputs from `hash(request.id)` must make the same ones in each process.
        hashes = {"PYTHONHASHSEED": str(settings.seed % 2**32)}
        self._family = ProcessFamily()
        own = {"PYTHONUNBUFFERED": "1", **self._family.environment}
        self._env = {**hashes, **process_environment(settings), **own}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: LineReader | None = None
        # Read but not yet processed: Ctrl-C between two messages must not lose one.
        self._unread: deque[dict[str, Any]] = deque()
        self._writer: LineWriter | None = None
        self._fds: list[int] = []
        self.replays = 0
        self.ready: Mapping[str, Any] = {}

    def __enter__(self) -> RunnerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id, while there is a process."""
        return None if self._process is None else self._process.pid

    def start(self, timeout_s: float | None = None) -> Mapping[str, Any]:
        """Start the process and wait until the model is loaded; returns its ``ready`` message."""
        if self._process is None:
            self.launch()
        self.ready = self._await("ready", None, None, LOAD_TIMEOUT_S if timeout_s is None else timeout_s)
        return self.ready

    def launch(self) -> None:
        """Start the process, which then loads the model; :meth:`start` waits for that.

        The process ends with the thread that calls this.
        """
        command_read, command_write = os.pipe()
        event_read, event_write = os.pipe()
        self._fds = [command_write, event_read]
        # -P: a file in the working directory must not shadow a module of the same name.
        module = [sys.executable, "-P", "-m", self._module]
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*module, str(os.getpid()), str(command_read), str(event_write)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._env,
                    pass_fds=(command_read, event_write),
                    start_new_session=True,  # Ctrl-C reaches only the parent, which ends the run in order
                )
        except OSError as error:
            raise RunnerError(f"the runner could not be started ({error.strerror}); see {self._log}") from error
        finally:
            os.close(command_read)
            os.close(event_write)
        self._reader, self._writer = LineReader(event_read), LineWriter(command_write)
        self._writer.send(self._job)

    def command(
        self, do: str, *, on_event: OnEvent | None = None, timeout_s: float | None = None, **more: Any
    ) -> Any:
        """Send a command and wait for its end; other messages go to ``on_event``."""
        assert self._writer is not None, "start() comes first"
        self._writer.send({"do": do, **more})
        return self._await("done", do, on_event, timeout_s)

    def replay(
        self,
        folder: Path,
        *,
        on_event: OnEvent | None = None,
        most_s: float = math.inf,
        starts_s: float | None = None,
    ) -> Any:
        """Replay the schedule in ``folder`` and record into it.

        :param most_s: seconds after which a backlog is not waited for.
        :param starts_s: how long the service may be silent while it compiles and warms up.
        """
        assert self._writer is not None, "start() comes first"
        self.replays += 1
        limits = {"first": self.replays == 1, "most_s": most_s}
        self._writer.send({"do": "replay", "folder": str(folder), **limits})
        return self._await("done", "replay", on_event, None, starts_s)

    def interrupt(self) -> None:
        """Request the end of a running replay."""
        if self._writer is not None:
            self._writer.send({"do": "interrupt"})

    def wait_for_end(self, timeout_s: float = 15.0) -> Any:
        """Wait for the end of the command that :meth:`interrupt` cut short."""
        return self._await("done", None, None, timeout_s)

    def pause(self) -> None:
        """Stop the whole process, so that it takes no resources from the one being measured."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process: by request, then by force."""
        process = self._process
        if process is not None and process.poll() is None:
            self.resume()
            if self._writer is not None:
                self._writer.send({"do": "exit"})
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_TIMEOUT_S)
            if process.poll() is None:
                process.kill()
                process.wait()
        if process is not None:
            self._end_family(process.pid)
            self._cut_log()
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        self._process = None

    def _end_family(self, group: int) -> None:
        """End processes left behind by user code, which would take resources from the next measurement.

        By request first: Python's resource tracker removes shared memory once the others have ended.
        """
        self._family.send(group, signal.SIGTERM)
        until = time.monotonic() + _FAMILY_TIMEOUT_S
        while self._family.marked() and time.monotonic() < until:
            time.sleep(0.01)
        self._family.send(group, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _await(
        self,
        wanted: str,
        do: str | None,
        on_event: OnEvent | None,
        timeout_s: float | None,
        starts_s: float | None = None,
    ) -> Any:
        """The next message of a kind. Ends of earlier commands, which are no longer expected, are skipped.

        :param do: the command that must have ended; ``None`` for any.
        :param timeout_s: how long the process may be silent; ``starts_s`` only until a replay begins.
        """
        assert self._reader is not None and self._process is not None, "start() comes first"
        patience_s = max(self._hang_limit_s, STALL_S)
        usual_s = 2 * patience_s + LOAD_TIMEOUT_S
        quiet_limit = next((limit for limit in (timeout_s, starts_s) if limit is not None), usual_s)
        beating, last = 0.0, time.monotonic()
        while True:
            self._cut_log()
            while self._unread:
                message = self._unread.popleft()
                if message["event"] == wanted:
                    if do in (None, message.get("do")):
                        return message
                    continue
                if message["event"] == "failed":
                    raise self._failure(message)
                # From now on one follows four times a second.
                if message["event"] == "status" and timeout_s is None:
                    beating = patience_s if self._hang_limit_s else 0.0
                    quiet_limit = beating or usual_s
                if on_event is not None:
                    on_event(message)
            if self._reader.ended:
                raise self._death()
            ready, _, _ = select.select([self._reader.fd], [], [], _LOOK_S)
            if not ready:
                # The pipe stays open if user code forked a process that outlives the runner.
                if self._process.poll() is not None and not select.select([self._reader.fd], [], [], 0)[0]:
                    raise self._death()
                if time.monotonic() - last > quiet_limit:
                    starting = wanted == "ready" or do in ("prime", "replay")
                    raise self._silence(quiet_limit, "start" if starting else "answer", beating=bool(beating))
                continue
            last = time.monotonic()
            self._unread.extend(self._reader.read())

    def _cut_log(self) -> None:
        """Keep the end of a log that user code floods; output written meanwhile may be lost."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > LOG_BYTES:
                with self._log.open("rb+") as log:
                    log.seek(-int(_KEPT * LOG_BYTES), os.SEEK_END)
                    end = log.read()
                    log.seek(0)
                    log.write(b"latfix: this log is cut; the end follows\n" + end)
                    log.truncate()

    def _silence(self, seconds: float, awaited: str, *, beating: bool) -> RunnerError:
        """The error of a silent process. If its replay had begun, its stacks are written to its log.

        The process's own watchdog is a thread that needs the interpreter lock, like the model.
        """
        if not beating:
            more = "; a larger --budget waits longer" if LEAST_START_S <= seconds < LOAD_TIMEOUT_S else ""
            return RunnerError(f"the service did not {awaited} within {seconds:.0f} s{more}; see {self._log}")
        self._signal(STACKS_SIGNAL)
        time.sleep(_STACKS_S)
        return RunnerError(
            f"no thread of the runner has responded for {seconds:.0f} s: one holds the interpreter lock, or the "
            f"process is stopped; gave up; what was recorded is kept; stacks of its threads: {self._log}"
        )

    def _failure(self, message: Mapping[str, Any]) -> LatfixError:
        kind = InputError if message["exit_code"] == EXIT_INPUT else RunnerError
        tail = "" if kind is InputError else f" (output of the runner: {self._log})"
        return kind(f"{message['message']}{tail}")

    def _death(self) -> RunnerError:
        assert self._process is not None
        try:
            code = self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return RunnerError(f"the runner closed its pipe; what was recorded is kept; its output: {self._log}")
        if code == -signal.SIGKILL:
            why = "was killed by SIGKILL, as the kernel does when memory runs out"
        elif code < 0:
            why = f"was killed by {signal.strsignal(-code) or 'a signal'} (signal {-code})"
        else:
            why = f"ended with exit code {code} in the middle of its work"
        return RunnerError(f"the runner {why}; what was recorded is kept; its output: {self._log}")
