"""Preconditions of many fixes: a setting at its default, the model's device, causes in the tail."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from latfix.cause_catalogue import PREMISES
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Condition, Context
from latfix.settings import RunnerSettings
from latfix.stages import Status

#: Minimum share of the tail's excess for a cause to be worth a setting that has a cost.
LITTLE = 0.01
#: Minimum wait for a batch, as a share of the p95 latency, to be worth a fix.
_WAITING = 0.05
_DEFAULTS = RunnerSettings()


def at_default(name: str, otherwise: str) -> Condition:
    """A setting must have its default.

    :param otherwise: the reason if it has not, with ``{}`` for its value.
    """

    def condition(context: Context) -> str:
        value = getattr(context.settings, name)
        return "" if value == getattr(_DEFAULTS, name) else otherwise.format(value)

    return condition


def need(test: Callable[[Context], object], otherwise: str) -> Condition:
    """``test`` must hold; ``otherwise`` is the reason if it does not."""
    return lambda context: "" if test(context) else otherwise


def batches_shared(otherwise: str) -> Condition:
    """Requests must not run one by one."""
    return need(lambda context: context.settings.max_batch_size != 1, otherwise)


def on_its_device(fix: str, otherwise: str = "the model runs on a GPU") -> Condition:
    """The model must run on the kind of device of the fix's premise."""
    return need(lambda context: PREMISES[fix].allows(context.device), otherwise)


def tail_share(diagnosis: Diagnosis, causes: Iterable[str]) -> float:
    """Share of the tail's excess that ``causes`` own together; evidence is often split among several causes."""
    wanted = set(causes)
    return sum(cause.tail_share for cause in diagnosis.causes if cause.cause in wanted)


def in_tail(*causes: str, least: float = LITTLE) -> Condition:
    """The causes must make up a share of the tail, unless no cause is known at all."""

    def condition(context: Context) -> str:
        share = tail_share(context.diagnosis, causes)
        if not context.diagnosis.causes or share >= least:
            return ""
        # A share may be negative by chance.
        return f"{' and '.join(causes)} made up {100 * max(share, 0.0):.1f} % of the tail"

    return condition


def wait_for_batch(context: Context) -> str:
    """Requests must wait for a batch long enough to be worth a fix."""
    rows = context.record.requests
    served = (rows["status"] == Status.OK) & (rows["batch_id"] >= 0)
    if not served.any():
        return "no request reached a batch"
    waited, latency = (
        float(np.percentile(values[served], 95)) / 1e6
        for values in (rows["queue_ns"] + rows["batch_ns"], rows["latency_ns"])
    )
    if waited < _WAITING * latency:
        return f"requests hardly wait for a batch: {waited:.3g} ms at p95, of a latency of {latency:.3g} ms"
    return ""


def refusals(record: RunRecord, *settings: str) -> list[str]:
    """Notes of the run on settings that the system refused, one line each."""
    return [note for note in record.meta.setup_notes if note.startswith(settings)]
