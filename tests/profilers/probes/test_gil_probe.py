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


def _waits(work: Callable[[threading.Event], object]) -> list[float]:
    """The probe's readings while another thread works."""
    samples, stop = SampleLog(), threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    with LockProbe(samples, period_s=0.005) as probe:
        time.sleep(0.6)
    stop.set()
    thread.join()
    rows = [json.loads(line) for line in samples.drain(0).splitlines()]
    waits = [value for _, series, value in rows if series == WAIT_SERIES]
    assert len(waits) == probe.readings > 5
    assert probe.cpu_ns > 0
    assert [value for _, series, value in rows if series == INTERVAL_SERIES] == [sys.getswitchinterval() * 1e9]
    return waits


def _spin(stop: threading.Event) -> None:
    while not stop.is_set():
        pass


def _sleep(stop: threading.Event) -> None:
    stop.wait()


def test_a_spinning_thread_is_detected_and_a_sleeping_one_is_not() -> None:
    interval = sys.getswitchinterval() * 1e9
    spinning = _waits(_spin)
    detected = fmean(wait > USUAL_NS for wait in spinning)
    assert detected > 0.5
    assert fmean(spinning) > 0.3 * interval
    # A busy machine delays the probe itself, and its timer: it has some tries to show a quiet moment.
    for _ in range(5):
        sleeping = _waits(_sleep)
        assert min(sleeping) >= 0
        late = fmean(wait > USUAL_NS for wait in sleeping)
        if late < 0.6 * detected and fmean(sleeping) < 0.2 * fmean(spinning):
            break
    else:
        pytest.fail(
            f"{late:.0%} of the probe's readings next to a sleeping thread were late, mean {fmean(sleeping)} ns"
        )
