"""``transfer.sync``: the device was idle after the host had waited for it: ``.item()``, a copy within the model."""

from __future__ import annotations

import numpy as np

from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, parts_and_largest
from latfix.profilers.evidence.device_idle import unusual_idle_ns
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    profile, idle = evidence.setup.device_profile, unusual_idle_ns(evidence)
    if profile is None or idle is None or not profile.waits:
        return Claim()
    owed = np.rint(idle * profile.sync_share).astype(np.int64)
    return Claim(units={"compute": Parts(cpu=np.minimum(owed, left.cpu_excess("compute")))})


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    profile = evidence.setup.device_profile
    assert profile is not None, "the cause claims nothing without a profile"
    where = evidence.setup.device_waits
    at = f", at {', '.join(where)}" if where else ""
    return (
        f"the host waited for the device {profile.waits:.0f} times within a batch's compute{at}, and after each wait "
        f"the device waited for the host; {parts_and_largest(figures)}."
    )


CAUSE = Cause(
    id="transfer.sync",
    claim=_claim,
    sentence=_sentence,
)
