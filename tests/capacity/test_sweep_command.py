"""``latfix sweep`` on the command line: refused options, and one real sweep of a tiny workload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from latfix.cli.commands.running.sweep import parse_numbers, parse_variants
from latfix.errors import InputError
from latfix.run_record.run_record import RunRecord
from tests.adapters import sleeper
from tests.conftest import cli, write_workload

#: Serves a batch in 6 ms and 2 ms for each member: 125 a second one by one.
SLEEPER = sleeper("0.006 + 0.002 * len(x)")


def test_numbers() -> None:
    assert parse_numbers("--loads", "1, 0.5,2,1") == (0.5, 1.0, 2.0)
    for text in ("", "a", "1,,2", "0,1", "-1", "nan", "inf", "1;2", "1e10"):
        with pytest.raises(InputError, match=r"--loads: found"):
            parse_numbers("--loads", text)
    with pytest.raises(InputError, match="at most 40"):
        parse_numbers("--loads", ",".join(str(k + 1) for k in range(41)))


def test_variants() -> None:
    assert parse_variants([]) == [{}]
    assert parse_variants(["max_batch_size=1,4", "batch_window_ms=0,2.5"]) == [
        {"max_batch_size": 1, "batch_window_ms": 0},
        {"max_batch_size": 1, "batch_window_ms": 2.5},
        {"max_batch_size": 4, "batch_window_ms": 0},
        {"max_batch_size": 4, "batch_window_ms": 2.5},
    ]
    assert parse_variants(["buffer_pool=true,false"]) == [{"buffer_pool": True}, {"buffer_pool": False}]
    assert parse_variants(["precision=default,bf16"]) == [{"precision": "default"}, {"precision": "bf16"}]
    assert parse_variants(["workers=2,2"]) == [{"workers": 2}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["max_batch=1"], "did you mean 'max_batch_size'?"),
        (["max_batch_size"], "expected KEY=V1,V2"),
        (["max_batch_size="], "expected KEY=V1,V2"),
        (["max_batch_size=0"], "expected a whole number from 1 to 4096"),
        (["max_batch_size=1,2.5"], "found '2.5'"),
        (["batch_window_ms=-1"], "expected a number of at least 0"),
        (["precision=fp4"], "expected one of"),
        (["env=a"], "cannot be listed"),
        (["workers=1", "workers=2"], "found it twice"),
        (["max_batch_size=1,2,3,4,5,6,7,8,9", "workers=1,2,3,4,5,6,7,8"], "at most 64"),
    ],
)
def test_variants_that_are_refused(options: list[str], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_variants(options)
    assert words in refusal.value.message and refusal.value.message.startswith("--set")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--loads", "fast"), "--loads"),
        (("--loads", "1", "--rates", "10"), "found --loads as well"),
        (("--rates", "0"), "--rates"),
        (("--set", "max_batch_siz=1"), "did you mean"),
        (("--budget", "soon"), "--budget"),
        (("--slo", "-5"), "--slo"),
        (("--percentile", "100"), "--percentile"),
        (("--requests", "3"), "--requests"),
        (("--at-least", "0"), "--at-least"),
        (("--at-least", "10"), "found no objective to meet"),
        (("--plan", "none.toml"), "none.toml"),
        (("--seed", "-1"), "--seed"),
        (("--json", "nowhere/x.json"), "--json"),
        (("--limit", "1"), "arrive at one moment"),
        (("--loads", "0.000001"), "--budget: found 300 s; expected at least the"),
    ],
)
def test_wrong_options_are_reported_before_anything_runs(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    workload = write_workload(tmp_path / "w", adapter="raise SystemExit(9)\nclass W(object): pass")
    code, out, err = cli("sweep", workload, *options, "--out", tmp_path / "o")
    assert code == 2 and not out, err
    assert words in err and err.count("\n") == 1, err
    assert not (tmp_path / "o").exists()


@dataclass(frozen=True)
class Swept:
    code: int
    err: str
    folder: Path
    document: dict[str, Any]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    base = tmp_path_factory.mktemp("sweep")
    rows = [{"arrival_s": 0.02 * k + 0.004 * (k % 3)} for k in range(60)]
    workload = write_workload(base / "w", adapter=SLEEPER, traffic=rows, runner={"warmup_requests": 2})
    # The median and a generous limit, because other processes may use the machine and take most of the budget.
    asked = ("--loads", "1,12", "--set", "max_batch_size=1", "--slo", "150", "--percentile", "50", "--at-least", "40")
    for budget in ("15s", "90s"):
        folder = base / budget
        code, out, err = cli("sweep", workload, *asked, "--json", "-", "--budget", budget, "--out", folder)
        document = json.loads(out) if out.startswith("{") else {}
        if {1.0, 12.0} <= {round(point["load"], 6) for point in document.get("points", ())}:
            break
    return Swept(code, err, folder, document)


@pytest.mark.slow
def test_a_real_sweep_answers(swept: Swept) -> None:
    assert swept.code == 0, (swept.document.get("gate"), swept.err)
    document = swept.document
    assert document == json.loads((swept.folder / "sweep.json").read_text())
    assert document["schema"] == "latfix.sweep/1" and document["state"] == "complete"
    assert [setting["label"] for setting in document["settings"]] == ["max_batch_size=1"]
    assert document["gate"]["passed"] is True
    single = [point for point in document["points"] if point["setting"] == 0]
    over = [point for point in single if point["offered_rps"] > 400]
    assert over and all(point["objective"]["meets"] is False for point in over), "capacity is 125 per second"
    assert all(point["achieved_rps"] < 130 for point in over)
    low = min(single, key=lambda point: point["load"])
    assert low["objective"]["meets"] is True
    assert low["batch_size"] == 1.0 and 0.1 < low["utilization"]["workers"] < 0.9
    assert {"mm1", "mg1", "kingman", "replay", "replay_own"} == set(low["predictions"])
    # Its records can be read again.
    runs = [run for point in swept.document["points"] for run in point["runs"]]
    assert len(runs) >= 2
    for run in runs:
        record = RunRecord.load(swept.folder / run["folder"])
        assert record.meta.settings.max_batch_size == 1
        assert len(record.latencies_ns()) > 0
    assert (swept.folder / "report.html").stat().st_size > 5_000


@pytest.mark.slow
def test_a_gate_that_is_missed_is_the_exit_code(tmp_path: Path) -> None:
    rows = [{"arrival_s": 0.02 * k} for k in range(120)]
    workload = write_workload(tmp_path / "w", adapter=SLEEPER, traffic=rows)
    options = ("--rates", "300", "--slo", "60", "--percentile", "50", "--requests", "120", "--budget", "4s")
    code, out, err = cli("sweep", workload, *options, "--at-least", "300", "--out", tmp_path / "o")
    assert code == 1, (out, err)
    assert "1 of 1 gate failed" in out and "saturated" in out
