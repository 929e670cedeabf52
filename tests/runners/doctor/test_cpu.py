"""Each processor setting that costs latency is found, and nothing is found on a well-configured machine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.cpu import processor
from tests.runners.doctor.conftest import MakeSystem

_CPU = "/sys/devices/system/cpu"
_CLOCK = "/sys/devices/system/clocksource/clocksource0"
_SWITCHED_OFF = {"name": "C6", "latency": "133", "disable": "1"}

_CALM = {
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: Test 9000\nflags\t: avx2 avx512f avx512_vnni\n\nprocessor\t: 1\n",
    f"{_CPU}/present": "0-1",
    **{f"{_CPU}/cpu{core}/cpufreq/scaling_governor": "performance" for core in (0, 1)},
    **{f"{_CPU}/cpu{core}/topology/thread_siblings_list": str(core) for core in (0, 1)},
    f"{_CPU}/cpu0/cpuidle/state0/name": "POLL",
    f"{_CPU}/cpu0/cpuidle/state0/latency": "0",
    f"{_CPU}/cpu0/cpuidle/state1/name": "C1",
    f"{_CPU}/cpu0/cpuidle/state1/latency": "2",
    "/proc/stat": "cpu  500 0 100 9000 10 0 5 1 0 0\ncpu0 1 2 3",
    "/proc/pressure/cpu": "some avg10=3.20 avg60=2.00 avg300=1.07 total=1\nfull avg10=0 avg60=0 avg300=0 total=0",
    "/proc/self/cgroup": "0::/service",
    "/sys/fs/cgroup/service/cpu.max": "max 100000",
    f"{_CLOCK}/current_clocksource": "tsc",
    "/proc/cmdline": "quiet",
}


def _found(make: MakeSystem, files: Mapping[str, str] | None = None) -> dict[str, Finding]:
    return {finding.id: finding for finding in processor(make({**_CALM, **(files or {})}), (0, 1))}


def test_a_calm_machine_costs_nothing(make_system: MakeSystem) -> None:
    found = _found(make_system)
    assert {finding.state for finding in found.values()} == {"ok", "note"}
    assert "Test 9000" in found["processor.model"].found
    assert "cores 0-1 usable of 0-1; AVX2, AVX-512, AVX-512 VNNI" in found["processor.model"].found


@pytest.mark.parametrize(
    ("identity", "files", "text", "change"),
    [
        ("processor.model", {"/proc/cpuinfo": "model name\t: Old\nflags\t: avx2"}, "Old; cores 0-1", ""),
        ("processor.governor", {f"{_CPU}/cpu1/cpufreq/scaling_governor": "powersave"}, "powersave on 1", "cpupower"),
        (
            "processor.idle_states",
            {f"{_CPU}/cpu0/cpuidle/state2/name": "C6", f"{_CPU}/cpu0/cpuidle/state2/latency": "133"},
            "C6, 133 µs",
            "idle-set",
        ),
        (
            "processor.siblings",
            {f"{_CPU}/cpu{core}/topology/thread_siblings_list": "0-1" for core in (0, 1)},
            "threads of 1 physical",
            "host.threads",
        ),
        ("processor.steal", {"/proc/stat": "cpu  500 0 100 9000 10 0 5 60 0 0"}, "9.02 %", "instance type"),
        ("processor.load", {"/proc/pressure/cpu": "some avg10=90 avg60=45.00 avg300=1 total=1"}, "45.0 %", "taskset"),
        (
            "processor.clock",
            {f"{_CLOCK}/current_clocksource": "hpet", f"{_CLOCK}/available_clocksource": "hpet tsc"},
            "hpet",
            "echo tsc",
        ),
        ("processor.clock", {f"{_CLOCK}/current_clocksource": "acpi_pm"}, "acpi_pm", ""),
        (
            "processor.quota",
            {"/sys/fs/cgroup/service/cpu.max": "150000 100000"},
            "1.5 cores, 2 cores usable",
            "--cpus",
        ),
        (
            "processor.quota",
            {
                "/sys/fs/cgroup/service/cpu.max": "400000 100000",
                "/sys/fs/cgroup/service/cpu.stat": "usage_usec 1\nnr_periods 200\nnr_throttled 3",
            },
            "throttled in 1.5 % of the periods",
            "--cpus",
        ),
        (
            "processor.numa",
            {
                "/sys/devices/system/node/node0/cpulist": "0",
                "/sys/devices/system/node/node1/cpulist": "1",
                "/proc/sys/kernel/numa_balancing": "1",
            },
            "2 memory nodes",
            "numa_balancing=0",
        ),
    ],
)
def test_what_costs_is_found(
    make_system: MakeSystem, identity: str, files: dict[str, str], text: str, change: str
) -> None:
    found = _found(make_system, files)
    costs = [finding.id for finding in found.values() if finding.state == "costs"]
    assert costs == [identity]
    assert text in found[identity].found
    assert found[identity].costs
    assert change in found[identity].change and bool(change) == bool(found[identity].change)


@pytest.mark.parametrize(
    ("identity", "files", "text", "state"),
    [
        (
            "processor.idle_states",
            {f"{_CPU}/cpu0/cpuidle/state2/{name}": value for name, value in _SWITCHED_OFF.items()},
            "",
            "ok",
        ),
        (
            "processor.quota",  # of an outer group
            {
                "/proc/self/cgroup": "0::/kubepods/pod1/container",
                "/sys/fs/cgroup/kubepods/pod1/cpu.max": "50000 100000",
                "/sys/fs/cgroup/kubepods/pod1/container/cpu.max": "max 100000",
            },
            "0.5 cores",
            "costs",
        ),
        (
            "processor.quota",  # version 1; a container sees the mount's top as its own group
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/docker/1",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "120000",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            "1.2 cores",
            "costs",
        ),
        (
            "processor.quota",
            {
                "/proc/self/cgroup": "4:cpu:/a",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            },
            "no CPU quota",
            "ok",
        ),
        ("processor.steal", {"/proc/stat": "cpu  a b c"}, "", "unknown"),
        ("processor.load", {"/proc/pressure/cpu": "some avg60=none"}, "", "unknown"),
        ("processor.quota", {"/sys/fs/cgroup/service/cpu.max": ""}, "", "ok"),
        ("processor.idle_states", {f"{_CPU}/cpu0/cpuidle/state1/latency": "?"}, "", "ok"),
    ],
)
def test_a_setting_is_read_wherever_it_is_and_nonsense_is_unknown(
    make_system: MakeSystem, identity: str, files: dict[str, str], text: str, state: str
) -> None:
    finding = _found(make_system, files)[identity]
    assert finding.state == state and text in finding.found


def test_a_system_without_kernel_files_is_unknown(make_system: MakeSystem) -> None:
    states = {finding.id: finding.state for finding in processor(make_system({}), (0, 1))}
    assert "costs" not in states.values()
    for name in ("governor", "idle_states", "siblings", "steal", "load", "clock"):
        assert states[f"processor.{name}"] == "unknown"
