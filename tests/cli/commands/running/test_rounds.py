"""``diagnose --rounds``: the same service in fresh processes, and how they differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latfix.results.diagnosis import Diagnosis, Restarts
from tests.cli.conftest import Service, refused
from tests.conftest import cli, write_workload


@pytest.fixture
def workload(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    del service
    monkeypatch.chdir(tmp_path)
    return write_workload(tmp_path / "w")


def test_each_round_is_kept_and_its_percentile_shown(workload: Path, service: Service) -> None:
    # GIVEN a service whose latency differs by a fifth from run to run
    service.spread = 0.2
    # WHEN
    code, out, _ = cli("diagnose", workload, "--rounds", 3, "--out", "out", "--json", "out.json")
    # THEN the first is diagnosed, and the others are kept
    assert code == 0 and service.runs == 3
    assert sorted(each.name for each in Path("out/rounds").iterdir()) == ["2", "3"]
    document = json.loads(Path("out.json").read_text())
    restarts = document["restarts"]
    assert restarts["source"] == "rounds" and restarts["key"] == "p99" and len(set(restarts["values_ms"])) == 3
    assert restarts["values_ms"][0] == pytest.approx(document["latency_ms"]["p99"])
    words = " ".join(out.split())
    assert "restarts p99 of 3 fresh processes: " in words and "expected of the next: " in words
    assert "--rounds" not in words, "no advice to do what was done"
    assert Diagnosis.from_json(document).to_json() == document


def test_one_run_warns_that_restarts_differ(workload: Path) -> None:
    _, out, _ = cli("diagnose", workload, "--out", "out")
    words = "this one run; a restart may move it further, --rounds 5 measures how far"
    assert words in " ".join(out.split())
    assert "restarts p99" not in out


def test_the_history_shows_how_runs_differ(workload: Path, service: Service) -> None:
    service.spread = 0.2
    for number in range(6):
        _, out, _ = cli("diagnose", workload, "--out", f"out{number}", "--history", "h.sqlite")
        assert ("of 5 earlier runs: " in " ".join(out.split())) == (number == 5)


@pytest.mark.parametrize(("rounds", "target"), [(0, "workload"), (2, "http://127.0.0.1:9")])
def test_refused(workload: Path, rounds: int, target: str) -> None:
    refused(cli("diagnose", workload if target == "workload" else target, "--rounds", rounds), "--rounds")


def test_what_runs_show() -> None:
    same = Restarts.of("rounds", "p99", [20.0, 20.0, 20.0])
    assert same.next_ms == pytest.approx((20.0, 20.0))
    few, many = (Restarts.of("rounds", "p99", [20.0, 30.0] * n).next_ms for n in (1, 5))
    assert few is not None and many is not None
    assert few[0] < many[0] < 20.0 and 30.0 < many[1] < few[1], "two runs say little"
    assert Restarts.of("rounds", "p99", [20.0, float("inf")]).next_ms is None
