"""Options of the GPU benchmarks, the machine that they run on, and the part that a test measures."""

from __future__ import annotations

import datetime
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.commands import ROOT, run
from benchmarks.gpu.parts import Part

_NOTHING_RUN = 3
_MACHINE_S = 90.0
_NEEDED = ("torch", "pandas", "pyarrow", "scipy", "jinja2", "typer", "rich", "safetensors", "pynvml")
_BEGUN = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The folder of results, and the time of an optimization."""
    parser.addoption("--out", type=Path, default=ROOT / "latfix-runs" / "gpu", metavar="DIR")
    parser.addoption("--sample-seconds", type=float, default=300.0, help="for latfix optimize of one sample")


@pytest.fixture(scope="session")
def machine() -> dict[str, Any]:
    """Machine and versions; without a required package or a device, nothing runs."""
    if absent := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        pytest.exit(f"not installed: {', '.join(absent)}", _NOTHING_RUN)
    ended = run([sys.executable, "-m", "benchmarks.gpu.machine"], _MACHINE_S)
    if ended.why:
        pytest.exit(f"looking for a device: {ended.why}", _NOTHING_RUN)
    found: dict[str, Any] = json.loads(ended.output.strip().rpartition("\n")[2])
    if not found.pop("cuda"):
        pytest.exit("there is no CUDA device here", _NOTHING_RUN)
    return found


@pytest.fixture
def part(request: pytest.FixtureRequest, machine: dict[str, Any]) -> Iterator[Part]:
    """The part that the marker ``gpu`` names; ``NAME.SAMPLE`` if the test takes a ``sample``."""
    name = request.node.get_closest_marker("gpu").args[0]
    if "sample" in request.fixturenames:
        name = f"{name}.{request.getfixturevalue('sample')}"
    out: Path = request.config.getoption("--out").resolve()
    out.mkdir(parents=True, exist_ok=True)
    made, begun = Part(out / f"{name}.json"), time.monotonic()
    known = request.config.stash.setdefault(_BEGUN, set())
    if name not in known:  # several tests may add to one part
        known.add(name)
        made.file.unlink(missing_ok=True)
    made.update(**machine | {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")})
    yield made
    made.update(seconds=round(made.read().get("seconds", 0.0) + time.monotonic() - begun, 1))
