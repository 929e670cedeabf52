"""``latfix gate``: what is refused before anything is replayed, and a real service beside itself and a slower one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from latfix.cli.commands.running.gate import _records, _side
from latfix.config.plan import Plan, PlannedFix, write_plan
from latfix.errors import InputError

Cli = Callable[..., tuple[int, str, str]]
GATE = ("--gate", "mean<=baseline*1.1")


@pytest.fixture
def starter(cli: Cli, tmp_path: Path) -> Path:
    assert cli("init", tmp_path / "main" / "svc")[0] == 0
    return tmp_path / "main" / "svc"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recommender", "recommender"), "--gate: found none"),
        (("recommender", "http://localhost:1", *GATE), "found an address"),
        (("recommender", "nowhere.toml", *GATE), "found no workload there; expected --workload"),
        (("recommender", "recommender", *GATE, "--undecided", "maybe"), "expected fail or pass"),
        (("recommender", "recommender", *GATE, "--budget", "soon"), "--budget: found 'soon'"),
    ],
)
def test_refused(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = cli("gate", *arguments)
    assert (code, out) == (2, "") and message in err


def test_sides(starter: Path, tmp_path: Path) -> None:
    write_plan(Plan(workload="w", fixes=(PlannedFix(id="a.b", settings={"workers": 3}),)), tmp_path / "p.toml")
    spec, settings = _side(str(starter), "", None, "")
    assert settings == spec.settings
    of_plan, changed = _side(str(tmp_path / "p.toml"), str(starter), None, "")
    assert (of_plan, changed.workers) == (spec, 3)
    worktree, _ = _side(str(starter.parent), "svc", None, "")
    assert worktree.folder == spec.folder


def test_a_folder_is_replaced_only_when_forced_and_only_an_earlier_gate_s(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "mine.txt").write_text("")
    for force in (False, True):
        with pytest.raises(InputError, match=r"not empty|did not write"):
            _records(old, force=force)
    (old / "comparison.json").write_text("{}")
    with _records(old, force=True) as folder:
        assert not any(path for path in folder.iterdir() if path.name == "mine.txt")
    with _records(None, force=False) as folder:
        (folder / "x").touch()
    assert not folder.exists()


@pytest.mark.slow
def test_a_service_that_is_twice_as_slow_fails(cli: Cli, starter: Path, tmp_path: Path) -> None:
    slower = tmp_path / "branch" / "svc"
    shutil.copytree(starter, slower)
    adapter = slower / "workload.py"
    layer = "x = x + self.down(torch.relu(self.up(x)))"
    text = adapter.read_text()
    assert layer in text
    adapter.write_text(text.replace(layer, f"for _ in range(40):\n            {layer}"))
    out, junit = tmp_path / "out", tmp_path / "gates.xml"

    code, shown, err = cli(
        "gate", starter.parent, slower.parent, "--workload", "svc", "--gate", "p50<=baseline*1.1", "--budget", "8s",
        "--out", out, "--junit", junit,
    )  # fmt: skip

    assert code in (1, 3), err  # so few rounds, or a machine that is too busy, leave it open, and never pass it
    document = json.loads((out / "comparison.json").read_text())
    assert document["ratio"]["p50"]["value"] > 1.1
    assert (out / "report.html").is_file() and "p50 + " in " ".join(shown.split())
    assert "p50 + " in junit.read_text()
