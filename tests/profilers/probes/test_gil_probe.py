"""The probe of the interpreter lock detects a thread that runs Python all the time, and no sleeping one."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from statistics import fmean

import pytest

from latfix.profilers.probes.gil_probe import INTERVAL_SERIES, USUAL_NS, WAIT_SERIES, LockProbe
from latfix.profilers.probes.stage_recorder import SampleLog

pytestmark = pytest.mark.alone


def _waits(work: Callable[[threading.Event], object], *, seconds: float = 0.6) -> tuple[list[float], SampleLog]:
    """The probe's readings while another thread works."""
    samples, stop = SampleLog(), threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    with LockProbe(samples, period_s=0.005) as probe:
        time.sleep(seconds)
    stop.set()
    thread.join()
    rows = [json.loads(line) for line in samples.drain(0).splitlines()]
    waits = [value for _, series, value in rows if series == WAIT_SERIES]
    assert len(waits) == probe.readings > 5
    assert probe.cpu_ns > 0
    assert [value for _, series, value in rows if series == INTERVAL_SERIES] == [sys.getswitchinterval() * 1e9]
    return waits, samples


def _spin(stop: threading.Event) -> None:
    while not stop.is_set():
        pass


def _sleep(stop: threading.Event) -> None:
    stop.wait()


def test_a_spinning_thread_is_detected_and_a_sleeping_one_is_not() -> None:
    interval = sys.getswitchinterval() * 1e9
    spinning, _ = _waits(_spin)
    # A busy machine delays the probe itself: use the quietest of some tries.
    sleeping = min((_waits(_sleep)[0] for _ in range(5)), key=fmean)
    detected, baseline = (fmean(wait > USUAL_NS for wait in waits) for waits in (spinning, sleeping))
    assert detected > 0.5
    assert fmean(spinning) > 0.3 * interval
    # How often a timer alone is this late depends on the machine.
    assert baseline < 0.6 * detected
    assert fmean(sleeping) < 0.2 * fmean(spinning)
    assert min(sleeping) >= 0
