"""How much of the tail a fix could treat, for the fixes' own preconditions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord

#: Below this share of the tail's excess a cause is not worth a setting that has a price.
LITTLE = 0.01


def tail_share(diagnosis: Diagnosis, causes: Iterable[str]) -> float:
    """The share of the tail's excess that ``causes`` own together; evidence is often split among several of them."""
    wanted = set(causes)
    return sum(cause.tail_share for cause in diagnosis.causes if cause.cause in wanted)


def too_little(diagnosis: Diagnosis, causes: Iterable[str], least: float = LITTLE) -> str:
    """Why there is nothing to treat, in one clause; empty where there is, or where no cause is known at all."""
    causes = tuple(causes)
    share = tail_share(diagnosis, causes)
    if not diagnosis.causes or share >= least:
        return ""
    # What is not there is not slightly negative.
    return f"{' and '.join(causes)} made up {max(share, 0.0):.1%} of the tail"


def refusals(record: RunRecord, *settings: str) -> list[str]:
    """What the system refused of these settings in that run, one line each."""
    return [note for note in record.meta.get("setup_notes", []) if note.startswith(settings)]


def faults_per_request(record: RunRecord) -> float:
    """Minor page faults of prepare, collate, compute and finish, the mean over the measured requests."""
    rows, batches = record.requests, record.batches
    measured, counted = record.measured, batches["warmup"] == 0
    requests = int(np.count_nonzero(measured))
    if not requests:
        return 0.0
    shared = float(batches["collate_minflt"][counted].sum() + batches["compute_minflt"][counted].sum())
    own = float(rows["prepare_minflt"][measured].sum() + rows["finish_minflt"][measured].sum())
    return (shared + own) / requests
