"""The final replay: first and last settings in turns, each round on fresh processes, until the ratio is decided."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from latfix.profilers.causes.host.core_takers import disturbance, disturbed_replays
from latfix.profilers.fair_rounds import FairRounds
from latfix.results.comparison import Comparison, compare_rounds
from latfix.run_record.run_record import RunRecord
from latfix.runners.replay.arm import Arm, Watch, start_at_once
from latfix.runners.replay.run_session import Interrupted
from latfix.statistics.decision import LEVEL, Rule
from latfix.statistics.group_sequential import FIRST_LOOK, Reason, look_level, stop
from latfix.traffic.schedule import Traffic

#: Maximum number of rounds.
MOST_ROUNDS = 15

_Pair = tuple[RunRecord, RunRecord]


@dataclass(slots=True)
class Proof:
    """Complete rounds of the final replay.

    :param rounds: records before and after of the rounds that count, in their order.
    :param interrupted: Ctrl-C ended it; only complete rounds count.
    :param judged: the statistic to decide; ``None`` for the workload's percentile.
    :param level: error rate of the look after the last round, used by :meth:`compare`.
    :param most: number of rounds that the budget allows.
    :param looked: number of rounds at the last look.
    :param stopped: why it ended; ``None`` if it was interrupted.
    :param round_s: seconds that the longest round took.
    """

    rounds: list[_Pair] = field(default_factory=list)
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    judged: str | None = None
    level: float = LEVEL
    most: int = MOST_ROUNDS
    looked: int = 0
    stopped: Reason | None = None
    round_s: float = 0.0

    def compare(self, *, seed: int, accuracy: tuple[float | None, float | None] | None = None) -> Comparison:
        """Compare all rounds, at the error rate of a look after this many rounds.

        :raises ValueError: there are no rounds.
        """
        before, after = ([pair[k] for pair in self.rounds] for k in (0, 1))
        comparison = compare_rounds(
            before, after, seed=seed, accuracy=accuracy, rule=Rule(level=self.level), judged=self.judged
        )
        replays = [record for pair in self.rounds for record in pair]
        return replace(comparison, disturbed=disturbed_replays([disturbance(each.samples) for each in replays]))


def prove(
    before: Arm,
    after: Arm,
    traffic: Traffic,
    out: Path,
    *,
    watch: Watch,
    seed: int,
    left_s: Callable[[], float],
    judged: str | None = None,
    at_once: bool = False,
    began: float | None = None,
    lead_in: Traffic | None = None,
    look: Callable[[RunRecord], None] | None = None,
    undecided: Callable[[Comparison], bool] | None = None,
) -> Proof:
    """Replay rounds (A B, B A, …) until the objective's ratio and the gates are decided or time is up; at least one.

    From the fifth round on, the ratio is tested after every round, at levels that together keep the error rate of one
    test (:mod:`latfix.statistics.group_sequential`).

    :param out: folder for records, one folder for each replay.
    :param left_s: remaining seconds of the budget; another round starts if the longest one so far fits.
    :param at_once: load both processes of a round at the same time, before its replays.
    :param began: :func:`time.monotonic` at which the first round's processes were started, if they were.
    :param lead_in: requests that each process serves before its replay, untimed.
    :param look: called with the first replay of ``after`` while its process is still alive.
    :param undecided: true for a comparison that decides not every gate.
    """
    proof, pairs, fair = Proof(judged=judged), list[_Pair](), FairRounds()
    try:
        while proof.stopped is None:
            number = len(pairs) + 1
            started = time.monotonic() if began is None or number > 1 else began
            if at_once:
                start_at_once(before, after)
            records = {}
            for arm in (before, after) if number % 2 else (after, before):
                name = f"{arm.label}-{number}"
                if lead_in is not None:
                    arm.replay(out / f"{name}-lead-in", lead_in, watch, seed=seed)
                records[arm.label] = arm.replay(out / name, traffic, watch, seed=seed)
                if look is not None and arm is after and number == 1:
                    look(records[arm.label])
                arm.restart()
            pairs.append((records[before.label], records[after.label]))
            fair.add(*pairs[-1])
            proof.rounds = [pairs[k] for k in fair.counted]
            proof.round_s = took = max(proof.round_s, time.monotonic() - started)
            if number == 1:
                proof.most = min(1 + int(max(left_s(), 0.0) / took), MOST_ROUNDS)
            ended = number >= proof.most or left_s() < took
            hopeless = fair.late >= FIRST_LOOK and not proof.rounds
            proof.stopped = "too late" if hopeless else "budget" if ended else _look(proof, seed, undecided)
    except (Interrupted, KeyboardInterrupt):
        proof.interrupted = True
    if proof.rounds:
        proof.notes += fair.notes()
    else:
        proof.rounds = pairs  # all late, which is no accident: the comparison reports that nothing can be proved
    if proof.rounds and (proof.interrupted or proof.stopped == "budget"):
        count = len(proof.rounds)
        proof.level = look_level(count, max(proof.most, count), last=True)
    return proof


def _look(proof: Proof, seed: int, undecided: Callable[[Comparison], bool] | None) -> Reason | None:
    """Why it ends after this round, ``None`` if it goes on; sets the level of the test."""
    if len(proof.rounds) < max(FIRST_LOOK, proof.looked + 1):  # each number of rounds has one look
        return None
    proof.looked = len(proof.rounds)
    proof.level = look_level(len(proof.rounds), proof.most)
    comparison = proof.compare(seed=seed)
    reason = stop(comparison.ratio[comparison.judged], proof.most, smallest=comparison.smallest)
    return None if reason and undecided is not None and undecided(comparison) else reason
