"""The open-loop replayer: hands requests over at their recorded times, regardless of earlier requests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

#: The last part of a wait spins, because a sleeping thread wakes late, and later the longer it slept. Spinning uses a
#: core, so it is limited to a hundredth of the wait, within these bounds.
LEAST_SPIN_NS = 40_000
MOST_SPIN_NS = 250_000
#: Longest wait without a beat.
_LONGEST_SLEEP_NS = 100_000_000
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


@contextlib.contextmanager
def sharp_timer() -> Iterator[None]:
    """Make Linux wake this thread without its usual 50 µs of slack; no effect on other systems."""
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    before = prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, max(before, 0), 0, 0, 0)  # 0 is the default, if it could not be read


def take_priority() -> str:
    """Give this thread real-time priority if the system allows it; returns one line that reports the result.

    A real caller runs on another machine and competes for none of the service's cores; here it shares them. The
    thread sleeps nearly always, and threads that it starts do not inherit its priority.
    """
    if not hasattr(os, "sched_setscheduler"):
        return "replayer: ordinary priority (this system has no real-time priority)"
    policy = os.SCHED_FIFO | getattr(os, "SCHED_RESET_ON_FORK", 0)
    try:
        os.sched_setscheduler(0, policy, os.sched_param(1))
    except OSError:
        return "replayer: ordinary priority; with CAP_SYS_NICE, requests would be less late on a busy machine"
    return "replayer: real-time priority"


def give_priority_back() -> None:
    """Undo :func:`take_priority`."""
    if hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def replay(
    scheduled_ns: Sequence[int],
    hand_over: Callable[[int], None],
    *,
    beat: Callable[[], None] = lambda: None,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call ``hand_over(k)`` at ``scheduled_ns[k]`` (absolute) for each k in turn.

    A late call is made at once and does not shift the schedule; the caller records the lateness.

    :param beat: called again and again during long waits.
    :param clock: monotonic nanoseconds, by default the clock of all stamps in a record.
    """
    with sharp_timer():
        for k, due in enumerate(scheduled_ns):
            while due - clock() > _LONGEST_SLEEP_NS:
                beat()
                sleep(_LONGEST_SLEEP_NS / 2e9)
            now = clock()
            spin_ns = min(max((due - now) // 100, LEAST_SPIN_NS), MOST_SPIN_NS)
            while (remaining := due - now - spin_ns) > 0:
                sleep(remaining / 1e9)
                now = clock()
            while now < due:
                now = clock()
            hand_over(k)
