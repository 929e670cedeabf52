"""All checks of ``latfix doctor`` as one document."""

from __future__ import annotations

import datetime
import os
import platform
import sys

from latfix.results.doctor_finding import CheckedMachine, Doctor, Finding
from latfix.runners.doctor.cpu import processor
from latfix.runners.doctor.findings import unknown
from latfix.runners.doctor.gpu import gpu
from latfix.runners.doctor.memory import memory
from latfix.runners.doctor.privileges import limits
from latfix.runners.doctor.software import software
from latfix.runners.doctor.stall_probe import standstill, watch
from latfix.runners.doctor.torch_facts import torch_facts
from latfix.runners.host.cpu_quota import cpu_model
from latfix.runners.host.kernel_files import System
from latfix.runners.replay.run_session import versions


def examine(seconds: float) -> Doctor:
    """Check this machine.

    :param seconds: how long to measure stalls; 0 skips the measurement.
    """
    # First, before latfix itself starts anything.
    findings: list[Finding] = list(standstill(watch(seconds))) if seconds > 0 else []
    system, torch = System(), torch_facts()
    if sys.platform == "linux":
        findings += [*processor(system), *memory(system), *limits()]
    else:
        reason = "only Linux reports the settings of processor, memory and control groups"
        findings.append(unknown("processor.model", f"{platform.system()}: {reason}"))
    has_gpu, found = gpu(system, torch, pid=os.getpid())
    findings += [*found, *software(torch, gpu=has_gpu)]
    return Doctor(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=CheckedMachine(
            cpu=cpu_model(),
            cores=os.cpu_count(),
            os=f"{platform.system()} {platform.release()}",
            gpus=tuple(torch.get("devices", ())),
        ),
        versions=versions(),
        findings=tuple(findings),
    )
