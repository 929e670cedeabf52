"""The runner's settings and its machine's calibration, as attribution needs them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import counted
from latfix.profilers.evidence.device_idle import DeviceProfile
from latfix.profilers.evidence.outside.outside_view import Serving
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.schema import Columns
from latfix.settings import RunnerSettings
from latfix.statistics.distributions import normal_quantile

#: Price of a minor page fault if it was not calibrated: some hundred nanoseconds on any machine.
DEFAULT_MINOR_FAULT_NS = 500.0
#: Largest duration of a model's step.
_LONGEST_STEP_MS = 60_000.0
#: Standard error of a price that was not calibrated, as a share of it.
_UNKNOWN_PRICE = 0.5
#: Cores of a run that was killed before it reported them.
_CORES = 2


class Setup:
    """The runner's settings and its machine's calibration.

    :ivar window_most_ns: above ``window_ns`` if a controller moved the window between the two.
    :ivar ageing_ns: time in which a waiting request gains a class; 0 for never.
    :ivar worker_devices: each worker's device, if recorded; series of the first device have no number.
    :ivar places: slots per worker with continuous batching; the batches' ``worker`` column counts slots.
    :ivar recorded: the queue's policy cannot be reconstructed, so the queue is replayed as recorded.
    :ivar overlapped: batches were taken, and copied to the device, while others computed.
    :ivar device_profile: device activity of a few profiled batches; ``None`` if unknown.
    :ivar device_waits: lines of the model's code at which the host waits for the device.
    :ivar stacks: sampled stacks, innermost frame first; ``workload_folder`` the folder with the user's own files.
    :ivar servers: of a service seen from outside, the servers behind its one queue; 0 if unknown, ``None`` for
        latfix's own runner; ``outside`` True for the former. ``rule`` how they gather batches, if they do.
        ``outside_ns`` time of a request before and after its server. ``behind`` names the processes that accept its
        connections, if the watched one does not: proxies, or ``--pid`` is wrong; else it is empty.
        ``processes`` of which each has such servers; ``unknown_process`` why these cannot be told apart.
    :ivar threads: that run the model: ``workers`` counts the places of each.
    :ivar expandable: torch's allocator maps pages on the device (expandable segments).
    :ivar copy_costs: by direction (``in``, ``out``), nanoseconds per pinned copy and per byte.
    """

    def __init__(
        self,
        meta: RunMeta,
        batches: Columns,
        rows: Columns,
        serving: Serving | None = None,
        processes: tuple[tuple[int, ...], str] = ((), ""),
    ) -> None:
        settings, calibration = meta.settings, meta.calibration
        # Zero is the framework's default: one thread per core.
        threads = meta.torch_threads or settings.intra_op_threads or meta.cores or _CORES
        largest = int(batches["size"].max()) if len(batches["size"]) else 1
        servers, rule = (None, None) if serving is None else (serving.servers, serving.rule)
        workers = servers or max(settings.workers, len(np.unique(batches["worker"])), 1)
        pool = len(np.unique(rows["prepare_thread"][rows["prepare_thread"] >= 0]))
        fault = float(calibration.get("minor_fault_ns", 0.0))
        window, most = _window_ms(settings)
        if serving is not None:
            window = most = 0.0 if rule is None else rule.window_ns / 1e6
        continuous = settings.batching == "continuous"
        overlapped = settings.overlap and meta.device != "cpu"
        # With continuous batching, every slot of a worker is a server that takes one request at a time.
        self.max_batch = 1 if continuous else max(settings.max_batch_size if serving is None else 1, largest)
        self.window_ns = int(window * 1e6)
        self.window_most_ns = int(most * 1e6)
        self.ageing_ns = int(settings.ageing_ms * 1e6)
        # The queue's replay knows no other timer than the arrival of a batch's first request.
        self.recorded = (
            (rule is not None and rule.window_ns > 0 and rule.timer != "arrival")
            or settings.batching != "fixed"
            or settings.schedule != "arrival"
            or overlapped
            # Routing depended on the estimated speed of each worker at the time.
            or (settings.routing != "pull" and workers > 1)
            or settings.memory_limit_mb > 0
        )
        self.workers = workers
        self.prepare_threads = max(settings.prepare_threads, pool)
        self.by_length = settings.batch_order == "length"
        self.pooled = threads > 1 and serving is None
        self.on_device = meta.device.startswith("cuda")
        self.minor_fault_ns = fault if fault > 0 else DEFAULT_MINOR_FAULT_NS
        self.minor_fault_error = _relative_error(calibration, "minor_fault") if fault > 0 else _UNKNOWN_PRICE
        self.calibrated = fault > 0
        # An event loop hands out a batch's answers while the next one is computed.
        until_first = serving is not None and serving.until_first
        self.overlapped = overlapped or rule is not None or until_first
        self.device_profile = DeviceProfile.of(meta.device_profile)
        self.device_waits = meta.device_waits
        self.stacks, self.workload_folder = meta.stacks, meta.workload_folder
        self.copy_costs = _copy_costs(calibration)
        self.worker_devices = meta.worker_devices
        self.places = settings.places
        self.threads = -(-workers // settings.places)
        self.servers, self.outside, self.rule = servers, servers is not None, rule
        self.processes, self.unknown_process = max(len(processes[0]), 1), processes[1]
        self.outside_ns = 0 if serving is None else serving.outside_ns
        listening = meta.http.get("listening", {}) if meta.http.get("accepts") is False else {}
        self.behind = ", ".join(f"{pid} ({program})" for pid, program in listening.items())
        self.expandable = bool(meta.device_memory.get("settings", {}).get("expandable_segments"))

    @property
    def batched(self) -> bool:
        """False for a service seen from outside that shows no batches: single requests stand for them."""
        return not self.outside or self.rule is not None

    @property
    def capacity_text(self) -> str:
        """``2 workers, batches of up to 8``, or for a service seen from outside ``2 servers``."""
        if self.servers is not None and self.rule is None:
            each = f" in each of {self.processes} processes" if self.processes > 1 else ""
            return f"{counted(self.servers, 'server')}{each}"
        return f"{counted(self.threads, 'worker')}, batches of up to {max(self.max_batch, self.places)}"

    def device_numbers(self, worker: Ints) -> Ints:
        """``(m,)`` the number of each batch's device; -1 for the first worker's device, or if unknown.

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
    """Bounds of the batch window. With continuous batching, a request waits for the end of the current step."""
    if settings.batching == "continuous":
        return 0.0, _LONGEST_STEP_MS
    if settings.batching == "adaptive":
        return settings.window_least_ms, max(settings.window_most_ms, settings.window_least_ms)
    return settings.batch_window_ms, settings.batch_window_ms


def _relative_error(calibration: Mapping[str, float], name: str) -> float:
    """Relative standard error of a calibrated price; 0 without a recorded interval.

    A run's price is like one more round of the calibration, which the interval holds in 80 % of cases.
    """
    value, low, high = (float(calibration.get(f"{name}{end}_ns", 0.0)) for end in ("", "_low", "_high"))
    return max(high - low, 0.0) / (2 * normal_quantile(0.8) * value) if value > 0 else 0.0
