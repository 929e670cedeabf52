"""Record NVML's calls and answers during a run, for tests on machines without a GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.gpu.nvml_api import LiveNvml, NvmlCalls, NvmlRefused, RecordingNvml


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
