"""Continuous batching on a simulated device: each request's copies and compute by the device's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from latfix.adapter_api import Workload
from latfix.request import Request
from latfix.runners.engine.worker import ModelInstance
from tests.runners.engine.served import Served, requests_of
from tests.runners.gpu.simulated import SimulatedAccelerator, Speeds

pytestmark = pytest.mark.alone

_WIDTH, _STEPS = 6, 5
_BYTES = 4 * _WIDTH
_SPEEDS = Speeds(operator=0.002, byte=1e-4)


class _Rows(Workload):
    def prepare(self, request: Request) -> torch.Tensor:
        return torch.full((_WIDTH,), float(request.id))


class _Steps(torch.nn.Module):
    """Adds a request's row to its sum in each of five steps, one operator for all rows.

    :param failing: a number of rows with which a step fails.
    """

    def __init__(self, failing: int = 0) -> None:
        super().__init__()
        self._failing = failing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * _STEPS

    def start(self, x: torch.Tensor) -> dict[str, Any]:
        return {"row": x, "sum": x * 0, "left": [_STEPS] * len(x)}

    def done(self, state: dict[str, Any]) -> list[bool]:
        return [left <= 0 for left in state["left"]]

    def step(self, state: dict[str, Any]) -> None:
        if len(state["left"]) == self._failing:
            raise ValueError("too many")
        state["sum"] = state["sum"] + state["row"]
        state["left"] = [left - 1 for left in state["left"]]

    def join(self, state: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        joined = {key: torch.cat([state[key], other[key]]) for key in ("row", "sum")}
        return {**joined, "left": state["left"] + other["left"]}

    def leave(self, state: dict[str, Any], rows: Sequence[int]) -> tuple[list[torch.Tensor], Any]:
        outputs = [state["sum"][k] for k in rows]
        stay = [k for k in range(len(state["left"])) if k not in set(rows)]
        if not stay:
            return outputs, None
        kept = {key: state[key][torch.tensor(stay)] for key in ("row", "sum")}
        return outputs, {**kept, "left": [state["left"][k] for k in stay]}


def _served(count: int, *, overlap: bool, failing: int = 0) -> tuple[Served, SimulatedAccelerator]:
    device = SimulatedAccelerator(speeds=_SPEEDS)

    def place(instance: ModelInstance) -> None:
        instance.place_on(device)

    settings: dict[str, Any] = {"batching": "continuous", "max_batch_size": 3, "overlap": overlap}
    made = Served(requests_of(count), _Steps(failing), adapter=_Rows(), device=device.device, place=place, **settings)
    return made, device


def _right(served: Served) -> bool:
    return all(float(outcome.output[0]) == pytest.approx(slot * _STEPS) for slot, outcome in served.outcomes.items())


@pytest.mark.parametrize("overlap", [False, True])
def test_each_request_has_its_copies_and_its_compute(overlap: bool) -> None:
    served, device = _served(4, overlap=overlap)
    served.send(*range(4), wait=True)
    _, batches = served.end()
    assert _right(served)
    copy_in, copy_out = (1e9 * _BYTES * _SPEEDS.byte * times for times in (_SPEEDS.pageable, 2))
    assert (batches["copy_in_ns"] >= copy_in).all() and (batches["copy_out_ns"] >= copy_out).all()
    assert (batches["copy_in_bytes"] == _BYTES).all() and (batches["copy_out_bytes"] == _BYTES).all()
    assert (batches["pageable_bytes"] == 2 * _BYTES).all()
    # The start and the steps are one operator each. They run by themselves: nothing waited for them in between.
    assert (batches["device_ns"] >= 1e9 * (_STEPS + 1) * _SPEEDS.operator).all()
    assert (batches["lead_ns"] > 0).all() and (batches["issue_ns"] > 0).all()
    assert (batches["issue_ns"] < batches["device_ns"]).all()
    # The stages end where the device's work did.
    for begin, end, least in (
        ("collated_ns", "h2d_end_ns", copy_in),
        ("h2d_end_ns", "compute_end_ns", 1e9 * (_STEPS + 1) * _SPEEDS.operator),
        ("compute_end_ns", "d2h_end_ns", copy_out),
    ):
        slack = batches["clock_slack_ns"] + 1_000_000
        assert (batches[end] - batches[begin] + slack >= least).all()
    assert device.uploads == [False] * 4


def test_requests_that_join_share_steps_and_those_that_end_together_their_copy() -> None:
    served, _ = _served(9, overlap=False)
    served.send(*range(9))
    rows, batches = served.end()
    assert _right(served) and len(rows) == len(batches) == 9
    assert (batches["device_ns"] > 0).all() and (batches["size"] <= 3).all()
    assert set((batches["copy_in_bytes"] // _BYTES).tolist()) <= {1, 2, 3}
    wall = batches["compute_end_ns"] - batches["h2d_end_ns"]
    assert np.abs(wall - batches["device_ns"]).max() < 0.2 * batches["device_ns"].max()


def test_after_a_failed_step_the_events_serve_others() -> None:
    served, _ = _served(40, overlap=False, failing=3)
    served.send(*range(40))
    _, batches = served.end()
    assert _right(served) and len(served.outcomes) == 40
    assert (batches["retried"] == 1).any()
    flights = served.engine.workers[0].flights
    assert flights is not None and flights.events_added == 0, "a set of events was lost"
    whole = batches[batches["retried"] == 0]
    assert (whole["device_ns"] > 0).all()
