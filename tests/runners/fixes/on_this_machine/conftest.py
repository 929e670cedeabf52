"""Records of one worker that serves requests one by one, and contexts with shares of the tail by cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import Applied, Context
from latfix.settings import RunnerSettings
from tests.runners.fixes import conftest as general


def make_record(*, n: int = 40, settings: Mapping[str, Any] | None = None, **more: Any) -> RunRecord:
    """``n`` batches of one request each, with ``gap_ms`` of idle time before each, by default under no settings."""
    quiet: dict[str, Any] = {"open_ms": 0.0, "gap_ms": 10.0, "queue_ms": 0.0, "faults": 0, "pauses_ms": ()}
    return general.make_record([[64]] * n, settings=RunnerSettings(**(settings or {})), **{**quiet, **more})


def make_context(
    record: RunRecord | None = None,
    shares: Mapping[str, float] | None = None,
    *,
    cores: int = 4,
    default_collate: bool = True,
    **settings: Any,
) -> Context:
    """A context from a record, shares of the tail by cause, and settings."""
    return general.make_context(
        make_record() if record is None else record,
        RunnerSettings(**settings),
        shares={"unexplained": 0.3} if shares is None else shares,
        cores=cores,
        default_collate=default_collate,
    )


def verified(fix: Any, record: RunRecord, without: RunRecord | None = None, **evidence: Any) -> tuple[bool, str]:
    """What a fix makes of a run with it and one without."""
    found = fix.verify(Applied(evidence=evidence, record=record, without=without or make_record()))
    return found.effective, found.evidence
