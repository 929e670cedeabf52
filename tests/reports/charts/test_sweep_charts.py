"""The charts of a sweep."""

from __future__ import annotations

from latfix.reports.charts.sweep_charts import latency_over_load
from latfix.reports.sweep_rows import sweep_rows
from latfix.results.sweep import Sweep
from tests.reports.test_sweep_reports import document, objective


def test_the_predicted_line_stays_if_the_percentile_of_a_load_is_lost() -> None:
    known, lost = document(), document()
    lost["points"][0] |= {"objective": objective(None, [900.0, None], False), "saturated": False}
    drawn = [str(latency_over_load("l", sweep_rows(Sweep.from_json(each)))) for each in (known, lost)]
    assert drawn[1].count("stroke-dasharray") == drawn[0].count("stroke-dasharray") > 0
