"""Which processes accept a service's connections: real ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from latfix.profilers.services.listening_processes import (
    Connections,
    accept_beside,
    descendants,
    innermost,
    listening_processes,
    program,
)

_WORKER = "import sys; sys.stdin.readline()"


@pytest.mark.parametrize(
    ("bound", "host", "found"),
    [("127.0.0.1", "127.0.0.1", True), ("0.0.0.0", "127.0.0.1", True), ("127.0.0.2", "127.0.0.1", False)],
)
def test_a_process_listens_at_its_own_address_only(bound: str, host: str, found: bool) -> None:
    with socket.create_server((bound, 0)) as one:
        assert (os.getpid() in listening_processes(host, one.getsockname()[1])) == found


def test_another_machine_s_listeners_are_not_visible() -> None:
    with socket.create_server(("0.0.0.0", 0)) as one:
        assert listening_processes("192.0.2.1", one.getsockname()[1]) == ()


def test_a_worker_that_inherited_the_socket_listens_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        command = [sys.executable, "-c", _WORKER]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[one.fileno()]) as worker:
            found = listening_processes("127.0.0.1", one.getsockname()[1])
            family, inner = descendants(os.getpid()), innermost(found)
            name, beside = program(worker.pid), [accept_beside(pid, found) for pid in (os.getpid(), worker.pid, 1)]
            other = [accept_beside(pid, [worker.pid]) for pid in (os.getpid(), os.getppid())]
            parent = accept_beside(worker.pid, [os.getpid()])
    assert inner == (worker.pid,)
    assert beside == [(), (os.getpid(),), ()]  # the first process is an ancestor of both
    assert (other, parent) == ([(), ()], (os.getpid(),))
    assert found == tuple(sorted((os.getpid(), worker.pid)))
    assert next(iter(family)) == os.getpid() and worker.pid in family
    assert name == Path(os.path.realpath(sys.executable)).name


#: Accepts one connection on an inherited socket, and says so.
_ACCEPTS = """
import socket, sys
kept, _ = socket.socket(fileno=int(sys.argv[1])).accept()
print(flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1"])
def test_the_process_that_holds_a_connection_is_found_by_the_client_s_port(host: str) -> None:
    """The client's own address is the first one in both cases."""
    with socket.create_server((host, 0)) as one:
        connections = Connections(one.getsockname()[1])
        command, pipe = [sys.executable, "-c", _ACCEPTS, str(one.fileno())], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[one.fileno()]) as worker:
            with socket.create_connection(one.getsockname()) as client:
                assert worker.stdout is not None and worker.stdout.readline()
                port = client.getsockname()[1]
                assert connections.new_holders([os.getppid()]) == {}
                assert connections.new_holders([os.getpid(), worker.pid]) == {port: worker.pid}
                assert connections.new_holders([os.getpid(), worker.pid]) == {}
            worker.kill()
