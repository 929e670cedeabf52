"""Limits of this user and container, and which of latfix's probes work."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from latfix.formatting import mebibytes
from latfix.profilers.probes.control_groups import CgroupThrottle
from latfix.profilers.probes.thread_counters import ThreadCounters
from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.findings import costs, note, ok, unknown
from latfix.runners.host.privileges import least_nice, lockable_bytes

#: Every connection takes a descriptor, as does every file of the model and the record.
_FEW_FILES = 1024
_WANTED_NICE = -10
_LITTLE_LOCKED = 64 << 20


def limits() -> Iterator[Finding]:
    yield _files()
    yield _priority()
    yield _locking()
    yield _run_queue()
    yield _throttling()


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _FEW_FILES:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        return ok("limits.files", f"open files: {limit}")
    more = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard}"
    return costs(
        "limits.files",
        f"open files: {soft:,} at most",
        "once that many files and connections are open, the service refuses new connections",
        f"ulimit -n {more}" if more != str(soft) else "LimitNOFILE=65536 in the service's unit",
    )


def _priority() -> Finding:
    least = least_nice()
    if least <= _WANTED_NICE:
        return ok("limits.priority", f"threads may run at nice {least}")
    return note(
        "limits.priority",
        f"threads may not run below nice {least}",
        "latfix optimize cannot give the service priority over other programs (host.priority)",
        "docker run --cap-add SYS_NICE, or LimitNICE=-10 in the service's unit",
        causes=("host.contention",),
    )


def _locking() -> Finding:
    limit = lockable_bytes()
    if limit is None or limit >= _LITTLE_LOCKED:
        return ok("limits.locking", f"lockable memory: {'no limit' if limit is None else mebibytes(limit)}")
    return note(
        "limits.locking",
        f"lockable memory: {mebibytes(limit)}",
        "prefaulted memory (memory.page_prefault, warmup.resident) can still be swapped out",
        "ulimit -l unlimited, docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity in the service's unit",
    )


def _run_queue() -> Finding:
    counters = ThreadCounters()
    try:
        if counters.has_run_delay:
            return ok("limits.run_queue", "the kernel counts how long each thread waits for a core")
    finally:
        counters.close()
    return unknown(
        "limits.run_queue",
        "the kernel does not count how long threads wait for a core (no /proc/thread-self/schedstat)",
        "host.contention is not measured; its cost stays unexplained",
    )


def _throttling() -> Finding:
    if CgroupThrottle().available:
        return ok("limits.throttling", "the control group counts the time throttled by its quota")
    return unknown(
        "limits.throttling",
        "no control group counts throttled time",
        "host.throttle is not measured; its cost stays unexplained",
    )
