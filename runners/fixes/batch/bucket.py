"""``batch.bucket``: batch requests of similar length, so that neither padding nor a long one delays others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.queueing.length_buckets import alike, padding_share
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, batches_shared
from latfix.runners.fixes.shared.queue_evidence import lengths

_LITTLE = 0.02
#: A feature replaces the size of the inputs if it explains this much more of the compute time.
_MORE = 0.1
_ENOUGH = 20


def bucket_key(record: RunRecord) -> str:
    """The numeric feature that best explains how long a request computes; empty if the inputs' size does."""
    rows = record.requests
    batches = record.batches
    alone = batches["batch_id"][(batches["size"] == 1) & (batches["warmup"] == 0)]
    chosen = np.isin(rows["batch_id"], alone) & (rows["index"] >= 0)
    if np.count_nonzero(chosen) < _ENOUGH:
        return ""
    compute = rows["compute_ns"][chosen]
    explained = {"": _rank_correlation(rows["input_elements"][chosen], compute)}
    for name, column in record.traffic.features.items():
        if column.dtype.kind in "iuf":
            explained[name] = _rank_correlation(column[rows["index"][chosen]], compute)
    best = max(explained, key=lambda name: explained[name])
    return best if explained[best] > explained[""] + _MORE else ""


def _rank_correlation(values: npt.NDArray[Any], compute: npt.NDArray[np.int64]) -> float:
    """Squared Spearman correlation; 0 if either side does not vary. Missing values rank first."""
    ranks = [np.unique(np.nan_to_num(side.astype(np.float64)), return_inverse=True)[1] for side in (values, compute)]
    if any(rank.max(initial=0) == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]) ** 2


def mixed_share(record: RunRecord) -> tuple[float, int]:
    """Share of shared batches whose members are too unlike to be filled by length, with any of them as head; and the
    number of shared batches."""
    rows = record.requests
    inside = rows["batch_id"] >= 0
    batch, length = rows["batch_id"][inside], rows["bucket_length"][inside]
    order = np.argsort(batch, kind="stable")
    _, starts = np.unique(batch[order], return_index=True)
    members = [part.tolist() for part in np.split(length[order], starts[1:]) if len(part) > 1]
    mixed = [not any(all(alike(one, head) for one in part) for head in part) for part in members]
    return sum(mixed) / max(len(mixed), 1), len(mixed)


def _spread(record: RunRecord) -> float:
    """Mean over batches of the longest bucket length over the mean one; 1 if all are alike."""
    rows = record.requests
    inside = rows["batch_id"] >= 0
    batch, length = rows["batch_id"][inside].astype(int), rows["bucket_length"][inside].astype(np.float64)
    if not len(batch):
        return 1.0
    count = np.bincount(batch)
    top = np.zeros(len(count))
    np.maximum.at(top, batch, length)
    mean = np.bincount(batch, weights=length) / np.maximum(count, 1)
    shared = (count > 1) & (mean > 0)
    return float(np.mean(top[shared] / mean[shared])) if shared.any() else 1.0


def _unlike_requests(context: Context) -> str:
    padding = padding_share(context.record.batches)
    if padding < _LITTLE and not bucket_key(context.record):
        little = f"only {100 * padding:.1f} % of the batches is padding"
        return f"{little}, and no feature predicts how long a request takes"
    return ""


def _verify(applied: Applied) -> Verified:
    """Less padding between two replays may be chance; that no batch is mixed any more is not."""
    key = applied.settings.batch_key
    without = _by_key(applied.without, key) if key else applied.without
    (now, shared), (before, shared_before) = mixed_share(applied.record), mixed_share(without)
    text = f"{100 * now:.1f} % of the shared batches mixed unlike requests, {100 * before:.1f} % without"
    if key:
        text += (
            f"; the largest {key} was {_spread(applied.record):.2f} times the mean, {_spread(without):.2f} without"
        )
    else:
        padding = padding_share(applied.record.batches), padding_share(without.batches)
        text += f"; {100 * padding[0]:.1f} % was padding, {100 * padding[1]:.1f} % without"
    # Where requests ran one by one before, none was mixed.
    return Verified(now == 0 and (before > 0 or (shared > 0 and not shared_before)), text)


def _by_key(record: RunRecord, key: str) -> RunRecord:
    """The record with bucket lengths by ``key`` instead of the run's own."""
    return replace(record, requests={**record.requests, "bucket_length": lengths(record, key)})


FIX = Fix(
    id="batch.bucket",
    title="batch requests of similar length",
    treats=("batching.padding", "batching.size"),
    relief=0.6,
    risk="smaller batches where lengths differ widely",
    changes_outputs=True,
    mates_only=True,
    needs=(
        batches_shared("requests run one by one, so no request waits for a longer one in its batch"),
        at_default("batch_order", "batches are ordered by length already"),
        _unlike_requests,
    ),
    sets=lambda context: {"batch_order": "length", "batch_key": bucket_key(context.record)},
    verify=_verify,
)
