"""Cores, their clocks and idle states, and what else uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from latfix.formatting import counted
from latfix.profilers.probes.control_groups import ControlGroups
from latfix.results.doctor_finding import Finding
from latfix.run_record.run_meta import BUSY_BEFORE
from latfix.runners.doctor.findings import costs, note, ok, unknown
from latfix.runners.host.cpu_topology import Cores, allowed_cores, cores_text
from latfix.runners.host.kernel_files import System, whole

_CPU = "/sys/devices/system/cpu"
#: Instruction sets by the kernel's name of the flag. Reduced precision gains nothing without some of them.
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
#: A slower exit from an idle state shows in the latency of a service that is idle between requests.
_SLOW_EXIT_US = 50
_STEAL_SHARE = 0.005


def processor(system: System, cores: Cores | None = None) -> Iterator[Finding]:
    """Findings about the processor.

    :param cores: usable by this process; read from the kernel by default.
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
    known = ", ".join(label for flag, label in _FLAGS.items() if flag in flags) or "no known vector extension"
    name = fields.get("model name") or "processor of unknown model"
    present = system.text(f"{_CPU}/present") or "unknown"
    found = f"{name}; cores {cores_text(usable) or 'unknown'} usable of {present}; {known}"
    if flags and not flags & _INT8:
        return costs(
            "processor.model",
            found,
            "the processor has no 8-bit dot product: int8 quantization gains little or nothing here",
        )
    return note("processor.model", found)


def _quota(system: System, usable: Cores) -> Finding:
    groups = ControlGroups(system.root)
    quota, throttled = groups.cpu_quota(), groups.cpu_counters()
    share = throttled.get("nr_throttled", 0) / throttled["nr_periods"] if throttled else 0.0
    if quota is None or (usable and quota >= len(usable) and not share):
        found = "no CPU quota" if quota is None else f"CPU quota of {quota:g} cores, enough for all usable cores"
        return ok("processor.quota", found)
    history = f"; throttled in {100 * share:.1f} % of the periods so far" if throttled else ""
    return costs(
        "processor.quota",
        f"CPU quota of {quota:g} cores, {counted(len(usable), 'core')} usable{history}",
        "many threads at once use up a period's quota early; the service then stalls for up to 100 ms",
        "use no more threads than the quota allows (host.threads), or raise it: docker update --cpus N, "
        "resources.limits.cpu",
        causes=("host.throttle",),
    )


def _governor(system: System, usable: Cores) -> Finding:
    chosen = Counter(
        governor
        for core in usable
        if (governor := system.text(f"{_CPU}/cpu{core}/cpufreq/scaling_governor")) is not None
    )
    if not chosen:
        return unknown(
            "processor.governor", "no frequency governor visible; on a virtual machine, the host controls it"
        )
    found = "frequency governor: " + ", ".join(
        f"{name} on {counted(count, 'core')}" for name, count in chosen.items()
    )
    if set(chosen) == {"performance"}:
        return ok("processor.governor", found)
    return costs(
        "processor.governor",
        found,
        "the clock drops between requests and takes milliseconds to rise: requests after a pause are slower",
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
        return unknown(
            "processor.idle_states", "no idle states visible; on a virtual machine, the host controls them"
        )
    latency, name = max(states)
    found = f"deepest idle state {name}, {latency} µs to leave"
    if latency <= _SLOW_EXIT_US:
        return ok("processor.idle_states", found)
    return costs(
        "processor.idle_states",
        found,
        f"each thread that wakes for a request may start {latency} µs late",
        f"sudo cpupower idle-set -D {_SLOW_EXIT_US}",
        causes=("host.slowdown",),
    )


def _turbo(system: System) -> Iterator[Finding]:
    boost, no_turbo = system.number(f"{_CPU}/cpufreq/boost"), system.number(f"{_CPU}/intel_pstate/no_turbo")
    if boost is not None or no_turbo is not None:
        on = boost == 1 or no_turbo == 0
        yield note(
            "processor.turbo",
            "turbo is on: the clock depends on temperature and on how many cores are busy"
            if on
            else "turbo is off: the clock is slower but steady",
        )


def _siblings(system: System, usable: Cores) -> Finding:
    shared = {
        siblings
        for core in usable
        if (siblings := system.text(f"{_CPU}/cpu{core}/topology/thread_siblings_list")) is not None
    }
    if not usable or not shared:
        return unknown("processor.siblings", "the kernel does not report which cores share a physical core")
    if len(shared) >= len(usable):
        return ok("processor.siblings", "no two usable cores share a physical core")
    return costs(
        "processor.siblings",
        f"{len(usable)} usable cores are hardware threads of {len(shared)} physical ones",
        "two busy threads on one physical core each run at little more than half its speed",
        "use one thread per physical core (host.threads, host.pin)",
        causes=("host.contention", "host.slowdown"),
    )


def _steal(system: System) -> Finding:
    words = next(
        (line.split() for line in (system.text("/proc/stat") or "").splitlines() if line.startswith("cpu ")), []
    )
    ticks = [value for word in words[1:9] if (value := whole(word)) is not None]
    if len(ticks) < 8 or not sum(ticks):
        return unknown("processor.steal", "the kernel does not report stolen time")
    share = ticks[7] / sum(ticks)
    busy = sum(ticks) - ticks[3] - ticks[4]
    of_busy = ticks[7] / busy if busy else 0.0
    all_time, working = f"{100 * share:.2f} % of all time", f"{100 * of_busy:.2f} % of the time with work to do"
    found = f"since boot, the hypervisor took {all_time}, {working}"
    if of_busy < _STEAL_SHARE:
        return ok("processor.steal", found)
    return costs(
        "processor.steal",
        found,
        "requests stall for milliseconds while another guest on the same host runs",
        "use an instance type with dedicated cores; until then, compare only interleaved, within one run",
        causes=("host.steal",),
    )


def _load(system: System) -> Finding:
    waiting = system.pressure("/proc/pressure/cpu")
    if waiting is None:
        words = (system.text("/proc/loadavg") or "").split()
        if words:
            return note("processor.load", f"load average {words[0]} in the last minute")
        return unknown("processor.load", "the kernel reports neither pressure nor load")
    found = f"in {100 * waiting:.1f} % of the last minute, a runnable thread waited for a core"
    if waiting < BUSY_BEFORE:
        return ok("processor.load", found)
    return costs(
        "processor.load",
        found,
        "another program uses the cores now: anything measured next to it is slower and jitters",
        "stop it, or keep it off the service's cores: taskset, cpuset.cpus, systemd's AllowedCPUs=",
        causes=("host.contention",),
    )


def _clock(system: System) -> Finding:
    folder = "/sys/devices/system/clocksource/clocksource0"
    source = system.text(f"{folder}/current_clocksource")
    if source is None:
        return unknown("processor.clock", "the kernel does not report its clock source")
    if source in ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase"):
        return ok("processor.clock", f"clock source {source}")
    better = "tsc" in (system.text(f"{folder}/available_clocksource") or "").split()
    return costs(
        "processor.clock",
        f"clock source {source}",
        "each clock read is a system call of a microsecond or more; every profiler and logger pays for it",
        f"echo tsc | sudo tee {folder}/current_clocksource" if better else "",
    )


def _isolated(system: System) -> Iterator[Finding]:
    words = (system.text("/proc/cmdline") or "").split()
    options = [word for word in words if word.partition("=")[0] in ("isolcpus", "nohz_full", "rcu_nocbs")]
    if options:
        yield note(
            "processor.isolated", f"kernel booted with {' '.join(options)}: only pinned threads run on these cores"
        )


def _nodes(system: System) -> Iterator[Finding]:
    nodes = system.glob("/sys/devices/system/node/node[0-9]*")
    if len(nodes) < 2:
        return
    if system.number("/proc/sys/kernel/numa_balancing"):
        yield costs(
            "processor.numa",
            f"{len(nodes)} memory nodes, and the kernel moves pages between them (numa_balancing)",
            "it unmaps pages to see which threads use them: page faults at any time, and a pause while a page moves",
            "sudo sysctl kernel.numa_balancing=0, and keep the service on one node (locality.cores)",
            causes=("memory.page_faults",),
        )
    else:
        found = f"{len(nodes)} memory nodes: a service that spans them is slowed by remote access (locality.cores)"
        yield note("processor.numa", found)
