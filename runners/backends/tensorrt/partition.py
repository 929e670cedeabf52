"""Which operators of a compiled model run in TensorRT and which stay in PyTorch."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from latfix.formatting import counted

#: torch-tensorrt's name of an engine in a compiled graph, and of the operator that runs it in a saved graph.
_ENGINE_PART, _ENGINE_OPERATOR = "_run_on_acc", "execute_engine"
#: torch-tensorrt logs the partition to this logger, at level DEBUG.
_TRACKER = "torch_tensorrt.dynamo._DryRunTracker"
_SILENCED = ("torch_tensorrt", "torch.export", "torch._export")
_ENGINE_SIZE = re.compile(r"Number of Operators in Engine: (\d+)")
#: Operators that only read or check sizes.
_CHECKS = ("_assert", "sym_size", "sym_constrain")
#: A part of the graph that checks its arguments.
_GUARDS = "_guards_fn"
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """How a graph was divided.

    :param engines: parts that TensorRT runs.
    :param inside: operators in engines; ``None`` if torch-tensorrt did not report it.
    :param outside: operators that stay in PyTorch, by name.
    """

    engines: int
    inside: int | None
    outside: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The share of operators that TensorRT runs; ``None`` if unknown."""
        if self.inside is None:
            return None
        every = self.inside + sum(self.outside.values())
        return self.inside / every if every else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the evidence and for the cache."""
        return {**asdict(self), "outside": dict(self.outside), "share": self.share}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Partition:
        return Partition(**{name: document[name] for name in ("engines", "inside", "outside")})


def partition_words(document: Mapping[str, Any]) -> str:
    """The output of :meth:`Partition.to_json` in words."""
    outside = Counter(document["outside"])
    known = document["inside"]
    inside = "operators" if known is None else f"{known} operators"
    described = f"{inside} in {counted(document['engines'], 'engine')}"
    if not outside:
        return f"{described}, none left in PyTorch"
    named = [f"{name} ×{count}" if count > 1 else name for name, count in outside.most_common(_MOST_NAMED)]
    more = len(outside) - len(named)
    return f"{described}, {outside.total()} left in PyTorch ({', '.join(named)}{f' and {more} more' if more else ''})"


def partition_of(graph: Any, sizes: list[int] | None = None) -> Partition:
    """The partition of a compiled graph, also after it was saved and loaded.

    :param sizes: operators of each engine, logged during compilation.
    """
    engines, outside = 0, Counter[str]()
    for node in graph.graph.nodes:
        if node.op == "call_module":
            part = getattr(graph, str(node.target))
            if _ENGINE_PART in str(node.target):
                engines += 1
            elif hasattr(part, "graph") and _GUARDS not in str(node.target):
                inner = partition_of(part)
                engines += inner.engines
                outside.update(inner.outside)
        elif node.op in ("call_function", "call_method"):
            name = _name(node.target)
            if _ENGINE_OPERATOR in name:
                engines += 1
            elif not _is_bookkeeping(node.target, name):
                outside[name] += 1
    return Partition(
        engines=engines,
        inside=sum(sizes) if sizes is not None and len(sizes) == engines else None,
        outside=dict(outside),
    )


def _is_bookkeeping(target: Any, name: str) -> bool:
    """True if an operator computes no tensor: Python's own (parts of an answer, sums of sizes), and checks."""
    return getattr(target, "__module__", "") in ("_operator", "math") or any(part in name for part in _CHECKS)


def _name(target: Any) -> str:
    """An operator's namespace and name: ``aten.cumsum``."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return str(schema.name).replace("::", ".")
    return str(getattr(target, "__name__", target))


@contextmanager
def engine_sizes() -> Iterator[list[int]]:
    """Collects the number of operators of each engine, in order, while a model compiles. Drops all other logs."""
    found: list[int] = []

    def take(record: logging.LogRecord) -> bool:
        found.extend(int(size) for size in _ENGINE_SIZE.findall(record.getMessage()))
        return False  # no handler gets it

    tracker = logging.getLogger(_TRACKER)
    silenced = [logging.getLogger(name) for name in _SILENCED]
    before = [(logger, logger.level, logger.disabled) for logger in (*silenced, tracker)]
    all_below = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    for logger in silenced:
        logger.setLevel(logging.CRITICAL)
    tracker.setLevel(logging.DEBUG)
    tracker.disabled = False
    tracker.addFilter(take)
    try:
        yield found
    finally:
        tracker.removeFilter(take)
        for logger, level, disabled in before:
            logger.setLevel(level)
            logger.disabled = disabled
        logging.disable(all_below)
