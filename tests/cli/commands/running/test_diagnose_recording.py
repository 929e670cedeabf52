"""``latfix diagnose RECORDING``: one document, one report, the same gates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from latfix.profilers.recordings import detect
from latfix.results import read_result
from latfix.results.diagnosis import Diagnosis
from tests.cli.conftest import refused
from tests.conftest import cli, succeeded
from tests.profilers.recordings.test_detect import TOY


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(detect, "READERS", (TOY,))
    (tmp_path / "x.bin").write_bytes(b"toy")
    return tmp_path / "x.bin"


def test_a_recording_gives_the_document_the_page_and_the_terminal(toy: Path, tmp_path: Path) -> None:
    shown = succeeded(cli("diagnose", toy, "--out", tmp_path / "out", "--step", "^decode"))
    assert "The recording's only step takes 5.00 ms" in " ".join(shown.split())
    assert "gpu.compute" in shown and "1 ok" in shown
    document = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert document["source"]["origin"]["host"]
    assert {key: value for key, value in document["source"].items() if key != "origin"} == {
        "kind": "toy",
        "path": str(toy),
        "unit": "step",
        "read": {"kernels": 2, "step": "^decode"},
    }
    assert document["requests"] == {"ok": 1, "error": None, "timeout": None, "shed": None}
    assert document["tail"]["reference_ms"] is None and document["causes"][0]["propagated_ms"] is None
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Where the time goes" in page and "gpu.compute" in page
    again = read_result(tmp_path / "out" / "diagnosis.json")
    assert isinstance(again, Diagnosis) and again.to_json() == document
    code, shown, _ = cli("report", tmp_path / "out" / "diagnosis.json")
    assert code == 0 and "gpu.compute" in shown


@pytest.mark.parametrize(
    ("gate", "expected"), [("max<6ms", 0), ("max<4ms", 1), ("cause:python.gc<10%", 3), ("cause:gpu.compute>10%", 0)]
)
def test_gates_judge_a_recording(gate: str, expected: int, toy: Path, tmp_path: Path) -> None:
    code, shown, error = cli("diagnose", toy, "--out", tmp_path / "out", "--gate", gate)
    assert code == expected, shown + error


def test_the_folder_for_the_results_is_checked_before_the_recording_is_read(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> Diagnosis:
        raise AssertionError("it was read")

    monkeypatch.setattr(detect, "READERS", (replace(TOY, read=read),))
    (tmp_path / "used" / "earlier").mkdir(parents=True)
    for folder in (tmp_path / "used", toy):
        refused(cli("diagnose", toy, "--out", folder), str(folder), "--out")


def test_a_file_that_is_not_a_recording_is_refused_before_its_options(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10" + bytes(7) + b"{}".ljust(16))
    code, _, err = cli("diagnose", tmp_path / "model.safetensors", "--traffic", tmp_path / "t.jsonl")
    assert code == 2 and "found an unknown format; expected a workload, a model file" in err


def test_figures_that_a_recording_lacks_cannot_be_gated(toy: Path, tmp_path: Path) -> None:
    code, _, error = cli("diagnose", toy, "--out", tmp_path / "out", "--gate", "error_rate<1%")
    assert code == 2 and "error_rate" in error


@pytest.mark.parametrize(
    "option",
    [
        ("--speed", "2"),
        ("--traffic", "t.jsonl"),
        ("--skip-bad-lines",),
        ("--request", "1"),
        ("--history", "h.db"),
        ("--step", "("),
    ],
)
def test_options_that_mean_nothing_here_are_refused(option: tuple[str, ...], toy: Path) -> None:
    refused(cli("diagnose", toy, *option), option[0])


def test_json_to_standard_output_is_alone_there(toy: Path, tmp_path: Path) -> None:
    code, shown, _ = cli("diagnose", toy, "--out", tmp_path / "out", "--json", "-")
    assert code == 0 and json.loads(shown)["verdict"] == "gpu.compute"


def test_a_text_log_is_read_by_a_pattern(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("".join(f"2026-11-20 10:00:{k:02d},000 INFO served in {k + 1} ms\n" for k in range(40)))
    pattern = r"^(?P<end>\S+ \S+) INFO served in (?P<latency_ms>\d+) ms"
    code, _, err = cli("diagnose", log, "--out", tmp_path / "without")
    assert code == 2 and "--pattern REGEX" in err
    code, shown, err = cli("diagnose", log, "--pattern", pattern, "--out", tmp_path / "out", "--gate", "max<41ms")
    assert code == 0, shown + err
    code, shown, err = cli("traffic", "import", log, tmp_path / "t.jsonl", "--pattern", pattern)
    assert code == 0 and len((tmp_path / "t.jsonl").read_text().splitlines()) == 40, shown + err


def test_a_pattern_is_for_recordings() -> None:
    code, _, err = cli("diagnose", "recommender", "--pattern", "(?P<latency_ms>x)")
    assert code == 2 and "--pattern: found recommender, which is replayed; expected a text log" in err
