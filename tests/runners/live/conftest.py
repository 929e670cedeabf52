"""Live runners over a small workload whose stages follow a request's payload."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from latfix import Runner, load_runner
from tests.conftest import write_workload

MakeRunner = Callable[..., Runner]

#: Answers twice the feature ``value``; ``payload`` may hold a function for ``prepare`` and one for ``finish``.
HOOKED = """
import torch
from latfix import Request, Workload

class Model(torch.nn.Module):
    def forward(self, x):
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2

class Hooked(Workload):
    def load(self, device):
        return Model()

    def prepare(self, request):
        hooks = request.payload or {}
        if "prepare" in hooks:
            hooks["prepare"]()
        return torch.tensor([float(request.features.get("value", 0))])

    def finish(self, output, request):
        hooks = request.payload or {}
        if "finish" in hooks:
            hooks["finish"]()
        return float(output)
"""


@pytest.fixture
def write_hooked(tmp_path: Path) -> Callable[..., Path]:
    """Writes the workload; keyword arguments are keys of ``[runner]``."""
    numbers = itertools.count()

    def write(*, adapter: str = HOOKED, traffic: Sequence[Mapping[str, Any]] | None = None, **runner: Any) -> Path:
        return write_workload(tmp_path / f"w{next(numbers)}", adapter=adapter, traffic=traffic, runner=runner)

    return write


@pytest.fixture
def make_runner(write_hooked: Callable[..., Path]) -> Iterator[MakeRunner]:
    """Loads runners and closes them; ``load`` are arguments of ``load_runner``, the rest keys of ``[runner]``."""
    with contextlib.ExitStack() as runners:

        def make(*, load: Mapping[str, Any] | None = None, **workload: Any) -> Runner:
            return runners.enter_context(load_runner(write_hooked(**workload), **(load or {})))

        yield make


class Hold:
    """Blocks a request until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._go = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._go.wait(20), "it was never released"

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def hold() -> Iterator[Hold]:
    """A :class:`Hold`, released at the end of the test at the latest."""
    made = Hold()
    yield made
    made.let_go()
