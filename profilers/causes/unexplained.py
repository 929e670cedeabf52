"""``unexplained``: the remainder that no cause claims. Never clipped, always shown."""

from __future__ import annotations

import numpy as np

from latfix.formatting import counted, from_ns
from latfix.profilers.causes.cause import Cause, TailFigures, median_and_p99
from latfix.profilers.causes.external_dependency import waits_for_each_other
from latfix.profilers.causes.repeated_sleeps import sleeps_in
from latfix.profilers.evidence.outside.service_process import STOPPED, Counter
from latfix.profilers.evidence.units import Evidence


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    blocked = {name: evidence.of_batch(evidence.units[name].blocked)[evidence.ok] for name in ("compute", "collate")}
    where = max(blocked, key=lambda name: float(np.quantile(blocked[name], 0.99)))
    return (
        f"no probe accounts for it: {figures.parts}; blocked time in {where} was "
        f"{median_and_p99(blocked[where])}{sleeps_in(evidence, where)}."
    )


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    still, ok, alone = evidence.standstills, evidence.ok, len(evidence.locks.alone)
    computed = f" ({alone} of them while one of its threads computed)" if alone else ""
    stood = (
        f"{counted(len(still.everyone), 'time')} the service answered no request, for up to "
        f"{from_ns(still.everyone.longest_ns)}, and then all requests in flight went on together{computed}; "
        if len(still.everyone)
        else ""
    )
    if (stopped_ns := Counter.of(evidence.samples, STOPPED).total) > 0:
        stood += f"the process was stopped for {from_ns(stopped_ns)} in all, by a signal (SIGSTOP) or a debugger; "
    idle, ran = (
        (evidence.of_batch(spent("compute")) + spent("finish"))[ok]
        for spent in (evidence.process_idle, evidence.process_ran)
    )
    inside = (
        f"while a request was there, the service's process computed for {median_and_p99(ran)}, and was idle for "
        f"{median_and_p99(idle)}"
        if evidence.process.cpu.known
        else "the service's process was not watched (--pid watches it)"
    )
    others = waits_for_each_other(evidence) if evidence.process.cpu.known else ""
    return f"{stood}{inside}; {others or figures.parts}."


CAUSE = Cause(id="unexplained", sentence=_sentence, outside_sentence=_outside_sentence)
