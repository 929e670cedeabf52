"""Serve a workload with its plan over HTTP. See docs/serving.md.

pip install latfix fastapi uvicorn
WORKLOAD=my_workload PLAN=plan.toml python -m latfix.runners.launch plan.toml uvicorn fastapi_service:app

curl localhost:8000/infer -H 'content-type: application/json' -d '{"tokens": 40, "deadline_ms": 200}'
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.encoders import jsonable_encoder

import latfix

#: HTTP status of each error; the first match is used.
STATUS = {
    latfix.InputError: 422,
    latfix.RequestTimedOut: 504,
    latfix.RequestShed: 503,
    latfix.RunnerClosed: 503,
    latfix.LatfixError: 500,
}
#: How arrays, tensors and their numbers become JSON, also inside of other answers.
LISTS = {kind: kind.tolist for kind in (np.ndarray, np.generic, torch.Tensor)}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with latfix.load_runner(os.environ["WORKLOAD"], plan=os.environ.get("PLAN")) as runner:
        app.state.runner = runner
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/infer")
async def infer(http: Request, body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
    try:
        answer = await http.app.state.runner.infer(body)
    except latfix.LatfixError as error:
        status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
        raise HTTPException(status, error.message) from error
    return {"answer": jsonable_encoder(answer, custom_encoder=LISTS)}


@app.get("/stats")
def stats(http: Request) -> dict[str, Any]:
    runner: latfix.Runner = http.app.state.runner
    if not runner.serving:
        raise HTTPException(503, "the runner no longer serves")
    return {**runner.stats().as_dict(), "plan": runner.plan and [fix.id for fix in runner.plan.fixes]}
