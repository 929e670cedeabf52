"""gRPC: requests equal those of Triton's own client, and a real server's answers are read."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from latfix.cli.app import main
from latfix.errors import InputError
from latfix.run_record.run_record import RunRecord
from latfix.runners.http_target.address import parse_address
from latfix.runners.http_target.grpc_messages import check_supported, infer_request, read_metadata
from latfix.traffic.sent_ids import sent_id

PATH = "/v2/models/ranker/versions/3/infer"


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers with the sum of its input, as a server that speaks KServe v2 does."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.metadata: list[dict[str, str]] = []

    def ServerMetadata(self, _request: Any, _context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.73.0")

    def ModelMetadata(self, request: Any, _context: Any) -> Any:
        found = service_pb2.ModelMetadataResponse(name=request.name)
        found.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
        return found

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self.seen.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        values = np.frombuffer(request.raw_input_contents[0], "<f4")
        if values[0] < 0:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "negative: \N{LATIN SMALL LETTER E WITH ACUTE}")
        if values[0] > 900:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        if len(values) > 1000:  # exceeds a call's HTTP/2 window in both directions
            return service_pb2.ModelInferResponse(id=request.id, raw_output_contents=[bytes(3 << 20)])
        return service_pb2.ModelInferResponse(id=request.id, raw_output_contents=[values.sum().tobytes()])


@pytest.fixture
def triton() -> Iterator[tuple[Triton, int]]:
    service, server = Triton(), grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, port
    server.stop(None).wait()


@pytest.fixture
def traffic(tmp_path: Path) -> Callable[[list[list[float]]], Path]:
    def write(payloads: list[list[float]]) -> Path:
        path = tmp_path / "t.jsonl"
        lines = [
            {"id": f"q{k}", "arrival_s": 0.01 * k, "payload": {"x": [payload]}} for k, payload in enumerate(payloads)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


def test_a_request_is_what_the_protocol_s_own_parser_reads() -> None:
    document: dict[str, Any] = {
        "id": "r1",
        "parameters": {"sequence_id": -7, "start": False, "name": "a", "scale": 0.5},
        "inputs": [
            {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1.5, 2, -3, 4]},
            {"name": "n", "shape": [1], "datatype": "INT64", "data": [-(2**40)], "parameters": {"k": 1}},
            {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["é", ""]},
            {"name": "b", "shape": [2], "datatype": "BF16", "data": [1.0, -2.0]},
            {"name": "f", "shape": [3], "datatype": "BOOL", "data": [True, False, True]},
        ],
        "outputs": [{"name": "y"}],
    }
    found = service_pb2.ModelInferRequest.FromString(infer_request(PATH, json.dumps(document).encode()))
    assert (found.model_name, found.model_version, found.id) == ("ranker", "3", "r1")
    assert [(one.name, one.datatype, list(one.shape)) for one in found.inputs] == [
        (one["name"], one["datatype"], one["shape"]) for one in document["inputs"]
    ]
    raw = found.raw_input_contents
    assert np.frombuffer(raw[0], "<f4").tolist() == [1.5, 2, -3, 4]
    assert np.frombuffer(raw[1], "<i8").tolist() == [-(2**40)]
    assert raw[2] == b"\x02\0\0\0" + "é".encode() + b"\0\0\0\0"
    assert raw[3] == np.array([0x3F80, 0xC000], "<u2").tobytes() and raw[4] == b"\x01\0\x01"
    assert [one.name for one in found.outputs] == ["y"]
    parameters = {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in found.parameters.items()}
    assert parameters == {"sequence_id": -7, "start": False, "name": "a", "scale": 0.5}
    assert found.inputs[1].parameters["k"].int64_param == 1


def test_the_metadata_of_a_models_inputs_is_read() -> None:
    response = service_pb2.ModelMetadataResponse(name="m", versions=["1"], platform="onnx")
    response.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
    response.outputs.add(name="y", datatype="FP32", shape=[-1])
    read = read_metadata(response.SerializeToString())
    assert read == {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}
    assert read_metadata(b"\x22\xff") == {}


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ("[1]", "without a list of inputs"),
        ("{", "not JSON"),
        ('{"inputs": [{"name": "x", "datatype": "FP12", "shape": [1], "data": [1]}]}', "datatype 'FP12'"),
        ('{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [300]}]}', "not INT8"),
        ('{"inputs": [], "parameters": {"a": [1]}}', "parameter a"),
        ('{"inputs": [], "parameters": [1]}', r"parameters \[1\]"),
        ('{"inputs": [], "outputs": ["y"]}', "without a list of outputs"),
        ('{"inputs": [{"name": "x", "datatype": "FP32", "shape": null, "data": [1]}]}', "shape None"),
    ],
)
def test_a_document_that_cannot_be_sent_is_a_one_line_error(document: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        infer_request(PATH, document.encode())


def test_a_replay_over_grpc(
    triton: tuple[Triton, int], traffic: Callable[[list[list[float]]], Path], tmp_path: Path
) -> None:
    service, port = triton
    large = [[float(k)] * 40_000 if k % 20 == 5 else [float(k), 1, 2, 3] for k in range(60)]
    large[30], large[31] = [-1.0, 0, 0, 0], [999.0, 0, 0, 0]
    path, out = traffic(large), tmp_path / "run"
    code = main(
        ["diagnose", f"grpc://127.0.0.1:{port}/v2/models/ranker/infer", "--traffic", str(path), "--out", str(out)]
    )
    assert code == 0
    record = RunRecord.load(out)
    assert record.counts() == {"ok": 58, "error": 1, "timeout": 0, "shed": 1}
    assert "INVALID_ARGUMENT: negative: é" in record.errors[30]
    assert sorted(len(request.raw_input_contents[0]) for request in service.seen)[-3:] == [160_000] * 3
    assert {request.model_name for request in service.seen} == {"ranker"}
    assert {meta["x-request-id"] for meta in service.metadata} == {
        sent_id(record.meta.http["run"], f"q{k}") for k in range(60)
    }
    assert len({meta["traceparent"] for meta in service.metadata}) == 60
    rows = record.requests
    assert 0 < rows["new_connection"].sum() < 30
    big = rows["received_bytes"] > 3 << 20
    assert big.sum() == 3 and (rows["send_ns"] >= 0).all()
    stages = ("dispatch_ns", "prepare_ns", "compute_ns", "finish_ns")
    np.testing.assert_array_equal(sum(rows[name] for name in stages), rows["latency_ns"])
    assert record.meta.http["server"] == "triton"


def test_an_address_without_a_model_is_refused() -> None:
    with pytest.raises(InputError, match="found no model"):
        check_supported(parse_address("grpc://127.0.0.1:8001/"))


def test_a_server_that_speaks_no_grpc_is_an_error_and_no_hang(
    traffic: Callable[[list[list[float]]], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"grpc://127.0.0.1:{server.server_address[1]}/v2/models/ranker/infer"
        path = traffic([[1.0, 1, 1, 1]] * 5)
        assert (
            main(["diagnose", address, "--traffic", str(path), "--out", str(tmp_path / "b"), "--timeout", "5"]) == 4
        )
        server.shutdown()
    assert "expected gRPC (HTTP/2)" in capsys.readouterr().err
