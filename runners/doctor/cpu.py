"""Cores, their clock and idle states, and who else has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from latfix.profilers.probes.control_groups import ControlGroups
from latfix.results.doctor_finding import Finding
from latfix.run_record.run_meta import BUSY_BEFORE
from latfix.runners.doctor.findings import costs, note, ok, untold
from latfix.runners.host.cpu_topology import Cores, allowed_cores, cores_text
from latfix.runners.host.kernel_files import System, whole

_CPU = "/sys/devices/system/cpu"
#: Instruction sets that reduced precision needs to pay, by the kernel's name of the flag.
_FLAGS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_int8": "AMX int8",
    "amx_bf16": "AMX bf16",
    "asimd": "NEON",
    "asimddp": "NEON dot product",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "SVE",
}
_INT8 = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}
#: An idle state that takes longer to leave than this shows in the latency of a service that is idle between requests.
_SLOW_EXIT_US = 50
_STEAL_SHARE = 0.005


def processor(system: System, cores: Cores | None = None) -> Iterator[Finding]:
    """Findings about the processor.

    :param cores: that this process may use; by default the kernel is asked.
    """
    usable = allowed_cores() if cores is None else cores
    yield _model(system, usable)
    yield _quota(system, usable)
    yield _governor(system, usable)
    yield _idle_states(system, usable)
    yield from _turbo(system)
    yield _siblings(system, usable)
    yield _steal(system)
    yield _load(system)
    yield _clock(system)
    yield from _isolated(system)
    yield from _nodes(system)


def _model(system: System, usable: Cores) -> Finding:
    info = system.text("/proc/cpuinfo") or ""
    pairs = [line.partition(":")[::2] for line in info.splitlines()]
    fields = {name.strip(): value.strip() for name, value in reversed(pairs)}
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    known = ", ".join(label for flag, label in _FLAGS.items() if flag in flags) or "no vector extension that is known"
    name = fields.get("model name") or "processor of unknown model"
    present = system.text(f"{_CPU}/present") or "unknown"
    found = f"{name}; cores {cores_text(usable) or 'unknown'} usable of {present}; {known}"
    if flags and not flags & _INT8:
        return costs(
            "processor.model",
            found,
            "no dot product of 8-bit numbers: int8 quantization gains little or nothing here",
        )
    return note("processor.model", found)


def _quota(system: System, usable: Cores) -> Finding:
    groups = ControlGroups(system.root)
    quota, throttled = groups.cpu_quota(), groups.cpu_counters()
    share = throttled.get("nr_throttled", 0) / throttled["nr_periods"] if throttled else 0.0
    if quota is None or (usable and quota >= len(usable) and not share):
        told = "no CPU quota" if quota is None else f"CPU quota of {quota:g} cores, as many as are usable"
        return ok("processor.quota", told)
    seen = f"; throttled in {share:.1%} of the periods so far" if throttled else ""
    return costs(
        "processor.quota",
        f"CPU quota of {quota:g} cores, {len(usable)} cores usable{seen}",
        "a burst of threads uses a period's share at once, and everything then stands still for up to 100 ms",
        "limit threads to the quota (host.threads), or raise it: docker update --cpus N, resources.limits.cpu",
        causes=("host.throttle",),
    )


def _governor(system: System, usable: Cores) -> Finding:
    chosen = Counter(
        governor
        for core in usable
        if (governor := system.text(f"{_CPU}/cpu{core}/cpufreq/scaling_governor")) is not None
    )
    if not chosen:
        return untold("processor.governor", "no frequency governor is shown; on a virtual machine the host decides")
    found = "frequency governor: " + ", ".join(f"{name} on {count} cores" for name, count in chosen.items())
    if set(chosen) == {"performance"}:
        return ok("processor.governor", found)
    return costs(
        "processor.governor",
        found,
        "the clock falls between requests and takes milliseconds to rise: what comes after a pause is slower",
        "sudo cpupower frequency-set -g performance",
        causes=("host.slowdown", "cold.warmup"),
    )


def _idle_states(system: System, usable: Cores) -> Finding:
    states = [
        (latency, name)
        for core in usable[:1]
        for folder in system.glob(f"{_CPU}/cpu{core}/cpuidle/state[0-9]*")
        if system.number(f"{folder}/disable") != 1
        and (latency := system.number(f"{folder}/latency")) is not None
        and (name := system.text(f"{folder}/name"))
    ]
    if not states:
        return untold("processor.idle_states", "no idle states are shown; on a virtual machine the host decides")
    latency, name = max(states)
    found = f"deepest idle state {name}, {latency} µs to leave"
    if latency <= _SLOW_EXIT_US:
        return ok("processor.idle_states", found)
    return costs(
        "processor.idle_states",
        found,
        f"each of several threads that wake for a request may start {latency} µs late",
        f"sudo cpupower idle-set -D {_SLOW_EXIT_US}",
        causes=("host.slowdown",),
    )


def _turbo(system: System) -> Iterator[Finding]:
    boost, no_turbo = system.number(f"{_CPU}/cpufreq/boost"), system.number(f"{_CPU}/intel_pstate/no_turbo")
    if boost is not None or no_turbo is not None:
        on = boost == 1 or no_turbo == 0
        yield note(
            "processor.turbo",
            "turbo clocks are on: speed depends on how many cores are busy, and on temperature"
            if on
            else "turbo clocks are off: slower, and steady",
        )


def _siblings(system: System, usable: Cores) -> Finding:
    shared = {
        siblings
        for core in usable
        if (siblings := system.text(f"{_CPU}/cpu{core}/topology/thread_siblings_list")) is not None
    }
    if not usable or not shared:
        return untold("processor.siblings", "the kernel does not show which cores are one")
    if len(shared) >= len(usable):
        return ok("processor.siblings", "each usable core is a physical core's only thread")
    return costs(
        "processor.siblings",
        f"{len(usable)} usable cores are threads of {len(shared)} physical ones",
        "two threads of compute on one physical core each run at little more than half its speed",
        "one thread per physical core (host.threads, host.pin)",
        causes=("host.contention", "host.slowdown"),
    )


def _steal(system: System) -> Finding:
    words = next(
        (line.split() for line in (system.text("/proc/stat") or "").splitlines() if line.startswith("cpu ")), []
    )
    ticks = [value for word in words[1:9] if (value := whole(word)) is not None]
    if len(ticks) < 8 or not sum(ticks):
        return untold("processor.steal", "the kernel does not show stolen time")
    share = ticks[7] / sum(ticks)
    busy = sum(ticks) - ticks[3] - ticks[4]
    of_busy = ticks[7] / busy if busy else 0.0
    found = f"the hypervisor gave others {share:.2%} of the time since the start, {of_busy:.2%} of what was wanted"
    if of_busy < _STEAL_SHARE:
        return ok("processor.steal", found)
    return costs(
        "processor.steal",
        found,
        "requests stand still for milliseconds while a neighbor on the same host computes",
        "an instance type with cores of its own; compare only within one run, interleaved",
        causes=("host.steal",),
    )


def _load(system: System) -> Finding:
    waiting = system.pressure("/proc/pressure/cpu", "some")
    if waiting is None:
        words = (system.text("/proc/loadavg") or "").split()
        if words:
            return note("processor.load", f"load average {words[0]} in the last minute")
        return untold("processor.load", "the kernel shows neither pressure nor load")
    found = f"in {waiting:.1%} of the last minute something that could run waited for a core"
    if waiting < BUSY_BEFORE:
        return ok("processor.load", found)
    return costs(
        "processor.load",
        found,
        "something else computes now: whatever is measured beside it is slower, and jitters",
        "stop it, or keep it from the service's cores: taskset, cpuset.cpus, systemd's AllowedCPUs=",
        causes=("host.contention",),
    )


def _clock(system: System) -> Finding:
    folder = "/sys/devices/system/clocksource/clocksource0"
    source = system.text(f"{folder}/current_clocksource")
    if source is None:
        return untold("processor.clock", "the kernel does not show its clock")
    if source in ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase"):
        return ok("processor.clock", f"clock source {source}")
    better = "tsc" in (system.text(f"{folder}/available_clocksource") or "").split()
    return costs(
        "processor.clock",
        f"clock source {source}",
        "each look at the clock is a system call of a microsecond or more; every profiler and log pays it",
        f"echo tsc | sudo tee {folder}/current_clocksource" if better else "",
    )


def _isolated(system: System) -> Iterator[Finding]:
    words = (system.text("/proc/cmdline") or "").split()
    said = [word for word in words if word.partition("=")[0] in ("isolcpus", "nohz_full", "rcu_nocbs")]
    if said:
        yield note(
            "processor.isolated",
            f"kernel started with {' '.join(said)}: threads come to these cores only where they are pinned",
        )


def _nodes(system: System) -> Iterator[Finding]:
    nodes = system.glob("/sys/devices/system/node/node[0-9]*")
    if len(nodes) < 2:
        return
    if system.number("/proc/sys/kernel/numa_balancing"):
        yield costs(
            "processor.numa",
            f"{len(nodes)} memory nodes, and the kernel moves pages between them by itself (numa_balancing)",
            "it takes pages away to see who uses them: page faults at any time, and a pause while one moves",
            "sudo sysctl kernel.numa_balancing=0, and keep the service on one node (locality.cores)",
            causes=("memory.page_faults",),
        )
    else:
        yield note(
            "processor.numa",
            f"{len(nodes)} memory nodes: a service that spans them pays for distance (locality.cores)",
        )
