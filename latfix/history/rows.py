"""A run as a row of the history: its identity, its figures, and whether later runs may be compared with it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latfix.files.json_documents import plain
from latfix.formatting import finite
from latfix.gates.subject import GateSubject
from latfix.lower_bound import restored
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.run_record import RunRecord

#: Keys of ``machine`` in ``run.json`` that identify a machine: not its kernel, nor versions of software.
_MACHINE_KEYS = ("cpu", "cores", "gpu")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What two runs must have in common to be compared.

    :param command: ``diagnose``, or ``optimize``, whose figures are those with its fixes.
    :param machine: :func:`machine_fingerprint`.
    :param traffic: digest of the replayed schedule.
    :param plan: name of the plan's file; empty without one.
    """

    workload: str
    machine: str
    device: str
    command: str
    traffic: str
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One run.

    :param run: unique name of the run: its start and its folder.
    :param started: ISO 8601, UTC.
    :param subject: its figures, with the percentiles of :data:`latfix.statistics.percentiles.GRID`.
    :param gates: entries of ``gates`` in its document.
    :param settings: digest of the runner's settings.
    :param unusable: why later runs are not compared with it; empty if they are.
    """

    run: str
    started: str
    series: Series
    subject: GateSubject
    verdict: str
    folder: str
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    settings: str = ""
    gates: Sequence[Mapping[str, Any]] = ()
    unusable: str = ""

    @property
    def failed_gates(self) -> list[str]:
        """Texts of the gates that it failed."""
        return [str(gate.get("gate", "")) for gate in self.gates if gate.get("passed") is False]


def machine_fingerprint(machine: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits for a processor, its cores, whole GiB of memory and a GPU."""
    memory = machine.get("memory_bytes")
    known = {key: machine.get(key) for key in _MACHINE_KEYS}
    known["memory_gib"] = round(memory / _GIB) if isinstance(memory, int | float) else None
    return digest(known)


def digest(value: Any) -> str:
    """Twelve hexadecimal digits of a value as JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def series_of(meta: RunMeta, *, command: str, plan: str = "") -> Series:
    """The series of a run.

    :param plan: path of the plan that it was started with.
    """
    return Series(
        workload=meta.workload,
        machine=machine_fingerprint(meta.machine),
        device=meta.device,
        command=command,
        traffic=meta.traffic_sha256 or "",
        plan=Path(plan).name if plan else "",
    )


def run_name(meta: RunMeta, folder: Path) -> str:
    """A unique name of a run: its start and its folder."""
    return f"{meta.started} {folder.absolute()}"


def row_of(
    source: RunRecord | RecordSource,
    subject: GateSubject,
    series: Series,
    *,
    verdict: str,
    settings: Mapping[str, Any],
    gates: Sequence[Mapping[str, Any]] = (),
    against_history: Sequence[str] = (),
    folder: Path,
    interrupted: bool = False,
) -> HistoryRow:
    """The row of a run.

    :param source: its record; the baseline's if ``subject`` is from an optimization.
    :param subject: its figures.
    :param against_history: those of ``gates`` that compare with the history: a run that fails one would flatter
        later runs.
    """
    meta = source.meta
    row = HistoryRow(
        run=run_name(meta, folder),
        started=meta.started,
        series=series,
        subject=subject,
        verdict=verdict,
        folder=str(folder.absolute()),
        machine=dict(meta.machine),
        versions=dict(meta.versions),
        settings=digest(dict(settings)),
        gates=tuple(gates),
    )
    failed = [gate for gate in row.failed_gates if gate in against_history]
    return replace(row, unusable=_why_unusable(subject, source.partial or interrupted, failed))


def _why_unusable(subject: GateSubject, partial: bool, failed: Sequence[str]) -> str:
    if partial:
        return "it did not reach its end"
    if not subject.requests.get("ok"):
        return "no request ended ok"
    if not subject.trustworthy:
        return "it was replayed too late"
    return f"it failed {', '.join(failed)}" if failed else ""


def figures_json(subject: GateSubject) -> dict[str, Any]:
    """A subject's figures as JSON; unknown ones are left out."""
    return {
        "latency_ms": plain({key: value for key, value in subject.latency_ms.items() if not math.isnan(value)}),
        "requests": dict(subject.requests),
        "throughput_rps": finite(subject.throughput_rps),
        "accuracy": finite(subject.accuracy),
        "unexplained_share": finite(subject.unexplained_share),
        "cause_shares": None if subject.cause_shares is None else _finite(subject.cause_shares),
        "trustworthy": subject.trustworthy,
    }


def read_figures(document: Mapping[str, Any]) -> GateSubject:
    """The reverse of :func:`figures_json`; intervals are not kept."""
    shares = document.get("cause_shares")
    return GateSubject(
        latency_ms=restored(document["latency_ms"]),
        requests={str(key): int(value) for key, value in document["requests"].items()},
        throughput_rps=finite(document.get("throughput_rps")),
        accuracy=finite(document.get("accuracy")),
        unexplained_share=finite(document.get("unexplained_share")),
        cause_shares=None if shares is None else {str(key): float(value) for key, value in shares.items()},
        trustworthy=bool(document.get("trustworthy", True)),
    )


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if math.isfinite(value)}
