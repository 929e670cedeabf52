"""The embedding rows that most requests look up: counted in traffic, and read again while a worker is idle.

A table is often larger than the caches, and other work evicts the few rows that most requests share. Reading them
costs an idle worker little; the next request then finds them in the cache, or in memory if the table is mapped from a
file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from latfix.settings import RunnerSettings

if TYPE_CHECKING:
    import torch

    from latfix.runners.engine.worker import ModelInstance

#: Calls of a table after which its frequencies are known.
_ENOUGH_CALLS = 64
#: If one table has this many times as many calls, tables with fewer are treated as unused.
_NEVER_CALLED = 4
#: Bytes read at a time while idle, so that an arriving request waits less than a millisecond.
_AT_ONCE = 1 << 20


@dataclass(slots=True)
class _Table:
    """One table, and by call the rows that were looked up and how often. A counter per row would be too large."""

    module: Any
    rows: list[npt.NDArray[np.int64]] = field(default_factory=list)
    times: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def counted(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The rows that were looked up, and how often in total."""
        none = np.zeros(0, dtype=np.int64)
        rows, place = np.unique(np.concatenate([none, *self.rows]), return_inverse=True)
        times = np.zeros(len(rows), dtype=np.int64)
        np.add.at(times, place, np.concatenate([none, *self.times]))
        return rows, times


@dataclass(slots=True)
class HotRows:
    """The rows of one model's embedding tables that its traffic looks up most.

    :param model: the uncompiled module: hooks on its tables count lookups.
    :param most: number of rows to keep warm, over all tables.
    :ivar lookups: number of counted lookups.
    :ivar rows: number of chosen rows.
    :ivar share: share of lookups that the chosen rows served.
    """

    model: Any
    most: int
    _tables: list[_Table] = field(init=False)
    _hooks: list[Any] = field(init=False, default_factory=list)
    _parts: list[tuple[torch.Tensor, torch.Tensor]] = field(init=False, default_factory=list)
    _next: int = field(init=False, default=0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _chosen: bool = field(init=False, default=False)
    lookups: int = field(init=False, default=0)
    rows: int = field(init=False, default=0)
    share: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tables = [_Table(module) for module in embedding_tables(self.model)]

    @property
    def tables(self) -> int:
        return len(self._tables)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Count lookups inside the context, and choose the rows at its end."""
        self.watch()
        try:
            yield
        finally:
            self.choose()

    def watch(self) -> None:
        """Start counting lookups, until there are enough."""
        if not self._hooks and not self._chosen:
            for table in self._tables:
                self._hooks.append(table.module.register_forward_pre_hook(self._counting(table), with_kwargs=True))

    def choose(self) -> None:
        """Stop counting and choose the rows. Without lookups there are none, and counting may start again."""
        with self._lock:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            if self._chosen or not self.lookups:
                return
            self._chosen = True
            self._choose()

    def touch_some(self) -> int:
        """Read the next few rows; returns how many."""
        with self._lock:
            if not self._parts:
                return 0
            part = self._parts[self._next % len(self._parts)]
            self._next += 1
        return _read(part)

    def touch_all(self) -> int:
        """Read all chosen rows; returns how many."""
        return sum(_read(part) for part in list(self._parts))

    def _counting(self, table: _Table) -> Any:
        def count(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            import torch

            wanted = arguments[0] if arguments else named.get("input")
            if self._chosen or not isinstance(wanted, torch.Tensor):
                return
            rows, times = torch.unique(wanted.detach().reshape(-1), return_counts=True)
            held = (rows >= 0) & (rows < len(module.weight))  # a wrong request asks for others, and fails
            with self._lock:
                table.rows.append(rows[held].numpy().astype(np.int64))
                table.times.append(times[held].numpy())
                self.lookups += wanted.numel()
                enough = self._enough()
            if enough:
                self.choose()

        return count

    def _enough(self) -> bool:
        """True if every table was called often enough, or one so often that the others are unused."""
        calls = [len(table.rows) for table in self._tables]
        return min(calls) >= _ENOUGH_CALLS or max(calls) >= _NEVER_CALLED * _ENOUGH_CALLS

    def _choose(self) -> None:
        import torch

        counted = [table.counted() for table in self._tables]
        owner = np.concatenate([np.full(len(rows), k) for k, (rows, _) in enumerate(counted)])
        row, counts = (np.concatenate([pair[k] for pair in counted]) for k in (0, 1))
        order = np.argsort(-counts, kind="stable")[: self.most]
        self.rows, self.share = len(order), float(counts[order].sum() / counts.sum())
        for k, table in enumerate(self._tables):
            chosen = row[order[owner[order] == k]]
            weight = table.module.weight
            each = max(_AT_ONCE // max(weight.shape[1] * weight.element_size(), 1), 1)
            table.rows, table.times = [], []
            for start in range(0, len(chosen), each):
                rows = torch.from_numpy(np.ascontiguousarray(chosen[start : start + each]))
                self._parts.append((weight.detach(), rows))
        try:
            self.touch_all()
        except RuntimeError:  # a dtype that torch cannot sum on this machine
            self._parts.clear()
            self.rows, self.share = 0, 0.0


def _read(part: tuple[torch.Tensor, torch.Tensor]) -> int:
    """Bring rows into the cache by summing them, which allocates one row only."""
    import torch

    weight, rows = part
    with torch.no_grad():
        torch.nn.functional.embedding_bag(rows.unsqueeze(0), weight, mode="sum")
    return len(rows)


def attach_hot_rows(instances: Sequence[ModelInstance], settings: RunnerSettings) -> None:
    """Attach hot rows to each instance, if the settings request them and the model's own tables are used.

    Another backend has its own tables, and the lookups of a model compiled in parts cannot be counted.
    """
    if not settings.hot_rows or settings.backend != "torch":
        return
    made: dict[int, HotRows] = {}
    for instance in instances:
        model = getattr(instance.model, "_orig_mod", instance.model)
        if settings.compile != "off" and model is instance.model:
            continue
        hot = made.setdefault(id(model), HotRows(model, settings.hot_rows))
        instance.hot = hot if hot.tables else None


def embedding_tables(model: Any) -> list[Any]:
    """The model's embedding modules with floating-point weights on the CPU, without duplicates."""
    import torch

    if not isinstance(model, torch.nn.Module):
        return []
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    found: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, kinds) and module.weight.device.type == "cpu" and module.weight.is_floating_point():
            found.setdefault(id(module.weight), module)
    return list(found.values())


def table_bytes(models: Sequence[Any]) -> tuple[int, int, int]:
    """Numbers of embedding tables, of their rows and of their bytes, over all ``models``."""
    weights = [module.weight for model in models for module in embedding_tables(model)]
    return (
        len(weights),
        sum(int(weight.shape[0]) for weight in weights),
        sum(weight.numel() * weight.element_size() for weight in weights),
    )
