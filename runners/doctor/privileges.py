"""What this user and this container may do, and which of latfix's probes can see."""

from __future__ import annotations

from collections.abc import Iterator

from latfix.profilers.probes.control_groups import CgroupThrottle
from latfix.profilers.probes.thread_counters import ThreadCounters
from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.findings import costs, note, ok, untold
from latfix.runners.host.privileges import least_nice, lockable_bytes, mib

#: A connection takes one, as does every file of the model and of the record.
_FEW_FILES = 1024
_WANTED_NICE = -10
_LITTLE_LOCKED = 64 << 20


def limits() -> Iterator[Finding]:
    """Findings about permissions and probes."""
    yield from _files()
    yield _priority()
    yield _locking()
    yield _run_queue()
    yield _throttling()


def _files() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # not a Unix system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _FEW_FILES:
        said = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        yield ok("limits.files", f"open files: {said}")
        return
    more = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard}"
    yield costs(
        "limits.files",
        f"open files: {soft:,} at most",
        "a service with as many clients refuses the next connection",
        f"ulimit -n {more}" if more != str(soft) else "LimitNOFILE=65536 in the service's unit",
    )


def _priority() -> Finding:
    least = least_nice()
    if least <= _WANTED_NICE:
        return ok("limits.priority", f"threads may run at nice {least}")
    return note(
        "limits.priority",
        f"threads may not run below nice {least}",
        "latfix optimize cannot try host.priority against other programs",
        "docker run --cap-add SYS_NICE, or LimitNICE=-10 in the service's unit",
        causes=("host.contention",),
    )


def _locking() -> Finding:
    limit = lockable_bytes()
    if limit is None or limit >= _LITTLE_LOCKED:
        said = "no limit" if limit is None else mib(limit)
        return ok("limits.locking", f"memory that may be locked: {said}")
    return note(
        "limits.locking",
        f"memory that may be locked: {mib(limit)}",
        "touched memory (memory.page_prefault, warmup.resident) cannot be kept from being swapped out",
        "ulimit -l unlimited, docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity in the service's unit",
    )


def _run_queue() -> Finding:
    counters = ThreadCounters()
    try:
        if counters.has_run_delay:
            return ok("limits.run_queue", "the kernel counts how long each thread waited for a core")
    finally:
        counters.close()
    return untold(
        "limits.run_queue",
        "the kernel does not count how long a thread waited for a core (no /proc/thread-self/schedstat)",
        "host.contention is not measured, and what it costs stays in unexplained",
    )


def _throttling() -> Finding:
    if CgroupThrottle().available:
        return ok("limits.throttling", "the control group counts time throttled by its quota")
    return untold(
        "limits.throttling",
        "no control group counts throttled time",
        "host.throttle is not measured, and what it costs stays in unexplained",
    )
