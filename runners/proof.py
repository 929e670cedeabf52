"""The final replay: the first and the last settings in turns, each round on fresh processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from latfix.fidelity import dispatch_lag
from latfix.record import RunRecord
from latfix.runners.arms import Arm, Watch
from latfix.runners.session import Interrupted
from latfix.traffic.model import Traffic

#: From three rounds on, restarts count as chance; more than five are never replayed.
WANTED_ROUNDS = 3
_MOST_ROUNDS = 5


@dataclass(slots=True)
class Proof:
    """Complete rounds of the final replay.

    :param rounds: before and after, in the order of the rounds.
    :param accuracy: of the last settings.
    :param interrupted: Ctrl-C ended it; only complete rounds are in it.
    """

    rounds: list[tuple[RunRecord, RunRecord]] = field(default_factory=list)
    accuracy: float | None = None
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)


def prove(
    before: Arm,
    after: Arm,
    traffic: Traffic,
    out: Path,
    *,
    watch: Watch,
    seed: int,
    left_s: Callable[[], float],
    round_s: float,
    accuracy: Callable[[Arm], float],
) -> Proof:
    """Replay rounds as long as there is time; one in any case.

    :param out: where the records go, a folder a replay.
    :param left_s: seconds of the budget that are left.
    :param round_s: about how long a round takes; the last one that was replayed tells better.
    :param accuracy: measures an arm's accuracy; asked once, of ``after``, when its first replay is over.
    """
    proof = Proof()
    started = time.monotonic()
    try:
        for number in range(1, _MOST_ROUNDS + 1):
            # Warming up and compiling are not in the estimate, but in the time of the last round.
            if number > 1 and left_s() < max(round_s, time.monotonic() - started):
                break
            started = time.monotonic()
            records = {}
            for arm in (before, after) if number % 2 else (after, before):
                records[arm.label] = arm.replay(out / f"{arm.label}-{number}", traffic, watch, seed=seed)
                if arm is after and proof.accuracy is None:
                    proof.accuracy = accuracy(after)
                arm.restart()
            proof.rounds.append((records[before.label], records[after.label]))
    except (Interrupted, KeyboardInterrupt):
        proof.interrupted = True
    _leave_late_out(proof)
    return proof


def _leave_late_out(proof: Proof) -> None:
    """Rounds in which something outside held up the replayer say nothing of the service."""
    on_time = [pair for pair in proof.rounds if all(dispatch_lag(record).trustworthy for record in pair)]
    if on_time and len(on_time) < len(proof.rounds):
        proof.notes.append(
            f"{len(proof.rounds) - len(on_time)} of {len(proof.rounds)} final rounds are left out: something outside"
            " held up the replayer."
        )
        proof.rounds = on_time
