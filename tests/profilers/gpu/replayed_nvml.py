"""Replays a recorded session with NVML."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latfix.profilers.gpu.nvml_api import NOT_SUPPORTED, NvmlRefused


class ReplayedNvml:
    """Answers from a recording.

    :param path: a file of :class:`benchmarks.gpu.nvml_recording.RecordingNvml`; ``.gz`` if compressed.
    """

    def __init__(self, path: Path) -> None:
        self._answers: dict[tuple[str, tuple[int, ...]], list[dict[str, Any]]] = defaultdict(list)
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in data.decode("utf-8").splitlines():
            entry = json.loads(line)
            self._answers[_key(entry["call"], entry["arguments"])].append(entry)

    def ask(self, function: str, *arguments: int) -> Any:
        """:meth:`NvmlCalls.ask`; calls that were not recorded are not supported."""
        entries = self._answers.get(_key(function, arguments))
        if not entries:
            raise NvmlRefused(NOT_SUPPORTED, "Not Supported")
        entry = entries.pop(0) if len(entries) > 1 else entries[0]
        if "error" in entry:
            raise NvmlRefused(entry["error"], entry["message"])
        return entry["answer"]

    def close(self) -> None:
        """:meth:`NvmlCalls.close`."""


def _key(function: str, arguments: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The key of an answer, without the begin of a request for samples, which differs in each run."""
    return function, tuple(arguments[:1] if function == "DeviceGetProcessUtilization" else arguments)
