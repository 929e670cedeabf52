"""Rounds until the gates are decided: looks in between, at levels that together keep the error rate of one."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from latfix.errors import InputError
from latfix.gates.evaluate import GateResult, check_gates, evaluate
from latfix.gates.latency_change import latency_change
from latfix.gates.syntax import Gate
from latfix.profilers.diagnose import diagnose
from latfix.results.comparison import RATIO_KEYS, Comparison, compare_rounds
from latfix.run_record.dispatch_lag import is_on_time
from latfix.run_record.run_record import RunRecord
from latfix.runners.gate.paired_rounds import Round
from latfix.runners.replay.run_session import Interrupted
from latfix.statistics.decision import Rule
from latfix.statistics.group_sequential import FIRST_LOOK, look_level
from latfix.statistics.latency_summary import QUANTILES

#: Called after each round with what it showed and about how many there will be.
OnRound = Callable[[Round, int, int], None]


@dataclass(slots=True)
class Decision:
    """What the rounds say.

    :param comparison: of all rounds that count, with the gates; ``None`` where none does.
    :param late: rounds in which something outside held up the replayer, and which do not count.
    :param interrupted: Ctrl-C ended it; only complete rounds are in it.
    """

    comparison: Comparison | None = None
    rounds: list[Round] = field(default_factory=list)
    late: int = 0
    interrupted: bool = False

    @property
    def arms(self) -> tuple[list[RunRecord], list[RunRecord]]:
        """The records of both services, round by round, the base's first."""
        return [found.base for found in self.rounds], [found.new for found in self.rounds]


def check(gates: Sequence[Gate]) -> None:
    """Refuse gates that rounds cannot decide, before anything is replayed.

    :raises InputError: there is none, or one needs what is not measured here.
    """
    if not gates:
        raise InputError('--gate: found none; expected at least one, as in --gate "p99<=baseline*1.1"')
    check_gates(gates, baseline=True, accuracy=False, causes=False)
    for gate in gates:
        if gate.is_latency and gate.metric not in RATIO_KEYS:
            raise InputError(
                f"--gate {gate.text}: found what short rounds do not show; expected {', '.join(RATIO_KEYS)}"
            )


def decide(
    gates: Sequence[Gate],
    rounds: Iterator[Round],
    *,
    budget_s: float,
    seed: int,
    on_round: OnRound,
    clock: Callable[[], float] = time.monotonic,
) -> Decision:
    """Take rounds until all gates on a latency against the baseline are decided, or time is up; one in any case.

    From the fifth round on every round is looked at (:mod:`latfix.statistics.group_sequential`). The other gates are
    judged once, at the end.

    :param budget_s: seconds for all rounds, from now on.
    :param on_round: told of each round; ``clock`` counts seconds.
    """
    decision, most, number, last = Decision(), 1, 0, True
    until = clock() + budget_s
    try:
        while True:
            started = clock()
            found = next(rounds)
            number += 1
            took, left_s = clock() - started, until - clock()
            if _on_time(found):
                decision.rounds.append(found)
            else:
                decision.late += 1
            if number == 1:
                most = 1 + int(max(left_s, 0.0) / took)
            on_round(found, number, most)
            last = number >= most or left_s < took
            enough = len(decision.rounds) >= FIRST_LOOK
            if last or (enough and _decided(_look(decision, gates, most, seed, last=False))):
                break
    except (Interrupted, KeyboardInterrupt):
        decision.interrupted = last = True
    if decision.rounds:
        comparison = _look(decision, gates, most, seed, last=last)
        decision.comparison = replace(comparison, notes=(*_notes(decision, most), *comparison.notes))
    return decision


def with_causes(decision: Decision, seed: int) -> Comparison | None:
    """The comparison, with what each cause added where a gate on a percentile did not pass.

    :param seed: of the diagnoses' intervals.
    """
    comparison = decision.comparison
    if comparison is None or all(result.passed is True for result in comparison.gates):
        return comparison
    open_ = {result.gate.metric for result in comparison.gates if result.passed is not True}
    why = []
    for change in comparison.why:
        if change.metric in open_ and change.metric in QUANTILES:
            before, after = (_by_cause(change.metric, arm, seed) for arm in decision.arms)
            change = replace(
                change, causes_ms={name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
            )
        why.append(change)
    return replace(comparison, why=tuple(why))


def _by_cause(metric: str, records: Sequence[RunRecord], seed: int) -> Mapping[str, float]:
    """Milliseconds of the requests beyond a percentile, averaged over the rounds."""
    found: dict[str, float] = defaultdict(float)
    for record in records:
        told = diagnose(record, percentile=100 * QUANTILES[metric], seed=seed)
        found["a quiet request"] += told.reference_ms / len(records)
        for cause in told.causes:
            found[cause.cause] += cause.tail_ms / len(records)
    return found


def _on_time(found: Round) -> bool:
    return all(is_on_time(record) for record in (found.base, found.new))


def _waits_for(gate: Gate) -> bool:
    return gate.needs_baseline and gate.is_latency


def _decided(comparison: Comparison) -> bool:
    awaited = [result for result in comparison.gates if _waits_for(result.gate)]
    return bool(awaited) and all(result.passed is not None for result in awaited)


def _look(decision: Decision, gates: Sequence[Gate], most: int, seed: int, *, last: bool) -> Comparison:
    """The rounds so far compared, with the gates judged, as sure as this look must be."""
    count = len(decision.rounds)
    before, after = decision.arms
    rule = Rule(level=look_level(count, max(most, count), last=last))
    drift = np.array([found.drift for found in decision.rounds])
    comparison = compare_rounds(before, after, seed=seed, rule=rule, control=drift)
    new, base = comparison.gate_subjects()
    results: tuple[GateResult, ...] = tuple(evaluate(gate, new, base) for gate in gates)
    metrics = dict.fromkeys(gate.metric for gate in gates if gate.metric in RATIO_KEYS)
    changes = [latency_change(metric, before, after) for metric in metrics]
    return replace(comparison, gates=results, why=tuple(change for change in changes if change is not None))


def _notes(decision: Decision, most: int) -> Iterator[str]:
    count = len(decision.rounds)
    rounds = "1 round" if count == 1 else f"{count} rounds"
    yield f"{rounds} of both on fresh processes, of at most {max(most, count)} in the budget"
    if decision.late:
        left_out = "1 round more is" if decision.late == 1 else f"{decision.late} rounds more are"
        yield f"{left_out} left out: something outside held up the replayer"
    known = [found.drift for found in decision.rounds if math.isfinite(found.drift)]
    if len(known) > 1:
        yield (
            f"the machine slowed one replay of a round more than the other by {100 * float(np.std(known)):.2g} % "
            "(compute of the same batches in turns); from six rounds on, what of it shows in the ratios is taken out"
        )
