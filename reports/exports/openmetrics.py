"""OpenMetrics text: a run's counts, latency histogram, stages, causes and gates.

Format: OpenMetrics 1.0, as Prometheus, its push gateway and the node exporter's textfile collector read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from latfix.formatting import finite, key_label, visible
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.chunked_record import RecordSource
from latfix.stages import Status

#: Upper ends of the histogram's buckets, seconds: three a decade from 100 µs to 100 s.
_EDGES = (*(round(step * 10.0**k, 9) for k in range(-4, 2) for step in (1, 2, 5)), 100.0)
_Sample = tuple[str, Mapping[str, object], object]


def openmetrics(diagnosis: Diagnosis, source: RecordSource | None, *, window_s: float | None = None) -> Iterator[str]:
    """The lines.

    :param source: the run's requests; without them there is no histogram.
    :param window_s: length of the diagnosed window of a running service; ``None`` for a complete run.
    """
    same = {"workload": diagnosis.workload}
    statuses = {name: number for name, number in diagnosis.requests.items() if number is not None}
    suffix = "_total" if window_s is None else ""
    counts = [(suffix, {**same, "status": name}, number) for name, number in statuses.items()]
    if window_s is None:
        yield from _family("requests", "counter", "", "Measured requests by status.", counts)
    else:
        yield from _family("window_requests", "gauge", "", "Requests of the window by status.", counts)
        words = "Length of the window that all other figures cover."
        yield from _family("window", "gauge", "seconds", words, [("", same, window_s)])
    if source is not None:
        words = "Latency of measured requests; those that did not end ok are in the last bucket only."
        yield from _family("request_latency", "histogram", "seconds", words, _histogram(source, same))
    figures = [({"figure": key_label(key)}, value) for key, value in diagnosis.latency_ms.items()]
    yield from _gauges("latency", "seconds", "Percentiles of latency over all requests that arrived.", same, figures)
    stages = [
        ({"stage": stage, "figure": key_label(key)}, value)
        for stage, row in diagnosis.stages_ms.items()
        for key, value in row.items()
    ]
    yield from _gauges("stage", "seconds", "Time of requests in each stage.", same, stages)
    excess = [({"percentile": f"{diagnosis.percentile:g}"}, diagnosis.excess_ms)]
    yield from _gauges("tail_excess", "seconds", "Mean latency of the tail above a quiet request.", same, excess)
    causes = [
        ({"cause": each.cause, "class": each.evidence_class, "named": str(each.named).lower()}, each.tail_ms)
        for each in diagnosis.causes
    ]
    yield from _gauges(
        "cause_tail", "seconds", "Mean time that each cause adds to a request of the tail.", same, causes
    )
    rate = [("", same, diagnosis.throughput_rps)] if finite(diagnosis.throughput_rps) is not None else []
    yield from _family("throughput", "gauge", "", "Requests that ended ok a second.", rate)
    passed = {True: 1, False: 0, None: "NaN"}
    gates = [("", {**same, "gate": each.gate.text}, passed[each.passed]) for each in diagnosis.gates]
    yield from _family("gate_passed", "gauge", "", "1 if the gate passed, 0 if it failed, NaN if undecided.", gates)
    yield "# EOF\n"


def _gauges(
    name: str,
    unit: str,
    words: str,
    same: Mapping[str, object],
    values_ms: Iterable[tuple[Mapping[str, object], object]],
) -> Iterator[str]:
    known = [(labels, finite(value)) for labels, value in values_ms]
    samples = [("", {**same, **labels}, value / 1e3) for labels, value in known if value is not None]
    return _family(name, "gauge", unit, words, samples)


def _family(name: str, kind: str, unit: str, words: str, samples: Iterable[_Sample]) -> Iterator[str]:
    """A metric with its type, unit and help; nothing without samples."""
    full = f"latfix_{name}_{unit}" if unit else f"latfix_{name}"
    head = [f"# TYPE {full} {kind}\n", *([f"# UNIT {full} {unit}\n"] if unit else []), f"# HELP {full} {words}\n"]
    for suffix, labels, value in samples:
        yield from head
        head = []
        pairs = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
        yield f"{full}{suffix}{{{pairs}}} {value}\n"


def _label(text: object) -> str:
    return visible(text, limit=300).replace("\\", "\\\\").replace('"', '\\"')


def _histogram(source: RecordSource, same: Mapping[str, object]) -> list[_Sample]:
    within, total, sum_ns = np.zeros(len(_EDGES), np.int64), 0, 0
    for rows in source.scan(("latency_ns", "status", "warmup")):
        measured = rows["warmup"] == 0
        answered = np.sort(rows["latency_ns"][measured & (rows["status"] == Status.OK)])
        within += np.searchsorted(answered, [edge * 1e9 for edge in _EDGES], side="right")
        total += int(np.count_nonzero(measured))
        sum_ns += int(rows["latency_ns"][measured].sum())
    buckets: list[_Sample] = [
        ("_bucket", {**same, "le": edge}, number) for edge, number in zip(_EDGES, within.tolist(), strict=True)
    ]
    return [
        *buckets,
        ("_bucket", {**same, "le": "+Inf"}, total),
        ("_count", same, total),
        ("_sum", same, sum_ns / 1e9),
    ]
