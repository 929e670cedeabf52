"""Why the latencies of two services differ: stage by stage, and cause by cause from the diagnoses of their runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from latfix.formatting import finite
from latfix.gates.latency_change import LatencyChange, latency_change
from latfix.profilers.causes.host.core_takers import disturbance, disturbed_replays
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.service_queue import with_queue
from latfix.results.comparison import RATIO_KEYS, Comparison
from latfix.run_record.run_record import RunRecord
from latfix.statistics.latency_summary import QUANTILES

#: The part of a latency that no cause has.
QUIET = "a quiet request"
#: The tail's means need no resampling; this is the least number of replicates.
_REPLICATES = 2


def by_stage(
    metrics: Iterable[str], before: Sequence[RunRecord], after: Sequence[RunRecord]
) -> Iterator[LatencyChange]:
    """The change of each latency by stage; of those in :data:`RATIO_KEYS`, each once.

    :param before: the runs of the first service, and ``after`` of the second.
    """
    if known := [metric for metric in dict.fromkeys(metrics) if metric in RATIO_KEYS]:
        first, second = ([with_queue(record) for record in arm] for arm in (before, after))
        for metric in known:
            if (change := latency_change(metric, first, second)) is not None:
                yield change


def by_cause(
    change: LatencyChange, before: Sequence[RunRecord], after: Sequence[RunRecord], *, seed: int = 0
) -> LatencyChange:
    """The change with ``causes_ms``; without if a run cannot be diagnosed."""
    first, second = (_causes_ms(change.metric, arm, seed) for arm in (before, after))
    if not first or not second:
        return change
    return replace(
        change, causes_ms={name: second.get(name, 0.0) - first.get(name, 0.0) for name in {**first, **second}}
    )


def explained(
    comparison: Comparison,
    before: Sequence[RunRecord],
    after: Sequence[RunRecord],
    *,
    metrics: Iterable[str] = (),
    seed: int = 0,
) -> Comparison:
    """The comparison with ``disturbed`` and ``why``: the judged latency and those of ``metrics``, by stage and cause.

    A run that is compared with itself has no difference to explain.
    """
    disturbed = disturbed_replays([disturbance(record.samples) for record in (*before, *after)])
    comparison = replace(comparison, disturbed=disturbed)
    if comparison.same_run:
        return comparison
    changes = by_stage((comparison.judged, *metrics), before, after)
    return replace(comparison, why=tuple(by_cause(change, before, after, seed=seed) for change in changes))


def _causes_ms(metric: str, records: Sequence[RunRecord], seed: int) -> Mapping[str, float]:
    """Milliseconds of the requests beyond a percentile, or of all for the mean, averaged over the runs."""
    percentile = 100 * QUANTILES.get(metric, 0.0)
    found: dict[str, float] = defaultdict(float)
    for record in records:
        diagnosis = diagnose(record, percentile=percentile, seed=seed, bootstrap=_REPLICATES)
        if finite(diagnosis.latency_ms_ok["mean"]) is None:  # no request has its batch
            return {}
        found[QUIET] += diagnosis.reference_ms / len(records)
        for cause in diagnosis.causes:
            found[cause.cause] += cause.tail_ms / len(records)
    return found
