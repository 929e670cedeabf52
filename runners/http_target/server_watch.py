"""The process that watches the service during a replay, so that reading its counters delays no request.

Started by :mod:`latfix.runners.http_target.replay_main`, with the messages of
:mod:`latfix.runners.replay.pipe_protocol`: ``begin`` at the schedule's zero, ``end`` for its cost and findings.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from latfix.profilers.evidence.outside.service_process import CONNECTION
from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.probes.sampler import PACE_S, pace_reader
from latfix.profilers.probes.stage_recorder import SampleLog
from latfix.profilers.services.listening_processes import Connections
from latfix.profilers.services.process_watch import ProcessWatch
from latfix.profilers.services.prometheus_metrics import LONGEST_TEXT, parse_metrics
from latfix.profilers.services.stage_metrics import Readings, Target, bucket_growth, read_stages, series_of
from latfix.run_record.run_record import SEGMENTS
from latfix.runners.http_target.address import Trust
from latfix.runners.replay.pipe_protocol import LineReader, LineWriter, commands_of, serve_parent

FAST_S, SLOW_S, METRICS_S, NVML_S = 0.005, 0.25, 1.0, 1.0
#: Metrics are read more often, at most so often, if that takes a service less than this share of the time.
STAGES_S, _STAGES_SHARE = 0.2, 0.02
_FLUSH_S = 0.5
_METRICS_TIMEOUT_S = 5.0


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, to another host without the service's headers, which may hold its keys."""

    def redirect_request(self, req: urllib.request.Request, *given: Any) -> urllib.request.Request | None:
        following = super().redirect_request(req, *given)
        if following is not None and following.host != req.host:
            following.headers.clear()
        return following


def opener(trust: Trust) -> urllib.request.OpenerDirector:
    """An opener for pages of the service, without a proxy, that checks the certificate as the replay does."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust.context()), _Redirects
    )


class Watch:
    """Polls on its own threads until :meth:`end`.

    :param job: ``pid`` or ``None``, and other processes ``beside`` it; ``place`` of the service; ``metrics`` (an
        address) or ``None``, and ``headers``, ``cacert`` and ``insecure`` to read them; ``path`` and
        ``served_model`` of the requests; ``folder`` of the run.
    :raises InputError: the process cannot be watched.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._process = None if job["pid"] is None else ProcessWatch(int(job["pid"]), beside=job["beside"])
        self._connections = Connections(int(job["place"][1]))
        self._nvml, self._nvml_line = None, "NVML: not read, the service is not watched"
        if job["pid"] is not None:
            self._nvml, self._nvml_line = Nvml.open(pid=int(job["pid"]))
        self._metrics, self._headers = job["metrics"], dict(job["headers"])
        self._opener = opener(Trust(cacert=job["cacert"], insecure=job["insecure"]))
        self._path = Path(job["folder"]) / SEGMENTS / "samples.jsonl"
        self._t0_ns = 0
        self._samples = SampleLog()
        self._begun, self._end = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self.scrapes, self.failed_scrapes, self.metrics_error = 0, 0, ""
        self._target = Target(path=str(job["path"]), model=str(job["served_model"]))
        self._all_read_s = 0.0
        self._first: Readings | None = None
        self._last: Readings = {}

    def begin(self, t0_ns: int) -> None:
        """Start polling; times are relative to ``t0_ns``."""
        self._t0_ns = t0_ns
        jobs: list[tuple[float, float, Callable[[], Mapping[str, float]]]] = []
        if self._process is not None:
            jobs += [(FAST_S, FAST_S, self._process.read_fast), (SLOW_S, SLOW_S, self._process.read_slow)]
            jobs += [(PACE_S, PACE_S, pace_reader()), (FAST_S, SLOW_S, self._look)]
        if self._nvml is not None:
            jobs.append((NVML_S, NVML_S, self._nvml.read))
        if self._metrics is not None:
            jobs.append((STAGES_S, METRICS_S, self._scrape))
        self._threads = [threading.Thread(target=self._poll, args=job, daemon=True) for job in jobs]
        self._threads.append(threading.Thread(target=self._write, daemon=True))
        for thread in self._threads:
            thread.start()

    def end(self) -> dict[str, Any]:
        """Poll a last time, write the remainder, and return its cost and findings."""
        self._end.set()
        for thread in self._threads:
            thread.join(2 * _METRICS_TIMEOUT_S)
        if self._first is not None:
            self._add(time.perf_counter_ns(), bucket_growth(self._first, self._last))
        self._flush()
        report: dict[str, Any] = {"cpu_ns": time.process_time_ns(), "nvml": self._nvml_line}
        if self._process is not None:
            report |= {
                "process": self._process.command,
                "throttling": self._process.throttling,
                "shows_calls": self._process.shows_calls,
                "alive": self._process.alive,
            }
        if self._metrics is not None:
            report |= {"scrapes": self.scrapes, "failed": self.failed_scrapes, "metrics_error": self.metrics_error}
        return report

    def _poll(self, least_s: float, most_s: float, read: Callable[[], Mapping[str, float]]) -> None:
        """Read until the end, with a pause that grows with how long reading takes, within its limits."""
        last, pause_s = False, 0.0
        while not last:
            last = self._end.wait(pause_s)
            began = time.perf_counter_ns()
            values = read()
            took = time.perf_counter_ns() - began
            self._add(began + took // 2, values)
            pause_s = min(max(took / 1e9 / _STAGES_SHARE, least_s), most_s)

    def _add(self, at_ns: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._samples.add(at_ns, name, float(value))

    def _look(self) -> dict[str, float]:
        """The process of each new connection, if there are several processes."""
        watched = () if self._process is None else self._process.processes
        found = self._connections.new_holders(watched) if len(watched) > 1 else {}
        return {f"{CONNECTION}{port}": pid for port, pid in found.items()}

    def _scrape(self) -> dict[str, float]:
        request = urllib.request.Request(self._metrics, headers=self._headers)
        try:
            with self._opener.open(request, timeout=_METRICS_TIMEOUT_S) as answer:
                text = answer.read(LONGEST_TEXT).decode("utf-8", "replace")
        except (OSError, HTTPException, ValueError) as error:
            self.failed_scrapes += 1
            self.metrics_error = self.metrics_error or str(error)[:200]
            return {}
        self.scrapes += 1
        self._last = read_stages(text, self._target)
        self._first = self._last if self._first is None else self._first
        values = series_of(self._last)
        if self._end.is_set() or time.monotonic() - self._all_read_s >= METRICS_S:
            self._all_read_s = time.monotonic()
            values |= {f"metrics.{name}": value for name, value in parse_metrics(text).items()}
        return values

    def _write(self) -> None:
        while not self._end.wait(_FLUSH_S):
            self._flush()

    def _flush(self) -> None:
        if lines := self._samples.drain(self._t0_ns):
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)


def _work(job: dict[str, Any], commands: LineReader, parent: LineWriter) -> None:
    watch = Watch(job)
    parent.send({"event": "ready"})
    for command in commands_of(commands, threading.Event()):
        report: dict[str, Any] = {}
        if command["do"] == "begin":
            watch.begin(command["t0_ns"])
        else:
            report = watch.end()
        parent.send({"event": "done", "do": command["do"], **report})


if __name__ == "__main__":
    serve_parent(_work, lambda error: f"the service cannot be watched ({error.strerror})")
