"""Ctrl-C and SIGTERM in each phase of a diagnosis: one line, exit code 130, and what was recorded can be read."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from latfix.run_record.run_record import RunRecord
from tests.cli.conftest import Cli
from tests.conftest import cli


def _ctrl_c(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


def _sigterm(*_: Any, **__: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("interrupt", [_ctrl_c, _sigterm])
@pytest.mark.parametrize(
    ("phase", "recorded"),
    [
        ("latfix.cli.shared.options.load_traffic", False),
        ("latfix.cli.shared.replay_progress.replay_with_progress", False),
        ("latfix.profilers.diagnose.diagnose", True),
        ("latfix.reports.html.pages.write_run_report", True),
    ],
)
def test_in_each_phase(
    phase: str,
    recorded: bool,
    interrupt: Callable[..., None],
    diagnose: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(phase, interrupt)
        code, _, err = diagnose()
    assert code == 130 and err.splitlines()[-1] == "latfix: interrupted" and "Traceback" not in err
    if recorded:
        assert RunRecord.load(tmp_path / "run-1").counts()["ok"] == 300
        assert cli("report", tmp_path / "run-1", "--json", "-")[0] == 0
    else:
        assert not (tmp_path / "run-1").exists() or not any((tmp_path / "run-1").iterdir())
