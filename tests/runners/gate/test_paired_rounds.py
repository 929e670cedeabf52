"""The order of starts and replays in the rounds of a gate, and the machine's pace in each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import PACE, REQUEST_DTYPE
from latfix.runners.gate.paired_rounds import replay_rounds
from latfix.runners.replay.arm import Arm
from latfix.traffic.schedule import Traffic
from tests.records import build_record, zeros

PARTS = [Traffic.plain(np.arange(size) * 1_000_000) for size in (3, 5)]


class Service:
    """Logs what is asked of it; during its replays the machine has the given pace."""

    def __init__(self, label: str, log: list[str], samples: Mapping[int, float]) -> None:
        self.label, self._log, self._samples = label, log, samples

    def launch(self) -> None:
        self._log.append(f"launch {self.label}")

    def start(self) -> None:
        self._log.append(f"start {self.label}")

    def restart(self) -> None:
        self._log.append(f"end {self.label}")

    def replay(self, folder: Path, traffic: Traffic, _watch: Any, *, seed: int) -> RunRecord:
        self._log.append(f"{folder.name} of {len(traffic)}")
        assert seed == 0
        samples = {
            "t_ns": np.array(list(self._samples), dtype=np.int64),
            "series": np.full(len(self._samples), PACE, dtype=object),
            "value": np.array(list(self._samples.values())),
        }
        return build_record(zeros(REQUEST_DTYPE, len(traffic)), traffic=traffic, samples=samples)


def rounds(tmp_path: Path, *paces: Mapping[int, float], count: int = 1) -> tuple[list[float], list[str]]:
    log: list[str] = []
    services = (Service(label, log, pace) for label, pace in zip(("base", "head"), paces, strict=True))
    base, new = cast(tuple[Arm, Arm], tuple(services))
    with closing(replay_rounds(base, new, PARTS, tmp_path, lambda *_: nullcontext(lambda _: None), seed=0)) as found:
        return [one.drift for one in islice(found, count)], log


def test_both_services_start_at_once_and_take_turns_in_going_first(tmp_path: Path) -> None:
    _, log = rounds(tmp_path, {}, {}, count=2)
    starts, ends = ["launch base", "launch head", "start base", "start head"], ["end base", "end head"]
    assert log == [
        *starts, "base-1 of 3", "head-1 of 3", *ends,
        *starts, "head-2 of 5", "base-2 of 5", *ends,
    ]  # fmt: skip


def test_the_drift_of_a_round_is_the_machines_pace_in_its_replays(tmp_path: Path) -> None:
    before_the_replay = {-5: 9000.0}
    (drift,), _ = rounds(tmp_path, before_the_replay | {0: 100.0, 50: 300.0}, {0: 200.0, 50: 240.0})
    assert drift == pytest.approx(math.log(220 / 200))
    (drift,), _ = rounds(tmp_path, {0: 100.0}, before_the_replay)
    assert math.isnan(drift)
