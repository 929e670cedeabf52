"""The diagnosis of a simulated record, made once for consecutive questions about the same record."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import CauseSummary, Diagnosis
from latfix.run_record.run_record import RunRecord

_latest: list[tuple[RunRecord, Diagnosis]] = []


def diagnosed(record: RunRecord) -> Diagnosis:
    """The diagnosis of the record; do not change the record between calls."""
    if not _latest or _latest[0][0] is not record:
        diagnosis = diagnose(record, bootstrap=100)
        assert diagnosis.ledger.conservation_error_ns() == 0
        _latest[:] = [(record, diagnosis)]
    return _latest[0][1]


def causes_of(record: RunRecord) -> dict[str, CauseSummary]:
    """Causes by id."""
    return {cause.cause: cause for cause in diagnosed(record).causes}


def own_ms(record: RunRecord, cause: str) -> np.ndarray[Any, Any]:
    """Milliseconds of a cause on each request's own path, by the request's number."""
    ledger = diagnosed(record).ledger
    own = np.zeros(len(record.requests["index"]))
    own[ledger.request] = ledger.own_ns[ledger.causes.index(cause)] / 1e6
    return own
