"""Records of one worker that serves requests one by one, and contexts with shares of the tail by cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import Applied, Context
from latfix.settings import RunnerSettings
from tests.runners.fixes.conftest import MakeContext, MakeRecord


@pytest.fixture(scope="session")
def make_record(make_record: MakeRecord) -> MakeRecord:
    """``n`` batches of one request each, with ``gap_ms`` of idle time before each, by default under no settings."""

    def make(*, n: int = 40, settings: Mapping[str, Any] | None = None, **more: Any) -> RunRecord:
        quiet: dict[str, Any] = {"open_ms": 0.0, "gap_ms": 10.0, "queue_ms": 0.0, "faults": 0, "pauses_ms": ()}
        return make_record([[64]] * n, settings=RunnerSettings(**(settings or {})), **{**quiet, **more})

    return make


@pytest.fixture(scope="session")
def make_context(make_context: MakeContext, make_record: MakeRecord) -> MakeContext:
    """A context from a record, shares of the tail by cause, and settings."""

    def make(
        record: RunRecord | None = None,
        shares: Mapping[str, float] | None = None,
        *,
        cores: int = 4,
        default_collate: bool = True,
        **settings: Any,
    ) -> Context:
        return make_context(
            make_record() if record is None else record,
            RunnerSettings(**settings),
            shares={"unexplained": 0.3} if shares is None else shares,
            cores=cores,
            default_collate=default_collate,
        )

    return make


@pytest.fixture
def verified(make_record: MakeRecord) -> Callable[..., tuple[bool, str]]:
    """What a fix makes of a run with it and one without."""

    def check(fix: Any, record: RunRecord, without: RunRecord | None = None, **evidence: Any) -> tuple[bool, str]:
        found = fix.verify(Applied(evidence=evidence, record=record, without=without or make_record()))
        return found.effective, found.evidence

    return check
