"""OpenMetrics text: a run's counts, latency histogram, stages, causes and gates.

Format: OpenMetrics 1.0, as Prometheus, its push gateway and the node exporter's textfile collector read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from latfix.formatting import finite, key_label, visible
from latfix.lower_bound import AtLeast
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.chunked_record import RecordSource
from latfix.stages import Status

#: Upper ends of the histogram's buckets, seconds: three a decade from 100 µs to 100 s.
EDGES = (*(round(step * 10.0**k, 9) for k in range(-4, 2) for step in (1, 2, 5)), 100.0)
_Sample = tuple[str, Mapping[str, object], object]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric.

    :param name: without the prefix ``latfix_`` and without the unit.
    :param kind: ``counter``, ``gauge`` or ``histogram``.
    :param unit: of its values; empty for counts and rates.
    :param samples: suffix of the name, labels, and value.
    """

    name: str
    kind: str
    unit: str
    words: str
    samples: Sequence[_Sample]


def openmetrics(diagnosis: Diagnosis, source: RecordSource | None, *, window_s: float | None = None) -> Iterator[str]:
    """The lines of :func:`families`."""
    for family in families(diagnosis, source, window_s=window_s):
        full = "_".join(filter(None, ("latfix", family.name, family.unit)))
        yield f"# TYPE {full} {family.kind}\n"
        if family.unit:
            yield f"# UNIT {full} {family.unit}\n"
        yield f"# HELP {full} {family.words}\n"
        for suffix, labels, value in family.samples:
            pairs = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
            yield f"{full}{suffix}{{{pairs}}} {value}\n"
    yield "# EOF\n"


def families(diagnosis: Diagnosis, source: RecordSource | None, *, window_s: float | None = None) -> list[Family]:
    """The metrics of a diagnosis that have samples.

    :param source: the run's requests; without them there is no histogram.
    :param window_s: length of the diagnosed window of a running service; ``None`` for a complete run.
    """
    same: dict[str, object] = {"workload": diagnosis.workload}
    found: list[Family] = []
    statuses = {name: number for name, number in diagnosis.requests.items() if number is not None}
    suffix = "_total" if window_s is None else ""
    counts: list[_Sample] = [(suffix, {**same, "status": name}, number) for name, number in statuses.items()]
    if window_s is None:
        found.append(Family("requests", "counter", "", "Measured requests by status.", counts))
    else:
        found.append(Family("window_requests", "gauge", "", "Requests of the window by status.", counts))
        words = "Length of the window that all other figures cover."
        found.append(Family("window", "gauge", "seconds", words, [("", same, window_s)]))
    if source is not None:
        words = "Latency of measured requests; those that did not end ok are in the last bucket only."
        found.append(Family("request_latency", "histogram", "seconds", words, _histogram(source, same)))

    def seconds(name: str, words: str, values_ms: Iterable[tuple[Mapping[str, object], object]]) -> None:
        known = [(labels, _seconds(value)) for labels, value in values_ms]
        samples = [("", {**same, **labels}, value) for labels, value in known if value is not None]
        found.append(Family(name, "gauge", "seconds", words, samples))

    figures = [({"figure": key_label(key)}, value) for key, value in diagnosis.latency_ms.items()]
    seconds("latency", "Latency over all requests that arrived; the mean only over those that ended ok.", figures)
    stages = [
        ({"stage": stage, "figure": key_label(key)}, value)
        for stage, row in diagnosis.stages_ms.items()
        for key, value in row.items()
    ]
    seconds("stage", "Time of requests in each stage.", stages)
    excess = [({"percentile": f"{diagnosis.percentile:g}"}, diagnosis.excess_ms)]
    seconds("tail_excess", "Mean latency of the tail above a quiet request.", excess)
    causes = [
        ({"cause": each.cause, "class": each.evidence_class, "named": str(each.named).lower()}, each.tail_ms)
        for each in diagnosis.causes
    ]
    seconds("cause_tail", "Mean time that each cause adds to a request of the tail.", causes)
    rate: list[_Sample] = (
        [("", same, diagnosis.throughput_rps)] if finite(diagnosis.throughput_rps) is not None else []
    )
    found.append(Family("throughput", "gauge", "", "Requests that ended ok a second.", rate))
    passed = {True: 1, False: 0, None: "NaN"}
    once = {each.gate.text: each for each in diagnosis.gates}  # a sample that occurs twice invalidates the document
    gates: list[_Sample] = [("", {**same, "gate": text}, passed[each.passed]) for text, each in once.items()]
    words = "1 if the gate passed, 0 if it failed, NaN if undecided."
    found.append(Family("gate_passed", "gauge", "", words, gates))
    return [family for family in found if family.samples]


def _seconds(ms: object) -> object:
    """Infinite for a percentile among lost requests, so that an alert on it fires; ``None`` if unknown."""
    if isinstance(ms, AtLeast):
        return "+Inf"
    number = finite(ms)
    return None if number is None else number / 1e3


def _label(text: object) -> str:
    return visible(text, limit=300).replace("\\", "\\\\").replace('"', '\\"')


def _histogram(source: RecordSource, same: Mapping[str, object]) -> list[_Sample]:
    within, total, sum_ns = np.zeros(len(EDGES), np.int64), 0, 0
    for rows in source.scan(("latency_ns", "status", "warmup")):
        measured = rows["warmup"] == 0
        answered = np.sort(rows["latency_ns"][measured & (rows["status"] == Status.OK)])
        within += np.searchsorted(answered, [edge * 1e9 for edge in EDGES], side="right")
        total += int(np.count_nonzero(measured))
        sum_ns += int(rows["latency_ns"][measured].sum())
    buckets: list[_Sample] = [
        ("_bucket", {**same, "le": edge}, number) for edge, number in zip(EDGES, within.tolist(), strict=True)
    ]
    return [
        *buckets,
        ("_bucket", {**same, "le": "+Inf"}, total),
        ("_count", same, total),
        ("_sum", same, sum_ns / 1e9),
    ]
