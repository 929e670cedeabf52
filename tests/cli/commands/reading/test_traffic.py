"""The commands: what they print, write and refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from latfix.cli.commands.reading.traffic import ReadingLine, traffic_app
from latfix.errors import InputError
from latfix.traffic.io.reader import read_traffic
from tests.cli.conftest import refused
from tests.conftest import cli


def run(*arguments: object) -> str:
    """Standard output of a command that succeeds; an error of latfix comes out as it was raised."""
    result = CliRunner().invoke(traffic_app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(f'{{"arrival_s": {i / 10}, "tokens": {i}}}\n' for i in range(200)))
    return path


def test_inspect_shows_the_kind_first_and_figures(recorded: Path) -> None:
    output = run("inspect", recorded, "--map", "half=tokens / 2")
    assert output.startswith("Steady load. ")
    for word in ("recorded.jsonl", "200 in 19.9 s", "mean 10/s", "half", "█"):
        assert word in output


def test_inspect_json_on_standard_output_carries_nothing_else(recorded: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    content = json.loads(run("inspect", recorded, "--json", "-", "--picture", picture))
    assert content["kind"] == "steady"
    assert content["count"] == 200
    assert "<svg" in picture.read_text()
    run("inspect", recorded, "--json", tmp_path / "shape.json")
    assert json.loads((tmp_path / "shape.json").read_text()) == content


def test_convert_changes_states_and_writes(recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    output = run(
        "convert", recorded, target, "--start", 5, "--end", 15, "--limit", 60, "--repeat", 2, "--to-duration", 4,
        "--cap-gaps", 1, "--rate-factor", 0.5, "--seed", 3, "--map", "t=tokens * 2",
    )  # fmt: skip
    traffic = read_traffic(target)
    assert len(traffic) == 60
    assert traffic.duration_s == 4.0
    names = [entry["transform"] for entry in traffic.metadata["transforms"]]
    assert names == ["slice_time", "limit", "cap_gaps", "resample_rate", "repeat", "scale_to_duration"]
    assert traffic.metadata["written_from"]["mapping"] == {"t": "tokens * 2"}
    assert "read 200 requests" in output
    assert f"wrote 60 requests over 4 s to {target}" in output
    for name in names:
        assert name in output


@pytest.mark.parametrize("name", ["o.jsonl", "o.csv", "o.parquet"])
def test_only_files_that_latfix_wrote_are_replaced(name: str, recorded: Path, tmp_path: Path) -> None:
    target, synthesis = tmp_path / name, ("--kind", "poisson", "--rate", 5, "--duration", 20)
    run("convert", recorded, target, "--limit", 100)
    run("synthesize", target, *synthesis)
    run("convert", recorded, target, "--limit", 50)
    assert len(read_traffic(target)) == 50
    recording = target.read_bytes()[:-1] + b"x" if name == "o.parquet" else target.read_bytes() + b"\n"
    target.write_bytes(recording)
    for command in (("convert", recorded, target), ("import", recorded, target), ("synthesize", target, *synthesis)):
        refused(cli("traffic", *command), f"{target}: found a file that latfix did not write")
        assert target.read_bytes() == recording


def test_convert_speed_and_skipped_lines(recorded: Path, tmp_path: Path) -> None:
    recorded.write_text(recorded.read_text() + "broken\n")
    output = run("convert", recorded, tmp_path / "o.csv", "--speed", 2, "--skip-bad-lines")
    assert "1 malformed line skipped" in output
    assert read_traffic(tmp_path / "o.csv").duration_s == pytest.approx(9.95)


def test_a_sidecar_sends_nothing_to_the_terminal(recorded: Path, tmp_path: Path) -> None:
    run("convert", recorded, tmp_path / "a.jsonl", "--limit", 100)
    beside = tmp_path / "a.jsonl.meta.json"
    content = json.loads(beside.read_text())
    content["metadata"]["transforms"].append({"transform": "x", "note": "\x1b]0;owned\x07"})
    beside.write_text(json.dumps(content))
    output = run("convert", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert "owned" in output and "\x1b" not in output and "\x07" not in output


@pytest.mark.parametrize("kind", ["poisson", "gamma", "bursts", "periodic"])
def test_synthesize_writes_what_inspect_recognizes(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "t.jsonl"
    output = run(
        "synthesize", target, "--kind", kind, "--rate", 50, "--duration", 60, "--seed", 1, "--cv", 3,
        "--feature", "input_tokens=lognormal(4.3,0.8,8,512)",
    )  # fmt: skip
    assert f"kind {kind}, rate 50.0" in output
    expected = {"poisson": "steady", "gamma": "bursty", "bursts": "bursty", "periodic": "periodic"}[kind]
    content = json.loads(run("inspect", target, "--json", "-"))
    assert content["kind"] == expected
    assert content["features"][0]["name"] == "input_tokens"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["inspect", "{in}", "--picture", "p.gif"], "suffix '.gif'"),
        (["inspect", "{in}", "--map", "tokens"], "FEATURE=EXPRESSION"),
        (["inspect", "{in}", "--map", "a=tokens", "--map", "a=1"], "a twice"),
        (["inspect", "{in}", "--map", "a=nothing"], "unknown feature 'nothing'"),
        (["inspect", "missing.jsonl"], "no such file"),
        (["inspect", "{in}", "--json", "no/such/folder.json"], "--json"),
        (["convert", "{in}", "out.txt"], "suffix '.txt'"),
        (["convert", "{in}", "{in}", "--limit", "1"], "the file that is read"),
        (["convert", "{in}", "{out}", "--speed", "2", "--to-duration", "5"], "one of the two"),
        (["convert", "{in}", "{out}", "--speed", "0"], "speed: found 0"),
        (["convert", "{in}", "{out}", "--start", "90"], "no request between"),
        (["convert", "{in}", "{out}", "--end", "inf"], "slice: found an end at inf s"),
        (["convert", "{in}", "{out}", "--repeat", "0"], "repeat: found 0"),
        (["synthesize", "{out}", "--kind", "weekly", "--rate", "1", "--duration", "1"], "--kind: found 'weekly'"),
        (["synthesize", "{out}", "--kind", "poisson", "--rate", "-1", "--duration", "1"], "--rate: found"),
        (
            ["synthesize", "{out}", "--kind", "poisson", "--rate", "9", "--duration", "9", "--feature", "x"],
            "--feature: found 'x'",
        ),
    ],
)
def test_bad_options_are_input_errors_and_write_nothing(
    recorded: Path, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    out = tmp_path / "out.csv"
    filled = [argument.replace("{in}", str(recorded)).replace("{out}", str(out)) for argument in arguments]
    with pytest.raises(InputError) as caught:
        run(*filled)
    assert expected in caught.value.message
    assert caught.value.exit_code == 2
    assert not out.exists()


def test_a_word_for_a_number_is_a_usage_error() -> None:
    result = CliRunner().invoke(traffic_app, ["convert", "a", "b.csv", "--speed", "fast"])
    assert result.exit_code == 2


@pytest.mark.parametrize("live", [True, False])
def test_a_large_file_shows_its_progress_and_leaves_no_line_behind(
    live: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: live)
    with ReadingLine() as reading:
        for rows in (40_000, 60_000, 990_000, 1_100_000, 1_200_000, 2_200_000):
            reading.show(rows)
    shown = capsys.readouterr().err
    if live:
        assert shown.startswith("\r60,000 requests read\r990,000") and shown.endswith(
            "2,200,000 requests read\r\x1b[K"
        )
    else:
        assert shown == "1,100,000 requests read\n2,200,000 requests read\n"
