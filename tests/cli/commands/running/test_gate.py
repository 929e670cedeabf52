"""``latfix gate``: refusals before a replay, and a real service against itself and a slower one."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.cli.commands.running.gate import (
    _hosted,
    _parts_words,
    _records,
    _served,
    _side,
    _too_few_words,
    places,
)
from latfix.cli.shared.address_flow import AddressOptions
from latfix.cli.shared.options import ReplayOptions, TrafficOptions
from latfix.config.plan import Plan, PlannedFix, write_plan
from latfix.errors import InputError
from latfix.runners.gate.paired_rounds import Side
from latfix.runners.replay.arm import Arm
from latfix.runners.replay.runner_process import LEAST_START_S
from latfix.traffic.schedule import Traffic
from tests.cli.conftest import refused
from tests.conftest import cli

GATE = ("--gate", "mean<=baseline*1.1")


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    assert cli("init", tmp_path / "main" / "svc")[0] == 0
    return tmp_path / "main" / "svc"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recommender", "recommender"), "--gate: found none"),
        (("recommender", "http://localhost:1", *GATE), "found an address"),
        (
            ("recommender", "nowhere.toml", *GATE),
            "found no workload there; a plan or another folder needs --workload, a command --address",
        ),
        (("recommender", "uvicorn app:app", *GATE), "a command that starts a service needs --address URL"),
        (("recommender", "recommender", "--gate", "p99.9<=baseline*1.1"), "found p99.9, which short rounds"),
        (("recommender", "recommender", *GATE, "--undecided", "maybe"), "expected fail or pass"),
        (("recommender", "recommender", *GATE, "--force"), "--force: found no --out"),
        (("recommender", "recommender", *GATE, "--budget", "soon"), "--budget: found 'soon'"),
    ],
)
def test_refused(arguments: tuple[str, ...], message: str) -> None:
    refused(cli("gate", *arguments), message)


def test_sides(starter: Path, tmp_path: Path) -> None:
    write_plan(
        Plan(workload="w", fixes=(PlannedFix(id="host.workers", settings={"workers": 3}),)), tmp_path / "p.toml"
    )
    spec, settings = _side(str(starter), "", None, "")
    assert settings == spec.settings
    of_plan, changed = _side(str(tmp_path / "p.toml"), str(starter), None, "")
    assert (of_plan, changed.workers) == (spec, 3)
    worktree, _ = _side(str(starter.parent), "svc", None, "")
    assert worktree.folder == spec.folder


def test_workload_names_a_folder_s_own_even_if_the_folder_is_a_workload_too(starter: Path) -> None:
    shutil.copy(starter / "workload.toml", starter.parent)
    assert _side(str(starter.parent), "svc", None, "")[0].folder == starter


@pytest.mark.parametrize(
    ("base", "workload", "message"),
    [
        ("svc", "svc", "svc, a workload without svc in it; omit --workload"),
        ("recommender", "svc", "recommender, a workload without svc in it; omit --workload"),
        ("", "/svc", "expected a path inside of"),
    ],
)
def test_workload_without_use(starter: Path, base: str, workload: str, message: str) -> None:
    """Both sides would be the same, or one that was not asked for."""
    place = base if base == "recommender" else str(starter.parent / base)
    inside = f"{starter.parent}{workload}" if workload.startswith("/") else workload
    found = cli("gate", place, starter.parent, "--workload", inside, *GATE)
    refused(found, f"--workload: found {inside!r}")
    assert message.replace("svc,", f"{starter},") in " ".join(found[2].split())


def test_a_folder_is_replaced_only_when_forced_and_only_an_earlier_gate_s(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "mine.txt").write_text("")
    for force in (False, True):
        with pytest.raises(InputError, match=r"not empty|did not write"), _records(old, force=force):
            pass
    (old / "comparison.json").write_text("{}")
    with pytest.raises(InputError, match="--force replaces it"), _records(old, force=False):
        pass
    with _records(old, force=True) as folder:
        assert not any(path for path in folder.iterdir() if path.name == "mine.txt")
        (folder / "base.log").touch()
        with pytest.raises(InputError, match="another latfix at work in it"), _records(old, force=True):
            pass
        assert (folder / "base.log").exists(), "the folder of a gate that runs"
    with _records(None, force=False) as folder:
        (folder / "x").touch()
    assert not folder.exists()


@pytest.mark.slow
def test_a_service_that_is_twice_as_slow_fails(starter: Path, tmp_path: Path) -> None:
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


SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(float(sys.argv[2]))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def served(tmp_path: Path) -> tuple[Callable[[float], str], tuple[str, ...]]:
    """A command that serves, by how long an answer takes; the address, traffic and template to go with it."""
    (tmp_path / "server.py").write_text(SERVER)
    lines = [json.dumps({"id": f"r{k}", "arrival_s": k / 50, "size": k % 7}) for k in range(60)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ("--address", f"http://127.0.0.1:{port}/predict", "--traffic", str(tmp_path / "t.jsonl"))
    return (
        lambda seconds: f"{sys.executable} {tmp_path / 'server.py'} {port} {seconds}",
        (*place, "--body", '{"size": "{size}"}'),
    )


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
def test_commands_that_serve_an_address(served: Any, tmp_path: Path, at_once: bool) -> None:
    command, place = served
    out = tmp_path / "out"
    gates = ("--gate", "p50<=baseline*1.5", "--budget", "6s", "--out", out)
    words = [command(0.002), command(0.03), *place]
    if at_once:
        words = [word.replace(_port(place), "{port}") for word in words]
    code, shown, err = cli("gate", *words, *gates)
    assert code in (1, 3), err  # as above
    document = json.loads((out / "comparison.json").read_text())
    assert document["ratio"]["p50"]["value"] > 1.5 and document["after"]["latency_ms"]["p50"] > 30
    assert (out / "report.html").is_file() and (out / "head-1" / "run.json").is_file() and "p50 + " in shown


def _port(place: tuple[str, ...]) -> str:
    return place[1].split(":")[2].split("/")[0]


def test_each_side_has_its_own_port_if_all_name_one() -> None:
    (base, there), (head, here) = places(("serve {port}", "PORT={port} serve"), "http://localhost:{port}/x")
    ports = [base.removeprefix("serve "), head.removeprefix("PORT=").removesuffix(" serve")]
    assert [there, here] == [f"http://localhost:{port}/x" for port in ports] and ports[0] != ports[1]
    assert places(("a", "b"), "http://h:1") == [("a", "http://h:1"), ("b", "http://h:1")]
    some = [("a", "b", "http://h:{port}"), ("a {port}", "b", "http://h:{port}"), ("{port}", "{port}", "http://h:1")]
    for *commands, address in some:
        code, _, err = cli("gate", *commands, "--address", address, "--traffic", "t", "--gate", "p50<=baseline*2")
        assert code == 2 and "found no {port}; expected it in both commands and in --address" in err


def test_a_command_that_does_not_serve(served: Any) -> None:
    _, place = served
    code, _, err = cli("gate", "echo no module app; exit 3", "true", *place, "--gate", "p50<=baseline*1.5")
    assert code == 4 and "base: 'echo no module app; exit 3' ended with 3: no module app" in err
    code, _, err = cli("gate", "true", "true", *place, "--gate", "p50<=baseline*2", "--workload", "w")
    assert code == 2 and "--workload: found http://127.0.0.1" in err


@pytest.mark.slow
@pytest.mark.parametrize("served_first", [4, 30])  # it ends during its warm-up, and during a replay
def test_a_command_that_ends_after_its_first_answers(served: Any, tmp_path: Path, served_first: int) -> None:
    command, place = served
    server = tmp_path / "server.py"
    dying = server.read_text().replace("http.server, sys, time", "http.server, os, sys, time\nleft = [N]", 1)
    body = "left[0] -= 1\n        if left[0] < 0: print('out of memory', flush=True); os._exit(9)\n        time.sleep"
    (tmp_path / "dying.py").write_text(dying.replace("[N]", f"[{served_first}]").replace("time.sleep", body))
    good, bad = command(0.0), command(0.0).replace("server.py", "dying.py")
    code, _, err = cli("gate", good, bad, *place, "--gate", "p50<=baseline*1.5", "--budget", "10s")
    assert code == 4 and "ended with 9: out of memory" in err and "start the service first" not in err


@pytest.mark.slow
@pytest.mark.parametrize(("status", "exit_code"), [(500, 4), (422, 2)])
def test_a_command_that_answers_with_errors(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, exit_code: int
) -> None:
    monkeypatch.setattr("latfix.runners.gate.served_arm._ERRORS_LIMIT_S", 0.0)
    command, place = served
    server = tmp_path / "server.py"
    server.write_text(server.read_text().replace("send_response(200)", f"send_response({status})"))
    code, _, err = cli("gate", command(0.0), command(0.0), *place, "--gate", "p50<=baseline*1.5", "--budget", "10s")
    assert code == exit_code and "answers with errors only" in err and f"HTTP {status}" in err


@pytest.mark.parametrize("kind", ["hosted", "commands"])
def test_each_side_may_take_half_of_the_budget_to_start(kind: str, starter: Path, tmp_path: Path) -> None:
    def arms(budget_s: float) -> tuple[Side, Side]:
        if kind == "hosted":
            sides = [_side(str(starter), "", None, "")] * 2
            return _hosted(sides, TrafficOptions(), {}, budget_s)[2](tmp_path)
        place, service = "http://127.0.0.1:9", AddressOptions(body="{}")
        replayed = ReplayOptions(traffic=starter / "traffic.jsonl")
        return _served(("true", "true"), place, service, replayed, budget_s)[2](tmp_path)

    assert [arm.patience_s() for arm in arms(5.0)] == [LEAST_START_S] * 2
    base, head = arms(1000.0)
    assert base.patience_s() == head.patience_s() == 500.0
    base.start_s = 250.0
    assert head.patience_s() == 750.0, "three times as long as the base"


def test_services_that_cannot_keep_up_share_the_budget(starter: Path, tmp_path: Path) -> None:
    _, _, arms = _hosted([_side(str(starter), "", None, "")] * 2, TrafficOptions(), {}, 1000.0)
    shares = [arm.most_s for arm in arms(tmp_path) if isinstance(arm, Arm)]
    assert len(shares) == 2 and shares[0] == shares[1] and sum(shares) <= 1000.0


def test_a_budget_of_few_rounds_is_noted() -> None:
    words = _too_few_words(2, 100.0, 40.0)
    assert words == (
        "warning: the budget holds 2 rounds of 100 s (a start takes 40 s), which decide only large differences; "
        "expected 8 or more: --budget 14m"
    )


def test_rounds_are_announced_with_the_sizes_of_all_parts() -> None:
    parts = [Traffic.plain(np.linspace(0, 9e9, size).astype(np.int64)) for size in (29, 95)]
    assert _parts_words(parts) == "rounds of 29 to 95 requests, 9.00 s each; 2 parts of the traffic"
    assert _parts_words(parts[:1]) == "rounds of 29 requests, 9.00 s each; 1 part of the traffic"
