"""The diagnosis compared with four simpler methods, on runs with known faults.

    latfix selftest --out DIR                       replays all cases and keeps every record
    python -m benchmarks.profilers.attribution DIR --out benchmarks/results/attribution.json

Every method uses the same records and no information on the faults. The truth is the injectors' log.

- ``largest stage``: the stage whose mean in the tail exceeds its median most, by the cause it usually stands for.
- ``most correlated``: the metric that rises most with latency over all requests (rank correlation), by its cause.
- ``own request only``: the ledger without attribution through the queue: every wait belongs to the traffic.
- ``leave one out``: each cause's gain in the tail's mean when it alone is removed and the queue replayed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.result_file import write_result
from latfix.profilers.attribution.ledger import LedgerContext, make_books
from latfix.profilers.attribution.wait_attribution import waits_at
from latfix.profilers.evidence.units import Evidence, gather
from latfix.results.selftest_scoreboard import CaseScore
from latfix.run_record.run_record import RunRecord
from latfix.runners.selftest.run import score_kept
from latfix.runners.selftest.run_case import load_kept
from latfix.stages import STAGES
from latfix.statistics.distributions import wilson_interval
from latfix.statistics.latency_summary import percentile_ns

Floats = npt.NDArray[np.float64]
Answer = Mapping[str, float]

#: The usual interpretation of a stage that is long in the tail. The inputs determine compute.
STAGE_CAUSE = {
    "dispatch": "observer",
    "prepare": "external.dependency",
    "queue": "traffic.burst",
    "batch": "batching.window",
    "h2d": "transfer.copy",
    "d2h": "transfer.copy",
    "finish": "external.dependency",
}


class Run:
    """A record, prepared once for all methods."""

    def __init__(self, folder: Path) -> None:
        self.record = RunRecord.load(folder)
        self.evidence: Evidence = gather(self.record)
        self.books: LedgerContext = make_books(self.evidence)
        latency = self.books.ledger.latency_ns
        percentile = self.record.meta.objective.percentile
        self.tail = latency >= percentile_ns(latency, percentile)

    def rows(self, name: str) -> Floats:
        """A column of the requests in the ledger."""
        return self.evidence.rows[name][self.evidence.ok].astype(np.float64)

    def batches(self, name: str) -> Floats:
        """A column of their batches."""
        return self.evidence.of_batch(self.evidence.batches[name])[self.evidence.ok].astype(np.float64)


def largest_stage(run: Run) -> Answer:
    """The cause of the stage that grew most in the tail."""
    excess = {}
    for stage in STAGES:
        values = run.rows(f"{stage}_ns")
        excess[stage] = float(values[run.tail].mean() - np.median(values)) / 1e6
    stage = max(excess, key=lambda name: excess[name])
    size = run.rows("input_elements")
    larger = float(np.median(size[run.tail])) > 1.5 * float(np.median(size))
    cause = STAGE_CAUSE.get(stage, "input.size" if larger else "host.slowdown")
    return {cause: excess[stage]}


def most_correlated(run: Run) -> Answer:
    """The cause of the metric with the highest rank correlation with latency."""
    evidence, latency = run.evidence, run.rows("latency_ns")
    begin = evidence.rows["arrival_ns"][evidence.ok]
    end = begin + evidence.rows["latency_ns"][evidence.ok]
    parts = ("prepare", "finish"), ("collate", "compute")

    def account(name: str) -> Floats:
        own = sum((run.rows(f"{part}_{name}") for part in parts[0]), start=np.zeros(len(latency)))
        return sum((run.batches(f"{part}_{name}") for part in parts[1]), start=own)

    blocked = sum((evidence.units[part].blocked[evidence.ok] for part in parts[0]), start=np.zeros(len(latency)))
    metrics = {
        "python.gc": evidence.pauses["gc"].everywhere.covered(begin, end).astype(np.float64),
        "cold.compile": evidence.pauses["compile"].everywhere.covered(begin, end).astype(np.float64),
        "host.contention": account("runq_ns"),
        "host.throttle": run.batches("throttled_ns"),
        "memory.page_faults": account("minflt"),
        "external.dependency": blocked.astype(np.float64),
        "python.gil": account("vcsw"),
        "host.slowdown": run.batches("compute_cpu_ns"),
        "input.size": run.rows("input_elements"),
        "batching.size": run.batches("size"),
        "batching.padding": run.batches("padded_elements") - run.batches("real_elements"),
        "batching.window": evidence.window[evidence.ok].astype(np.float64),
        "cold.start": run.batches("first_shape"),
        "traffic.burst": run.rows("queue_ns"),
        "traffic.priority": evidence.priority[evidence.ok].astype(np.float64),
        "drift.unknown": begin.astype(np.float64),
        "observer": run.rows("dispatch_ns"),
    }
    ranks = _ranks(latency)
    strength = {cause: _correlation(_ranks(values), ranks) for cause, values in metrics.items() if np.ptp(values) > 0}
    best = max(strength, key=lambda cause: strength[cause])
    return {best: float(latency[run.tail].mean() - np.median(latency)) / 1e6}


def own_request_only(run: Run) -> Answer:
    """The ledger, with every wait assigned to the traffic."""
    ledger = run.books.ledger
    own = ledger.own_ns[:, run.tail].mean(axis=1) / 1e6
    waits = float(ledger.propagated_ns[:, run.tail].sum(axis=0).mean()) / 1e6
    answer = {cause: float(value) for cause, value in zip(ledger.causes, own, strict=True) if value}
    answer["traffic.burst"] = answer.get("traffic.burst", 0.0) + waits
    return answer


def leave_one_out(run: Run) -> Answer:
    """By how much removing each cause alone reduces the tail's mean."""
    books, ledger = run.books, run.books.ledger
    percentile = 100.0 * (1.0 - np.count_nonzero(run.tail) / len(run.tail))
    now = float(ledger.latency_ns[run.tail].mean())
    full = waits_at(books.line, np.ones((1, len(ledger.causes))))[0][books.ok]
    answer = {}
    for k, cause in enumerate(ledger.causes):
        if not (ledger.own_ns[k].any() or ledger.propagated_ns[k].any()):
            continue
        scale = np.ones((1, len(ledger.causes)))
        scale[0, k] = 0.0
        moved = waits_at(books.line, scale)[0][books.ok] - full
        latency = ledger.latency_ns - ledger.own_ns[k] - books.by_others[k] + moved
        kept = latency[latency >= np.quantile(latency, percentile / 100)]
        answer[cause] = (now - float(kept.mean())) / 1e6
    return answer


METHODS: Mapping[str, Callable[[Run], Answer]] = {
    "largest stage": largest_stage,
    "most correlated": most_correlated,
    "own request only": own_request_only,
    "leave one out": leave_one_out,
}


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse], dtype=np.float64)


def _correlation(a: Floats, b: Floats) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def score(case: CaseScore, answer: Answer) -> dict[str, Any]:
    """One method's result for one case."""
    top = max(answer, key=lambda cause: answer[cause], default="")
    return {
        "group": case.group,
        "right": top in case.right_tops if case.right_tops else None,
        "errors": [abs(answer.get(cause, 0.0) - ms) / ms for cause, ms in case.true_ms.items() if ms > 0],
        "sum": sum(answer.values()) / case.excess_ms if case.excess_ms > 0 else None,
    }


def summary(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """A method's scores as one row of the table."""
    row: dict[str, Any] = {}
    for group in ("single", "mixed", "unlisted"):
        right = [each["right"] for each in scores if each["group"] == group and each["right"] is not None]
        low, high = wilson_interval(sum(right), len(right))
        value = sum(right) / len(right) if right else None
        row[group] = {"value": value, "ci95": [low, high], "count": len(right)}
    errors = [error for each in scores if each["group"] in ("single", "mixed") for error in each["errors"]]
    row["median_relative_error_of_milliseconds"] = float(np.median(errors)) if errors else None
    sums = [each["sum"] for each in scores if each["sum"] is not None and each["group"] in ("single", "mixed")]
    row["sum_over_excess"] = {"median": float(np.median(sums)), "highest": float(np.max(sums))} if sums else None
    return row


def main() -> None:
    """Score every method on every kept case, print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="what latfix selftest --out kept")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"latfix": [], **{name: [] for name in METHODS}}
    cases = sorted(arguments.records.rglob("case.json"))
    counted = 0
    for file in cases:
        kept = load_kept(file.parent)
        case = score_kept(kept)
        if not case.counted or case.group == "quiet":
            continue
        counted += 1
        found["latfix"].append(score(case, case.found_ms))
        run = Run(kept.record)
        for name, method in METHODS.items():
            found[name].append(score(case, method(run)))
    table = {name: summary(scores) for name, scores in found.items()}
    print(f"{counted} runs with known faults")
    print(f"{'method':18} {'single':>16} {'mixed':>16} {'unlisted':>16} {'error of ms':>12} {'sum/excess':>11}")
    for name, row in table.items():
        shares = [row[group] for group in ("single", "mixed", "unlisted")]
        cells = [f"{100 * s['value']:.0f} % of {s['count']}" if s["value"] is not None else "-" for s in shares]
        error, sums = row["median_relative_error_of_milliseconds"], row["sum_over_excess"]
        error_text = "-" if error is None else f"{100 * error:.0f} %"
        total = "-" if sums is None else f"{sums['median']:.2f}"
        print(f"{name:18} {cells[0]:>16} {cells[1]:>16} {cells[2]:>16} {error_text:>12} {total:>11}")
    write_result(arguments.out, {"runs": counted, "methods": table})


if __name__ == "__main__":
    main()
