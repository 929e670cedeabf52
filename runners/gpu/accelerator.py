"""A device that works asynchronously: streams, events, copies. A narrow interface, so that tests can fake a GPU.

Streams are queues: their work runs in order, after the call that enqueued it has returned. Events mark places in
them. The runner uses nothing else of a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Event(Protocol):
    """A place in a stream. Recording it again moves it."""

    def record(self, stream: Any) -> None:
        """Mark the current end of the stream."""

    def synchronize(self) -> None:
        """Block the host until the device has reached the event."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to a later one; the device must have reached both."""


class Stream(Protocol):
    """A queue of work for the device."""

    def wait_event(self, event: Any) -> None:
        """Make later work in this stream wait for an event; does not block the host."""

    def synchronize(self) -> None:
        """Block the host until all work in the stream has run."""


class Accelerator:
    """One CUDA device.

    :ivar device: torch's device string, ``cuda:N``.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.device = device
        self._torch = torch

    def stream(self) -> Stream:
        """A new stream."""
        made: Stream = self._torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return made

    def event(self, *, blocking: bool = False) -> Event:
        """A new event that records the device's time. The device must be the thread's current one at that time.

        :param blocking: a waiting thread sleeps, and wakes later, instead of spinning.
        """
        made: Event = self._torch.cuda.Event(enable_timing=True, blocking=blocking)  # type: ignore[no-untyped-call]
        return made

    def synchronize(self) -> None:
        """Block the host until all work in all streams has run."""
        self._torch.cuda.synchronize(self.device)

    def free_workspaces(self) -> None:
        """Free the workspaces that cuBLAS keeps, on all devices: torch keeps one per handle and stream forever, and
        new threads reuse the handles of ended ones in any order.

        The memory stays with its stream: the next workspace there reuses it, after all work that still uses it.
        """
        self._torch._C._cuda_clearCublasWorkspaces()

    def using(self, stream: Stream) -> AbstractContextManager[Any]:
        """Inside the context, this thread's work goes into ``stream``, and its device is the current one."""
        return self._torch.cuda.stream(stream)  # type: ignore[arg-type]

    def upload(self, host: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """Copy to the device on the stream in use; floating-point numbers are cast to ``dtype`` if given.

        From pinned memory the host does not wait, and must not change ``host`` until the copy is done.
        """
        there = host.to(self.device, non_blocking=True)
        # Cast on the device, which is faster than the host. Integers are not cast.
        return there if dtype is None or not there.is_floating_point() else there.to(dtype)

    def download(self, there: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
        """Copy to the host on the stream in use, into pinned memory of the same size if given.

        Without it the host waits for the copy and for all earlier work in the stream.
        """
        if into is None:
            return there.to("cpu")
        return into.view(there.shape).copy_(there, non_blocking=True)

    def pinned(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """One-dimensional page-locked host memory, which the device reads and writes without the host."""
        return self._torch.empty(elements, dtype=dtype, pin_memory=True)

    def is_pinned(self, host: torch.Tensor) -> bool:
        """True if a tensor is in page-locked memory."""
        return host.is_pinned()

    def is_here(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is on this device."""
        return str(tensor.device) == self.device

    @contextlib.contextmanager
    def warn_on_waits(self) -> Iterator[None]:
        """Inside the context, each call that blocks the host until the device is done warns (:mod:`warnings`).

        Uses torch's debug mode for synchronizing operations, which applies to the whole process.
        """
        before = self._torch.cuda.get_sync_debug_mode()
        self._torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            self._torch.cuda.set_sync_debug_mode(before)


def accelerator_of(device: str) -> Accelerator | None:
    """The accelerator of a torch device; ``None`` for the CPU, which works synchronously."""
    return None if device == "cpu" else Accelerator(device)
