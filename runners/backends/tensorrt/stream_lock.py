"""Serializes an engine's batches across threads and CUDA streams."""

from __future__ import annotations

import threading
from typing import Any


class StreamTurn:
    """A lock that also orders work on the device: each holder's stream waits for the work of the previous holder.

    An engine's execution context has one scratch memory. Two workers that share a model, or a worker and the thread
    that warmed it up, use separate streams, which the device may run at the same time.

    :param device: a torch device string; on the CPU it is a plain lock.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._last: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._device.startswith("cuda") or self._last is None:
            return
        import torch

        stream, event = self._last
        now = torch.cuda.current_stream(self._device)
        if now != stream:
            now.wait_event(event)

    def __exit__(self, *_: object) -> None:
        try:
            if self._device.startswith("cuda"):
                import torch

                stream = torch.cuda.current_stream(self._device)
                self._last = (stream, stream.record_event())
        finally:
            self._lock.release()
