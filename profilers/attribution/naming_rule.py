"""The summary of each cause, and the rule by which a cause is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from latfix.cause_catalogue import PREMISES, UNEXPLAINED, Premise
from latfix.config.model_file_kind import KINDS
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.causes import CAUSES
from latfix.profilers.causes.cause import TailFigures
from latfix.profilers.evidence.units import Evidence
from latfix.results.diagnosis import CauseSummary
from latfix.run_record.run_meta import RunMeta

#: A cause is not named below these limits: milliseconds, share of p50, share of the excess.
_LEAST_MS, _LEAST_OF_P50, _LEAST_OF_EXCESS = 0.1, 0.01, 0.05
#: Causes that every run shows a little of, and how much undisturbed runs show: a share of p50, and for causes of the
#: machine also milliseconds.
_ALWAYS_SOME = ("host.contention", "host.slowdown", "host.steal", "python.gil", "observer", "input.size")
MACHINE_CAUSES = _ALWAYS_SOME[:-1]
_USUAL_OF_P50, _USUAL_MS = 0.1, 1.0
_GRAPHS = ("ONNX", "TensorRT")
#: A cause with a larger share of the tail gets its activity over time even if it is not named.
_LEAST_SHARE = 0.02


def floors_ms(p50_ms: float, excess_ms: float, chance_wait_ns: float) -> dict[str, float]:
    """By cause, the milliseconds that the low end of its interval must exceed for the cause to be named.

    :param excess_ms: the tail's excess over the reference.
    :param chance_wait_ns: the tail's wait by chance alone (:mod:`attribution.noise_floors`).
    """
    least = max(_LEAST_OF_P50 * p50_ms, _LEAST_MS, _LEAST_OF_EXCESS * excess_ms)
    floors = {cause.id: least for cause in CAUSES}
    for cause_id in _ALWAYS_SOME:
        floors[cause_id] = max(least, _USUAL_OF_P50 * p50_ms)
    for cause_id in MACHINE_CAUSES:
        floors[cause_id] = max(floors[cause_id], _USUAL_MS)
    floors["traffic.burst"] += chance_wait_ns / 1e6
    return floors


def summarize_cause(
    k: int,
    evidence: Evidence,
    tail: Tail,
    floor_ms: float,
    whatif_ms: Mapping[str, float],
    meta: RunMeta,
    *,
    requests: int,
    largest_ns: float,
) -> CauseSummary:
    """The entry of ``CAUSES[k]``.

    :param requests: number of requests with a part of it on their own path; ``largest_ns`` the largest such part.
    """
    cause = CAUSES[k]
    own_ms, propagated_ms = float(tail.own_ms[k]), float(tail.propagated_ms[k])
    low, high = (float(end) for end in tail.ci95_ms[k])
    total = own_ms + propagated_ms
    figures = TailFigures(
        own_ms=own_ms, propagated_ms=propagated_ms, requests=requests, largest_ms=float(largest_ns) / 1e6
    )
    return CauseSummary(
        cause=cause.id,
        tail_ms=total,
        tail_share=total / tail.excess_ms if tail.excess_ms > 0 else 0.0,
        own_ms=own_ms,
        propagated_ms=propagated_ms,
        ci95_ms=(low, high),
        named=cause.id != UNEXPLAINED and low > floor_ms,
        evidence_class=cause.class_in(evidence),
        requests=requests,
        evidence=cause.describe(evidence, figures),
        whatif_ms=whatif_ms,
        fixes=() if evidence.setup.outside or not cause.treatable(evidence) else applicable(cause.fixes, meta),
        culprit=cause.culprit(evidence),
    )


def applicable(fixes: tuple[str, ...], meta: RunMeta) -> tuple[str, ...]:
    """The fixes whose premise the run's device, model and settings meet."""
    layers = KINDS.get(Path(meta.entry).suffix) not in _GRAPHS

    def met(premise: Premise) -> bool:
        if meta.torch_threads is not None and meta.torch_threads < premise.threads:
            return False
        enough = meta.settings.workers >= premise.workers and (layers or not premise.layers)
        return enough and premise.allows(meta.device)

    return tuple(fix for fix in fixes if met(PREMISES.get(fix, Premise())))


def deserves_timeline(cause: CauseSummary) -> bool:
    """True if the diagnosis shows when the cause was active."""
    return cause.named or cause.tail_share > _LEAST_SHARE


def overhead_of(meta: RunMeta) -> dict[str, float]:
    """The cost of latfix itself."""
    return {key: float(meta.overhead.get(key, 0.0)) for key in ("per_request_us", "core_share")}
