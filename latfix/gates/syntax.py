"""The syntax of a gate: ``METRIC OPERATOR LIMIT``, where the limit is a number, ``baseline`` or ``history``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from latfix.cause_catalogue import CATALOGUE
from latfix.errors import InputError
from latfix.formatting import LATENCY_KEYS, LOST, visible
from latfix.lower_bound import AtLeast
from latfix.statistics.percentiles import percentile_key, percentile_of

Against = Literal["number", "baseline", "history"]

EXAMPLES = "p99<200ms, p99<=baseline*1.05, mean<history*1.1, throughput>=40, error_rate<1%, accuracy>=baseline-0.01"

_SHARES = ("error_rate", "unexplained_share")
_METRICS = (*LATENCY_KEYS, "throughput", "accuracy", *_SHARES)
_MS: Mapping[str, float] = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_GATE = re.compile(r"\s*(?P<metric>[^<>=!\s]+)\s*(?P<operator>[<>=!]+)\s*(?P<limit>.*?)\s*", re.DOTALL)
_NUMBER = r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(?P<unit>%|[A-Za-z/]*)"
_ABSOLUTE = re.compile(_NUMBER)
_REFERENCE = re.compile(
    r"(?P<word>baseline|history)\s*(?:\*\s*(?P<factor>(?:[0-9]+\.?[0-9]*|\.[0-9]+))\s*)?(?:(?P<sign>[+-])\s*"
    + _NUMBER
    + ")?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A parsed gate: ``metric operator limit``, or ``metric operator baseline*factor + limit``.

    :param text: as the user wrote it, without spaces.
    :param metric: a key of ``LATENCY_KEYS`` or of another percentile (``p97_5``), ``throughput``,
        ``accuracy``, ``error_rate``, ``unexplained_share``, or ``cause:`` and an id.
    :param operator: ``<``, ``<=``, ``>`` or ``>=``.
    :param factor: of the baseline's or the history's figure; 0 if the limit is a number.
    :param limit: in milliseconds, requests per second, or as a share; added to the baseline's.
    :param against: the source of the limit.
    """

    JSON_SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "description": "METRIC OPERATOR LIMIT: p99<200ms"}

    text: str
    metric: str
    operator: str
    limit: float
    factor: float = 0.0
    against: Against = "number"

    def to_json(self) -> str:
        """As the user wrote it."""
        return self.text

    @classmethod
    def from_json(cls, text: str) -> Gate:
        """Parse what :meth:`to_json` wrote."""
        return parse_gate(text)

    @property
    def needs_baseline(self) -> bool:
        """True if the limit depends on a baseline."""
        return self.against == "baseline"

    @property
    def needs_history(self) -> bool:
        """True if the limit depends on earlier runs."""
        return self.against == "history"

    @property
    def is_latency(self) -> bool:
        """True if the figure is a latency."""
        return is_latency(self.metric)

    @property
    def cause(self) -> str | None:
        """The cause if the metric is a cause's share of the tail."""
        return self.metric.removeprefix("cause:") if self.metric.startswith("cause:") else None

    def show(self, value: float) -> str:
        """A figure with the metric's unit."""
        return show_figure(self.metric, value)


def is_latency(metric: str) -> bool:
    """True if a metric is a latency."""
    return metric in LATENCY_KEYS or percentile_of(metric) is not None


def show_figure(metric: str, value: float) -> str:
    """A metric's figure with its unit."""
    if isinstance(value, AtLeast):
        return f"> {show_figure(metric, value.bound)}" if value.bound > 0 else LOST
    if math.isinf(value):
        return "no bound"
    plain = f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:.4g}"
    if is_latency(metric):
        return f"{plain} ms"
    if metric == "throughput":
        return f"{plain} rps"
    return plain if metric == "accuracy" else f"{100 * value:.3g} %"


def parse_metric(name: str) -> str:
    """The key of a metric given with ``--metric``: ``p99_9`` for ``p99.9``.

    :raises InputError: the name is not a metric.
    """
    return _metric(name, lambda found, expected: _refused("--metric", name, found, expected))


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
    metric = _metric(match["metric"], lambda found, expected: _wrong(text, found, expected))
    against, factor, limit = _limit(text, metric, match["limit"])
    written = re.sub(r"\s+", "", text)
    return Gate(text=written, metric=metric, operator=operator, limit=limit, factor=factor, against=against)


def _metric(name: str, wrong: Callable[[str, str], InputError]) -> str:
    percentile = percentile_of(name)
    metric = name if percentile is None else percentile_key(percentile)
    if metric in _METRICS or percentile is not None:
        return metric
    if metric.startswith("cause:"):
        cause = metric.removeprefix("cause:")
        if cause in CATALOGUE:  # a misspelled one would always pass
            return metric
        near = difflib.get_close_matches(cause, CATALOGUE, n=1)
        raise wrong(f"the cause {cause!r}", f"cause:{near[0]}" if near else "an id of docs/causes.md")
    if re.fullmatch(r"p[0-9._]+", name):
        raise wrong(f"the metric {name!r}", "a percentile from 1 to below 100, as in p99")
    near = difflib.get_close_matches(metric, _METRICS, n=1)
    hint = f"{near[0]!r}" if near else "one of " + ", ".join((*_METRICS, "another percentile, cause:ID"))
    raise wrong(f"the metric {name!r}", hint)


def _limit(text: str, metric: str, written: str) -> tuple[Against, float, float]:
    """Where the limit comes from, its factor, and its number."""
    if written.startswith(("baseline", "history")):
        match = _REFERENCE.fullmatch(written)
        if match is None:
            raise _wrong(text, f"the limit {written!r}", "baseline, baseline*1.05, baseline-0.01 or history*1.1")
        against: Against = "baseline" if match["word"] == "baseline" else "history"
        factor = float(match["factor"]) if match["factor"] else 1.0
        if not (factor > 0 and math.isfinite(factor)):
            raise _wrong(text, f"the factor {match['factor']}", "a finite one above 0")
        if match["number"] is None:
            return against, factor, 0.0
        offset = _number(text, metric, match["number"], match["unit"])
        return against, factor, -offset if match["sign"] == "-" else offset
    match = _ABSOLUTE.fullmatch(written)
    if match is None:
        raise _wrong(text, f"the limit {written!r}", "a number with its unit, baseline*1.05 or history*1.1")
    return "number", 0.0, _number(text, metric, match["number"], match["unit"])


def _number(text: str, metric: str, digits: str, unit: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _wrong(text, f"the number {digits}", "a finite one")
    if is_latency(metric):
        if unit not in _MS:
            raise _wrong(text, f"the unit {unit!r}" if unit else "no unit", "us, ms or s")
        return number * _MS[unit]
    if metric == "throughput":
        if unit not in ("", "rps"):
            raise _wrong(text, f"the unit {unit!r}", "rps or none")
        return number
    if unit not in ("", "%"):
        raise _wrong(text, f"the unit {unit!r}", "% or none")
    share = number / 100 if unit else number
    if metric != "accuracy" and (share > 1 or (share == 1 and not unit)):
        raise _wrong(text, f"the share {digits}{unit}", f"0 to 100 %, as in {metric}<1%")
    return share


def _wrong(text: str, found: str, expected: str) -> InputError:
    error = _refused("--gate", text, found, expected)
    return InputError(f"{error.message}; examples: {EXAMPLES}")


def _refused(option: str, text: str, found: str, expected: str) -> InputError:
    return InputError(f"{option} {visible(text, limit=60)}: found {visible(found, limit=60)}; expected {expected}")
