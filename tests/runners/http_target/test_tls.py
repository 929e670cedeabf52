"""Services over TLS: HTTP and gRPC, with a certificate that only ``--cacert`` trusts."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from latfix.cli.app import main
from latfix.run_record.run_record import RunRecord
from tests.runners.http_target.test_grpc import Triton

#: Made for these tests, for localhost and 127.0.0.1, until the year 2126.
CERTIFICATE, KEY = (Path(__file__).parent / "tls" / name for name in ("cert.pem", "key.pem"))


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Keeps errors out of the tests' output."""


def _https(stack: ExitStack) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Answers))
    server.daemon_threads, server.block_on_close = True, False
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return f"https://localhost:{server.server_address[1]}/predict"


def _grpcs(stack: ExitStack) -> str:
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), server)
    pair = [(KEY.read_bytes(), CERTIFICATE.read_bytes())]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    server.start()
    stack.callback(lambda: server.stop(None).wait())
    return f"grpcs://127.0.0.1:{port}/v2/models/ranker/infer"


@pytest.fixture(params=[_https, _grpcs], ids=["https", "grpcs"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as stack:
        serve: Callable[[ExitStack], str] = request.param
        yield serve(stack)


def test_a_service_over_tls_is_trusted_by_its_certificate_alone(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic = tmp_path / "t.jsonl"
    lines = [{"arrival_s": 0.02 * k, "payload": {"x": [[1.0, 2, 3, 4]]}} for k in range(30)]
    traffic.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["diagnose", address, "--traffic", str(traffic)]
    assert main([*command, "--out", str(tmp_path / "a")]) == 2
    assert "certificate is not trusted" in capsys.readouterr().err
    assert main([*command, "--cacert", str(CERTIFICATE), "--out", str(tmp_path / "b")]) == 0
    record = RunRecord.load(tmp_path / "b")
    assert record.counts()["ok"] == 30
    rows = record.requests
    opened = rows["new_connection"] == 1
    assert 0 < opened.sum() < 15
    assert rows["prepare_ns"][opened].min() > rows["prepare_ns"][~opened].min()  # it includes the handshake
