"""How a runner was set, and what was calibrated on its machine: what attribution needs to know beside the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.profilers.evidence.device_idle import DeviceProfile
from latfix.run_record.schema import Columns

Ints = npt.NDArray[np.int64]
DEFAULT_MINOR_FAULT_NS = 500.0
#: Milliseconds that a step of a model takes at most.
_LONGEST_STEP_MS = 60_000.0
#: Standard error of a price that was not calibrated, as a share of it.
_UNKNOWN_PRICE = 0.5


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

    @classmethod
    def of(cls, meta: Mapping[str, Any], batches: Columns, rows: Columns) -> Setup:
        settings = meta.get("settings", {})
        calibration = meta.get("calibration") or {}
        # Zero is the framework's default, a pool of as many threads as there are cores.
        threads = int(meta.get("torch_threads", settings.get("intra_op_threads", 1) or meta.get("cores", 2)))
        largest = int(batches["size"].max()) if len(batches["size"]) else 1
        workers = len(np.unique(batches["worker"]))
        pool = len(np.unique(rows["prepare_thread"][rows["prepare_thread"] >= 0]))
        fault = float(calibration.get("minor_fault_ns", 0.0))
        window, most = _window_ms(settings)
        continuous = settings.get("batching") == "continuous"
        overlapped = bool(settings.get("overlap")) and str(meta.get("device", "cpu")) != "cpu"
        return cls(
            # Batched continuously, every place of a worker is a server of its own that takes one at a time.
            max_batch=1 if continuous else max(int(settings.get("max_batch_size", largest)), largest, 1),
            window_ns=max(int(window * 1e6), 0),
            window_most_ns=max(int(most * 1e6), 0),
            ageing_ns=int(float(settings.get("ageing_ms", 0.0)) * 1e6),
            recorded=settings.get("batching", "fixed") != "fixed"
            or settings.get("schedule", "arrival") != "arrival"
            or overlapped
            # Who was left what depends on how fast each worker was thought to be then.
            or (settings.get("routing", "pull") != "pull" and int(settings.get("workers", workers)) > 1)
            or int(settings.get("memory_limit_mb", 0)) > 0,
            workers=max(int(settings.get("workers", workers)), workers, 1),
            prepare_threads=max(int(settings.get("prepare_threads", pool)), pool, 1),
            by_length=settings.get("batch_order") == "length",
            pooled=threads > 1,
            on_device=str(meta.get("device", "cpu")).startswith("cuda"),
            minor_fault_ns=fault if fault > 0 else DEFAULT_MINOR_FAULT_NS,
            minor_fault_error=_relative_error(calibration, "minor_fault") if fault > 0 else _UNKNOWN_PRICE,
            calibrated=fault > 0,
            overlapped=overlapped,
            device_profile=DeviceProfile.of(meta),
            device_waits=tuple(str(place) for place in meta.get("device_waits") or ()),
            copy_costs=_copy_costs(calibration),
            worker_devices=tuple(str(device) for device in meta.get("worker_devices") or ()),
            places=max(int(settings.get("max_batch_size", 1)), 1) if continuous else 1,
            expandable=bool((meta.get("device_memory") or {}).get("settings", {}).get("expandable_segments")),
        )

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


def _copy_costs(calibration: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    found = {}
    for direction in ("in", "out"):
        latency, per_mib = (calibration.get(f"copy_{direction}{part}_ns") for part in ("", "_mib"))
        if latency is not None and per_mib is not None:
            found[direction] = (float(latency), float(per_mib) / (1 << 20))
    return found


def _window_ms(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Between what the window lay; a request that joins others waits until the step that they are in ends."""
    batching = settings.get("batching", "fixed")
    if batching == "continuous":
        return 0.0, _LONGEST_STEP_MS
    if batching == "adaptive":
        least = float(settings.get("window_least_ms", 0.0))
        return least, max(float(settings.get("window_most_ms", least)), least)
    fixed = float(settings.get("batch_window_ms", 0.0))
    return fixed, fixed


def _relative_error(calibration: Mapping[str, Any], name: str) -> float:
    """Standard error of a calibrated price as a share of it, from its 95 % interval; 0 where none was recorded."""
    value, low, high = (float(calibration.get(f"{name}{end}_ns", 0.0)) for end in ("", "_low", "_high"))
    return max(high - low, 0.0) / (2 * 1.96 * value) if value > 0 else 0.0
