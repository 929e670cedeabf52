"""``latfix compare`` over two addresses: turns, and what is refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import refused
from tests.conftest import cli

Serve = Callable[[float], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a service that answers after so many seconds; returns its address."""
    servers = []

    def start(seconds: float) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(seconds)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/predict"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def traffic(tmp_path: Path) -> str:
    """A second of requests."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"arrival_s": k * 0.05, "payload": {"k": k}}) + "\n" for k in range(20)))
    return str(path)


@pytest.mark.slow
def test_two_addresses_are_replayed_in_turns(serve: Serve, traffic: str, tmp_path: Path) -> None:
    fast, slow = serve(0.01), serve(0.2)
    out, file = tmp_path / "out", tmp_path / "c.json"
    code, _, error = cli(
        "compare", slow, fast, "--traffic", traffic, "--rounds", "2", "--out", str(out), "--json", str(file)
    )
    assert (code, error) == (0, "") or code == 0
    found = json.loads(file.read_text())
    assert found["ratio"]["p50"]["value"] < 0.5
    started = {path.parent.name: json.loads(path.read_text())["started"] for path in out.glob("*/run.json")}
    assert sorted(started, key=lambda name: started[name]) == ["base-1", "new-1", "new-2", "base-2"]


@pytest.mark.parametrize("option", [("--json", "/proc/x/y"), ("--gate", "accuracy>=0.9")])
def test_outputs_and_gates_are_checked_before_a_replay(
    option: tuple[str, str], serve: Serve, traffic: str, tmp_path: Path
) -> None:
    address = serve(0.0)
    refused(cli("compare", address, address, "--traffic", traffic, "--out", tmp_path / "out", *option), option[0])
    assert not list(tmp_path.rglob("run.json"))


def test_a_service_that_is_away_leaves_its_reports(
    traffic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    away, gate = ("http://127.0.0.1:9/x", "http://127.0.0.1:9/y"), "p99<=baseline*1.1"
    refused(cli("compare", *away, "--traffic", traffic, "--gate", gate, "--junit", tmp_path / "j"), "127.0.0.1:9")
    (case,) = ElementTree.fromstring((tmp_path / "j").read_text()).iter("testcase")
    assert (case.get("name"), case[0].tag) == (gate, "error")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://127.0.0.1:9/x", "folder"), "together with an address"),
        (("http://127.0.0.1:9/x", "http://127.0.0.1:9/y"), "--traffic"),
        (("a", "b", "--rounds", "2"), "--rounds"),
        (("a", "b", "--body", "{}"), "--body"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = cli("compare", *arguments)
    assert code == 2
    assert words in error
