"""Detection of a tail that is a single incident, and the batch that caused it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latfix.profilers.drilldown.service_costs import batch_costs
from latfix.profilers.evidence.units import Evidence
from latfix.queueing.two_stage_queue import Line
from latfix.results.diagnosis import Incident, Ledger

#: Least requests at the moment of an incident, and its longest span of arrivals as a share of the run.
_LEAST, _LONGEST = 3, 0.1
#: A batch caused the incident if its delay is at least this share of the tail's mean excess.
_CAUSED_IT = 0.5


def incident_of(
    evidence: Evidence, ledger: Ledger, line: Line, tail_ns: float, span_s: tuple[float, float]
) -> Incident | None:
    """The incident that all requests of the tail share, or ``None``.

    They share one if their intervals from arrival to end leave no gap, and they arrived within a tenth of the run.
    Two could meet by chance, so a tail of two needs the next slowest request at that moment, too.

    :param ledger: of the ``ok`` requests of ``evidence``.
    :param line: the queues of the ledger.
    :param tail_ns: the least latency of the tail.
    :param span_s: begin and end of the run.
    """
    latency = ledger.latency_ns
    tail = int(np.count_nonzero(latency >= tail_ns))
    if tail < 2 or len(latency) < _LEAST:
        return None
    slow = latency >= min(tail_ns, float(np.partition(latency, -_LEAST)[-_LEAST]))
    arrival = evidence.rows["arrival_ns"][evidence.ok][slow].astype(np.int64)
    order = np.argsort(arrival, kind="stable")
    arrival = arrival[order]
    end = np.maximum.accumulate(arrival + latency[slow][order])
    together = bool((arrival[1:] <= end[:-1]).all())
    if not together or arrival[-1] - arrival[0] > _LONGEST * 1e9 * (span_s[1] - span_s[0]):
        return None
    excess_ns = float(latency[latency >= tail_ns].mean() - ledger.reference_ns)
    incident = Incident(start_s=float(arrival[0]) / 1e9, end_s=float(end[-1]) / 1e9, requests=tail)
    if not evidence.setup.batched or evidence.setup.processes > 1:
        return incident
    costs = batch_costs(evidence, line)
    held = costs.end - costs.start
    meets = (costs.start < end[-1]) & (costs.end > arrival[0])
    if not meets.any():
        return incident
    worst = int(np.argmax(np.where(meets, held - costs.typical, np.iinfo(np.int64).min)))
    if held[worst] - costs.typical[worst] < _CAUSED_IT * excess_ns:
        return incident
    return replace(
        incident,
        batch=int(evidence.batches["batch_id"][worst]),
        worker=int(evidence.units["compute"].thread[worst]),
        held_ms=float(held[worst]) / 1e6,
        typical_ms=float(costs.typical[worst]) / 1e6,
    )
