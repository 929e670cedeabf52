"""A small model whose cost grows with its input's length, and which injects the faults in its traffic.

``payload = {"items": n, "faults": [[where, kind, ms], ...]}``: ``where`` is ``prepare``, ``model`` or ``finish``,
``kind`` is one of :data:`latfix.runners.selftest.faults.injectors.KINDS`. Faults of the model are a separate input
tensor, so that they strike in the batch that carries them.

Faults that last longer than a request are configured by the environment, see :class:`Options`.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from latfix import Request, Workload
from latfix.runners.selftest.faults.background import Phases, PythonWork, start_collector, start_spinner
from latfix.runners.selftest.faults.fault_log import Done, FaultLog, Stopwatch
from latfix.runners.selftest.faults.growth import Growth
from latfix.runners.selftest.faults.injectors import KINDS, ExtraWork, Injectors
from latfix.runners.selftest.faults.memory import Heap

WIDTH, HIDDEN = 256, 1024
#: Maximum number of model faults per request.
MOST_FAULTS = 4
PREFIX = "LATFIX_SELFTEST_"
_TABLE = 64_000
#: Shapes that torch compiles by default, and more than a run has.
_USUAL_LIMIT, _NO_LIMIT = 8, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options from environment variables, ``LATFIX_SELFTEST_`` and the field's name in capitals.

    :param blocks: layers of the model, which set its speed.
    :param kinds: injectors that the traffic needs, with their largest milliseconds: ``gc=20,sleep=5``.
    :param spinner: phases of a spinning thread; ``collector``: of a thread with collections of ``collector_ms``.
    :param growth: ``KIND/MS/REQUESTS``, see :class:`latfix.runners.selftest.faults.growth.Growth`.
    :param lazy_ms: processor time of a first call and further work, at the first use of each input shape.
    :param compiled: compile the model, separately for each shape.
    :param uncompiled_ms: keep torch's recompile limit; beyond it the model takes this much longer.
    :param python_ms: bytecode in ``prepare``, which holds the interpreter lock.
    :param trim_bytes: free memory at the heap's top above which the C library returns it to the kernel.
    """

    blocks: int = 8
    kinds: str = ""
    spinner: str = ""
    collector: str = ""
    collector_ms: float = 0.0
    growth: str = ""
    lazy_ms: float = 0.0
    compiled: int = 0
    uncompiled_ms: float = 0.0
    python_ms: float = 0.0
    trim_bytes: int = 1 << 30

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Options:
        values: dict[str, Any] = {}
        for each in fields(cls):
            text = environment.get(PREFIX + each.name.upper())
            if text is not None:
                values[each.name] = {"int": int, "float": float}.get(str(each.type), str)(text)
        return cls(**values)


class Model(torch.nn.Module):
    """Blocks of two matrix products on ``(batch, items, width)``, all with the same pair of weights.

    :param uncompiled: called if the model runs uncompiled.
    """

    def __init__(self, blocks: int, uncompiled: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.blocks, self._uncompiled = blocks, uncompiled
        self.up = torch.nn.Parameter(torch.randn(WIDTH, HIDDEN) / WIDTH**0.5)
        self.down = torch.nn.Parameter(torch.randn(HIDDEN, WIDTH) / HIDDEN**0.5)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """``(batch, width)``: the mean item after all blocks."""
        if self._uncompiled is not None and not torch.compiler.is_compiling():
            self._uncompiled()
        for _ in range(self.blocks):
            items = torch.relu(items @ self.up) @ self.down
        return items.mean(dim=1)


class Served(torch.nn.Module):
    """The model with the faults of its batch, and those of its age."""

    def __init__(self, options: Options, injectors: Injectors, log: FaultLog) -> None:
        super().__init__()
        limited = options.compiled and options.uncompiled_ms
        self.model = Model(options.blocks, self._run_uncompiled if limited else None)
        self._recompile_limit = _USUAL_LIMIT if limited else _NO_LIMIT
        self._uncompiled_ms = options.uncompiled_ms
        self._slower: Done | None = None
        self._injectors, self._log = injectors, log
        self._call: Any = self.model
        self._compiled = bool(options.compiled)
        if self._compiled:
            self._call = torch.compile(self.model, backend="eager", dynamic=False)
        self._lazy_ms = options.lazy_ms
        self._work = ExtraWork()
        self._shapes: set[tuple[int, ...]] = set()
        self._growth = _growth(options, scanned=False)

    def forward(self, items: torch.Tensor, faults: torch.Tensor, sender: torch.Tensor) -> torch.Tensor:
        """Inputs ``(batch, items, width)``, faults ``(batch, MOST_FAULTS, 2)`` and senders ``(batch, 2)``."""
        for row, planned in enumerate(faults.tolist()):
            for code, micro in planned:
                if code:
                    name = request_id(int(sender[row, 0]))
                    self._injectors.strike("model", KINDS[code], micro / 1e3, name)
        first = request_id(int(sender[0, 0]))
        if self._growth is not None:
            for session in sender[:, 1].tolist():
                self._log_model(self._growth.cause, "growth", first, self._growth(str(session)))
        shape = tuple(items.shape)
        new = shape not in self._shapes
        self._shapes.add(shape)
        if new and self._compiled:
            _limit_recompiles(self._recompile_limit)
        # The answer of a first use is dropped, so that all of it is the fault, what the model does by itself too.
        watch = Stopwatch()
        output: torch.Tensor | None = self._call(items) if new and (self._lazy_ms or self._compiled) else None
        if self._slower is None and output is not None:
            self._work(self._lazy_ms - watch.ran_ms())
            cause, kind = ("cold.compile", "compile") if self._compiled else ("cold.start", "first use")
            self._log_model(cause, kind, first, watch.stop())
            output = None
        if output is None:
            output = self._call(items)
        if self._slower is not None:
            self._log_model("cold.compile", "uncompiled", first, self._slower)
            self._slower = None
        return output

    def _run_uncompiled(self) -> None:
        self._slower = self._work(self._uncompiled_ms)

    def _log_model(self, cause: str, kind: str, request: str, done: Done) -> None:
        self._log.note(cause, kind, done, where="model", request=request)


def _growth(options: Options, *, scanned: bool) -> Growth | None:
    """The configured growth: in ``prepare`` for a Python scan, else in the model."""
    kind, _, rest = options.growth.partition("/")
    most, _, count = rest.partition("/")
    return Growth(kind, float(most), int(count)) if kind and (kind == "scan") == scanned else None


def _limit_recompiles(limit: int) -> None:
    """Set how many shapes torch compiles. It keeps this setting per thread, so the worker's thread sets it."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = limit
    torch._dynamo.config.accumulated_recompile_limit = _NO_LIMIT


def request_id(number: int) -> str:
    """The id of the request with this number."""
    return f"r{number:06d}"


class Service(Workload):
    """Looks items up, runs the model, rounds the answer."""

    def load(self, device: str) -> torch.nn.Module:
        del device
        options = Options.of(os.environ)
        gc.collect()
        gc.freeze()  # exclude the libraries' objects from collections
        # One heap that keeps its memory, so that injected faults of the allocator stand out.
        with contextlib.suppress(OSError):
            Heap().one_arena(trim_bytes=options.trim_bytes)
        self._log = log = FaultLog.from_environment()
        self._work = PythonWork(options.python_ms) if options.python_ms else None
        self._growth = _growth(options, scanned=True)
        pairs = [pair.split("=") for pair in options.kinds.split(",") if pair]
        self._injectors = Injectors({kind: float(ms) for kind, ms in pairs}, log)
        generator = np.random.default_rng(0)
        self._table = generator.standard_normal((512, WIDTH), dtype=np.float32)
        self._phase = generator.standard_normal(_TABLE, dtype=np.float32)
        model = Served(options, self._injectors, log)
        if options.collector:
            self._collector = start_collector(Phases.parse(options.collector), options.collector_ms, log)
        if options.spinner:
            self._spinner = start_spinner(Phases.parse(options.spinner), log)
        return model

    def prepare(self, request: Request) -> dict[str, torch.Tensor]:
        number = int(request.id[1:])
        planned = request.payload.get("faults", ())
        for where, kind, ms in planned:
            if where == "prepare":
                self._injectors.strike(where, kind, ms, request.id)
        if self._work is not None:
            self._work()
        if self._growth is not None:
            grown = self._growth(str(request.session))
            self._log.note(self._growth.cause, "growth", grown, where="prepare", request=request.id)
        weights = np.tanh(np.sin(self._phase))
        rows = (np.arange(int(request.payload["items"])) * 7 + number) % len(self._table)
        items = torch.from_numpy(self._table[rows] * (1.0 + 1e-3 * weights[0]))
        faults = torch.zeros(MOST_FAULTS, 2, dtype=torch.int64)
        inside = [(KINDS.index(kind), int(ms * 1e3)) for where, kind, ms in planned if where == "model"]
        for place, fault in enumerate(inside[:MOST_FAULTS]):
            faults[place] = torch.tensor(fault)
        session = int(request.session or 0)
        return {"items": items, "faults": faults, "sender": torch.tensor([number, session])}

    def finish(self, output: torch.Tensor, request: Request) -> list[float]:
        for where, kind, ms in request.payload.get("faults", ()):
            if where == "finish":
                self._injectors.strike(where, kind, ms, request.id)
        return [round(value, 4) for value in output[:8].tolist()]
