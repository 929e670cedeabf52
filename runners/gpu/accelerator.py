"""A device that works beside the host: streams, events, copies. Narrow, so that tests can stand in for a GPU.

Streams are queues: what is put into one runs in order, after the call that put it there has returned. Events mark
places in them. The runner needs no more of a device than this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Event(Protocol):
    """A place in a stream. One that is recorded again marks the new place only."""

    def record(self, stream: Any) -> None:
        """Mark the end of what is in the stream now."""

    def synchronize(self) -> None:
        """Wait, on the host, until the device has come to it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to a later one; both must have been reached."""


class Stream(Protocol):
    """A queue of work for the device."""

    def wait_event(self, event: Any) -> None:
        """Let what is put in from now on wait for an event; the host does not wait."""

    def synchronize(self) -> None:
        """Wait, on the host, until all that is in it has run."""


class Accelerator(Protocol):
    """One device.

    :ivar device: its name for torch, such as ``cuda:0``.
    """

    device: str

    def stream(self) -> Stream:
        """A new stream."""

    def event(self, *, blocking: bool = False) -> Event:
        """A new event that takes the device's time.

        :param blocking: who waits for it gives the core away meanwhile, and is woken later for it.
        """

    def synchronize(self) -> None:
        """Wait, on the host, until everything that was put into any of its streams has run."""

    def forget_workspaces(self) -> None:
        """Give back what libraries keep for each pair of a thread and a stream, on all devices."""

    def using(self, stream: Stream) -> AbstractContextManager[Any]:
        """Put this thread's work into ``stream`` meanwhile."""

    def upload(self, host: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """Copy to the device on the stream in use, floating-point numbers as ``dtype`` where one is given.

        From pinned memory the host does not wait, and must leave ``host`` as it is until the copy is done.
        """

    def download(self, there: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
        """Copy to the host on the stream in use, into pinned memory of the same size where some is given.

        Without it the host waits for the copy, and for everything that was put into the stream before.
        """

    def pinned(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Page-locked host memory for so many numbers, one-dimensional: the device copies to and from it alone."""

    def is_pinned(self, host: torch.Tensor) -> bool:
        """Whether a tensor lies in page-locked memory."""

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on this device."""

    def telling_waits(self) -> AbstractContextManager[Any]:
        """Have every call that keeps the host waiting for the device warn (:mod:`warnings`) where it is made."""


class CudaAccelerator(Accelerator):
    """A CUDA device.

    :param device: ``cuda:N``.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.device = device
        self._torch = torch

    def stream(self) -> Stream:
        made: Stream = self._torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return made

    def event(self, *, blocking: bool = False) -> Event:
        """The device must be this thread's when the event is recorded."""
        made: Event = self._torch.cuda.Event(enable_timing=True, blocking=blocking)  # type: ignore[no-untyped-call]
        return made

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self.device)

    def forget_workspaces(self) -> None:
        """Those of cuBLAS: torch keeps one for each handle and stream, for good, and new threads take the handles of
        ended ones in any order.

        The memory stays with the stream that it was allocated in: the next workspace there finds it, after all work
        that still uses it.
        """
        self._torch._C._cuda_clearCublasWorkspaces()

    def using(self, stream: Stream) -> AbstractContextManager[Any]:
        """As ``torch.cuda.stream``: also makes the stream's device the current one."""
        return self._torch.cuda.stream(stream)  # type: ignore[arg-type]

    def upload(self, host: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        there = host.to(self.device, non_blocking=True)
        # Cast over there: the host would take longer than the device, and the bytes of integers stay what they are.
        return there if dtype is None or not there.is_floating_point() else there.to(dtype)

    def download(self, there: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
        if into is None:
            return there.to("cpu")
        return into.view(there.shape).copy_(there, non_blocking=True)

    def pinned(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return self._torch.empty(elements, dtype=dtype, pin_memory=True)

    def is_pinned(self, host: torch.Tensor) -> bool:
        return host.is_pinned()

    def is_here(self, tensor: torch.Tensor) -> bool:
        return str(tensor.device) == self.device

    @contextlib.contextmanager
    def telling_waits(self) -> Iterator[None]:
        """By torch's debug mode for synchronizing operations, which holds for the whole process meanwhile."""
        before = self._torch.cuda.get_sync_debug_mode()
        self._torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            self._torch.cuda.set_sync_debug_mode(before)


def accelerator_of(device: str) -> Accelerator | None:
    """The accelerator behind a torch device; ``None`` for the CPU, which works while its caller waits."""
    return None if device == "cpu" else CudaAccelerator(device)
