"""One case's score: the injected causes compared with the diagnosis. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from latfix.arrays import places
from latfix.cause_catalogue import UNEXPLAINED
from latfix.results.diagnosis import Diagnosis, Slowest
from latfix.results.selftest_scoreboard import CaseScore, RequestErrors
from latfix.runners.selftest.case import Case
from latfix.runners.selftest.ground_truth import Truth
from latfix.runners.selftest.recipes import RECIPES, Recipe

#: A fault counts as injected if it is at least the larger of this and this share of a typical request.
LEAST_MS, LEAST_SHARE = 1.0, 0.1
#: Allowed error for one request: the larger of these.
ALLOWED_MS, ALLOWED_SHARE = 0.1, 0.05
#: A cause must be named if it is at least this share of the tail's excess.
PRESENT_SHARE = 0.1
#: A cause of at least this share of the largest one is also accepted as the largest.
TIE = 0.9
BURST = "traffic.burst"
LOCK, CORES = "python.gil", "host.contention"
#: Causes due to other programs: real but of unknown size, if those used more than this share of the cores.
NEIGHBORS = ("host.contention", "host.steal")
DISTURBED = 0.03
_TRAFFIC = "traffic."
_NOTHING = Slowest(requests=0, least_ms=0.0, most_ms=0.0, excess_ms=0.0, causes_ms={})


def least_ms(p50_ms: float) -> float:
    """The smallest fault that counts, in a run whose median latency is ``p50_ms``."""
    return max(LEAST_MS, LEAST_SHARE * p50_ms)


def score_case(
    case: Case,
    truth: Truth,
    diagnosis: Diagnosis,
    *,
    neighbors: float | None,
    cores: int | None = None,
    folder: str = "",
) -> CaseScore:
    """Compare a diagnosis with the ground truth.

    If other programs disturbed the run, naming their causes is not wrong, and they are excluded when the largest
    cause is determined, because their true size is unknown. The same holds for the competition of the service's own
    threads for the interpreter lock and for cores.

    :param truth: of the same run, with the tail at the diagnosis's percentile.
    :param neighbors: share of the cores that other programs used.
    :param cores: that the service could use; ``None`` if unknown.
    """
    recipes = [RECIPES[name] for name in case.recipes]
    found: Mapping[str, float] = {entry.cause: entry.tail_ms for entry in diagnosis.causes}
    excess_ms, intervals = diagnosis.excess_ms, True
    if any(recipe.rare for recipe in recipes):  # beyond the tail's percentile: the ten slowest show it
        slowest, intervals = diagnosis.largest or _NOTHING, False
        found, excess_ms = slowest.causes_ms, slowest.excess_ms
        truth = replace(truth, tail=_of_slowest(truth, diagnosis))
    injected = tuple(dict.fromkeys(recipe.cause for recipe in recipes if recipe.cause))
    happened = [cause for cause in injected if _happened(cause, recipes, truth)]
    faults, kept = (sum(table.get(cause, 0) for cause in injected) for table in (truth.faults, truth.kept))
    known = {cause: truth.tail_ms(cause) for cause in happened if _exact(cause, recipes) and cause in truth.causes}
    natural = truth.natural_tail_ms()
    named = tuple(entry.cause for entry in diagnosis.causes if entry.named)
    disturbed = neighbors is not None and neighbors > DISTURBED
    real = (*(NEIGHBORS if disturbed else ()), *_own_competition(recipes, cores))
    unjudged = [cause for cause in real if cause not in injected]
    top = max((cause for cause in found if cause not in unjudged), key=lambda cause: found[cause], default="")
    right = _right_tops(happened, known, natural)
    accepted = {*unjudged, *injected, *(cause for recipe in recipes for cause in recipe.side_causes)}
    if natural >= PRESENT_SHARE * excess_ms:  # random arrivals alone make requests wait
        accepted.add(BURST)
    foreign = tuple(cause for cause in named if cause not in accepted)
    quiet = case.group == "quiet"
    return CaseScore(
        id=case.id,
        recipes=case.recipes,
        group=case.group,
        intensity=case.intensity,
        seed=case.seed,
        injected=injected,
        requests=len(truth.index),
        p50_ms=float(diagnosis.latency_ms["p50"]),
        excess_ms=excess_ms,
        faults=faults,
        dropped=faults - kept,
        counted=quiet or bool(happened),
        verdict=diagnosis.verdict,
        top=top,
        right_tops=right,
        top_right=top in right if right else None,
        named=named,
        present=tuple(_present(happened, known, excess_ms)) if intervals else (),
        wrong=foreign,
        true_ms=known,
        natural_ms=natural,
        found_ms=found,
        held=_held(known, diagnosis) if intervals else {},
        errors=_errors(known, truth, diagnosis),
        unexplained=_unexplained(truth, diagnosis) if case.group == "unlisted" else None,
        alarms=foreign if quiet else (),
        traffic_alarms=tuple(cause for cause in named if cause.startswith(_TRAFFIC)) if quiet else (),
        conservation_ns=diagnosis.ledger.conservation_error_ns(),
        trustworthy=diagnosis.trustworthy,
        neighbors=neighbors,
        disturbed=disturbed,
        folder=folder,
    )


def _own_competition(recipes: Sequence[Recipe], cores: int | None) -> tuple[str, ...]:
    """Causes that a service of several threads has by itself."""
    threads = max(recipe.threads for recipe in recipes)
    if not threads:
        return ()
    return (LOCK, CORES) if cores is not None and threads > cores else (LOCK,)


def _of_slowest(truth: Truth, diagnosis: Diagnosis) -> npt.NDArray[np.bool_]:
    """Which of the truth's requests are among the ten slowest."""
    ledger = diagnosis.ledger
    slowest = ledger.request[np.argsort(-ledger.latency_ns, kind="stable")[: Slowest.MOST]]
    return np.isin(truth.index, slowest)


def _exact(cause: str, recipes: Sequence[Recipe]) -> bool:
    return all(recipe.exact for recipe in recipes if recipe.cause == cause)


def _happened(cause: str, recipes: Sequence[Recipe], truth: Truth) -> bool:
    """True if a cause was really injected: traffic and settings always, faults if they are in the log."""
    logged = any(recipe.logged for recipe in recipes if recipe.cause == cause)
    return truth.kept.get(cause, 0) > 0 if logged else True


def _right_tops(happened: Sequence[str], known: dict[str, float], natural_ms: float) -> tuple[str, ...]:
    """Causes accepted as the largest: all injected ones, or those close to the largest if all milliseconds are known.

    In the second case, the wait due to arrivals alone competes with them.
    """
    if not happened:
        return ()
    if set(known) != set(happened):
        return tuple(happened)
    every = {**known, BURST: max(known.get(BURST, 0.0), natural_ms)}
    largest = max(every.values())
    return tuple(cause for cause, ms in every.items() if ms >= TIE * largest)


def _present(happened: Sequence[str], known: dict[str, float], excess_ms: float) -> list[str]:
    """Causes that a diagnosis must name; unlisted ones have no name."""
    return [
        cause
        for cause in happened
        if cause != UNEXPLAINED and (cause not in known or known[cause] >= PRESENT_SHARE * excess_ms)
    ]


def _held(known: dict[str, float], diagnosis: Diagnosis) -> dict[str, bool]:
    """True for each cause whose interval contains its true milliseconds; a missing cause has the interval [0, 0]."""
    intervals = {entry.cause: entry.ci95_ms for entry in diagnosis.causes}
    return {
        cause: intervals.get(cause, (0.0, 0.0))[0] <= ms <= intervals.get(cause, (0.0, 0.0))[1]
        for cause, ms in known.items()
        if ms > 0
    }


def _entries(truth: Truth, diagnosis: Diagnosis, cause: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Own and propagated time of a cause in the ledger, in the order of the truth's requests; 0 if absent."""
    ledger = diagnosis.ledger
    own, propagated = (np.zeros(len(truth.index), dtype=np.int64) for _ in range(2))
    if cause in ledger.causes and len(ledger.request):
        k = ledger.causes.index(cause)
        place = places(truth.index, ledger.request)
        there = place >= 0
        own[there], propagated[there] = (part[k][place[there]] for part in (ledger.own_ns, ledger.propagated_ns))
    return own, propagated


def _errors(known: dict[str, float], truth: Truth, diagnosis: Diagnosis) -> RequestErrors | None:
    """Errors of the own milliseconds of all struck requests, compared with the log."""
    errors, allowed = [], []
    for cause in known:
        true = truth.own[truth.causes.index(cause)]
        struck = true >= LEAST_MS * 1e6
        own, _ = _entries(truth, diagnosis, cause)
        errors.append(np.abs(own - true)[struck] / 1e6)
        allowed.append(np.maximum(ALLOWED_MS, ALLOWED_SHARE * true[struck] / 1e6))
    if not errors or not sum(map(len, errors)):
        return None
    error, limit = np.concatenate(errors), np.concatenate(allowed)
    return RequestErrors(
        count=len(error),
        median_ms=float(np.median(error)),
        allowed_ms=float(np.median(limit)),
        within=int(np.count_nonzero(error <= limit)),
    )


def _unexplained(truth: Truth, diagnosis: Diagnosis) -> float | None:
    """The share of an unlisted cause's milliseconds that the diagnosis left in ``unexplained``, per request."""
    if UNEXPLAINED not in truth.causes:
        return None
    k = truth.causes.index(UNEXPLAINED)
    true = truth.own[k] + truth.propagated[k]
    own, propagated = _entries(truth, diagnosis, UNEXPLAINED)
    struck = true > 0
    total = float(true[struck].sum())
    return float(np.clip(own + propagated, 0, true)[struck].sum()) / total if total > 0 else None
