"""Small handmade traces: calls of a host and work of a device, in microseconds."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = {
    "cuda": {
        "launch": "cudaLaunchKernel",
        "graph": "cudaGraphLaunch",
        "sync": "cudaStreamSynchronize",
        "copy": "cudaMemcpyAsync",
        "malloc": "cudaMalloc",
        "free": "cudaFree",
        "pinned": "cudaHostAlloc",
    },
    "hip": {
        "launch": "hipExtModuleLaunchKernel",
        "graph": "hipGraphLaunch",
        "sync": "hipDeviceSynchronize",
        "copy": "hipMemcpyWithStream",
        "malloc": "hipMalloc",
        "free": "hipFree",
        "pinned": "hipHostMalloc",
    },
    "sycl": {
        "launch": "urEnqueueKernelLaunch",
        "graph": "urEnqueueCommandBufferExp",
        "sync": "urQueueFinish",
        "copy": "urEnqueueUSMMemcpy",
        "malloc": "urUSMDeviceAlloc",
        "free": "urUSMFree",
        "pinned": "urUSMHostAlloc",
    },
}
#: Beyond a float's precision of nanoseconds.
BEGIN_US = 1_763_001_580_255_100


@dataclass
class HandMade:
    """A trace; times are microseconds from its begin."""

    vendor: str = "cuda"
    begin_us: int = BEGIN_US
    first: int = 90_000
    events: list[dict[str, Any]] = field(default_factory=list)

    def _add(self, cat: str, name: str, start: float, end: float, place: tuple[Any, Any], **args: Any) -> None:
        ts, dur = f"{self.begin_us + int(start)}.{round(start % 1 * 1000):03d}", round(end - start, 3)
        event = {"ph": "X", "cat": cat, "name": name, "pid": place[0], "tid": place[1], "ts": "@" + ts, "dur": dur}
        self.events.append({**event, "args": args})

    def step(self, name: str, start: float, end: float, *, thread: int = 1) -> None:
        self._add("user_annotation", name, start, end, (1, thread))

    def call(self, what: str, start: float, end: float, correlation: int = -1, *, thread: int = 1) -> None:
        number = self.first + (correlation if correlation >= 0 else len(self.events) + 100_000)
        name = NAMES[self.vendor].get(what, what)
        self._add("cuda_runtime", name, start, end, (1, thread), correlation=number)

    def code(self, name: str, start: float, end: float, *, frame: bool = True, thread: int = 1) -> None:
        self._add("python_function" if frame else "cpu_op", name, start, end, (1, thread))

    def work(
        self,
        correlation: int,
        start: float,
        end: float,
        *,
        name: str = "gemm",
        cat: str = "kernel",
        stream: int = 7,
        **args: Any,
    ) -> None:
        number = self.first + correlation
        self._add(cat, name, start, end, (0, stream), device=0, stream=stream, correlation=number, **args)

    def text(self) -> str:
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "A Device"}],
            "traceEvents": self.events,
        }
        # Stamps are numbers with all digits, like Kineto's.
        return json.dumps(document).replace('"@', "").replace('", "dur"', ', "dur"')

    def write(self, path: Path) -> Path:
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(self.text().encode()))
        else:
            path.write_text(self.text())
        return path
