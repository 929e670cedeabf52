"""A simulated asynchronous device made of threads: a GPU's timing without a GPU.

Each stream is a thread that runs enqueued work in order, after the call has returned. Copies and operators take the
time that the test sets, by the device's own clock. A tensor on the device has its shape at once and its numbers
later: numbers read too early are missing, and host memory that is reused too early is copied with its new content.
Copies from memory that is not pinned block the host, as does reading a number on the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from latfix.runners.gpu.accelerator import Accelerator

_local = threading.local()


@dataclass
class Speeds:
    """Durations on the device in seconds.

    :param operator: each operator; ``per_element`` in addition, for each element of its output.
    :param issue: that the host takes to put an operator into a stream.
    :param byte: of a copy; ``pageable`` times as much where the memory is not pinned.
    """

    operator: float = 0.0
    per_element: float = 0.0
    issue: float = 0.0
    byte: float = 0.0
    pageable: float = 3.0


class SimulatedStream:
    """A thread that runs closures in order."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        threading.Thread(target=self._run, daemon=True, name="simulated-stream").start()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the stream
                self.failure = self.failure or error

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def wait_event(self, event: SimulatedEvent) -> None:
        reached = event.reached  # as recorded now, even if it is recorded again later
        self.put(lambda: _wait(reached))

    def synchronize(self) -> None:
        done = threading.Event()
        self.put(done.set)
        done.wait()
        if self.failure is not None:
            raise RuntimeError(f"device: {self.failure}")


class SimulatedEvent:
    """Records the device's time when its stream reaches it."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.reached = threading.Event()
        self.at = 0
        self.stream: SimulatedStream | None = None

    def record(self, stream: SimulatedStream) -> None:
        reached = self.reached = threading.Event()
        self.stream = stream

        def mark() -> None:
            self.at = self._clock()
            reached.set()

        stream.put(mark)

    def synchronize(self) -> None:
        self.reached.wait()
        if self.stream is not None and self.stream.failure is not None:
            raise RuntimeError(f"device: {self.stream.failure}")

    def query(self) -> bool:
        return self.reached.is_set()

    def elapsed_time(self, end_event: SimulatedEvent) -> float:
        if not (self.reached.is_set() and end_event.reached.is_set()):
            raise RuntimeError("both events must be recorded and completed before their times are read")
        # Like the driver: milliseconds in single precision, in steps of half a microsecond.
        steps = round((end_event.at - self.at) / 500)
        return float(torch.tensor(steps * 500 / 1e6, dtype=torch.float32))


@dataclass
class _Slot:
    """Future numbers."""

    value: torch.Tensor | None = None


class DeviceTensor(torch.Tensor):
    """A tensor on the simulated device: its shape is known at once, its numbers when its stream has made them."""

    slot: _Slot
    home: SimulatedAccelerator

    @staticmethod
    def make(like: torch.Tensor, slot: _Slot, home: SimulatedAccelerator) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            DeviceTensor, like.shape, strides=like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )
        made.slot, made.home = slot, home
        return made

    def __repr__(self, *_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor(shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        found: list[DeviceTensor] = []
        tree_map_only(DeviceTensor, found.append, (args, kwargs))
        home = found[0].home
        if func._schema.name in ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"):
            home.syncs += 1
            if home.telling:
                warnings.warn("called a synchronizing operation", UserWarning, stacklevel=2)
            home.current.synchronize()
            return func(_value(args[0]))
        return home.enqueue(func, args, kwargs)


def _value(tensor: DeviceTensor) -> torch.Tensor:
    assert tensor.slot.value is not None, "read before its stream had made it"
    return tensor.slot.value


@dataclass
class SimulatedAccelerator(Accelerator):
    """One device.

    :param drift: by how much its clock runs faster than the host's; ``shift`` nanoseconds it is ahead.
    :ivar launched: operators that the host put into streams; ``syncs`` numbers that it read.
    :ivar uploads: of each copy to the device, whether its memory was pinned.
    """

    device: str = "simulated:0"
    speeds: Speeds = field(default_factory=Speeds)
    drift: float = 0.0
    shift: int = 5_000_000_000_000
    launched: int = 0
    syncs: int = 0
    uploads: list[bool] = field(default_factory=list)
    downloads: list[bool] = field(default_factory=list)
    telling: bool = False
    forgotten: int = 0
    streams: list[SimulatedStream] = field(default_factory=list)
    busy: list[tuple[str, int, int]] = field(default_factory=list)
    _pinned: set[int] = field(default_factory=set)
    _kept: list[torch.Tensor] = field(default_factory=list)

    def clock(self) -> int:
        return int(time.perf_counter_ns() * (1 + self.drift)) + self.shift

    def stream(self) -> SimulatedStream:
        self.streams.append(SimulatedStream())
        return self.streams[-1]

    def event(self, *, blocking: bool = False) -> SimulatedEvent:
        del blocking  # no thread spins here
        return SimulatedEvent(self.clock)

    def synchronize(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def free_workspaces(self) -> None:
        self.forgotten += 1

    @property
    def current(self) -> SimulatedStream:
        stack = getattr(_local, "streams", None)
        if not stack:
            stack = _local.streams = [self.stream()]
        return stack[-1]  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def using(self, stream: Any) -> Iterator[None]:
        stack = getattr(_local, "streams", None)
        if stack is None:
            stack = _local.streams = []
        stack.append(stream)
        try:
            yield
        finally:
            stack.pop()

    def upload(self, host: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        pinned = self.is_pinned(host)
        self.uploads.append(pinned)
        size = host.numel() * host.element_size() * self.speeds.byte * (1 if pinned else self.speeds.pageable)
        slot = _Slot()
        kind = dtype if dtype is not None and host.is_floating_point() else host.dtype
        memory = _memory(host)

        def copy() -> None:
            # A copy takes time, reads its source at the end, and does not keep it alive.
            self._takes("in", size)
            slot.value = memory().to(kind, copy=True)

        like = host.to(kind)
        self.current.put(copy)
        if not pinned:
            self.current.synchronize()
        return DeviceTensor.make(like, slot, self)

    def download(self, there: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
        assert isinstance(there, DeviceTensor), "it is not on the device"
        self.downloads.append(into is not None)
        size = there.numel() * there.element_size() * self.speeds.byte * (1 if into is not None else 2)
        host = torch.empty(there.shape, dtype=there.dtype) if into is None else into.view(there.shape)
        memory = _memory(host)

        def copy() -> None:
            self._takes("out", size)
            memory().copy_(_value(there))

        self.current.put(copy)
        if into is None:
            self.current.synchronize()
        return host

    def pinned(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty(elements, dtype=dtype)
        self._pinned.add(made.untyped_storage().data_ptr())
        self._kept.append(made)  # so that the address is not reused
        return made

    def is_pinned(self, host: torch.Tensor) -> bool:
        return host.untyped_storage().data_ptr() in self._pinned

    def is_here(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, DeviceTensor)

    @contextlib.contextmanager
    def warn_on_waits(self) -> Iterator[None]:
        self.telling = True
        try:
            yield
        finally:
            self.telling = False

    def enqueue(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Put an operator into the stream in use; returns tensors that will have its results."""
        self.launched += 1
        _spin(self.speeds.issue)
        meta = tree_map_only(torch.Tensor, _shape_only, (args, kwargs))
        shaped = func(*meta[0], **meta[1])
        inplace = func._schema.is_mutable
        target = args[0] if inplace else None
        slots = target.slot if isinstance(target, DeviceTensor) else None
        made = tree_map_only(torch.Tensor, lambda tensor: DeviceTensor.make(tensor, slots or _Slot(), self), shaped)
        outputs: list[DeviceTensor] = []
        tree_map_only(DeviceTensor, outputs.append, made)
        elements = sum(each.numel() for each in outputs)

        def run() -> None:
            self._takes("compute", self.speeds.operator + elements * self.speeds.per_element)
            real = tree_map_only(DeviceTensor, _value, (args, kwargs))
            found = func(*real[0], **real[1])
            values: list[torch.Tensor] = []
            tree_map_only(torch.Tensor, values.append, found)
            for each, value in zip(outputs, values, strict=True):
                each.slot.value = value

        self.current.put(run)
        return target if inplace and isinstance(target, DeviceTensor) else made

    def _takes(self, what: str, seconds: float) -> None:
        begun = time.perf_counter_ns()
        if seconds > 0:
            time.sleep(seconds)
        self.busy.append((what, begun, time.perf_counter_ns()))


def _memory(host: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The current content of a contiguous tensor's memory, even if it has been reused."""
    assert host.is_contiguous(), "copied in one piece"
    size, address = host.numel() * host.element_size(), host.data_ptr()
    shape, kind = tuple(host.shape), host.dtype
    return lambda: torch.frombuffer((ctypes.c_byte * size).from_address(address), dtype=kind).view(shape)


def _wait(reached: threading.Event) -> None:
    reached.wait()


def _shape_only(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
