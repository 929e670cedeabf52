"""``batch.tune``: batch limit, window, workers and threads together, for the service as the other fixes left it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from latfix.errors import LatfixError
from latfix.profilers.forecast.parameter_search import Numbers, Proposal, Split, propose, splits
from latfix.runners.fixes.fix import Applied, Bench, Change, Context, Fix, Verified
from latfix.runners.fixes.host.threads import worker_threads
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.run_evidence import open_ms
from latfix.runners.replay.arm import Arm

#: Numbers must be foretold to bring p99 and the mean below this share of what they are.
_WORTH_IT = 0.97
#: Proposals that may be refused before it ends.
_MOST = 3


def _proposals(bench: Bench, base: Arm, context: Context, time_left: bool) -> Iterator[Proposal | None]:
    """The numbers that the forecast likes best, without those that a replay has refused."""
    refused: list[Numbers] = []
    if context.forecast is None or context.serving is None:
        yield None
        return
    paces = _paces(bench, base, context) if time_left else {}
    while len(refused) < _MOST:
        found = propose(context.forecast, context.serving, base.settings, paces=paces, refused=refused)
        yield found
        if found is None:
            return
        refused.append(found.numbers)


def _paces(bench: Bench, base: Arm, context: Context) -> dict[Split, tuple[float, float]]:
    """How compute changes with other ways to share the cores, measured; those that do not run are left out."""
    if not context.on_cpu:
        return {}
    found: dict[Split, tuple[float, float]] = {}
    settings = base.settings
    for workers, threads in splits(context.cores, (settings.workers, settings.intra_op_threads)):
        other = settings.with_overrides({"workers": workers, "intra_op_threads": threads})
        arm = bench.arm(f"pace-{workers}x{threads}", other, base.fixes)
        try:
            change = bench.compute_change(base, arm)
        except LatfixError:  # what does not run is no proposal; the next replay shows whether the base failed
            change = None
        arm.close()
        if change is not None:
            found[workers, threads] = change
    return found


def _proposed(context: Context) -> Proposal | None:
    found: Proposal | None = context.found.get(FIX.id)
    return found


def _worth_it(context: Context) -> str:
    found = _proposed(context)
    if found is None:
        return "the run is too small for a forecast, or the forecast of what ran was too far from it"
    if found.score >= _WORTH_IT:
        return (
            f"of {found.looked_at} combinations of limit, window, workers and threads the forecast finds none that "
            f"gains {1 - _WORTH_IT:.0%}"
        )
    return ""


def _sets(context: Context) -> Change:
    found = _proposed(context)
    assert found is not None, "without one there is an obstacle"
    return found.numbers.changes(context.settings)


def _verify(applied: Applied) -> Verified:
    now, before = applied.both(Numbers.of_record)
    seen: list[tuple[bool, str]] = []
    if now.limit != before.limit:
        largest, was = applied.both(lambda record: int(record.batches["size"].max(initial=0)))
        took = largest <= now.limit < was if now.limit < before.limit else largest > was
        seen.append((took, f"batches held {largest} requests at most, {was} without"))
    if now.window_ms != before.window_ms:
        opened, was_open = applied.both(open_ms)
        took = opened > was_open if now.window_ms > before.window_ms else opened < was_open
        seen.append((took, f"a batch stayed open for {opened:.3g} ms on average, {was_open:.3g} without"))
    if now.workers != before.workers:
        busy, were = applied.both(lambda record: len(np.unique(record.batches["worker"])))
        seen.append((busy == now.workers, f"{busy} workers ran batches, {were} without"))
    if now.threads != before.threads:
        threads, said = worker_threads(applied)
        seen.append((set(threads) == {now.threads}, said))
    return Verified(bool(seen) and all(took for took, _ in seen), "; ".join(words for _, words in seen))


FIX = Fix(
    id="batch.tune",
    title="batch limit, window, workers and threads that suit the service as the other fixes left it",
    treats=("batching.size", "batching.window", "traffic.burst", "traffic.overload"),
    relief=0.2,
    risk="the numbers suit this traffic at this load; other loads may want others",
    changes_outputs=True,
    needs=(at_default("batching", "batching is {}, which moves its limits by itself"), _worth_it),
    sets=_sets,
    verify=_verify,
    proposals=_proposals,
)
