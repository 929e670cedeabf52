"""``drift.sessions``: slower with age, alongside sessions that piled up."""

from __future__ import annotations

from latfix.profilers.causes.drift.causes import drift_cause

CAUSE = drift_cause(
    "drift.sessions",
    happened="work slowing down while sessions piled up",
    behind="one slowed by sessions that piled up",
)
