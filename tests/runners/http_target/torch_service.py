"""A torch model behind FastAPI and uvicorn with a known fault: ``torch_service.py FAULT``; it prints its port."""

from __future__ import annotations

import gc
import os
import socket
import sys
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import generate_latest

torch.set_num_threads(1)
app = FastAPI()
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)]).eval()
COUNTED = {"requests": 0}
#: What a collection has to look at.
HELD = [[{"a": 1}] for _ in range(300_000)] if sys.argv[1] == "collection" else []


def infer() -> float:
    with torch.inference_mode():
        return float(model(torch.ones(8, 512)).sum())


@app.post("/loop")
async def in_the_loop(_: dict[str, Any]) -> dict[str, float]:
    return {"value": infer()}


@app.post("/pool")
def in_a_thread(_: dict[str, Any]) -> dict[str, float]:
    COUNTED["requests"] += 1
    value = infer()
    if HELD and COUNTED["requests"] % 40 == 0:
        gc.collect()
    return {"value": value}


@app.get("/metrics")
def metrics() -> Response:
    return Response(generate_latest(), media_type="text/plain")


if __name__ == "__main__":
    if HELD:
        gc.disable()
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:  # else asyncio leaves TCP_NODELAY off
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        print(listener.getsockname()[1], os.getpid(), flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
