"""A live runner serves like a replay: the same arrivals through both, in turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.live import live_fidelity
from latfix.errors import InputError
from latfix.statistics.decision import RatioEstimate
from tests.adapters import sleeper
from tests.conftest import write_workload

pytestmark = [pytest.mark.slow, pytest.mark.alone]

STEADY = (
    sleeper("0.003 + 0.0005 * len(x)")
    + """
    def finish(self, output, request):
        time.sleep(0.0005)
        return output
"""
)
#: How much two equal arms may differ beyond chance.
NEAR = 0.10


def _agrees(ratio: RatioEstimate) -> bool:
    return ratio.lo <= 1 + NEAR and ratio.hi >= 1 - NEAR and 0.8 <= ratio.value <= 1.25


def test_equal_arrivals_take_equally_long(tmp_path: Path) -> None:
    """Pairs that fill a batch. A busy machine may delay one arm for a whole round, but not in every round."""
    traffic = [{"arrival_s": 0.015 * (k // 2) + 0.0005 * (k % 2), "value": k} for k in range(120)]
    folder = write_workload(
        tmp_path / "w", adapter=STEADY, traffic=traffic, runner={"max_batch_size": 2, "batch_window_ms": 5.0}
    )
    seen = []
    for _ in range(3):
        found = live_fidelity.compare(str(folder), plan=None, settings={}, seconds=2.0, rounds=2)
        assert found["requests"] == 120
        seen.append({what: ratios["p50"] for what, ratios in found["ratio"].items()})
        if all(_agrees(ratio) for ratio in seen[-1].values()):
            return
    pytest.fail(f"the live runner took longer or shorter each time: {seen}")


def test_more_than_the_runner_keeps_rows_of_is_refused(tmp_path: Path) -> None:
    traffic = [{"arrival_s": 0.001 * k, "value": k} for k in range(5000)]
    folder = write_workload(tmp_path / "w", adapter=STEADY, traffic=traffic)
    with pytest.raises(InputError, match=r"found 5000 requests; expected 1 to 4096"):
        live_fidelity.compare(str(folder), plan=None, settings={}, seconds=60.0, rounds=2)
