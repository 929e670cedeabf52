"""Probes of every device with workers: NVML and torch's allocator. The first device's series have plain names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from latfix.profilers.gpu.allocator_counters import cuda_reader
from latfix.profilers.gpu.device_ids import device_index, device_uuid
from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.probes.sampler import Probe
from latfix.run_record.schema import OTHERS_UTIL, device_series

Reading = dict[str, float]
Read = Callable[[], Reading]

_NVML_S, _ALLOCATOR_S = 1.0, 0.5


@dataclass(frozen=True, slots=True)
class DeviceProbe:
    """One device's readers.

    :param device: a torch device string.
    :param nvml: NVML opened for it, if possible; ``allocator`` a reader of torch's, on a GPU.
    :param line: the device's name in NVML, or why it is not read.
    :param number: in the names of its series (:func:`device_series`).
    """

    device: str
    nvml: Nvml | None
    allocator: Read | None
    line: str
    number: int

    def renamed(self, read: Read) -> Read:
        """A reader of the same values under this device's names."""
        return lambda: {device_series(series, self.number): value for series, value in read().items()}


def open_devices(
    devices: Sequence[str],
    *,
    open_nvml: Callable[[str], tuple[Nvml | None, str]] | None = None,
    allocator: Callable[[str], Read | None] = cuda_reader,
) -> list[DeviceProbe]:
    """Readers of the workers' devices, each once, in the order of the workers.

    :param devices: one a worker.
    """
    probes: list[DeviceProbe] = []
    for device in dict.fromkeys(devices):
        nvml, line = (open_nvml or _open_nvml)(device)
        number = device_index(device) if probes else None
        probes.append(DeviceProbe(device, nvml, allocator(device), line, -1 if number is None else number))
    return probes


def lines_of(probes: Sequence[DeviceProbe]) -> dict[str, str]:
    """A line on NVML by probe, for the run's list of probes."""
    return {_label("nvml", probe): probe.line for probe in probes}


def nvml_probes(probes: Sequence[DeviceProbe], taken: Callable[[str, float], None]) -> Iterator[Probe]:
    """Probes that poll NVML.

    :param taken: called after each poll with a device and other processes' share of it, if NVML reports that.
    """
    for probe in probes:
        if probe.nvml is not None:
            read = probe.renamed(_notifying(probe.device, probe.nvml.read, taken))
            yield Probe(_label("nvml", probe), _NVML_S, read, in_driver=True)


def allocator_probes(probes: Sequence[DeviceProbe]) -> Iterator[Probe]:
    """Probes that poll the allocator of all devices but the first."""
    for probe in probes[1:]:
        if probe.allocator is not None:
            yield Probe(_label("cuda", probe), _ALLOCATOR_S, probe.renamed(probe.allocator))


def _label(kind: str, probe: DeviceProbe) -> str:
    return kind if probe.number < 0 else f"{kind}.{probe.number}"


def _notifying(device: str, read: Read, taken: Callable[[str, float], None]) -> Read:
    def reading() -> Reading:
        result = read()
        others = result.get(OTHERS_UTIL)
        if others is not None:
            taken(device, others / 100.0)
        return result

    return reading


def _open_nvml(device: str) -> tuple[Nvml | None, str]:
    index = device_index(device)
    if index is None:
        return None, "NVML: not read, the model is not on a GPU"
    return Nvml.open(index, uuid=device_uuid(index))
