"""What each kept fix gave: its own part of the change, when it was added and as it stands at the end.

The final replay alone says what the fixes are worth together. Each fix's ratio is from its own replays on the
screening windows; multiplied up they do not meet the final ratio exactly, for windows are not the whole traffic and
fixes act on one another. What is left over is an entry of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from latfix.results.comparison import Comparison
from latfix.results.optimization_step import Step

KEYS = ("mean", "p99")


def ablation(kept: Sequence[Step], final: Comparison | None) -> list[dict[str, Any]]:
    """One entry a kept fix, or a group that was replayed together, in order; the last one is what is left over.

    ``before_ms`` and ``after_ms`` by statistic lead from the first settings' figure of the final replay to the last
    settings'. ``ratio`` is what the fix did when it was added, ``adds`` what it gives beside all the others,
    ``predicted`` what was foretold of ``ratio``; ``null`` where that was not measured.
    """
    if final is None:
        return []
    entries: list[dict[str, Any]] = []
    now = {key: final.before.latency_ms[key] for key in KEYS}
    for group in _groups(kept):
        first = group[0]
        if first.comparison is None:
            continue
        ratio = {key: first.comparison.ratio[key].value for key in KEYS}
        then = {key: now[key] * ratio[key] for key in KEYS}
        entries.append(
            {
                "fixes": [step.fix for step in group],
                "before_ms": dict(now),
                "after_ms": dict(then),
                "ratio": {key: first.comparison.ratio[key].to_json() for key in KEYS},
                "adds": _adds(group),
                "predicted": _predicted(first),
            }
        )
        now = then
    if entries:
        after = {key: final.after.latency_ms[key] for key in KEYS}
        entries.append(
            {"fixes": [], "before_ms": now, "after_ms": after, "ratio": None, "adds": None, "predicted": None}
        )
    return entries


def _groups(kept: Sequence[Step]) -> list[list[Step]]:
    """Steps that share their replays stand together."""
    groups: list[list[Step]] = []
    for step in kept:
        if step.together and groups and groups[-1][0].together == step.together:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _adds(group: Sequence[Step]) -> Mapping[str, Any] | None:
    found = {
        step.fix: {key: step.adds.ratio[key].to_json() for key in KEYS} for step in group if step.adds is not None
    }
    return found or None


def _predicted(step: Step) -> dict[str, float] | None:
    if step.prediction is None or step.together:
        return None
    return {key: step.prediction.ratio[key] for key in KEYS}
