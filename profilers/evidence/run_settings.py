"""How a runner was set, and what was calibrated on its machine: what attribution needs to know beside the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.evidence.device_idle import DeviceProfile
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.schema import Columns
from latfix.settings import RunnerSettings
from latfix.statistics.distributions import normal_quantile

DEFAULT_MINOR_FAULT_NS = 500.0
#: Milliseconds that a step of a model takes at most.
_LONGEST_STEP_MS = 60_000.0
#: Standard error of a price that was not calibrated, as a share of it.
_UNKNOWN_PRICE = 0.5
#: Of a run that was killed before it told its own.
_CORES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the runner was set, and what was calibrated on its machine.

    :param window_most_ns: above ``window_ns`` where a controller moved the window between the two.
    :param ageing_ns: in which a waiting request gained a class; 0 for never.
    :param worker_devices: each worker's device, where the run told; the first one's series have no number.
    :param places: that a worker of the batches' column has, where requests join between steps.
    :param recorded: the queue's policy cannot be told afterwards, so that it is replayed as it was recorded.
    :param overlapped: batches were taken, and copied to the device, while others computed.
    :param device_profile: what a few batches did on the device, kernel by kernel; ``None`` where that is not known.
    :param device_waits: where in the model's code the host waits for the device.
    :param servers: of a service seen from outside, that one queue was seen to feed; 0 where that cannot be told, and
        ``None`` of latfix's own runner.
    :param expandable: torch's allocator maps pages on the device, where others take segments.
    :param copy_costs: by direction (``in``, ``out``), nanoseconds of a pinned copy, and for each of its bytes.
    """

    max_batch: int
    window_ns: int
    window_most_ns: int
    ageing_ns: int
    recorded: bool
    workers: int
    prepare_threads: int
    by_length: bool
    pooled: bool
    on_device: bool
    minor_fault_ns: float
    minor_fault_error: float
    calibrated: bool
    overlapped: bool = False
    device_profile: DeviceProfile | None = None
    device_waits: tuple[str, ...] = ()
    copy_costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    worker_devices: tuple[str, ...] = ()
    places: int = 1
    expandable: bool = False
    servers: int | None = None

    @property
    def outside(self) -> bool:
        """Whether the service is seen from outside only."""
        return self.servers is not None

    @classmethod
    def of(cls, meta: RunMeta, batches: Columns, rows: Columns, servers: int | None = None) -> Setup:
        settings, calibration = meta.settings, meta.calibration
        # Zero is the framework's default, a pool of as many threads as there are cores.
        threads = meta.torch_threads or settings.intra_op_threads or meta.cores or _CORES
        largest = int(batches["size"].max()) if len(batches["size"]) else 1
        workers = servers or max(settings.workers, len(np.unique(batches["worker"])), 1)
        pool = len(np.unique(rows["prepare_thread"][rows["prepare_thread"] >= 0]))
        fault = float(calibration.get("minor_fault_ns", 0.0))
        window, most = _window_ms(settings)
        continuous = settings.batching == "continuous"
        overlapped = settings.overlap and meta.device != "cpu"
        return cls(
            # Batched continuously, every place of a worker is a server of its own that takes one at a time.
            max_batch=1 if continuous or servers is not None else max(settings.max_batch_size, largest),
            window_ns=int(window * 1e6) if servers is None else 0,
            window_most_ns=int(most * 1e6) if servers is None else 0,
            ageing_ns=int(settings.ageing_ms * 1e6),
            recorded=settings.batching != "fixed"
            or settings.schedule != "arrival"
            or overlapped
            # Who was left what depends on how fast each worker was thought to be then.
            or (settings.routing != "pull" and workers > 1)
            or settings.memory_limit_mb > 0,
            workers=workers,
            prepare_threads=max(settings.prepare_threads, pool),
            by_length=settings.batch_order == "length",
            pooled=threads > 1 and servers is None,
            on_device=meta.device.startswith("cuda"),
            minor_fault_ns=fault if fault > 0 else DEFAULT_MINOR_FAULT_NS,
            minor_fault_error=_relative_error(calibration, "minor_fault") if fault > 0 else _UNKNOWN_PRICE,
            calibrated=fault > 0,
            overlapped=overlapped,
            device_profile=DeviceProfile.of(meta.device_profile),
            device_waits=meta.device_waits,
            copy_costs=_copy_costs(calibration),
            worker_devices=meta.worker_devices,
            places=settings.max_batch_size if continuous else 1,
            servers=servers,
            expandable=bool(meta.device_memory.get("settings", {}).get("expandable_segments")),
        )

    @property
    def crew(self) -> str:
        """Who serves: ``2 workers, batches of up to 8``, or the servers that one queue is seen to feed."""
        if self.servers is not None:
            return f"{self.servers} server{'s' * (self.servers != 1)}"
        workers = max(self.workers // self.places, 1)
        return f"{workers} worker{'s' * (workers != 1)}, batches of up to {max(self.max_batch, self.places)}"

    def device_numbers(self, worker: Ints) -> Ints:
        """``(m,)`` by batch, the number of its worker's device; -1 for the first worker's, or where none is told.

        :param worker: the batches' column.
        """
        devices = self.worker_devices
        if not devices:
            return np.full(len(worker), -1, np.int64)
        numbers = [-1 if device == devices[0] else _number(device) for device in devices]
        of_worker = np.clip(worker // self.places, 0, len(devices) - 1)
        return np.asarray(np.array(numbers, np.int64)[of_worker], dtype=np.int64)


def _number(device: str) -> int:
    """The number of a torch device string."""
    tail = device.rpartition(":")[2]
    return int(tail) if tail.isdigit() else 0


def _copy_costs(calibration: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    found = {}
    for direction in ("in", "out"):
        latency, per_mib = (calibration.get(f"copy_{direction}{part}_ns") for part in ("", "_mib"))
        if latency is not None and per_mib is not None:
            found[direction] = (float(latency), float(per_mib) / (1 << 20))
    return found


def _window_ms(settings: RunnerSettings) -> tuple[float, float]:
    """Between what the window lay; a request that joins others waits until the step that they are in ends."""
    if settings.batching == "continuous":
        return 0.0, _LONGEST_STEP_MS
    if settings.batching == "adaptive":
        return settings.window_least_ms, max(settings.window_most_ms, settings.window_least_ms)
    return settings.batch_window_ms, settings.batch_window_ms


def _relative_error(calibration: Mapping[str, float], name: str) -> float:
    """Standard error of a calibrated price as a share of it; 0 where no interval was recorded.

    The interval holds eight tenths of what the rounds of a calibration found; what a run pays is one more of them.
    """
    value, low, high = (float(calibration.get(f"{name}{end}_ns", 0.0)) for end in ("", "_low", "_high"))
    return max(high - low, 0.0) / (2 * normal_quantile(0.8) * value) if value > 0 else 0.0
