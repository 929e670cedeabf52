"""The diagnosis of a run: a ledger of milliseconds, and the document that other programs read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

DIAGNOSIS_SCHEMA = "latfix.diagnosis/1"

EvidenceClass = Literal["measured", "counted", "modelled", "propagated", "remainder"]

#: Ids of every cause that this version can assign, in the order of the catalogue.
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseSummary:
    """One cause's share of the tail. All figures in milliseconds a tail request, unless said otherwise.

    :param tail_ms: mean over tail requests of own + propagated.
    :param tail_share: ``tail_ms`` over the tail's excess.
    :param own_ms: of that, what the request's own path shows.
    :param propagated_ms: of that, what reached it through the queue.
    :param ci95_ms: interval of ``tail_ms``.
    :param named: the interval's lower end clears the naming rule.
    :param evidence_class: how it is known.
    :param requests: how many measured requests it touched (own part nonzero).
    :param evidence: one sentence with the figures.
    :param whatif_ms: percentiles predicted with the cause removed.
    :param fixes: ids of fixes that treat it.
    :param active: when it was active: ``throughout``, ``intervals_s`` and ``text``, where that was looked at.
    """

    cause: str
    tail_ms: float
    tail_share: float
    own_ms: float
    propagated_ms: float
    ci95_ms: tuple[float, float]
    named: bool
    evidence_class: EvidenceClass
    requests: int
    evidence: str
    whatif_ms: Mapping[str, float]
    fixes: tuple[str, ...]
    active: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The entry of ``causes`` in ``diagnosis.json``."""
        return {
            "cause": self.cause,
            "tail_ms": self.tail_ms,
            "tail_share": self.tail_share,
            "own_ms": self.own_ms,
            "propagated_ms": self.propagated_ms,
            "ci95_ms": list(self.ci95_ms),
            "named": self.named,
            "class": self.evidence_class,
            "requests": self.requests,
            "evidence": self.evidence,
            "whatif_ms": dict(self.whatif_ms),
            "fixes": list(self.fixes),
            **({"active": dict(self.active)} if self.active else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Every entry of every measured ``ok`` request, in nanoseconds.

    ``latency − reference = Σ_c (own[c] + propagated[c])`` holds exactly for each request, ``unexplained``
    being one of the causes.

    :param request: ``(n,)`` schedule index.
    :param latency_ns: ``(n,)`` int64.
    :param reference_ns: one number: the latency of a quiet, typical request.
    :param causes: ``K`` ids, ``unexplained`` last.
    :param own_ns: ``(K, n)`` int64.
    :param propagated_ns: ``(K, n)`` int64.
    :param classes: ``K`` evidence classes.
    :param ids: ``n`` ids of the requests in their traffic; empty where they are not known.
    """

    request: npt.NDArray[np.int64]
    latency_ns: npt.NDArray[np.int64]
    reference_ns: int
    causes: tuple[str, ...]
    own_ns: npt.NDArray[np.int64]
    propagated_ns: npt.NDArray[np.int64]
    classes: tuple[EvidenceClass, ...]
    ids: tuple[str, ...] = ()

    def conservation_error_ns(self) -> int:
        """The largest absolute gap between excess and entries; zero unless latfix has a bug."""
        if not len(self.request):
            return 0
        gap = self.latency_ns - self.reference_ns - (self.own_ns + self.propagated_ns).sum(axis=0)
        return int(np.abs(gap).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What :func:`latfix.profilers.diagnose.diagnose` found.

    :param latency_ms: mean, p50, p90, p95, p99, p99_9, max.
    :param latency_ci95_ms: intervals of the same keys (moving-block bootstrap).
    :param stages_ms: for each stage mean, p50, p99, and ``reference``.
    :param causes: sorted by ``tail_ms``, ``unexplained`` among them.
    :param dispatch_ms: the replayer's own lag: p50, p99, max.
    :param notes: warnings a reader must see, one sentence each (dispatch lag too large, partial run,
        warm-up missing, too few requests for the percentile, …).
    :param trustworthy: false where the replay itself was too late for the percentiles to mean anything.
    """

    workload: str
    device: str
    requests: Mapping[str, int]
    latency_ms: Mapping[str, float]
    latency_ci95_ms: Mapping[str, tuple[float, float]]
    stages_ms: Mapping[str, Mapping[str, float]]
    verdict: str
    sentence: str
    percentile: float
    excess_ms: float
    reference_ms: float
    unexplained_ms: float
    causes: tuple[CauseSummary, ...]
    dispatch_ms: Mapping[str, float]
    throughput_rps: float
    overhead: Mapping[str, float]
    ledger: Ledger
    partial: bool = False
    trustworthy: bool = True
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """``diagnosis.json``. Keys beyond the published ones may be added, none removed."""
        share = self.unexplained_ms / self.excess_ms if self.excess_ms > 0 else 0.0
        return {
            "schema": DIAGNOSIS_SCHEMA,
            "workload": self.workload,
            "device": self.device,
            "requests": dict(self.requests),
            "latency_ms": dict(self.latency_ms),
            "latency_ci95_ms": {key: list(value) for key, value in self.latency_ci95_ms.items()},
            "stages_ms": {stage: dict(row) for stage, row in self.stages_ms.items()},
            "verdict": self.verdict,
            "sentence": self.sentence,
            "tail": {
                "percentile": self.percentile,
                "excess_ms": self.excess_ms,
                "reference_ms": self.reference_ms,
                "unexplained_ms": self.unexplained_ms,
                "unexplained_share": share,
            },
            "causes": [cause.to_json() for cause in self.causes],
            "dispatch_ms": dict(self.dispatch_ms),
            "throughput_rps": self.throughput_rps,
            "overhead": dict(self.overhead),
            "partial": self.partial,
            "trustworthy": self.trustworthy,
            "notes": list(self.notes),
            **dict(self.extra),
        }
