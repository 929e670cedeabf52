"""What `latfix diagnose` and `compare` give to their pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from latfix.cli.shared.diagnose_flow import Gates, conclude, kept_or_temporary, write_comparison_page
from latfix.cli.shared.output_options import OutputOptions, Outputs
from latfix.errors import RunnerError
from latfix.profilers.diagnose import diagnose
from latfix.results.comparison import compare_records
from tests.profilers.evidence.outside.test_inferred_batches import served_in_batches


def test_the_page_of_a_service_behind_an_address_shows_inferred_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "latfix.reports.html.pages.write_run_report", lambda _path, record, *_args, **_more: drawn.append(record)
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    record = served_in_batches("arrival", load=0.6, window_ms=10.0)
    outputs = Outputs.open("diagnose", OutputOptions())
    assert conclude(record, diagnose(record, bootstrap=2), outputs, Gates(), folder=tmp_path) == 0
    assert drawn[0].requests["queue_ns"].any() and drawn[0].requests["batch_ns"].any()


def test_the_page_of_a_comparison_shows_inferred_waits_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "latfix.cli.shared.diagnose_flow.write_comparison_report",
        lambda _path, _found, base, new, **_more: drawn.extend((base, new)),
    )
    record = served_in_batches("arrival", load=0.6, window_ms=10.0)
    write_comparison_page(tmp_path / "report.html", compare_records(record, record), record, record)
    assert all(each.requests["queue_ns"].any() and each.requests["batch_ns"].any() for each in drawn) and drawn


def test_what_a_temporary_folder_holds_is_not_called_kept(tmp_path: Path) -> None:
    def failing(out: Path | None) -> str:
        with pytest.raises(RunnerError) as raised, kept_or_temporary(out, "latfix-gate-") as folder:
            raise RunnerError(f"{folder}/base-1: disk full; what was recorded is kept; free space")
        assert folder.exists() == (out is not None)
        return raised.value.message.replace(str(folder), "DIR")

    assert failing(None) == "DIR/base-1: disk full; free space (without --out, this folder is not kept)"
    assert failing(tmp_path / "out") == "DIR/base-1: disk full; what was recorded is kept; free space"
