"""``dispatch.launch``: the device was idle because the host had not issued the next operator yet."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, parts_and_largest
from latfix.profilers.evidence.device_idle import idle_ns, unusual_idle_ns
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    profile, idle = evidence.setup.device_profile, unusual_idle_ns(evidence)
    if profile is None or idle is None:
        return Claim()
    part = 1.0 - (profile.sync_share if profile.waits else 0.0)
    owed = np.rint(idle * part).astype(np.int64)
    return Claim(units={"compute": Parts(cpu=np.minimum(owed, left.cpu_excess("compute")))})


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    profile, idle = evidence.setup.device_profile, idle_ns(evidence)
    assert profile is not None and idle is not None, "the cause claims nothing without a profile"
    usual = idle[evidence.quiet_batch]
    return (
        f"{profile.launches:.0f} operators of a batch are issued one by one, and the device waits for them for "
        f"{from_ns(np.median(usual)) if len(usual) else 'an unknown time'} in a typical batch; "
        f"{parts_and_largest(figures)}."
    )


CAUSE = Cause(
    id="dispatch.launch",
    fixes=("fuse.cudagraph",),
    claim=_claim,
    sentence=_sentence,
)
