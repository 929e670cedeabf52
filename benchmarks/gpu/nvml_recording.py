"""Record NVML's calls and answers during a run, for tests on machines without a GPU."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.gpu.nvml_api import LiveNvml, NvmlCalls, NvmlRefused


class RecordingNvml:
    """Forwards calls, and writes each with its answer, one line per call.

    :param calls: answers them.
    """

    def __init__(self, calls: NvmlCalls, file: IO[str], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._calls = calls
        self._file = file
        self._clock = clock

    def ask(self, function: str, *arguments: int) -> Any:
        entry: dict[str, Any] = {"t_ns": self._clock(), "call": function, "arguments": list(arguments)}
        try:
            entry["answer"] = self._calls.ask(function, *arguments)
        except NvmlRefused as error:
            entry |= {"error": error.code, "message": str(error)}
            raise
        finally:
            entry["took_ns"] = self._clock() - entry["t_ns"]
            self._file.write(json.dumps(entry) + "\n")
        return entry["answer"]

    def close(self) -> None:
        self._calls.close()


@contextlib.contextmanager
def recorded_nvml(path: Path, live: Callable[[], NvmlCalls] = LiveNvml) -> Iterator[str]:
    """Poll NVML twice a second on a separate thread, and write calls and answers to ``path``.

    Yields the reason if there is no recording, otherwise nothing.
    """
    stop = threading.Event()

    def poll(reader: Nvml) -> None:
        while not stop.wait(0.5):
            reader.read()

    with path.open("w", encoding="utf-8") as file:
        try:
            calls = RecordingNvml(live(), file)
        except (NvmlRefused, ImportError) as error:
            print(f"NVML is not recorded: {error}")
            yield str(error)
            return
        thread = threading.Thread(target=poll, args=(Nvml(calls, 0),), daemon=True)
        thread.start()
        try:
            yield ""
        finally:
            stop.set()
            thread.join()
            calls.close()
