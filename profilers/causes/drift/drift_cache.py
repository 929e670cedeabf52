"""``drift.cache``: slower with age, alongside shapes or compilations that piled up in a cache."""

from __future__ import annotations

from latfix.profilers.causes.drift.causes import drift_cause

CAUSE = drift_cause(
    "drift.cache",
    happened="work slowing down while a cache of shapes or compilations grew",
    behind="one slowed by a growing cache",
)
