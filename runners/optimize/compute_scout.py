"""What fixes that change the model do to its compute, measured in seconds each, before any of them is replayed.

A replay takes most of a minute and tells whether a fix helps; the same few batches on both services tell within
seconds how much compute changes. So that time goes to what promises most, such fixes are tried in the order of what
was measured, not of what they did elsewhere. Nothing is decided by it: accuracy, replays and verification come as
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from latfix.errors import LatfixError
from latfix.runners.fixes import Fix
from latfix.runners.optimize.measurement import Bench
from latfix.runners.optimize.trial import Change
from latfix.runners.replay.arm import Arm

#: The share of the search's time that may go into scouting.
_SHARE = 0.2
#: Settings by which batches get more or fewer cores.
_SHARING = {"workers", "intra_op_threads"}
#: For fewer the order matters little.
_FEWEST = 2


class Scout:
    """Measures fixes on a bench.

    :ivar found: by fix, what was measured: ``(a, b)`` so that a batch of ``t`` nanoseconds takes ``a + b·t``.
    :param say: told what was measured.
    """

    def __init__(self, bench: Bench, say: Callable[[str], None]) -> None:
        self.found: dict[str, tuple[float, float]] = {}
        self._bench = bench
        self._say = say
        self._looked: set[str] = set()

    def look(self, fixes: Sequence[tuple[Fix, Change]], base: Arm, room_s: float) -> None:
        """Measure those that change compute, the quickest first, as far as a fifth of ``room_s`` reaches.

        :param fixes: that apply to ``base``, with what each changes.
        :raises LatfixError: the service without them failed.
        """
        wanted = [(fix, change) for fix, change in fixes if _acts(fix, change) and fix.id not in self._looked]
        if len(wanted) < _FEWEST:
            return
        left = _SHARE * room_s
        ordered = sorted(wanted, key=lambda each: self._bench.scout_s(each[0]))
        if self._bench.scout_s(ordered[0][0]) <= left:
            self._say(f"measuring what up to {len(ordered)} fixes do to compute, for up to {left:.0f} s")
        for fix, change in ordered:
            cost = self._bench.scout_s(fix)
            if cost > left:
                break
            self._looked.add(fix.id)
            before = self._bench.left_s()
            measured = self._measure(fix, change, base)
            took = before - self._bench.left_s()
            self._bench.learn(fix, took, cost)
            left -= max(cost, took)
            if measured is not None:
                self.found[fix.id] = measured
        if self.found:
            told = ", ".join(f"{name} x{slope:.2f}" for name, (_, slope) in sorted(self.found.items()))
            self._say(f"compute of the same batches, measured before anything is replayed: {told}")

    def _measure(self, fix: Fix, change: Change, base: Arm) -> tuple[float, float] | None:
        settings = base.settings.with_overrides(change)
        bench = self._bench
        arm = bench.arm(f"scout-{fix.id}", settings, (*base.fixes, fix.id), alone=bench.room.alone_with([fix]))
        try:
            return bench.apart_if_need_be(arm, lambda: bench.compute_change(base, arm))
        except LatfixError:
            if base.failed:
                raise
            return None  # its trial says why
        finally:
            arm.close()


def _acts(fix: Fix, change: Change) -> bool:
    """Whether a fix is meant to change how long a batch computes, or how batches share the cores."""
    return fix.compute != 1.0 or not _SHARING.isdisjoint(change)
