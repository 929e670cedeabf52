"""Shared by all tests: workloads written to a temporary folder, and the command line called in this process."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from markupsafe import Markup

from latfix.formatting import visible
from latfix.profilers.allocator_lab.compare_policies import policy_of
from latfix.profilers.allocator_lab.free_blocks import Block
from latfix.profilers.allocator_lab.policy import OutOfMemory
from latfix.profilers.allocator_lab.torch_caching import parse_settings

# Examples take as long as the machine lets them; a property that needs more of them says so.
_SUITED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("latfix", deadline=None, max_examples=50, suppress_health_check=_SUITED)
settings.load_profile("latfix")


#: Tests that look at charts, or hand odd records to what draws them: nine tenths of a page's time are Matplotlib's.
_PAGES = "tests/reports/html/test_pages.py::test_"
#: Sessions whose charts differ in kind: without a row, of odd scales, with names that are markup, of one row.
_ODD = ("zero", "tiny", "hostile", "huge", "one", "negative", "many causes")
_DRAWN = (
    "tests/reports/charts/",
    *(f"{_PAGES}every_session_makes_a_whole_page[{name}]" for name in _ODD),
    f"{_PAGES}every_optimization",
    *(f"{_PAGES}every_pair_of_sessions_makes_a_whole_comparison[{name}]" for name in _ODD[:3]),
    f"{_PAGES}the_page_and_its_chart",
    f"{_PAGES}the_effect_of_each_fix",
    "tests/reports/html/test_every_page.py::",
    "tests/reports/test_sweep_reports.py::test_awkward",
    "tests/cli/test_hostile_records.py::test_any",
    "tests/e2e/test_diagnose.py",
)

PLAIN_ADAPTER = """
import torch
from latfix import Request, Workload

class Plain(Workload):
    def load(self, device):
        return torch.nn.Identity()

    def prepare(self, request):
        return torch.full((2,), float(request.features.get("value", 0)))
"""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """A neighbor of the machine can spoil a measurement, and a real process: these are tried up to three times."""
    for item in items:
        if any(item.iter_markers("alone")) or any(item.iter_markers("slow")):
            item.add_marker(pytest.mark.flaky(reruns=2))


gc.disable()  # while tests are collected
_thawed: list[bool] = []


def pytest_collection_finish() -> None:
    """What a test run holds, a million objects, is walked by no collection that a test asks for."""
    unfreeze = gc.unfreeze

    def noted() -> None:
        unfreeze()
        _thawed.append(True)

    gc.unfreeze = noted
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A service that froze its own objects gives back all that is frozen when it ends."""
    if _thawed:
        _thawed.clear()
        gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Operators on one thread: more would spin where tests share the cores; and a test may have set others."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def charts_as_titles() -> Iterator[None]:
    """A chart is its title alone, but in the tests of :data:`_DRAWN`."""
    from latfix.reports.charts import change_charts, inline_svg, run_charts, sweep_charts

    def draw(name: str, label: str, *drawing: Any, **layout: Any) -> Markup:
        if os.environ.get("PYTEST_CURRENT_TEST", "").startswith(_DRAWN):
            return inline_svg.draw(name, label, *drawing, **layout)
        title = Markup('<title id="{}-title">{}</title>').format(name, visible(label, limit=600))
        return Markup('<svg viewBox="0 0 1 1" role="img" aria-labelledby="{}-title">{}</svg>').format(name, title)

    with pytest.MonkeyPatch.context() as patch:
        for module in (change_charts, run_charts, sweep_charts):
            patch.setattr(module, "draw", draw)
        yield


def write_workload(
    folder: Path,
    *,
    adapter: str = PLAIN_ADAPTER,
    traffic: Sequence[Mapping[str, Any]] | None = None,
    runner: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a workload's folder: adapter source, traffic rows and the keys of ``[runner]``."""
    folder.mkdir(parents=True)
    source = textwrap.dedent(adapter).strip() + "\n"
    kind = source.rpartition("\nclass ")[2].partition("(")[0].partition(":")[0]
    settings = {"device": "cpu", "intra_op_threads": 1, **(runner or {})}
    lines = ["[workload]", 'name = "w"', f'entry = "adapter:{kind}"', 'traffic = "traffic.jsonl"', "[runner]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    (folder / "workload.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "adapter.py").write_text(source, encoding="utf-8")
    rows = [{"arrival_s": k * 0.01} for k in range(20)] if traffic is None else traffic
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "traffic.jsonl").write_text(text, encoding="utf-8")
    return folder


def cli(*arguments: object) -> tuple[int, str, str]:
    """Calls the command line in this process: exit code, standard output, standard error."""
    from latfix.cli.app import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def succeeded(answer: tuple[int, str, str]) -> str:
    """What a command wrote on standard output, if it succeeded."""
    code, out, err = answer
    assert code == 0, err
    return out


class Canary:
    """What would be executed by whoever unpickles it: it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.file),)

    @property
    def pickle(self) -> bytes:
        return pickle.dumps(self)

    @property
    def sang(self) -> bool:
        """Whether it was executed."""
        return self.file.exists()


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Canary]:
    """Fails the test at its end if it was executed."""
    bird = Canary(tmp_path / "canary")
    yield bird
    assert not bird.sang


class DeviceRefused(RuntimeError):
    """The device that is no device has no more memory: as ``torch.cuda.OutOfMemoryError``."""


class Held:
    """A block of a :class:`FakeCuda`, given back when nobody holds it any more, as a tensor's memory is."""

    def __init__(self, device: FakeCuda, block: Block) -> None:
        self._device, self.block = device, block

    def __del__(self) -> None:
        self._device.give_back(self.block)


class FakeCuda:
    """A CUDA device under torch's caching allocator, without one: the laboratory's model, on simulated time.

    It tells what torch tells, in torch's shape. Calls of the device take time and wait for the work that was launched
    on it; kernels run behind the host; a neighbor has part of the memory; what does not fit is refused.

    :param conf: as in ``PYTORCH_ALLOC_CONF``.
    :param others: bytes that another process has.
    :ivar now: nanoseconds.
    """

    MALLOC_NS, FREE_NS, MIB_NS = 100_000, 150_000, 2_000
    refused = DeviceRefused

    def __init__(self, total: int = 1 << 30, conf: str = "", others: int = 0) -> None:
        self.now = 0
        self._busy_until = 0
        self.total, self.others, self.conf = total, others, conf
        self._share = 1.0
        self.model: Any = policy_of(conf, total - others)
        self._peaks = [0, 0]
        self.live: list[Block] = []
        self._raw: dict[int, int] = {}

    def clock(self) -> int:
        """As ``time.perf_counter_ns``."""
        return self.now

    def launch(self, duration_ns: int) -> None:
        """Queue work on the device; the host goes on at once."""
        self._busy_until = max(self._busy_until, self.now) + duration_ns

    def synchronize(self) -> None:
        """Wait for the device."""
        self.now = max(self.now, self._busy_until)

    def allocate(self, size: int) -> Held:
        """A block, by way of the allocator.

        :raises DeviceRefused: there is none, after everything was given back.
        """
        counters = self.model.counters
        before = (counters.device_allocs, counters.device_frees, counters.taken, counters.given)
        try:
            block = self.model.allocate(size)
        except OutOfMemory as error:
            raise DeviceRefused(f"no {size} bytes") from error
        finally:
            after = (counters.device_allocs, counters.device_frees, counters.taken, counters.given)
            allocs, frees, taken, given = (b - a for a, b in zip(before, after, strict=True))
            if allocs or frees:  # the driver waits for what runs
                self.synchronize()
            self.now += allocs * self.MALLOC_NS + frees * self.FREE_NS + (taken + given) // (1 << 20) * self.MIB_NS
        self._note_peaks()
        self.live.append(block)
        return Held(self, block)

    def give_back(self, block: Block) -> None:
        """To the allocator, which keeps it."""
        self.live.remove(block)
        self.model.free(block)

    def _note_peaks(self) -> None:
        counters = self.model.counters
        self._peaks = [max(self._peaks[0], counters.reserved), max(self._peaks[1], counters.granted)]

    # What latfix.runners.gpu_memory.caching_allocator.DeviceAllocator asks for:

    def stats(self) -> Mapping[str, Any]:
        counters = self.model.counters
        pieces = self.model.stuck_bytes()

        def stat(current: int, peak: int, allocated: int = 0, freed: int = 0) -> dict[str, dict[str, int]]:
            return {"all": {"current": current, "peak": peak, "allocated": allocated, "freed": freed}}

        return {
            "num_alloc_retries": counters.retries,
            "num_ooms": 0,
            "num_sync_all_streams": counters.retries,
            "num_device_alloc": counters.device_allocs,
            "num_device_free": counters.device_frees,
            "reserved_bytes": stat(counters.reserved, self._peaks[0], counters.taken, counters.given),
            "allocated_bytes": stat(counters.granted, self._peaks[1]),
            "inactive_split_bytes": stat(pieces, pieces),
            "active": stat(len(self.live), len(self.live)),
        }

    def reset_peaks(self) -> None:
        self._peaks = [0, 0]
        self._note_peaks()

    def memory(self) -> tuple[int, int]:
        return self.total - self.others - self.model.counters.reserved - sum(self._raw.values()), self.total

    def share(self) -> float:
        return self._share

    def set_share(self, share: float) -> None:
        self._share = share
        self.model.capacity = min(int(share * self.total), self.total - self.others)

    def settings(self) -> Mapping[str, Any]:
        asked = parse_settings(self.conf)
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.conf,
            "expandable_segments": asked.expandable,
            "max_split_size": asked.max_split_size if "max_split_size_mb" in self.conf else -1,
            "garbage_collection_threshold": asked.collect_above,
        }

    def backend(self) -> str:
        return "native"

    # What latfix.profilers.calibration.gpu_memory_calls.DeviceCalls asks for; the allocator does not see it:

    def free_bytes(self) -> int:
        return self.memory()[0]

    def malloc(self, size: int) -> int:
        if size > self.free_bytes():
            return 0
        self.now += self.MALLOC_NS + size // (1 << 20) * self.MIB_NS
        address = 4096 + len(self._raw)
        self._raw[address] = size
        return address

    def free(self, address: int) -> None:
        self.synchronize()
        self.now += self.FREE_NS + self._raw.pop(address) // (1 << 20) * self.MIB_NS


class FakeTorchCuda:
    """What of ``torch.cuda`` tells of memory, answering for devices that are none, as torch does for each allocator.

    :param devices: by number.
    :param backend: ``native``, ``cudaMallocAsync`` (counts, lists no blocks), or another (refuses to tell anything).
    """

    def __init__(self, devices: Sequence[FakeCuda], backend: str) -> None:
        self.devices, self.backend = devices, backend
        self.asked: list[str] = []
        self.recording: dict[str, object] = {}

    def of(self, device: str | int) -> FakeCuda:
        """The device of a torch device string."""
        return self.devices[int(str(device).rpartition(":")[2])]

    def told(self, what: str, device: str | int) -> FakeCuda:
        """The device, where its allocator counts at all.

        :raises RuntimeError: as torch has it.
        """
        self.asked.append(what)
        if self.backend not in ("native", "cudaMallocAsync"):
            raise RuntimeError(f"CUDAPluggableAllocator does not yet support {what}.")
        return self.of(device)

    def listed(self, *_: object, **__: object) -> list[dict[str, Any]]:
        """The segments of all devices; in each all blocks of one device.

        :raises RuntimeError: as torch has it.
        """
        self.asked.append("snapshot")
        if self.backend != "native":
            raise RuntimeError(f"Calling snapshot with backend:{self.backend} is not meaningful.")
        return [
            {
                "device": number,
                "blocks": [
                    *({"size": block.size, "state": "active_allocated"} for block in device.live),
                    *(
                        {"size": block.size, "state": "inactive"}
                        for pool in device.model._pools.values()
                        for block in pool
                    ),
                ],
            }
            for number, device in enumerate(self.devices)
        ]

    def recorded(self, *_: object, **how: object) -> None:
        """The history is turned on or off.

        :raises RuntimeError: as torch has it.
        """
        if self.backend != "native":
            raise RuntimeError(f"{self.backend} does not yet support recordHistory.")
        self.recording = how


@pytest.fixture
def torch_on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeTorchCuda]:
    """Has ``torch.cuda`` tell of the memory of some :class:`FakeCuda`, under one of its allocators."""

    def on(*devices: FakeCuda, backend: str = "native") -> FakeTorchCuda:
        import torch

        made = FakeTorchCuda(devices, backend)
        answers: dict[str, Callable[..., Any]] = {
            "is_initialized": lambda: True,
            "device_count": lambda: len(devices),
            "get_allocator_backend": lambda: backend,
            "memory_stats_as_nested_dict": lambda device: made.told("getDeviceStats", device).stats(),
            "reset_peak_memory_stats": lambda device: made.told("resetPeakStats", device).reset_peaks(),
            "get_per_process_memory_fraction": lambda device: made.told("getMemoryFraction", device).share(),
            "set_per_process_memory_fraction": lambda share, device: made.of(device).set_share(share),
            "mem_get_info": lambda device: made.of(device).memory(),
            "memory_snapshot": made.listed,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(
            torch.cuda.memory,
            "_snapshot",
            lambda device: {"segments": made.listed(), "allocator_settings": made.of(device).settings()},
        )
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", made.recorded)
        return made

    return on
