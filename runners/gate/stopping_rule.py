"""Rounds until the gates are decided, with a test after each round at levels that keep the error rate of one test."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from latfix.errors import InputError
from latfix.formatting import counted, key_label, significant
from latfix.gates.evaluate import GateResult, check_gates, evaluate
from latfix.gates.syntax import Gate
from latfix.profilers.causes.host.core_takers import disturbance, disturbed_replays
from latfix.profilers.fair_rounds import FairRounds
from latfix.profilers.latency_causes import by_cause, by_stage
from latfix.results.comparison import RATIO_KEYS, Comparison, compare_rounds
from latfix.run_record.run_record import RunRecord
from latfix.runners.gate.paired_rounds import Round
from latfix.runners.replay.run_session import Interrupted
from latfix.statistics.decision import Rule
from latfix.statistics.group_sequential import FIRST_LOOK, look_level

#: Called after each round with the round, its number, and the estimated maximum number of rounds.
OnRound = Callable[[Round, int, int], None]


@dataclass(slots=True)
class Decision:
    """Result of the rounds.

    :param comparison: of all rounds that count, with the gates; ``None`` if none does.
    :param round_s: seconds that a round took, with the starts of its processes; ``None`` before the first.
    :param rounds: those that count; ``fair`` tells which do.
    :param interrupted: Ctrl-C ended it; only complete rounds count.
    """

    comparison: Comparison | None = None
    rounds: list[Round] = field(default_factory=list)
    fair: FairRounds = field(default_factory=FairRounds)
    round_s: float | None = None
    interrupted: bool = False

    @property
    def arms(self) -> tuple[list[RunRecord], list[RunRecord]]:
        """Records of both services, round by round, the base's first."""
        return [found.base for found in self.rounds], [found.new for found in self.rounds]


def check(gates: Sequence[Gate]) -> None:
    """Refuse gates that rounds cannot decide, before anything is replayed.

    :raises InputError: there is none, or one needs a metric that is not measured here.
    """
    if not gates:
        raise InputError('--gate: found none; expected at least one, as in --gate "p99<=baseline*1.1"')
    check_gates(gates, baseline=True, accuracy=False, causes=False)
    for gate in gates:
        if gate.is_latency and gate.metric not in RATIO_KEYS:
            raise InputError(
                f"--gate {gate.text}: found {key_label(gate.metric)}, which short rounds cannot measure; "
                f"expected one of {', '.join(RATIO_KEYS)}"
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
    """Take rounds until all gates on a latency against the baseline are decided, or time is up; at least one.

    These gates are tested after every round from the fifth on (:mod:`latfix.statistics.group_sequential`). The other
    gates are evaluated once, at the end.

    :param budget_s: seconds for all rounds, from now on.
    :param clock: seconds of a monotonic clock.
    """
    decision, made, most, looked, last = Decision(), list[Round](), 1, 0, False
    until = clock() + budget_s
    try:
        while True:
            started = clock()
            found = next(rounds)
            made.append(found)
            number = len(made)
            took, left_s = clock() - started, until - clock()
            decision.fair.add(found.base, found.new)
            decision.rounds = [made[k] for k in decision.fair.counted]
            if number == 1:
                most = 1 + int(max(left_s, 0.0) / took)
            decision.round_s = (clock() - until + budget_s) / number
            on_round(found, number, most)
            last = number >= most or left_s < took
            enough = len(decision.rounds) >= max(FIRST_LOOK, looked + 1)  # each number of rounds has one look
            looked = len(decision.rounds) if enough else looked
            if last or (enough and _decided(_look(decision, gates, most, seed, last=False))):
                break
    except (Interrupted, KeyboardInterrupt):
        decision.interrupted = True  # a person who sees the rounds ended it, so the rest of the level stays unspent
    if decision.rounds:
        comparison = _look(decision, gates, most, seed, last=last)
        notes = (*_notes(decision, comparison, most), *comparison.notes)
        gated = [gate.metric for gate in gates]
        replays = [record for arm in decision.arms for record in arm]
        decision.comparison = replace(
            comparison,
            notes=notes,
            round_s=decision.round_s,
            why=tuple(by_stage(gated, *decision.arms)),
            disturbed=disturbed_replays([disturbance(record.samples) for record in replays]),
        )
    return decision


def with_causes(decision: Decision, seed: int) -> Comparison | None:
    """The comparison, with what each cause added to the latencies whose gates did not pass.

    :param seed: of the diagnoses.
    """
    comparison = decision.comparison
    if comparison is None:
        return None
    open_ = {result.gate.metric for result in comparison.gates if result.passed is not True}
    why = (
        by_cause(change, *decision.arms, seed=seed) if change.metric in open_ else change for change in comparison.why
    )
    return replace(comparison, why=tuple(why))


def _decided(comparison: Comparison) -> bool:
    tested = [result for result in comparison.gates if result.gate.needs_baseline and result.gate.is_latency]
    return bool(tested) and all(result.passed is not None for result in tested)


def _look(decision: Decision, gates: Sequence[Gate], most: int, seed: int, *, last: bool) -> Comparison:
    """Compare the rounds so far and evaluate the gates, at the level of this test."""
    count = len(decision.rounds)
    before, after = decision.arms
    rule = Rule(level=look_level(count, max(most, count), last=last))
    drift = np.array([found.drift for found in decision.rounds])
    comparison = compare_rounds(before, after, seed=seed, rule=rule, control=drift)
    new, base = comparison.gate_subjects()
    new = replace(new, round_s=decision.round_s)
    results: tuple[GateResult, ...] = tuple(evaluate(gate, new, base) for gate in gates)
    return comparison.gated(results)


def _notes(decision: Decision, comparison: Comparison, most: int) -> Iterator[str]:
    count = len(decision.rounds)
    ended = ", then interrupted" if decision.interrupted else ""
    yield f"{counted(count, 'round')} of both on fresh processes, of at most {max(most, count)} in the budget{ended}"
    yield from decision.fair.notes()
    known = [found.drift for found in decision.rounds if math.isfinite(found.drift)]
    if len(known) > 1:
        size = significant(100 * float(np.std(known)), 2)
        slowed = f"the machine slowed one replay of a round more than the other by {size} %"
        gated = [comparison.ratio.get(result.gate.metric) for result in comparison.gates]
        some = any(ratio is not None and ratio.corrected for ratio in gated)
        corrected = "; the ratios are corrected for that" if some else ""
        yield f"{slowed} (a fixed computation, every 50 ms){corrected}"
