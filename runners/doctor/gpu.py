"""NVIDIA GPUs: whether driver and torch match, and each device's settings, read through NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from latfix.formatting import counted, mebibytes
from latfix.profilers.gpu.nvml import CLOCK_REASONS
from latfix.profilers.gpu.nvml_api import LiveNvml, NvmlCalls, NvmlRefused
from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.findings import costs, missing, note, ok, unknown
from latfix.runners.host.cpu_topology import Cores, allowed_cores, cores_text, parse_cores
from latfix.runners.host.kernel_files import System

_SM = 1
_UNCORRECTED, _VOLATILE = 1, 0
#: Reasons for lower clocks that no clock setting causes: power, heat, limits of the board and for reliability.
_INVOLUNTARY = 0x6EC
_INSTALL_CUDA = "install torch built for CUDA: pip install torch, from the index that pytorch.org names"


def gpu(
    system: System,
    torch: Mapping[str, Any],
    *,
    live: Callable[[], NvmlCalls] = LiveNvml,
    cores: Cores | None = None,
    pid: int | None = None,
) -> tuple[bool, list[Finding]]:
    """True if there is an NVIDIA GPU, and findings about all of them.

    :param torch: from :func:`torch_facts`.
    :param live: opens NVML.
    :param cores: usable by this process; read from the kernel by default.
    :param pid: this process, which is not counted as another user of the GPU.
    """
    nodes = system.glob("/dev/nvidia[0-9]*")
    usable = bool(torch.get("cuda"))
    try:
        calls = live()
    except ImportError:
        no_nvml = missing(
            "gpu.nvml",
            "nvidia-ml-py is not installed",
            "clocks, memory and other processes on a GPU cannot be read",
            "pip install nvidia-ml-py",
        )
        return bool(nodes or usable), [no_nvml]
    except NvmlRefused as error:
        if nodes or usable:
            return True, [_no_driver(nodes, error)]
        return False, [note("gpu.none", "no NVIDIA GPU: models run on the CPU")]
    try:
        count = _query(calls, "DeviceGetCount") or 0
        found = list(_software(calls, torch, count))
        for device in range(count):
            found += _device(system, calls, device, allowed_cores() if cores is None else cores, pid)
        return bool(count), found
    finally:
        calls.close()


def _no_driver(nodes: list[str], error: NvmlRefused) -> Finding:
    seen = counted(len(nodes), "device file") if nodes else "torch finds a device"
    return costs(
        "gpu.nvml",
        f"{seen}, but NVML does not respond: {error}",
        "clocks, memory and other processes on a GPU cannot be read",
        "in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )


def _software(calls: NvmlCalls, torch: Mapping[str, Any], count: int) -> Iterator[Finding]:
    driver = _query(calls, "SystemGetDriverVersion") or "of unknown version"
    number = _query(calls, "SystemGetCudaDriverVersion_v2")
    newest = f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) and number else ""
    up_to = f", up to CUDA {newest}" if newest else ""
    built = torch.get("built_for_cuda")
    found = f"{counted(count, 'device')}, driver {driver}{up_to}; " + (
        f"torch built for CUDA {built}" if built else ""
    )
    if "error" in torch:
        yield unknown("gpu.torch", found + "torch does not load")
    elif not built:
        yield costs("gpu.torch", found + "torch is built for the CPU only", "the GPU is not used", _INSTALL_CUDA)
    elif not torch["cuda"]:
        behind = newest and _version(newest)[0] < _version(built)[0]
        yield costs(
            "gpu.torch",
            f"{found}, but finds no device",
            "the GPU is not used",
            f"install a driver for CUDA {built}, or a build of torch for CUDA {newest}"
            if behind
            else "check that CUDA_VISIBLE_DEVICES names a device and that the container may use it (--gpus all)",
        )
    else:
        yield ok("gpu.torch", found)


def _device(system: System, calls: NvmlCalls, device: int, cores: Cores, pid: int | None) -> Iterator[Finding]:
    name = f"GPU {device}, {_query(calls, 'DeviceGetName', device) or 'of unknown name'}"
    for check in (_persistence, _clocks, _power, _link, _partition, _ecc):
        yield from check(calls, device, name)
    yield from _other_processes(calls, device, name, pid)
    yield from _node(system, calls, device, name, cores)


def _persistence(calls: NvmlCalls, device: int, name: str) -> Iterator[Finding]:
    on = _query(calls, "DeviceGetPersistenceMode", device)
    if on is None:
        yield unknown("gpu.persistence", f"{name}: the driver does not report persistence mode")
    elif on:
        yield ok("gpu.persistence", f"{name}: persistence mode is on")
    else:
        yield costs(
            "gpu.persistence",
            f"{name}: persistence mode is off",
            "the driver unloads when the last program ends: the next start takes seconds longer",
            f"sudo nvidia-smi -i {device} -pm 1",
            causes=("cold.start",),
        )


def _clocks(calls: NvmlCalls, device: int, name: str) -> Iterator[Finding]:
    now, most = (_query(calls, function, device, _SM) for function in ("DeviceGetClockInfo", "DeviceGetMaxClockInfo"))
    reasons = _query(calls, "DeviceGetCurrentClocksEventReasons", device)
    if reasons is None:
        reasons = _query(calls, "DeviceGetCurrentClocksThrottleReasons", device)
    if now is None or most is None:
        yield unknown("gpu.clocks", f"{name}: the driver does not report clocks")
        return
    active = [text for bit, text in CLOCK_REASONS.items() if (reasons or 0) & bit]
    found = f"{name}: {now} of {most} MHz now" + (f" ({', '.join(active)})" if active else "")
    held = (reasons or 0) & ~0x01
    if held:
        yield costs(
            "gpu.clocks",
            found,
            "kernels slow down in proportion to the clock, by an amount that changes from minute to minute",
            "check the machine's power supply and cooling"
            if held & _INVOLUNTARY
            else f"nvidia-smi -i {device} -q -d CLOCK shows the setting",
            causes=("gpu.clocks",),
        )
    elif now < most:
        yield note(
            "gpu.clocks",
            found,
            "an idle device lowers its clock and takes milliseconds to raise it: requests after a pause are slower",
            f"sudo nvidia-smi -i {device} -lgc {most} (keeps the clock there, at more power)",
            causes=("gpu.clocks", "cold.start"),
        )
    else:
        yield ok("gpu.clocks", found)


def _power(calls: NvmlCalls, device: int, name: str) -> Iterator[Finding]:
    limit = _query(calls, "DeviceGetEnforcedPowerLimit", device)
    usual = _query(calls, "DeviceGetPowerManagementDefaultLimit", device)
    if limit is None or usual is None:
        yield unknown("gpu.power", f"{name}: the driver does not report the power limit")
    elif limit < usual:
        yield costs(
            "gpu.power",
            f"{name}: power limit {limit / 1e3:g} W, {usual / 1e3:g} W by default",
            "under load, the device lowers its clocks to stay below the limit",
            f"sudo nvidia-smi -i {device} -pl {usual / 1e3:g}",
            causes=("gpu.clocks",),
        )
    else:
        yield ok("gpu.power", f"{name}: power limit {limit / 1e3:g} W")


def _link(calls: NvmlCalls, device: int, name: str) -> Iterator[Finding]:
    generation, most_generation, width, most_width = (
        _query(calls, f"DeviceGet{which}PcieLink{what}", device)
        for what in ("Generation", "Width")
        for which in ("Curr", "Max")
    )
    # In a virtual machine the driver may report no lanes at all.
    if None in (generation, most_generation, width, most_width) or not width:
        yield unknown("gpu.link", f"{name}: the driver does not report the PCIe link")
        return
    found = f"{name}: PCIe generation {generation} of {most_generation}, {width} of {most_width} lanes"
    if width < most_width:
        yield costs(
            "gpu.link",
            found,
            f"copies to and from the device take {most_width / width:g} times as long as with all lanes",
            "try another slot, riser or cable; check that the machine's firmware gives the slot all its lanes",
            causes=("transfer.copy",),
        )
    elif generation < most_generation:
        yield note(
            "gpu.link",
            found,
            "an idle link slows down to save power; if it stays slow under load, copies take longer",
            f"check again under load: nvidia-smi -i {device} -q -d PCIE",
            causes=("transfer.copy",),
        )
    else:
        yield ok("gpu.link", found)


def _partition(calls: NvmlCalls, device: int, name: str) -> Iterator[Finding]:
    mode = _query(calls, "DeviceGetMigMode", device)
    if mode is None:
        yield note("gpu.mig", f"{name}: no multi-instance mode (MIG)")
    elif mode[0]:
        yield note(
            "gpu.mig",
            f"{name}: divided into instances (MIG)",
            "an instance has part of the processors and of the memory bandwidth; some readings are refused",
        )
    else:
        yield ok("gpu.mig", f"{name}: not divided (MIG is off)")


def _ecc(calls: NvmlCalls, device: int, name: str) -> Iterator[Finding]:
    mode = _query(calls, "DeviceGetEccMode", device)
    if mode is None:
        yield unknown("gpu.ecc", f"{name}: the driver does not report error correction")
        return
    errors = _query(calls, "DeviceGetTotalEccErrors", device, _UNCORRECTED, _VOLATILE) or 0
    rows = _query(calls, "DeviceGetRemappedRows", device)
    pending = bool(rows and rows[2])
    state = "on" if mode[0] else "off"
    found = f"{name}: error correction is {state}, {errors} uncorrected errors since the driver loaded"
    if errors or pending:
        yield costs(
            "gpu.ecc",
            found + ("; memory rows wait to be remapped" if pending else ""),
            "the driver kills programs that touch the faulty memory; the device may be failing",
            f"nvidia-smi -i {device} -q -d ECC,ROW_REMAPPER; a reset of the device remaps rows",
        )
    else:
        yield ok("gpu.ecc", found)


def _other_processes(calls: NvmlCalls, device: int, name: str, pid: int | None) -> Iterator[Finding]:
    found = _query(calls, "DeviceGetComputeRunningProcesses", device)
    if found is None:
        yield unknown("gpu.processes", f"{name}: the driver does not report processes")
        return
    others = [one for one in found if one["pid"] != pid]
    if not others:
        yield ok("gpu.processes", f"{name}: no other process uses it")
        return
    listed = ", ".join(
        f"{one['pid']}" + (f" ({mebibytes(one['usedGpuMemory'])})" if isinstance(one["usedGpuMemory"], int) else "")
        for one in others[:8]
    )
    yield costs(
        "gpu.processes",
        f"{name}: used by {counted(len(others), 'other process')}: {listed}",
        "kernels of several processes take turns: each waits up to a time slice for the others",
        "stop them, give each a device of its own (CUDA_VISIBLE_DEVICES), or divide the device (MIG, MPS)",
        causes=("gpu.contention",),
    )


def _node(system: System, calls: NvmlCalls, device: int, name: str, cores: Cores) -> Iterator[Finding]:
    info = _query(calls, "DeviceGetPciInfo", device)
    bus = str((info or {}).get("busId", "")).lower()
    # The kernel writes the domain with four digits, NVML with eight.
    folder = f"/sys/bus/pci/devices/{bus[-12:]}" if bus else ""
    local = system.text(f"{folder}/local_cpulist") if folder else None
    if not local or len(system.glob("/sys/devices/system/node/node[0-9]*")) < 2:
        return
    near = set(parse_cores(local))
    far = [core for core in cores if core not in near]
    if not far:
        yield ok("gpu.node", f"{name}: on the memory node of all usable cores ({local})")
        return
    yield costs(
        "gpu.node",
        f"{name}: near cores {local}; cores {cores_text(far)} are on another memory node",
        "copies from those cores cross between processors: slower, by an amount that varies between requests",
        f"numactl --cpunodebind=N --membind=N, or taskset -c {local}",
        causes=("transfer.copy", "host.slowdown"),
    )


def _query(calls: NvmlCalls, function: str, *arguments: int) -> Any:
    """The value; ``None`` if this device does not report it."""
    try:
        return calls.ask(function, *arguments)
    except NvmlRefused:
        return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
