"""``drift.memory``: slower with age, alongside memory that grew."""

from __future__ import annotations

from latfix.profilers.causes.drift.causes import drift_cause

CAUSE = drift_cause(
    "drift.memory",
    happened="work slowing down while memory grew",
    behind="one slowed by growing memory",
)
