"""HTTP requests of an ASGI application as rows: routes, statuses, and values that are never kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latfix
from latfix.profilers.recordings import service_log
from latfix.profilers.recordings.requests.request_table import CANCELLED, RequestTable
from latfix.profilers.service_log.recorder import flush
from latfix.stages import Status

fastapi = pytest.importorskip("fastapi")
testclient = pytest.importorskip("starlette.testclient")


def _app(folder: Path) -> Any:
    app = fastapi.FastAPI()
    app.add_middleware(latfix.RecordMiddleware, folder=folder)

    def user(name: str) -> dict[str, str]:
        with latfix.span("db"):
            time.sleep(0.01)
        return {"name": name}

    async def score(values: list[float]) -> float:
        await asyncio.sleep(0)
        if not values:
            raise fastapi.HTTPException(503)
        return sum(values) / (values[0] - 1)

    app.get("/users/{name}")(user)
    app.post("/score")(score)
    return app


@pytest.fixture
def client(tmp_path: Path) -> Any:
    return testclient.TestClient(_app(tmp_path), raise_server_exceptions=False)


def _table(folder: Path) -> RequestTable:
    flush()
    return service_log.read(sorted(folder.iterdir()))


def test_rows_have_routes_and_no_values(tmp_path: Path, client: Any) -> None:
    assert client.get("/users/secret-name?token=secret-token", headers={"x": "secret-header"}).status_code == 200
    assert client.post("/score", json=[0.25, 0.5]).status_code == 200
    table = _table(tmp_path)
    assert table.routes == ("/score", "/users/{name}")
    assert "secret" not in "".join(file.read_text() for file in tmp_path.iterdir())
    assert np.nanmax(table.features["request_bytes"]) == len("[0.25,0.5]")


def test_a_span_in_a_framework_thread_belongs_to_the_request(tmp_path: Path, client: Any) -> None:
    client.get("/users/a")
    table = _table(tmp_path)
    assert 0.01e9 <= table.parts["db"][0] <= table.latency_ns[0]


def test_statuses_are_recorded(tmp_path: Path, client: Any) -> None:
    for values in ([2], [1], [], ["x"]):
        client.post("/score", json=values)
    client.get("/nothing")
    statuses = _table(tmp_path).status.tolist()
    # A client's invalid requests (422, 404) were answered.
    assert statuses == [Status.OK, Status.ERROR, Status.SHED, Status.OK, Status.OK]


def _served(folder: Path, messages: list[dict[str, Any]], after: Callable[[], None], **scope: Any) -> RequestTable:
    """Requests of an application that sends these messages and then calls ``after``."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200})
        for message in messages:
            await send({"type": "http.response.body", **message})
        after()

    with contextlib.suppress(OSError, ValueError):
        asyncio.run(latfix.RecordMiddleware(app, folder)({"type": "http", **scope}, _nothing, _nothing))
    return _table(folder)


async def _nothing(*messages: Any) -> Any:
    if any(message.get("gone") for message in messages):
        raise OSError("the client is gone")
    return {}


def test_an_answer_ends_with_its_last_byte(tmp_path: Path) -> None:
    def background() -> None:
        time.sleep(0.2)
        raise ValueError("after the answer")

    table = _served(tmp_path, [{"more_body": True}, {}], background)
    assert table.status.tolist() == [Status.OK]
    assert table.latency_ns[0] < 0.2e9


@pytest.mark.parametrize("message", [{"more_body": True}, {"gone": True}])
def test_an_aborted_answer_is_cancelled(tmp_path: Path, message: dict[str, Any]) -> None:
    assert _served(tmp_path, [message], lambda: None).status.tolist() == [CANCELLED]


@pytest.mark.parametrize(
    ("path", "values", "route"),
    [
        ("/v1/items/1", {"id": 1}, "/v1/items/{id}"),
        ("/files/a/b.txt", {"path": "a/b.txt"}, "/files/{path}"),
        ("/a/a.json", {"name": "a.json"}, "/a/{name}"),
        ("/data/a.json", {"name": "a"}, "/data/{name}.json"),
        ("/data/", {"name": ""}, "/data/"),
    ],
)
def test_parameter_values_are_removed_from_a_path(
    tmp_path: Path, path: str, values: dict[str, Any], route: str
) -> None:
    _served(tmp_path, [{}], lambda: None, path=path, path_params=values)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["route"] == route


def test_other_scopes_pass_through(tmp_path: Path) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        seen.append(scope["type"])

    middleware = latfix.RecordMiddleware(app, tmp_path)
    asyncio.run(middleware({"type": "lifespan"}, _nothing, _nothing))
    assert seen == ["lifespan"]
    flush()
    assert not list(tmp_path.iterdir())
