"""``host.priority``: the service's threads before those of other programs, if the system permits it."""

from __future__ import annotations

import resource

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import in_tail, refusals
from latfix.runners.fixes.shared.run_evidence import mean
from latfix.runners.host.privileges import current_nice, least_nice

#: Enough for nine tenths of a core against a program of ordinary priority; real-time threads still come first.
_WANTED = -10


def _permitted(context: Context) -> str:
    if context.settings.nice < 0:
        return f"nice = {context.settings.nice} already"
    least = least_nice()
    if least >= min(context.settings.nice, current_nice()):
        limit = resource.getrlimit(resource.RLIMIT_NICE)[0] if hasattr(resource, "RLIMIT_NICE") else 0
        return f"this user may not go below nice {least}; it takes CAP_SYS_NICE or RLIMIT_NICE above 20 (is {limit})"
    return ""


def _verify(applied: Applied) -> Verified:
    wanted = applied.settings.nice
    now, before = applied.both(_priorities)
    group = applied.record.meta.placement.autogroup_nice
    waited = applied.both(_waited_ms)
    text = (
        f"threads ran at nice {_values(now)}, {_values(before)} without; a batch waited {waited[0]:.3g} ms for a "
        f"core, {waited[1]:.3g} without"
    )
    refused = refusals(applied.record, "nice")
    if group is not None and group != wanted:
        text = f"the session's scheduling group stayed at nice {group}, which is what counts; {text}"
        return Verified(False, "; ".join([text, *refused]))
    effective = bool(now) and set(now) == {wanted} and wanted < min(before, default=0)
    return Verified(effective, "; ".join([text, *refused]))


def _priorities(record: RunRecord) -> list[int]:
    placement = record.meta.placement
    return [place.nice for place in (*placement.worker, *placement.prepare) if place.nice is not None]


def _values(found: list[int]) -> str:
    return " and ".join(str(value) for value in sorted(set(found))) or "unknown"


def _waited_ms(record: RunRecord) -> float:
    return mean(record.batches["compute_runq_ns"] + record.batches["wake_runq_ns"]) / 1e6


FIX = Fix(
    id="host.priority",
    title="give the service's threads priority over other programs",
    treats=("host.contention",),
    relief=0.5,
    gentle=True,
    risk="other programs on the machine wait for it",
    needs=(_permitted, in_tail("host.contention")),
    sets=lambda _: {"nice": max(least_nice(), _WANTED)},
    verify=_verify,
)
