"""How a gate is written: ``METRIC OPERATOR LIMIT``, the limit a number with its unit or ``baseline``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from latfix.errors import InputError
from latfix.statistics import LATENCY_KEYS

EXAMPLES = "p99<200ms, p99<=baseline*1.05, mean<0.2s, throughput>=40, error_rate<1%, accuracy>=baseline-0.01"

_SHARES = ("error_rate", "unexplained_share")
_METRICS = (*LATENCY_KEYS, "throughput", "accuracy", *_SHARES)
_MS: Mapping[str, float] = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_GATE = re.compile(r"\s*(?P<metric>[^<>=!\s]+)\s*(?P<operator>[<>=!]+)\s*(?P<limit>.*?)\s*", re.DOTALL)
_NUMBER = r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(?P<unit>%|[A-Za-z/]*)"
_ABSOLUTE = re.compile(_NUMBER)
_BASELINE = re.compile(
    r"baseline\s*(?:\*\s*(?P<factor>(?:[0-9]+\.?[0-9]*|\.[0-9]+))\s*)?(?:(?P<sign>[+-])\s*" + _NUMBER + ")?"
)
_CAUSE = re.compile(r"[a-z]+(?:\.[a-z_]+)?")

#: Every cause that a diagnosis can name: a misspelled one would always pass.
CAUSE_IDS: tuple[str, ...] = (
    "traffic.burst",
    "traffic.overload",
    "traffic.priority",
    "batching.window",
    "batching.size",
    "batching.padding",
    "input.size",
    "cold.start",
    "cold.compile",
    "memory.allocator",
    "memory.fragmentation",
    "memory.page_faults",
    "transfer.copy",
    "transfer.sync",
    "dispatch.launch",
    "gpu.clocks",
    "gpu.contention",
    "host.contention",
    "host.throttle",
    "host.steal",
    "host.slowdown",
    "python.gc",
    "python.gil",
    "external.dependency",
    "drift.memory",
    "drift.cache",
    "drift.sessions",
    "drift.unknown",
    "observer",
    "unexplained",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A parsed gate: ``metric operator limit``, or ``metric operator baseline*factor + limit``.

    :param text: as the user wrote it, without blanks.
    :param metric: a key of ``LATENCY_KEYS``, ``throughput``, ``accuracy``, ``error_rate``,
        ``unexplained_share``, or ``cause:`` and an id.
    :param operator: ``<``, ``<=``, ``>`` or ``>=``.
    :param factor: of the baseline's figure; 0 where the limit is a number.
    :param limit: in milliseconds, requests a second, or as a share; added to the baseline's.
    """

    text: str
    metric: str
    operator: str
    limit: float
    factor: float = 0.0

    @property
    def needs_baseline(self) -> bool:
        """Whether the limit depends on a baseline."""
        return self.factor > 0

    @property
    def is_latency(self) -> bool:
        """Whether the figure is a latency."""
        return self.metric in LATENCY_KEYS

    @property
    def cause(self) -> str | None:
        """The cause whose share of the tail is meant."""
        return self.metric.removeprefix("cause:") if self.metric.startswith("cause:") else None

    def show(self, value: float) -> str:
        """A figure with the metric's unit."""
        if self.is_latency:
            return f"{value:.4g} ms"
        if self.metric == "throughput":
            return f"{value:.4g} rps"
        return f"{value:.4g}" if self.metric == "accuracy" else f"{100 * value:.3g} %"


def parse_gate(text: str) -> Gate:
    """Parse one ``--gate``.

    :raises InputError: one line with what was found, what was expected, and examples.
    """
    match = _GATE.fullmatch(text)
    if match is None:
        raise _wrong(text, "no METRIC, operator and limit", "METRIC<LIMIT")
    operator = match["operator"]
    if operator not in ("<", "<=", ">", ">="):
        raise _wrong(text, f"the operator {operator!r}", "one of <, <=, >, >=")
    metric = _metric(text, match["metric"])
    factor, limit = _limit(text, metric, match["limit"])
    return Gate(text=re.sub(r"\s+", "", text), metric=metric, operator=operator, limit=limit, factor=factor)


def _metric(text: str, name: str) -> str:
    metric = "p99_9" if name in ("p99.9", "p999") else name
    if metric in _METRICS:
        return metric
    if metric.startswith("cause:"):
        cause = metric.removeprefix("cause:")
        if cause in CAUSE_IDS:
            return metric
        near = difflib.get_close_matches(cause, CAUSE_IDS, n=1)
        raise _wrong(text, f"the cause {cause!r}", f"cause:{near[0]}" if near else "an id of docs/causes.md")
    near = difflib.get_close_matches(metric, _METRICS, n=1)
    hint = f"{near[0]!r}" if near else "one of " + ", ".join((*_METRICS, "cause:ID"))
    raise _wrong(text, f"the metric {name!r}", hint)


def _limit(text: str, metric: str, written: str) -> tuple[float, float]:
    """Factor of the baseline, and the number."""
    if written.startswith("baseline"):
        match = _BASELINE.fullmatch(written)
        if match is None:
            raise _wrong(text, f"the limit {written!r}", "baseline, baseline*1.05 or baseline-0.01")
        factor = float(match["factor"]) if match["factor"] else 1.0
        if factor <= 0:
            raise _wrong(text, f"the factor {match['factor']}", "one above 0")
        if match["number"] is None:
            return factor, 0.0
        offset = _number(text, metric, match["number"], match["unit"])
        return factor, -offset if match["sign"] == "-" else offset
    match = _ABSOLUTE.fullmatch(written)
    if match is None:
        raise _wrong(text, f"the limit {written!r}", "a number with its unit, or baseline*1.05")
    return 0.0, _number(text, metric, match["number"], match["unit"])


def _number(text: str, metric: str, digits: str, unit: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _wrong(text, f"the number {digits}", "a finite one")
    if metric in LATENCY_KEYS:
        if unit not in _MS:
            raise _wrong(text, f"the unit {unit!r}" if unit else "no unit", "us, ms or s")
        return number * _MS[unit]
    if metric == "throughput":
        if unit not in ("", "rps"):
            raise _wrong(text, f"the unit {unit!r}", "rps or none")
        return number
    if unit not in ("", "%"):
        raise _wrong(text, f"the unit {unit!r}", "% or none")
    if metric == "accuracy":
        return number / 100 if unit else number
    share = number / 100 if unit else number
    if share > 1 or (share == 1 and not unit):
        raise _wrong(text, f"the share {digits}{unit}", f"0 to 100 %, as in {metric}<1%")
    return share


def _wrong(text: str, found: str, expected: str) -> InputError:
    return InputError(f"--gate {_shown(text)}: found {_shown(found)}; expected {expected}; examples: {EXAMPLES}")


def _shown(text: str) -> str:
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if text.isprintable() else repr(text)
