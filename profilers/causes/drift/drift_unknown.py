"""``drift.unknown``: slower with age, or from one moment on, and nothing recorded tells why."""

from __future__ import annotations

from latfix.profilers.causes.drift.causes import drift_cause

CAUSE = drift_cause(
    "drift.unknown",
    happened="work slowing down with age",
    behind="one slowed with age",
)
