"""What an engine learns and adjusts while it serves: estimates, batch limits, admission.

Without such settings there is no steering, and the request path is the same as without this module.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from latfix.errors import InputError
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.queueing.adaptive_batching import BatchController, Bounds, Seen
from latfix.queueing.serving_order import Ordering, Waiting
from latfix.runners.gpu_memory.batch_memory import PeakMemory
from latfix.runners.scheduling.admission import ConcurrencyLimit, DeadlineCheck
from latfix.runners.scheduling.batch_queue import Formed
from latfix.runners.scheduling.work_estimates import Batch, WorkEstimate
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

_MS = 1_000_000
#: Minimum of an adaptive concurrency limit, in full batches of all workers.
_LEAST_BATCHES = 2


def check_policies(settings: RunnerSettings) -> None:
    """Raise an InputError if the batching settings contradict each other; called before a model is loaded."""
    least, most = settings.window_least_ms, settings.window_most_ms
    if settings.batching == "adaptive" and least > most:
        raise InputError(
            f"[runner] found window_least_ms = {least:g} and window_most_ms = {most:g}; expected the first to be no "
            "larger than the second; set both"
        )
    if settings.devices != 1 and settings.memory_limit_mb:
        raise InputError(
            f"[runner] found memory_limit_mb = {settings.memory_limit_mb} with devices = {settings.devices}; the "
            "memory that batches need is measured on one device; set devices = 1 or remove the limit"
        )
    _check_overlap(settings)
    if settings.batching == "continuous" and settings.memory_limit_mb:
        raise InputError(
            f"[runner] found memory_limit_mb = {settings.memory_limit_mb} with batching = 'continuous'; requests "
            "that join between steps cannot be limited by memory; lower max_batch_size, or use 'fixed' or 'adaptive'"
        )


def _check_overlap(settings: RunnerSettings) -> None:
    """Raise an InputError for settings that conflict with ``overlap``, which takes batches ahead of time."""
    if not settings.overlap:
        return
    against = {
        # Copies from pageable memory block the host, and the previous batch then waits for its answers.
        "pinned_staging = false": not settings.pinned_staging,
        f"batching = {settings.batching!r}": settings.batching != "fixed",
        f"memory_limit_mb = {settings.memory_limit_mb}": settings.memory_limit_mb > 0,
        f"routing = {settings.routing!r}": settings.routing != "pull" and settings.workers > 1,
    }
    for setting, hit in against.items():
        if hit:
            wanted = "set pinned_staging = true" if "pinned" in setting else "remove one of them"
            raise InputError(f"[runner] found overlap = true with {setting}, which cannot be combined; {wanted}")


def check_key(settings: RunnerSettings, traffic: Traffic) -> None:
    """Check that the traffic has the feature by which requests are batched and ordered.

    :raises InputError: it has no such numeric feature; every request would go by its inputs' size instead.
    """
    numeric = sorted(name for name, column in traffic.features.items() if column.dtype.kind in "iuf")
    if settings.batch_key and settings.batch_key not in numeric:
        raise InputError(
            f"[runner] batch_key = {settings.batch_key!r}: the traffic has no numeric feature of that name; expected "
            f"{'one of ' + ', '.join(numeric) + ', or ' if numeric else ''}'' to use the size of the inputs"
        )


def ordering_of(settings: RunnerSettings) -> Ordering:
    return Ordering(schedule=settings.schedule, ageing_ns=int(settings.ageing_ms * _MS))


class Steering:
    """Estimates and controllers of one engine. All methods may be called by any thread.

    :param device: the model's device, to measure the memory of batches.
    :ivar limits: the controller of batch limits, if they are adaptive.
    :ivar peak: measures batches if their memory is limited.
    """

    def __init__(self, settings: RunnerSettings, device: str) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self.estimate = WorkEstimate()
        self.limits: BatchController | None = None
        self.concurrency: ConcurrencyLimit | None = None
        self.deadlines: DeadlineCheck | None = None
        self.peak = PeakMemory(device) if settings.memory_limit_mb else None
        if (bounds := Bounds.of(settings)) is not None:
            self.limits = BatchController(bounds)
        if settings.admission == "limit":
            least = _LEAST_BATCHES * settings.max_batch_size * settings.workers
            self.concurrency = ConcurrencyLimit(least=least, most=settings.max_queue)
        if settings.admission == "deadline":
            self.deadlines = DeadlineCheck(self.estimate, workers=settings.workers * settings.places)

    @classmethod
    def of(cls, settings: RunnerSettings, device: str) -> Steering | None:
        """The steering for the settings; ``None`` if they need none."""
        wanted = (
            settings.batching == "adaptive"
            or settings.schedule != "arrival"
            or settings.admission != "all"
            or settings.memory_limit_mb > 0
        )
        return cls(settings, device) if wanted else None

    def refusal(self, now_ns: int, expires_ns: int, inside: int) -> str:
        """Why a new request is refused; empty if it is admitted.

        :param expires_ns: when its caller gives up; 0 for never.
        :param inside: requests admitted and not yet ended.
        """
        if self.concurrency is not None and self.concurrency.refuses(inside):
            return f"{inside} requests were inside, as many as latency allows"
        if self.deadlines is not None and self.deadlines.refuses(now_ns, expires_ns, inside):
            return "it could not have been answered by its deadline"
        return ""

    def hopeless(self, item: Waiting, now_ns: int) -> bool:
        """True if a request whose turn has come is not worth serving."""
        return self.deadlines is not None and self.deadlines.hopeless(now_ns, item.expires_ns)

    def place(self, length: int, elements: int) -> tuple[float, int]:
        """The share of work and the bytes by which the queue orders and limits a request of a bucket length."""
        memory = self.estimate.memory_bytes(elements) if self.peak is not None else 0
        if self._settings.schedule == "work_per_byte":
            return self.estimate.sparseness(length, elements), memory
        return self.estimate.share(length), memory

    def served(
        self,
        recorder: StageRecorder,
        batch_id: int,
        formed: Formed,
        members: Sequence[Waiting],
        free_ns: int,
        end_ns: int,
        need_bytes: int = 0,
    ) -> None:
        """Learn from a batch of which these members ran; times are on the recorder's clock."""
        stamp = recorder.batch
        with self._lock:
            self.estimate.learn(
                Batch(
                    size=len(members),
                    longest=max(member.length for member in members),
                    total=sum(member.length for member in members),
                    elements=stamp["real_elements"][batch_id],
                    compute_ns=stamp["compute_end_ns"][batch_id] - stamp["collated_ns"][batch_id],
                    busy_ns=end_ns - formed.close_ns,
                    backlog=formed.left > 0,
                )
            )
            if self.peak is not None and self.peak.available:
                self.estimate.learn_memory(stamp["padded_elements"][batch_id], need_bytes)
            if self.limits is not None:
                self.limits.observe(
                    Seen(
                        size=len(members),
                        free_ns=free_ns,
                        close_ns=formed.close_ns,
                        end_ns=end_ns,
                        full=formed.full,
                        left=formed.left,
                        latencies_ns=[end_ns - int(recorder.scheduled_ns[member.slot]) for member in members],
                    )
                )

    def ended(self, latency_ns: int, inside: int) -> None:
        """Observe the latency of a request that was served in a batch."""
        if self.concurrency is not None:
            self.concurrency.observe(latency_ns, inside)

    def series(self) -> dict[str, float]:
        """The current state, as sampled series of the run."""
        series: dict[str, float] = {}
        if self.limits is not None:
            series["runner.batch_limit"] = self.limits.size
            series["runner.window_ms"] = self.limits.window_ns / _MS
            series["runner.latency_tail_ms"] = self.limits.tail_ns / _MS
        if self.concurrency is not None:
            series["runner.concurrency_limit"] = self.concurrency.limit
            series["runner.shed_at_limit"] = self.concurrency.shed
        if self.deadlines is not None:
            series["runner.refused_by_deadline"] = self.deadlines.refused
            series["runner.dropped_by_deadline"] = self.deadlines.dropped
        if self._settings.schedule != "arrival":
            series["runner.work_explained"] = self.estimate.line.explained
        if self.peak is not None:
            series["runner.bytes_per_element"] = self.estimate.memory_bytes(1_000_000) / 1e6
        return series

    def close(self) -> None:
        if self.peak is not None:
            self.peak.close()
