"""``latfix watch``: lines of a recorded service, and its output before there is one."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import latfix
from latfix.profilers.service_log.recorder import flush
from latfix.reports.exports.metrics_endpoint import CONTENT_TYPE, metrics_endpoint
from tests.conftest import cli, succeeded

HOSTILE = '"}\\ <b>\x1b[31m'


def _nothing() -> None:
    """A request that takes no time."""


def test_each_update_is_a_line_without_a_terminal(tmp_path: Path) -> None:
    work = latfix.record(tmp_path)(_nothing)
    for _ in range(200):
        work()
    flush()
    output = succeeded(cli("watch", str(tmp_path), "--updates", "2", "--every", "0.1"))
    lines = output.splitlines()
    assert len(lines) == 2
    assert all("200 ok" in line and "p99" in line for line in lines)


def test_before_the_first_request_it_waits(tmp_path: Path) -> None:
    output = succeeded(cli("watch", str(tmp_path), "--updates", "1"))
    assert "no requests yet" in output


@pytest.mark.parametrize(
    "arguments", [("--every", "0"), ("--last", "nan"), ("--updates", "-1"), ("--percentile", "0")]
)
def test_what_cannot_be_is_refused(tmp_path: Path, arguments: tuple[str, str]) -> None:
    code, _, error = cli("watch", str(tmp_path), *arguments)
    assert code == 2
    assert arguments[0] in error


def test_figures_are_served_while_it_watches(tmp_path: Path) -> None:
    work = latfix.record(tmp_path, route=HOSTILE)(_nothing)
    for _ in range(200):
        work()
    flush()
    with metrics_endpoint("0") as server:
        assert server is not None
        where = f"http://127.0.0.1:{server.server_port}"
        with urlopen(f"{where}/metrics") as answer:  # before the first look
            assert answer.read() == b"# EOF\n" and answer.headers["Content-Type"] == CONTENT_TYPE
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{where}/etc/passwd")
        code, _, error = cli("watch", str(tmp_path), "--updates", "1", "--metrics", str(server.server_port))
        assert code == 2 and "which cannot be bound" in error and len(error.splitlines()) == 1
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    scraped: list[str] = []

    def ask() -> None:
        deadline = time.monotonic() + 60
        while "latfix_latency_seconds" not in (scraped or [""])[-1] and time.monotonic() < deadline:
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                scraped.append(answer.read().decode())

    asking = threading.Thread(target=ask)
    asking.start()
    code, _, _ = cli("watch", str(tmp_path), "--updates", "8", "--every", "0.2", "--metrics", f"127.0.0.1:{port}")
    asking.join()
    assert code == 0
    assert "latfix_window_requests{workload=" in scraped[-1] and scraped[-1].endswith("# EOF\n")


def test_figures_are_served_on_an_ipv6_address() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with metrics_endpoint("[::1]:0") as server:
        assert server is not None
        with urlopen(f"http://[::1]:{server.server_port}/metrics") as answer:
            assert answer.read() == b"# EOF\n"


def test_a_client_that_went_away_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """As a check of a load balancer does: it resets the connection."""
    with metrics_endpoint("0") as server:
        assert server is not None
        server.daemon_threads = False  # so that its end waits for what they print
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(b"GET /met")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            assert answer.read() == b"# EOF\n"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "where", ["", "x", "localhost", "70000", "127.0.0.1:", "no.such.host.invalid:9", "é" * 70 + ":9"]
)
def test_an_invalid_address_to_listen_on_is_refused(tmp_path: Path, where: str) -> None:
    code, _, error = cli("watch", str(tmp_path), "--updates", "1", "--metrics", where)
    assert code == 2 and "--metrics" in error and len(error.splitlines()) == 1


def test_another_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of latfix's")
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, _, error = cli("watch", str(folder), "--updates", "1")
        assert code == 2
        assert len(error.splitlines()) == 1


def test_a_terminal_gets_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    work = latfix.record(tmp_path)(_nothing)
    for _ in range(50):
        work()
    flush()
    output = succeeded(cli("watch", str(tmp_path), "--updates", "1"))
    assert "cause of the slowest" in output
    assert "p99.9" in output
