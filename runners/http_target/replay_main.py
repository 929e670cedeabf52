"""The process that replays traffic against an address: no model, no torch.

Started by :mod:`latfix.runners.http_target.http_session`; uses the messages of
:mod:`latfix.runners.replay.pipe_protocol`.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latfix.errors import LatfixError, RunnerError
from latfix.request import Request
from latfix.run_record.run_record import SCHEDULE
from latfix.runners.host.cpu_quota import machine_facts, usable_cores
from latfix.runners.http_target.address import Trust, parse_address
from latfix.runners.http_target.body_template import BodyTemplate, target_template
from latfix.runners.http_target.connection import Connection, Endpoint
from latfix.runners.http_target.http_messages import request_head, whole_request
from latfix.runners.http_target.replay_loop import ReplayLoop
from latfix.runners.http_target.request_bodies import Body, body_for
from latfix.runners.http_target.request_log import RequestLog
from latfix.runners.replay.open_loop import give_priority_back, take_priority
from latfix.runners.replay.pipe_protocol import LineReader, LineWriter, commands_of, serve_parent
from latfix.runners.replay.runner_process import RunnerProcess
from latfix.settings import RunnerSettings
from latfix.traffic.io.stored_schedule import load_schedule
from latfix.traffic.schedule import Traffic
from latfix.traffic.sent_ids import sent_id, trace_of

_LEAD_IN_NS = 300_000_000
_WATCH_S = 30.0


def replay(job: dict[str, Any], folder: Path, parent: LineWriter, stop: threading.Event) -> dict[str, Any]:
    """Replay the schedule in a run's folder and record; returns fields of ``run.json``.

    :param job: the address, what to send, and how to watch the service; see ``http_session``.
    :param stop: ends the replay when it is set.
    :raises LatfixError: the service cannot be watched, or a body cannot be made.
    """
    traffic = load_schedule(folder / SCHEDULE)
    address = parse_address(job["address"])
    endpoint = Endpoint(
        family=job["family"],
        place=tuple(job["place"]),
        tls=Trust(cacert=job["cacert"], insecure=job["insecure"]).context(http2=address.is_grpc)
        if address.secure
        else None,
        name=address.host,
    )
    template = None if job["body"] is None else BodyTemplate(job["body"])
    body = body_for(address, job["method"], template, traffic, job["metadata"], job["model"])
    connect: Callable[[Endpoint], Connection] = Connection
    if address.is_grpc:
        from latfix.runners.http_target.grpc_connection import GrpcConnection as connect
    head = _head_of(job, address.host_header)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each request in flight has a connection
    with contextlib.ExitStack() as stack:
        watch = None
        if job["pid"] is not None or job["metrics"] is not None:
            watch = stack.enter_context(_watch(job, folder))
            try:
                watch.start()
            except LatfixError as error:
                raise RunnerError(error.message) from error
        t0_ns = time.perf_counter_ns() + _LEAD_IN_NS
        start_ns = t0_ns - int(traffic.start_s * 1e9)
        log = RequestLog(folder, start_ns)

        def report_status(done: int, in_flight: int, draining: bool) -> None:
            at = time.perf_counter_ns() - log.t0_ns
            status = {"done": done, "in_flight": in_flight, "queued": 0, "at_ns": at, "draining": draining}
            parent.send({"event": "status", **status})

        loop = ReplayLoop(
            endpoint,
            _requests(traffic, head, body, job["run"]),
            log,
            stop,
            timeout_ns=int(job["timeout_s"] * 1e9),
            keep_alive=job["keep_alive"],
            report=report_status,
            connect=connect,
        )
        loop.prepare(len(traffic))
        start_ns += max(time.perf_counter_ns() + _LEAD_IN_NS // 3 - t0_ns, 0)
        log.t0_ns = start_ns
        loop.schedule((start_ns + traffic.arrival_ns).tolist())
        if watch is not None:
            watch.command("begin", t0_ns=start_ns)
        priority = take_priority()
        gc.collect()
        gc.freeze()
        gc.disable()
        began, clock = time.thread_time_ns(), time.perf_counter_ns()
        try:
            sent = loop.run()
        finally:
            log.close()
        cpu, wall = time.thread_time_ns() - began, max(time.perf_counter_ns() - clock, 1)
        give_priority_back()
        gc.enable()
        report: dict[str, Any] = {}
        with contextlib.suppress(LatfixError):  # the replay counts even if the watch died
            report = {} if watch is None else watch.command("end", timeout_s=_WATCH_S)
    return {
        "state": "interrupted" if stop.is_set() or loop.hopeless else "complete",
        "sent": sent,
        "t0_ns": start_ns,
        "cores": usable_cores(),
        "overhead": {
            "per_request_us": 0.0,  # latfix adds nothing to the service's own path
            "core_share": (cpu + report.get("cpu_ns", 0)) / wall,
            "replayer_us_per_request": cpu / max(sent, 1) / 1e3,
            "replayer_core_share": cpu / wall,
            "watch_core_share": report.get("cpu_ns", 0) / wall,
            "connections": loop.opened,
            "bodies_made_late": loop.rendered_late,
        },
        "probes": {"replayer": priority, **_watch_lines(job, report)},
        **({"failure": loop.hopeless} if loop.hopeless else {}),
    }


def _watch(job: dict[str, Any], folder: Path) -> RunnerProcess:
    """The process that watches the service."""
    names = ("pid", "beside", "place", "metrics", "headers", "cacert", "insecure", "path", "served_model")
    own, module = {name: job[name] for name in names}, "latfix.runners.http_target.server_watch"
    log = folder / "runner.log"
    return RunnerProcess(Path(), "", RunnerSettings(), log, module=module, job={**own, "folder": str(folder)})


def _watch_lines(job: dict[str, Any], report: dict[str, Any]) -> dict[str, str]:
    """One line per source: what was watched, or why not."""
    lines = {"process": "process: not watched (--pid)", "metrics": "metrics: not read (--metrics)"}
    if not report and (job["pid"] is not None or job["metrics"] is not None):
        return {"watch": "the watch of the service ended early; see runner.log"}
    if job["pid"] is not None:
        throttling = "" if report.get("throttling") else "; its control group does not report throttling"
        calls = "" if report.get("shows_calls") else "; what its threads wait for needs permission to trace it"
        ended = "" if report.get("alive", True) else "; it ended during the run"
        lines["process"] = (
            f"process: {job['pid']} {report.get('process', '')}, every 5 ms" + throttling + calls + ended
        )
        lines["nvml"] = str(report.get("nvml", ""))
    if job["metrics"] is not None:
        lines["metrics"] = f"metrics: read {report.get('scrapes', 0)} times"
        if report.get("failed"):
            lines["metrics"] += f", {report['failed']} failed ({report.get('metrics_error')})"
    return lines


def _head_of(job: dict[str, Any], host: str) -> Callable[[Request], bytes]:
    """Returns what :func:`request_head` makes for one request."""
    method, target = job["method"], target_template(job["target"])
    same = request_head(method, job["target"], host, job["headers"], keep_alive=job["keep_alive"])
    if not target.names:
        return lambda _request: same
    rest = same[same.index(b"\r\n") :]
    return lambda request: f"{method} {target.fill(request)} HTTP/1.1".encode("ascii") + rest


def _requests(traffic: Traffic, head: Callable[[Request], bytes], body: Body, run: str) -> Callable[[int], bytes]:
    """Returns request k as bytes, with ids that no other run uses."""

    def request(k: int) -> bytes:
        planned = traffic.request(k)
        trace, span = trace_of(run, planned.id)
        return whole_request(head(planned), sent_id(run, planned.id), f"00-{trace}-{span}-01", body(planned))

    return request


def _work(job: dict[str, Any], commands: LineReader, parent: LineWriter) -> None:
    parent.send({"event": "ready", "load_s": 0.0, "device": "http", "machine": machine_facts()})
    stop = threading.Event()
    for command in commands_of(commands, stop):
        found = replay(job, Path(command["folder"]), parent, stop)
        parent.send({"event": "done", "do": command["do"], **found})


if __name__ == "__main__":
    serve_parent(_work, lambda error: f"{error.filename or 'the replay'}: {error.strerror}; check it and run again")
