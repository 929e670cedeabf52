"""``latfix compare``: run folders in, a table or a document and an exit code out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from latfix.cli.app import app
from latfix.errors import InputError
from latfix.run_record.schema import REQUEST_DTYPE
from tests.cli.conftest import serve_one_by_one, write_run

N = 2000


def _run(folder: Path, seed: int, scale: float = 1.0, *, finished: bool = True) -> Path:
    rows = np.zeros(N, dtype=REQUEST_DTYPE)
    rows["index"], rows["arrival_ns"] = np.arange(N), np.arange(N) * 20_000_000
    noise = np.random.default_rng(seed).lognormal(0, 0.1, N)
    rows["latency_ns"] = np.random.default_rng(0).lognormal(0, 0.7, N) * noise * scale * 1e7
    rows["compute_ns"] = rows["latency_ns"]
    return write_run(folder, rows, finished=finished, traffic_sha256="same")


def _invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.stdout


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ([], 0),
        (["p95<=baseline*0.8"], 0),
        (["p99<=baseline*0.2"], 1),
        (["p99<=baseline*0.5"], 3),
        (["p95<=baseline*0.8", "error_rate<2%", "throughput>=baseline*0.9"], 0),
        (["p99<=baseline*0.5", "mean<1us"], 1),
    ],
)
def test_gates_become_the_exit_code(tmp_path: Path, gates: list[str], expected: int) -> None:
    base, new = _run(tmp_path / "a", 1), _run(tmp_path / "b", 2, 0.5)
    code, shown = _invoke(base, new, *(word for gate in gates for word in ("--gate", gate)))
    assert code == expected
    named = gates if expected else [f"of {len(gates)} gate"] if gates else []
    assert all(word in " ".join(shown.split()) for word in ("p99", "mean", *named))


def test_rounds_decide_what_one_pair_cannot(tmp_path: Path) -> None:
    gate = ("--gate", "p95<=baseline*1.05")
    rounds = [_run(tmp_path / f"{arm}{k}", 10 * k + arm) for k in range(5) for arm in (1, 2)]
    one, _ = _invoke(*rounds[:2], *gate)
    five, shown = _invoke(*rounds, *gate, "--json", "-")
    assert (one, five) == (3, 0), shown
    document = json.loads(shown)
    assert document["rounds"] == 5 and document["after"]["requests"]["ok"] == 5 * N


def test_pairs_are_whole_and_count_once(tmp_path: Path) -> None:
    runs = [_run(tmp_path / name, k) for k, name in enumerate("abcd")]
    with pytest.raises(InputError, match="c: found a run without its counterpart"):
        _invoke(*runs[:3])
    with pytest.raises(InputError, match="a run that is also in an earlier pair"):
        _invoke(*runs[:2], runs[2], tmp_path / "x" / ".." / "a")


def test_json_on_standard_output_stands_alone(tmp_path: Path) -> None:
    base, new = _run(tmp_path / "a", 1), _run(tmp_path / "b", 2, 0.5)
    code, shown = _invoke(base, new, "--json", "-", "--gate", "p99<=baseline*0.2")
    _invoke(base, new, "--json", tmp_path / "c.json", "--gate", "p99<=baseline*0.2")
    document = json.loads(shown)
    assert code == 1
    assert document["schema"] == "latfix.comparison/1" and document["verdict"] == "better"
    assert document["gates"][0]["passed"] is False
    assert json.loads((tmp_path / "c.json").read_text()) == document


def test_a_killed_run_is_compared_over_what_it_recorded(tmp_path: Path) -> None:
    base = _run(tmp_path / "a", 1)
    killed = _run(tmp_path / "b", 2, finished=False)
    os.truncate(killed / "segments" / "requests.bin", (N - 150) * REQUEST_DTYPE.itemsize + 7)  # a torn last row
    code, shown = _invoke(base, killed, "--json", "-")
    document = json.loads(shown)
    assert code == 0
    assert document["before"]["requests"]["ok"] == document["after"]["requests"]["ok"] == N - 150
    assert any("new is partial: 150" in note for note in document["notes"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gate", "p99<200"],
        ["--gate", "accuracy>=baseline"],
        ["--gate", "cause:python.gc<10%"],
        ["--seed", "-1"],
        ["--json", "/no/such/folder/out.json"],
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, arguments: list[str]) -> None:
    base = _run(tmp_path / "a", 1)
    with pytest.raises(InputError, match=r"expected|use the gate|name another"):
        _invoke(base, base, *arguments)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    base = _run(tmp_path / "a", 1)
    for wrong, found in ((tmp_path, r"no run\.json"), (tmp_path / "none", "no such folder")):
        with pytest.raises(InputError, match=f"found {found}; expected"):
            _invoke(base, wrong)


def test_the_stages_and_causes_of_a_difference_are_everywhere(tmp_path: Path) -> None:
    work = np.full(300, 5_000_000)
    slow = np.where(np.arange(300) % 25 == 7, 40_000_000, work)
    for name, each in (("a", work), ("b", slow)):
        rows, batches = serve_one_by_one(each.tolist())
        write_run(tmp_path / name, rows, batches=batches, traffic_sha256="same")
    code, shown = _invoke(tmp_path / "a", tmp_path / "b", "--gate", "mean<1s", "--out", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    p99, mean = document["why"]
    assert code == 0 and p99["metric"] == "p99" and mean["metric"] == "mean"
    assert max(p99["causes_ms"], key=p99["causes_ms"].get) == "host.slowdown"
    first_screen = (tmp_path / "out" / "report.html").read_text().partition("<h2")[0]
    for text in (shown, first_screen):
        assert "by cause, requests beyond it + 35.0 ms: host.slowdown + " in " ".join(text.split())


def test_a_run_and_its_copy_are_the_same_run(tmp_path: Path) -> None:
    base = _run(tmp_path / "a", 1)
    shutil.copytree(base, tmp_path / "copy")
    for other in (base, tmp_path / "copy"):
        code, shown = _invoke(base, other)
        assert code == 0 and "The same run, compared with itself: p99 " in " ".join(shown.split())
        assert "->" not in shown
