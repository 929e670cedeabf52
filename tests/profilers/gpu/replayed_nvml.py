"""A session with NVML that was written down, played again."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latfix.profilers.gpu.nvml_api import NOT_SUPPORTED, NvmlRefused


class ReplayedNvml:
    """Answers as a recording did.

    :param path: what :class:`RecordingNvml` wrote.
    """

    def __init__(self, path: Path) -> None:
        self._answers: dict[tuple[str, tuple[int, ...]], list[dict[str, Any]]] = defaultdict(list)
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            self._answers[_key(entry["call"], entry["arguments"])].append(entry)

    def ask(self, function: str, *arguments: int) -> Any:
        """:meth:`NvmlCalls.ask`; what was never asked is not supported."""
        left = self._answers.get(_key(function, arguments))
        if not left:
            raise NvmlRefused(NOT_SUPPORTED, "Not Supported")
        entry = left.pop(0) if len(left) > 1 else left[0]
        if "error" in entry:
            raise NvmlRefused(entry["error"], entry["message"])
        return entry["answer"]

    def close(self) -> None:
        """:meth:`NvmlCalls.close`."""


def _key(function: str, arguments: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """What an answer is found by: the time since when samples are wanted is another one at each run."""
    return function, tuple(arguments[:1] if function == "DeviceGetProcessUtilization" else arguments)
