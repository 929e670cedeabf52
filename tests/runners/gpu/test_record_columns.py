"""Diagnosis of overlapping batches, from a record of real threads and a simulated device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.traffic.schedule import Traffic
from tests.records import build_record
from tests.runners.gpu.simulated import Speeds
from tests.runners.gpu.test_async_batches import Adapter, Flown, Model

pytestmark = pytest.mark.alone

#: Causes that a machine on which others run brings about.
_MACHINES = ("host.", "python.", "cold.")


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    """Disables garbage collection, which takes as long as ten batches in a test run and is not in these records."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _record(served: Flown, **meta: Any) -> RunRecord:
    """The run as read from its folder."""
    rows = {name: np.ascontiguousarray(served.rows[name]) for name in served.rows.dtype.names or ()}
    batches = {name: np.ascontiguousarray(served.batches[name]) for name in served.batches.dtype.names or ()}
    return build_record(
        rows,
        batches,
        traffic=Traffic.plain(rows["arrival_ns"].copy()),
        **{"device": "cuda:0", "settings": served.engine.settings, "torch_threads": 1, **meta},
    )


def _by_cause(diagnosis: Diagnosis) -> dict[str, float]:
    return {cause.cause: cause.tail_ms for cause in diagnosis.causes}


def test_a_burst_through_overlapping_batches_is_the_traffics() -> None:
    """All requests arrive at once and wait for the device; overlapped copies cost nothing."""
    Flown(4)  # the process's first operators take seconds
    served = Flown(80, adapter=Adapter(longest=1), speeds=Speeds(operator=0.004, byte=2e-5), max_batch_size=4)
    assert (served.batches["ahead_ns"] > 0).sum() >= 12
    diagnosis = diagnose(_record(served), percentile=90, bootstrap=40)
    assert diagnosis.ledger.conservation_error_ns() == 0
    found = _by_cause(diagnosis)
    traffic = found.get("traffic.burst", 0.0) + found.get("traffic.overload", 0.0)
    # Apart from noise of the machine's threads, nearly all of it.
    machine = sum(ms for name, ms in found.items() if name.startswith(_MACHINES))
    assert traffic > 0.85 * (diagnosis.excess_ms - machine), found
    assert abs(found.get("transfer.copy", 0.0)) < 0.05 * diagnosis.excess_ms


def test_waits_behind_a_long_batch_are_attributed_to_it() -> None:
    class Slow(Model):
        """One request in forty takes the device as long as ten others."""

        def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
            if rows.shape[1] == 9:
                for _ in range(30):
                    rows = rows + 0.0
            return super().forward(rows)

    class Rarely(Adapter):
        def prepare(self, request: Any) -> Any:
            length = 9 if int(request.id) % 40 == 20 else 2
            return {"rows": torch.full((length, 6), float(request.id))}

    Flown(4)
    served = Flown(
        160, model=Slow(), adapter=Rarely(), speeds=Speeds(operator=0.003), max_batch_size=1, apart_s=0.018
    )
    diagnosis = diagnose(_record(served), percentile=85, bootstrap=40)
    assert diagnosis.ledger.conservation_error_ns() == 0
    ledger = diagnosis.ledger
    own, passed_on = (table.sum(axis=1) / 1e6 for table in (ledger.own_ns, ledger.propagated_ns))
    sizes = ledger.causes.index("input.size")
    # The long requests' own excess, and more for all requests that arrived while they were served.
    assert own[sizes] == pytest.approx(4 * 90, rel=0.5) and passed_on[sizes] > own[sizes]
    # Apart from noise of the machine's threads, there is no other cause.
    others = [k for k, name in enumerate(ledger.causes) if k != sizes and not name.startswith(_MACHINES)]
    assert passed_on[sizes] > 3 * abs(passed_on[others]).sum()
