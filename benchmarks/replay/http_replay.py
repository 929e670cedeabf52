"""Lateness of requests sent over HTTP, and their CPU cost: latfix compared with client libraries.

    python -m benchmarks.replay.http_replay [--grpc] [--rates 200,500,1000] [--seconds 10] [--json FILE]
        [--aiperf EXECUTABLE] [--guidellm EXECUTABLE]

A stub answers at once; with --grpc it is a KServe v2 service of grpcio, compared with grpcio's client. All clients
use the same Poisson schedule, open-loop; httpx and aiohttp, if installed, with one task per request and one
session. Lateness is from the scheduled time to the moment at which the client begins to send. CPU is the time of
the client's process (latfix: of the replaying thread). Load generators (:mod:`benchmarks.replay.load_tools`) report
their own times; their CPU is that of all their processes, without what a run of few requests needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.replay.load_tools import Tool, aiperf, guidellm, measured
from benchmarks.result_file import write_result
from latfix.config.workload_toml import WorkloadSpec
from latfix.runners.http_target.address import Trust, parse_address
from latfix.runners.http_target.http_session import HttpReplay, reach, run
from latfix.traffic.schedule import Traffic

_BODY = {"inputs": [1, 2, 3], "k": 5}
_INFER = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
#: A chat completion, and a list of models.
_ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "data": [{"id": "m"}],
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
}
Send = Callable[[], Awaitable[Any]]


class _Stub(asyncio.Protocol):
    """Answer every complete request; bodies are small and arrive together with the header."""

    _body = json.dumps(_ANSWER).encode()
    _answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_body) + _body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._held = transport, b""

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head = self._held[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._held) < end + 4 + length:
                return
            self._held = self._held[end + 4 + length :]
            self._transport.write(self._answer)


class _Kserve(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answer every inference with an empty response."""

    async def ServerMetadata(self, _request: Any, _context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="stub")

    async def ModelMetadata(self, request: Any, _context: Any) -> Any:
        return service_pb2.ModelMetadataResponse(name=request.name)

    async def ModelInfer(self, request: Any, _context: Any) -> Any:
        return service_pb2.ModelInferResponse(id=request.id)


async def _serve_grpc() -> None:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Kserve(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Stub, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _latfix(port: int, arrival_ns: np.ndarray, *, inference: bool = False) -> dict[str, float]:
    place = f"grpc://127.0.0.1:{port}/v2/models/m/infer" if inference else f"http://127.0.0.1:{port}/predict"
    address = parse_address(place)
    traffic = Traffic.plain(arrival_ns, payloads=[_INFER if inference else _BODY] * len(arrival_ns))
    spec = WorkloadSpec(name="stub", folder=Path(), entry="", traffic=Path("stub.jsonl"))
    with tempfile.TemporaryDirectory() as folder:
        replay = HttpReplay(address=address, endpoint=reach(address, Trust()), spec=spec, traffic=traffic)
        record = run(Path(folder) / "run", replay)
    return _row(record.requests["dispatch_ns"] / 1e6, record.meta.overhead["replayer_us_per_request"])


def _row(late_ms: np.ndarray, cpu_us: float) -> dict[str, float]:
    p50, p99 = np.percentile(late_ms, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": float(late_ms.max()), "cpu_us": float(cpu_us)}


async def _open_loop(arrival_ns: np.ndarray, send: Send) -> list[float]:
    late: list[float] = []
    start = time.perf_counter_ns() + 300_000_000

    async def one(due: int) -> None:
        late.append((time.perf_counter_ns() - due) / 1e6)
        await send()

    tasks = []
    for due in (start + arrival_ns).tolist():
        while (left := due - time.perf_counter_ns()) > 0:
            await asyncio.sleep(left / 1e9)
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    return late


async def _httpx(port: int, arrival_ns: np.ndarray) -> list[float]:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        return await _open_loop(arrival_ns, lambda: client.post(f"http://127.0.0.1:{port}/predict", json=_BODY))


async def _aiohttp(port: int, arrival_ns: np.ndarray) -> list[float]:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def send() -> None:
            async with session.post(f"http://127.0.0.1:{port}/predict", json=_BODY) as answer:
                await answer.read()

        return await _open_loop(arrival_ns, send)


async def _grpcio(port: int, arrival_ns: np.ndarray) -> list[float]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        async def send() -> None:
            raw = [np.array([1, 2, 3], "<f4").tobytes()]
            request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=raw)
            request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
            await stub.ModelInfer(request)

        return await _open_loop(arrival_ns, send)


_CLIENTS = {"httpx": _httpx, "aiohttp": _aiohttp}
_GRPC_CLIENTS = {"grpc": _grpcio}


def _tool(tool: Tool, executable: Path, port: int, arrival_ns: np.ndarray) -> dict[str, float]:
    try:
        return _row(*measured(tool, executable, port, arrival_ns))
    except RuntimeError as error:
        print(error)
        return _FAILED


_FAILED = {**dict.fromkeys(("p50_ms", "p99_ms", "max_ms", "cpu_us"), math.nan), "failed": True}


def _library(name: str, port: int, arrival_ns: np.ndarray) -> dict[str, float]:
    """Run in a separate process, like latfix's replay."""
    script = f"from benchmarks.replay.http_replay import _child; _child({name!r}, {port}, {arrival_ns.tolist()!r})"
    most_s = 10.0 + 3 * float(arrival_ns[-1]) / 1e9
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=most_s
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):  # more open requests than it can handle
        return _FAILED
    found = json.loads(done.stdout.splitlines()[-1])
    return _row(np.array(found["late"]), found["cpu_us"])


def _child(name: str, port: int, arrival_ns: list[int]) -> None:
    began = time.process_time_ns()
    late = asyncio.run((_CLIENTS | _GRPC_CLIENTS)[name](port, np.array(arrival_ns)))
    cpu_us = (time.process_time_ns() - began) / len(arrival_ns) / 1e3
    print(json.dumps({"late": late, "cpu_us": cpu_us}))


def main() -> None:
    """Measure and print; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="200,500,1000")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--grpc", action="store_true")
    parser.add_argument("--aiperf", type=Path)
    parser.add_argument("--guidellm", type=Path)
    options = parser.parse_args()
    serve = "_serve_grpc" if options.grpc else "_serve"
    code = f"import asyncio; from benchmarks.replay.http_replay import {serve}; asyncio.run({serve}())"
    stub = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert stub.stdout is not None
    port = int(stub.stdout.readline())
    clients: dict[str, Callable[[int, np.ndarray], dict[str, float]]] = {
        "latfix": partial(_latfix, inference=options.grpc),
        **{
            name: partial(_library, name)
            for name in (_GRPC_CLIENTS if options.grpc else _CLIENTS)
            if find_spec(name) is not None
        },
    }
    for name, tool in (("aiperf", aiperf), ("guidellm", guidellm)):
        if (executable := getattr(options, name)) is not None:
            clients[name] = partial(_tool, tool, executable)
    rows = []
    try:
        for rate in (float(word) for word in options.rates.split(",")):
            gaps = np.random.default_rng(0).exponential(1e9 / rate, int(rate * options.seconds))
            for name, client in clients.items():
                row = {"rate": rate, "client": name, **client(port, np.cumsum(gaps).astype(np.int64))}
                rows.append(row)
                print("{rate:6.0f}/s {client:8} late p50 {p50_ms:7.3f} p99 {p99_ms:8.3f} max {max_ms:8.3f} ms, "
                      "CPU {cpu_us:6.0f} µs per request".format(**row), flush=True)  # fmt: skip
    finally:
        stub.kill()
        stub.wait()
    known = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    write_result(options.json, {"seconds": options.seconds, "rows": known})


if __name__ == "__main__":
    main()
