"""Which rounds of two services count: a round is fair if nothing else on the machine favored one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from latfix.formatting import counted
from latfix.profilers.causes.host.core_takers import Taker, core_takers, describe_takers
from latfix.run_record.dispatch_lag import is_on_time
from latfix.run_record.run_record import RunRecord

#: A round is uneven if other processes used this share of the machine's cores more beside one service than beside the
#: other. Their use alone decides, not how long the services waited: a service with more threads waits longer, and its
#: rounds would be left out more often.
_UNEVEN = 0.075


@dataclass(slots=True)
class FairRounds:
    """Rounds of two services, in the order of their replays.

    :ivar total: number of rounds; ``late`` those in which something delayed the replayer.
    """

    total: int = 0
    late: int = 0
    _on_time: list[tuple[int, bool]] = field(default_factory=list)
    _takers: tuple[Taker, ...] = ()

    def add(self, before: RunRecord, after: RunRecord) -> None:
        """Add the next round."""
        pair = (before, after)
        if not all(is_on_time(record) for record in pair):
            self.late += 1
        else:
            outside = [[taker for taker in core_takers(record.samples) if taker.outside] for record in pair]
            taken = [sum(taker.cores for taker in takers) for takers in outside]
            cores = after.meta.cores or os.cpu_count() or 1
            uneven = abs(taken[1] - taken[0]) > _UNEVEN * cores
            if uneven and not self._takers:
                self._takers = tuple(outside[taken[1] > taken[0]])
            self._on_time.append((self.total, uneven))
        self.total += 1

    @property
    def counted(self) -> list[int]:
        """Numbers of the rounds that count, from 0 on: not the late ones, nor the uneven ones unless most are uneven.

        If most are uneven, that is how this machine is, and uneven rounds average out.
        """
        even = [number for number, uneven in self._on_time if not uneven]
        return even if 2 * len(even) >= len(self._on_time) else [number for number, _ in self._on_time]

    def notes(self) -> Iterator[str]:
        """What was left out and why, in sentences."""
        if self.late:
            yield f"{self._left_out(self.late)}: something else on the machine delayed the replayer"
        uneven = len(self._on_time) - len(self.counted)
        if uneven:
            yield (
                f"{self._left_out(uneven)}: other processes used more of the cores beside one service than beside "
                f"the other (in the first of them {describe_takers(self._takers)})"
            )

    def _left_out(self, some: int) -> str:
        return f"{some} of {counted(self.total, 'round')} {'is' if some == 1 else 'are'} left out"
