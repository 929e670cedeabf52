"""Figures that got worse by a change, other than the judged one."""

from __future__ import annotations

from collections.abc import Iterator

from latfix.formatting import (
    LATENCY_KEYS,
    count,
    counted,
    key_label,
    mebibytes,
    rate,
    seconds,
    significant,
    speed_words,
)
from latfix.reports.comparison_rows import Change

#: Smallest factor that counts as worse; start-up times vary more, and must grow by this many seconds as well.
_WORSE, _SLOWER_START, _LEAST_START_S = 1.05, 1.25, 0.5
_NAMES = {"max": "maximum"}
#: Why a figure whose 95 % interval excludes 1 may not be decisive.
FEW_ROUNDS = "with so few rounds, restarts alone may differ by as much"


def side_effect_words(change: Change) -> tuple[str, bool]:
    """The line, and true if any figure is worse."""
    found = list(worsened(change))
    if found:
        return "; ".join(found), True
    known = [_name(key) for key in _others(change) if change.ratio(key).value is not None]
    known += [
        name
        for name, before, after in _costs(change)
        if before is not None and after is not None and (name != "start-up" or after <= _WORSE * before)
    ]
    return f"none in {', '.join(known)}" if known else "unknown: no other figure was measured", False


def worsened(change: Change) -> Iterator[str]:
    """Each figure that got worse, except the judged one, with both values."""
    before, after = change.before, change.after
    for key in _others(change):
        step = change.ratio(key)
        if step.value is None or step.value < _WORSE:
            continue
        figures = f"{significant(before.latency_ms.get(key))} → {significant(after.latency_ms.get(key))} ms"
        doubt = FEW_ROUNDS if step.doubtful else "no interval" if step.ci95 is None else "not significant"
        doubt = "" if step.tone == "bad" else f" ({doubt})"
        yield f"{_name(key)} {figures}, {speed_words(step.value)}{doubt}"
    if after.failed > before.failed:
        yield f"{counted(after.failed, 'request')} lost, {count(before.failed)} before"
    if before.accuracy is not None and after.accuracy is not None and after.accuracy < before.accuracy:
        was, now = significant(before.accuracy), significant(after.accuracy)
        if was != now:
            yield f"accuracy {was} → {now}{f' ({change.limit_words})' if change.limit_words else ''}"
    for name, was_cost, now_cost in _costs(change):
        if was_cost is not None and now_cost is not None and _dearer(name, was_cost, now_cost):
            yield f"{name} {_cost_words(name, was_cost)} → {_cost_words(name, now_cost)}"


def _others(change: Change) -> list[str]:
    """Keys of the latencies that both arms have, except the judged one, and means that cannot be compared."""
    arms, without = (change.before, change.after), {change.judged, *(["mean"] if change.survivors else [])}
    return [key for key in LATENCY_KEYS if key not in without and all(arm.latency_ms.get(key) for arm in arms)]


def _costs(change: Change) -> list[tuple[str, float | None, float | None]]:
    def both(read: str) -> tuple[float | None, float | None]:
        return getattr(change.before, read), getattr(change.after, read)

    return [
        ("throughput", *both("throughput_rps")),
        ("memory", *both("memory_bytes")),
        ("device memory", *both("device_memory_bytes")),
        ("start-up", *both("start_s")),
    ]


def _dearer(name: str, before: float, after: float) -> bool:
    if name == "throughput":
        return after * _WORSE < before
    if name == "start-up":
        return after > _SLOWER_START * before and after - before >= _LEAST_START_S
    return after > _WORSE * before


def _cost_words(name: str, value: float) -> str:
    return rate(value) if name == "throughput" else seconds(value) if name == "start-up" else mebibytes(value)


def _name(key: str) -> str:
    return _NAMES.get(key, key_label(key))
