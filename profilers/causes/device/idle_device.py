"""``transfer.sync`` and ``dispatch.launch``: the device was idle within a batch's compute because of its host.

``transfer.sync``: after the host had waited for the device (``.item()``, a copy within the model).
``dispatch.launch``: the host had not issued the next operator yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.evidence.device_idle import DeviceProfile, idle_ns, unusual_idle_ns
from latfix.profilers.evidence.units import Evidence


def _claim(share: Callable[[DeviceProfile], float], evidence: Evidence, _left: Left) -> Claim:
    """Claim a share of the device's unusual idle time."""
    profile, idle = evidence.setup.device_profile, unusual_idle_ns(evidence)
    if profile is None or idle is None or not share(profile):
        return Claim()
    claimed = np.rint(idle * share(profile)).astype(np.int64)
    return Claim(units={"compute": Parts(excess=claimed)})


def _sync_share(profile: DeviceProfile) -> float:
    return profile.sync_share if profile.waits else 0.0


def _sync_sentence(evidence: Evidence, figures: TailFigures) -> str:
    profile = evidence.setup.device_profile
    assert profile is not None, "the cause claims nothing without a profile"
    where = evidence.setup.device_waits
    at = f", at {', '.join(where)}" if where else ""
    return (
        f"the host waited for the device {profile.waits:.0f} times within a batch's compute{at}, and after each wait "
        f"the device waited for the host; {figures.parts_and_largest}."
    )


def _launch_sentence(evidence: Evidence, figures: TailFigures) -> str:
    profile, idle = evidence.setup.device_profile, idle_ns(evidence)
    assert profile is not None and idle is not None, "the cause claims nothing without a profile"
    usual = idle[evidence.quiet_batch]
    return (
        f"{profile.launches:.0f} operators of a batch are issued one by one, and the device waits for them for "
        f"{from_ns(np.median(usual)) if len(usual) else 'an unknown time'} in a typical batch; "
        f"{figures.parts_and_largest}."
    )


SYNC = Cause(id="transfer.sync", claim=partial(_claim, _sync_share), sentence=_sync_sentence)
LAUNCH = Cause(
    id="dispatch.launch",
    fixes=("fuse.cudagraph",),
    claim=partial(_claim, lambda profile: 1.0 - _sync_share(profile)),
    sentence=_launch_sentence,
)
