"""A small HTTP service with a known fault: ``python planted_service.py FAULT [LOG]``; it prints its port.

Faults are planted by the service itself, so a test knows what an outside diagnosis must find.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import math
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
Write = Callable[[bytes], Awaitable[None]]
RANDOM = random.Random(7)
ONE_AT_A_TIME = asyncio.Lock()
ONE_LOCK, POOL = threading.Lock(), ThreadPoolExecutor(32)
COUNTED = {"requests": 0, "waited_s": 0.0}
REPORTED: dict[str, float] = {}
REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id")


def busy(seconds: float) -> None:
    """Compute for this much CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


async def answer(write: Write, document: Any, status: str = "200 OK") -> None:
    body = json.dumps(document).encode()
    await write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(body)) + body)


def in_a_thread(work: Callable[[], None]) -> Callable[[Any, Write], Awaitable[None]]:
    """Like frameworks serve plain functions: in a thread pool behind an event loop."""

    async def served(_body: Any, write: Write) -> None:
        await asyncio.get_running_loop().run_in_executor(POOL, work)
        await answer(write, {"ok": 1})

    return served


def behind_a_lock() -> None:
    """Half of the requests share a lock during their work."""
    time.sleep(0.005)
    if RANDOM.random() < 0.5:
        with ONE_LOCK:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 25_000)  # without the interpreter's lock
            time.sleep(0.02)
    time.sleep(0.003)


def computing_python() -> None:
    """One request in ten computes long in Python, and holds the interpreter lock."""
    end = time.thread_time() + (0.06 if RANDOM.random() < 0.1 else 0.006)
    while time.thread_time() < end:
        pass


async def steady(_body: Any, write: Write) -> None:
    await asyncio.sleep(0.004)
    await answer(write, {"ok": 1})


async def dependency(_body: Any, write: Write) -> None:
    """Many at once; one in thirty waits for a slow dependency."""
    await asyncio.sleep(0.004 + (0.12 if RANDOM.random() < 0.033 else 0.0))
    await answer(write, {"ok": 1})


async def computing(_body: Any, write: Write) -> None:
    """One at a time, on the core."""
    busy(0.004)
    await answer(write, {"ok": 1})


async def sleeping(_body: Any, write: Write) -> None:
    """One at a time, as behind a device."""
    async with ONE_AT_A_TIME:
        await asyncio.sleep(0.006)
    await answer(write, {"ok": 1})


async def sized(body: Any, write: Write) -> None:
    """For as long as the request requires."""
    await asyncio.sleep(0.002 + 0.0001 * body["tokens"])
    await answer(write, {"ok": 1})


async def limiting(_body: Any, write: Write) -> None:
    await answer(write, {"error": "slow down"}, "429 Too Many Requests")


async def refusing(_body: Any, write: Write) -> None:
    await answer(write, {"error": "no such route"}, "404 Not Found")


async def broken(_body: Any, write: Write) -> None:
    COUNTED["requests"] += 1
    await answer(write, {"error": f"no weights for {COUNTED['requests']}"}, "500 Internal Server Error")


KSERVE: Any = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]},
                                  {"name": "k", "datatype": "INT64", "shape": [-1, 1]}]}  # fmt: skip


async def kserve(body: Any, write: Write) -> None:
    """A model of two inputs behind KServe v2; other inputs are refused."""
    given = {one["name"]: one for one in body["inputs"]}
    for wanted in KSERVE["inputs"]:
        one = given.pop(wanted["name"], {})
        alike = one.get("datatype") == wanted["datatype"] and one["shape"][1:] == wanted["shape"][1:]
        if not alike or len(one["data"]) != math.prod(one["shape"]):
            await answer(write, {"error": f"found {one}, expected {wanted}"}, "400 Bad Request")
            return
    await answer(write, {"model_name": "m", "outputs": [], "unknown": list(given)})


def in_a_bad_time() -> bool:
    """Half a second in two and a half."""
    return time.monotonic() % 2.5 < 0.5


def report(**seconds: float) -> None:
    """Add a request to the sums of the service's metrics."""
    for name, spent in seconds.items():
        REPORTED[name] = REPORTED.get(name, 0.0) + spent
    REPORTED["requests"] = REPORTED.get("requests", 0.0) + 1


async def reporting_queue(body: Any, write: Write) -> None:
    """Like vLLM: streams, and its metrics say that requests wait in its queue in the bad times."""
    began = time.monotonic()
    await asyncio.sleep(0.15 if in_a_bad_time() else 0.001)
    queued = time.monotonic()
    await asyncio.sleep(0.005)
    first = time.monotonic()
    await write(SSE)
    for _ in range(int(body["max_tokens"])):
        await event(write, {"choices": [{"delta": {"content": "x"}}]})
        await asyncio.sleep(0.002)
    last = time.monotonic()
    report(queue=queued - began, prefill=first - queued, decode=last - first, e2e=last - began)
    await write(b"0\r\n\r\n")


async def logging_requests(_body: Any, write: Write) -> None:
    """Logs each request with its id, on a clock that is an hour off; one in twenty waits for the database."""
    began = time.monotonic()
    await asyncio.sleep(0.03 if in_a_bad_time() else 0.001)
    queued = time.monotonic()
    await asyncio.sleep(0.15 if RANDOM.random() < 0.05 else 0.002)
    answered = time.monotonic()
    await asyncio.sleep(0.004)
    took = {"queue_ms": queued - began, "db_ms": answered - queued, "duration_ms": time.monotonic() - began}
    line = {"ts": time.time() - 3600, "level": "info", "request_id": REQUEST_ID.get(), "status": 200}
    with Path(sys.argv[2]).open("a", encoding="utf-8") as log:
        log.write(json.dumps({**line, **{name: 1e3 * seconds for name, seconds in took.items()}}) + "\n")
    await answer(write, {"ok": 1})


def metrics_page() -> str:
    """Metrics in the form of vLLM, of the model that is asked for and of another one."""
    lines = ['vllm:num_requests_waiting{engine="0",model_name="planted"} 0']
    for stage, name in (
        ("queue", "request_queue_time"),
        ("prefill", "request_prefill_time"),
        ("decode", "request_decode_time"),
        ("e2e", "e2e_request_latency"),
    ):
        for part, of in (("sum", stage), ("count", "requests")):
            planted = REPORTED.get(of, 0.0)
            lines.append(f'vllm:{name}_seconds_{part}{{engine="0",model_name="planted"}} {planted}')
            lines.append(f'vllm:{name}_seconds_{part}{{engine="0",model_name="other"}} {COUNTED["requests"]}')
        lines.append(f'vllm:{name}_seconds_bucket{{engine="0",model_name="planted",le="0.5"}} {planted}')
    return "\n".join(lines) + "\n"


async def unstable(_body: Any, write: Write) -> None:
    COUNTED["requests"] += 1
    if COUNTED["requests"] % 5 == 0:
        await answer(write, {"error": "boom"}, "500 Internal Server Error")
    elif COUNTED["requests"] % 7 == 0:
        await asyncio.sleep(30)
    else:
        await answer(write, {"ok": 1})


async def stream(body: Any, write: Write) -> None:
    """Tokens at a steady pace; a long prompt delays all others', as a prefill in a shared batch does."""
    prompt = len(str(body["messages"][0]["content"]).split())
    if prompt > 100:
        time.sleep(0.2)
    await write(SSE)
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    await event(write, role)
    for _ in range(int(body["max_tokens"])):
        await event(write, {"choices": [{"delta": {"content": "x"}}]})
        await asyncio.sleep(0.01)
    await event(write, {"choices": [], "usage": {"completion_tokens": int(body["max_tokens"])}})
    await write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def event(write: Write, document: Any) -> None:
    data = b"data: " + json.dumps(document).encode() + b"\n\n"
    await write(b"%x\r\n%s\r\n" % (len(data), data))


FAULTS: dict[str, Callable[[Any, Write], Awaitable[None]]] = {
    "steady": steady,
    "dependency": dependency,
    "computing": computing,
    "sleeping": sleeping,
    "sized": sized,
    "limiting": limiting,
    "refusing": refusing,
    "broken": broken,
    "kserve": kserve,
    "logging_requests": logging_requests,
    "reporting_queue": reporting_queue,
    "unstable": unstable,
    "lock": in_a_thread(behind_a_lock),
    "interpreter": in_a_thread(computing_python),
    "stream": stream,
    "stalls": steady,
}


async def stand_still() -> None:
    """A call in the event loop that computes now and then."""
    while True:
        await asyncio.sleep(0.6 + 0.5 * RANDOM.random())
        busy(0.15)


async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def write(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    handle = FAULTS[sys.argv[1]]
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            body = await reader.readexactly(int(fields.get(b"content-length", 0)))
            path = head.split()[1]
            REQUEST_ID.set(fields.get(b"x-request-id", b"").decode())
            if path == b"/v1/models":
                await answer(write, {"data": [{"id": "planted"}]})
            elif path == b"/v2/models/m":
                await answer(write, KSERVE)
            elif path == b"/metrics" and sys.argv[1] == "reporting_queue":
                COUNTED["requests"] += 100  # of the other model
                page = metrics_page().encode()
                await write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
            elif path == b"/metrics":
                await answer(write, {}, "404 Not Found")
            else:
                await handle(json.loads(body) if body else None, write)
            if fields.get(b"connection") == b"close":
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], os.getpid(), flush=True)
    extra = [stand_still()] if sys.argv[1] == "stalls" else []
    async with server:
        await asyncio.gather(server.serve_forever(), *extra)


if __name__ == "__main__":
    asyncio.run(main())
