"""The columns of a run's record: the contract between the runner and all readers.

All times are integer nanoseconds. Points in time count from the start of the measured run (``t0``) on the
runner's monotonic clock (``time.perf_counter_ns``); warm-up requests therefore have negative arrivals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.stages import STAGES

Columns = dict[str, npt.NDArray[Any]]

#: One thread's work over an interval, from two snapshots of its counters: on-CPU time, time runnable but not running
#: (including cgroup throttling), voluntary and involuntary switches, page faults, and 1 if it computed with denormal
#: numbers.
THREAD_ACCOUNT: tuple[str, ...] = ("cpu_ns", "runq_ns", "vcsw", "icsw", "minflt", "majflt", "denormals")


#: The whole process over the same interval: CPU time of all its threads; signed changes of its private writable
#: mappings, resident memory, arenas of the C library, mapped blocks, and bytes in use of both; then the free bytes in
#: arenas at the start. Memory is read only for units that fault pages in; otherwise, and for a heap that takes long
#: to read, these are zero.
PROCESS_ACCOUNT: tuple[str, ...] = (
    "process_cpu_ns",
    "mapped_bytes",
    "resident_bytes",
    "arena_bytes",
    "blocks_bytes",
    "used_bytes",
    "free_bytes",
)


def _account(prefix: str, names: tuple[str, ...] = THREAD_ACCOUNT) -> list[tuple[str, str]]:
    return [(f"{prefix}_{name}", "<i8") for name in names]


#: One row per request, in segments on disk and in memory.
REQUEST_DTYPE = np.dtype(
    [
        ("index", "<i8"),  # position in the replayed schedule; warm-up: -1, -2, … in the order sent
        ("arrival_ns", "<i8"),  # scheduled arrival
        *[(f"{stage}_ns", "<i8") for stage in STAGES],
        ("latency_ns", "<i8"),  # exactly the sum of the stages
        ("status", "<i8"),  # latfix.stages.Status
        ("batch_id", "<i8"),  # -1: in no batch
        ("warmup", "<i8"),
        ("prepare_thread", "<i8"),  # index of the prepare thread; -1: not prepared
        # Parts of `prepare` and `finish` (both inside the stage):
        ("prepare_wait_ns", "<i8"),  # handed over -> a prepare thread picked it up
        ("prepare_wake_runq_ns", "<i8"),  # of that, run-queue delay of the prepare thread since its last request
        ("intake_ns", "<i8"),  # of prepare_wait: handed over -> the service's interpreter accepted it
        ("intake_runq_ns", "<i8"),  # of that, run-queue delay of the intake thread, if it was late
        ("finish_wait_ns", "<i8"),  # the batch's other members were finished first
        ("prepare_span_ns", "<i8"),  # declared with latfix.span, outermost spans only
        ("finish_span_ns", "<i8"),
        *_account("prepare"),  # of the prepare thread, over its own work on this request
        *_account("finish"),  # of the worker's thread, from the end of compute or of the last member's finish
        *_account("prepare", PROCESS_ACCOUNT),
        *_account("finish", PROCESS_ACCOUNT),
        ("input_elements", "<i8"),  # elements in all tensors that prepare returned
        ("input_length", "<i8"),  # largest size of dimension 0 among them
        ("input_width", "<i8"),  # size of the last dimension of the largest tensor
        ("bucket_length", "<i8"),  # the length for batches by length: elements, or the feature of batch_key
        # Of a request to a service behind an address; zero elsewhere:
        ("send_ns", "<i8"),  # of `prepare`, which also opens a connection if none is idle: writing the request
        ("http_status", "<i8"),  # of the answer; 0: none came
        ("new_connection", "<i8"),  # 1: a connection was opened for it
        ("client_port", "<i8"),  # of the connection's own end; 0: unknown
        ("sent_bytes", "<i8"),  # of the request, head and body
        ("received_bytes", "<i8"),  # of the answer, head and body
        ("chunks", "<i8"),  # parts of a streamed answer that carried output
        ("output_tokens", "<i8"),  # as stated by the answer, otherwise the number of its parts
        ("first_token_ns", "<i8"),  # scheduled arrival -> the first part that carried output
    ]
)

#: One row per batch.
BATCH_DTYPE = np.dtype(
    [
        ("batch_id", "<i8"),
        ("worker", "<i8"),
        ("size", "<i8"),
        ("warmup", "<i8"),
        ("free_ns", "<i8"),  # the worker became free: end of its previous batch (run's start for the first)
        ("open_ns", "<i8"),  # first member taken: the later of free_ns and that member's enqueue
        ("close_ns", "<i8"),  # membership fixed (full, or the window ended)
        ("collated_ns", "<i8"),  # collate done, host-to-device copy begins
        ("h2d_end_ns", "<i8"),  # compute begins
        ("compute_end_ns", "<i8"),
        ("d2h_end_ns", "<i8"),  # finish of the first member begins
        ("finish_end_ns", "<i8"),  # last member finished; the worker is free again
        *_account("collate"),  # of the worker's thread, close -> collated
        *_account("compute"),  # of the worker's thread, h2d end -> compute end
        ("pool_runq_ns", "<i8"),  # largest run-queue delay of one intra-op pool thread during compute
        ("process_cpu_ns", "<i8"),  # CPU time of the whole process during compute
        *_account("collate", PROCESS_ACCOUNT),
        *_account("compute", PROCESS_ACCOUNT[1:]),  # its CPU time is process_cpu_ns
        ("wake_runq_ns", "<i8"),  # run-queue delay of the worker's thread since its last batch: part of queue and lag
        ("throttled_ns", "<i8"),  # growth of the cgroup's throttled time, read at the end of this batch
        ("real_elements", "<i8"),  # sum of its members' input_elements
        ("padded_elements", "<i8"),  # elements of the collated batch
        ("padded_length", "<i8"),  # largest size of dimension 1 among its tensors (0 if there is none)
        ("first_shape", "<i8"),  # 1: the first batch of this shape in this process, warm-up included
        ("retried", "<i8"),  # 1: it failed as a batch and its members ran one by one
        # On a device other than the host; zero elsewhere. Lengths by the device's own clock:
        ("copy_in_ns", "<i8"),  # begin to end of the copy in
        ("device_ns", "<i8"),  # begin to end of the compute
        ("copy_out_ns", "<i8"),
        ("copy_in_bytes", "<i8"),
        ("copy_out_bytes", "<i8"),
        ("pageable_bytes", "<i8"),  # of both, from or to memory that is not pinned
        ("issue_ns", "<i8"),  # the host's call of the model, which puts the work into the stream
        ("lead_ns", "<i8"),  # from that call's return to the end of compute: how far the host was ahead; signed
        ("clock_slack_ns", "<i8"),  # uncertainty of the device's stamps on the host's clock
        ("ahead_ns", "<i8"),  # how long before its turn all of it was enqueued, while the previous batch ran
        ("copy_in_issue_ns", "<i8"),  # the host's time to issue its copies in, first to last
        ("copy_out_issue_ns", "<i8"),  # and out
        ("graph", "<i8"),  # 1: it ran as a captured graph; -1: graphs were captured and none fitted
        # On CUDA, read after its last member's finish; changes since the last reading, by any worker's batch:
        ("device_read", "<i8"),  # 1: read; 0: not read, and the columns below are zero
        ("alloc_retries", "<i8"),  # the allocator freed all cached memory because the device had no more
        ("alloc_syncs", "<i8"),  # the allocator waited for all streams
        ("device_allocs", "<i8"),  # segments taken from the device
        ("device_frees", "<i8"),  # segments given back
        ("device_taken_bytes", "<i8"),  # bytes of those taken
        ("device_given_bytes", "<i8"),
        ("device_reserved_bytes", "<i8"),  # held from the device at the reading
        ("device_allocated_bytes", "<i8"),  # of that, in use
        ("device_pieces_bytes", "<i8"),  # free in partly used segments
    ]
)

#: Times of a batch on the run's clock.
BATCH_TIMES = (
    "free_ns",
    "open_ns",
    "close_ns",
    "collated_ns",
    "h2d_end_ns",
    "compute_end_ns",
    "d2h_end_ns",
    "finish_end_ns",
)
#: Kinds of rows in ``events.parquet``. ``detail`` is JSON.
EVENT_KINDS: tuple[str, ...] = ("gc", "compile", "span", "spike", "error", "note", "stream", "hang", "server")
#: ``gc``: a collection, in ``thread`` (native id); detail {"generation", "collected"}.
#: ``compile``: torch._dynamo compiled or recompiled, in ``thread``; detail {"trigger"}.
#: ``span``: a declared span; ``request`` is the schedule index; detail {"name", "stage"}.
#: ``spike``: a probe's own poll took over a millisecond; detail {"probe"}.
#: ``error``: a request failed; ``request`` and detail {"message", "stage"}.
#: ``stream``: a streamed answer, ``duration_ns`` from its first part to its last; detail {"gaps_us"}: each wait
#: between two parts.
#: ``hang``: a batch, or a prepare, still in progress when the run ended, in ``thread``; detail {"message", "what",
#: "stack"}, innermost frame last.
#: ``server``: a request in the service's own recording; ``t_ns`` its scheduled arrival, ``duration_ns`` all of its
#: time at the service; detail {"source", "dependencies", "queue", "prefill", "compute", "decode"}, nanoseconds.
#: ``note``: a message of the runner for readers; detail {"message"}.
SERVER_EVENT = "server"
EVENT_FIELDS: tuple[str, ...] = ("t_ns", "duration_ns", "kind", "thread", "request", "batch_id", "detail")
SAMPLE_FIELDS: tuple[str, ...] = ("t_ns", "series", "value")
PACE = "host.pace_ns"
#: Series with a GPU's utilization by this process, and by all others, in percent.
OWN_UTIL, OTHERS_UTIL = "nvml.own_sm_util", "nvml.others_sm_util"


#: Series in ``samples.parquet``, sampled on a separate thread. Counters are absolute readings.
#: host.cpu_busy_ns, host.steal_ns: all cores of the machine, from /proc/stat (10 ms resolution)
#: host.pace_ns: on-CPU time of a small fixed computation; it grows when the machine computes slower
#: process.cpu_ns, process.rss_bytes, process.threads, process.minflt, process.majflt
#: python.blocks: memory blocks handed out by Python's allocator, about the number of live objects
#: cgroup.throttled_ns, cgroup.nr_throttled, cgroup.cpu_ns (absent without a readable cpu.stat)
#: neighbor.throttled_ns.<name>: of visible sibling control groups that have a quota
#: pressure.cpu_some_us, pressure.memory_some_us, pressure.io_some_us (absent without PSI)
#: malloc.arena_bytes, malloc.used_bytes, malloc.free_bytes, malloc.mmapped_bytes, malloc.trimmable_bytes: read less
#: often if reading takes long, because it walks all free chunks
#: compile.limit_hits: how often torch gave up recompiling a function (absent until it compiles something)
#: gc.tracked_objects is not sampled: counting them walks the heap.
#: gil.wait_ns: how long a thread that woke at ``t_ns`` waited for the interpreter lock, every 20 ms
#: host.stall_ns: how much later than ``t_ns`` that thread ran although it waited for neither core nor lock; only if
#: over a millisecond
#: stack.worker.<k>, stack.prepare.<k>: index into ``stacks`` of run.json of the thread's stack when the probe above
#: had the lock; no row if it ran no code of the user
#: gil.switch_interval_ns: after which Python asks the holder to release the lock; read once
#: thread.<name>.cpu_ns, thread.<name>.runq_ns: of each Python thread (same names together), a bounded number of
#: them; thread.native.*: all threads that Python did not start
#: cost.<name>: unit costs of the machine (``calibration`` of ``run.json``), once
#: cuda.allocated_bytes, cuda.reserved_bytes, cuda.inactive_split_bytes, cuda.alloc_retries, cuda.ooms,
#: cuda.device_allocs, cuda.device_frees, cuda.sync_all_streams
#: cuda.largest_free_block_bytes, cuda.free_blocks: free blocks in the allocator's segments, every five seconds, less
#: often if reading takes long
#: nvml.gpu_util, nvml.memory_util (per cent), nvml.memory_used_bytes, nvml.memory_total_bytes, nvml.power_w,
#: nvml.temperature_c, nvml.sm_clock_mhz, nvml.mem_clock_mhz, nvml.clock_event_reasons (bits),
#: nvml.pcie_generation, nvml.pcie_width, nvml.pcie_sent_bytes_per_s, nvml.pcie_received_bytes_per_s,
#: nvml.processes, nvml.memory_own_bytes, nvml.memory_others_bytes, nvml.own_sm_util, nvml.others_sm_util,
#: nvml.gpm_sm_util, nvml.gpm_sm_occupancy, nvml.gpm_tensor_util, nvml.gpm_dram_util (per cent)
#: since the previous poll: nvml.violation_<reason>_ns, nvml.pcie_replays, nvml.ecc_corrected, nvml.ecc_uncorrected
#: nvml.* exist if the device reports them; a metric that it refuses for good is not requested again.
#: With several devices, nvml.* and cuda.* are those of the first worker's device; for others, torch's device number
#: follows the first word: nvml.1.sm_clock_mhz, cuda.1.allocated_bytes. ``worker_devices`` of ``run.json`` names each
#: worker's device.
#: core time of other processes since the previous reading, about every second: other.all.spent_ns together;
#: other.<pid>.<name>.spent_ns of the five largest, with turn_ns if they keep a core for a millisecond and more at a
#: time; latfix.spent_ns of the process that waits for the replay
#: runner.queue_depth, runner.in_flight
#: with weighted routing, runner.worker_<k>.weight: how many times longer than the fastest a worker (of the first 32)
#: is estimated to take; runner.left_to_faster: how often a free worker left waiting requests to others;
#: runner.probes: how often a slow one was tried
#: of a process that serves over HTTP, all of its threads and children together: server.cpu_ns, server.runq_ns,
#: server.threads, server.cores (on which it may run), server.minflt, server.majflt, server.disk_ns (waits for disks),
#: server.vcsw, server.icsw, server.rss_bytes, server.throttled_ns,
#: server.processes, server.futex.<place>, server.futex_one, server.futex_python, server.epoll (threads that wait),
#: server.thread.<number> (its time on a core since the previous poll, from 1 ms);
#: pid.<pid>.<…>: the same of each of several processes that ran; connection.<client's port>: the
#: process that holds the service's end of that connection from then on
#: metrics.<name>: its figures under /metrics
#: poll.<probe>_ns: duration of the probe's own poll


def device_series(series: str, number: int) -> str:
    """The name of a device's series: unchanged for the first, ``nvml.2.sm_clock_mhz`` for another.

    :param number: of the device, as in ``cuda:2``; -1 for the first worker's.
    """
    kind, _, name = series.partition(".")
    return series if number < 0 else f"{kind}.{number}.{name}"
