"""The example service with FastAPI's test client, and as a uvicorn process."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from latfix.config.plan import Plan, PlannedFix, write_plan
from tests.conftest import write_workload

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

FILE = Path(__file__).resolve().parents[2] / "examples" / "fastapi_service.py"
ADAPTER = """
import torch
from latfix import Request, Workload

class Doubling(Workload):
    def load(self, device):
        return torch.nn.Identity()

    def prepare(self, request):
        return torch.full((2,), float(request.features["value"]) * 2)

    def finish(self, output, request):
        if request.features.get("as_text"):
            return f"{float(output[0]):g}"
        if request.features.get("nested"):
            return {"area": float(output[0]), "parts": [output.numpy()], "most": output.numpy().max()}
        return output
"""
TUNABLES = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592"
TRAFFIC = [{"arrival_s": 0.01 * k, "value": k} for k in range(10)]


@pytest.fixture(scope="module")
def arranged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The service's environment: a workload and a plan."""
    base = tmp_path_factory.mktemp("service")
    folder = write_workload(base / "w", adapter=ADAPTER, traffic=TRAFFIC)
    fixes = (PlannedFix(id="batch.size", settings={"max_batch_size": 4, "prepare_threads": 2}),)
    write_plan(Plan(workload="w", fixes=fixes), base / "plan.toml")
    return {"WORKLOAD": str(folder), "PLAN": str(base / "plan.toml")}


@pytest.fixture
def client(arranged: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with warnings.catch_warnings():
        # Newer releases of Starlette prefer another client; either works.
        warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
        from fastapi.testclient import TestClient

    before = set(threading.enumerate())  # recorders of other tests live as long as the process
    for name, value in arranged.items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("fastapi_service", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with TestClient(module.app) as opened:
        yield opened
    assert not [each.name for each in set(threading.enumerate()) - before if each.name.startswith("latfix-")]


def test_it_is_short() -> None:
    assert len(FILE.read_text().splitlines()) < 60


def test_answers(client: Any) -> None:
    response = client.post("/infer", json={"value": 4})
    assert (response.status_code, response.json()) == (200, {"answer": [8.0, 8.0]})
    assert client.post("/infer", json={"value": 4, "as_text": 1}).json() == {"answer": "8"}
    nested = {"area": 8.0, "parts": [[8.0, 8.0]], "most": 8.0}
    assert client.post("/infer", json={"value": 4, "nested": 1}).json() == {"answer": nested}


def test_many_callers_at_once(client: Any) -> None:
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda k: client.post("/infer", json={"value": k}).json(), range(100)))
    assert answers == [{"answer": [2.0 * k, 2.0 * k]} for k in range(100)]
    stats = client.get("/stats").json()
    assert stats["requests"]["ok"] == 100 == stats["window"]
    assert stats["plan"] == ["batch.size"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"value": [1]}, 422, "request: value: found a list [1]"),
        ({"priority": "urgent"}, 422, "priority"),
        ({}, 500, "prepare raised KeyError"),
        ({"value": 1, "deadline_ms": 1e-6}, 504, "deadline"),
    ],
)
def test_errors_have_their_status(client: Any, body: dict[str, Any], status: int, says: str) -> None:
    response = client.post("/infer", json=body)
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]


def test_a_closed_runner_is_unavailable(client: Any) -> None:
    client.app.state.runner.close()
    assert client.post("/infer", json={"value": 1}).status_code == 503
    assert client.get("/stats").status_code == 503


def _post(port: int, body: dict[str, Any]) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/infer", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_as_a_process_of_uvicorn_started_with_the_plans_environment(arranged: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    plan = tmp_path / "plan.toml"
    fixes = (PlannedFix(id="memory.allocator", settings={"env": {"GLIBC_TUNABLES": TUNABLES}}),)
    write_plan(Plan(workload="w", fixes=fixes), plan)
    port, log = _free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "uvicorn", "fastapi_service:app", "--port", str(port), "--log-level", "warning"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "latfix.runners.launch", str(plan), *command],
            cwd=FILE.parent,
            env={**os.environ, **arranged, "PLAN": str(plan)},
            stdout=output,
            stderr=output,
        )
    try:
        end = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            try:
                answer = _post(port, {"value": 3})
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        assert answer == {"answer": [6.0, 6.0]}
        process.send_signal(signal.SIGTERM)
        # After an orderly end it raises the signal again, which its parent sees.
        assert process.wait(30) in (0, -signal.SIGTERM), log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text() and "Warning" not in log.read_text()
