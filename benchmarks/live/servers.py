"""``latfix.load_runner`` behind FastAPI compared with LitServe, Ray Serve and mosec: one model, one traffic.

    pip install litserve mosec "ray[serve]" "uvicorn[standard]"
    python -m benchmarks.live.servers --out benchmarks/results/servers.json

Each server runs in its own process with one copy of the model, one operator thread, batches of up to eight with a
window of two milliseconds, and answers ``POST /predict``. latfix's HTTP client replays the same arrivals open-loop
at rising rates. A rate holds if p99 of all that arrived is below the limit in most rounds; a server's throughput is
the highest rate that holds with all lower ones. Rounds visit the servers in turns, every other one backwards, each
time in a fresh process. Servers that are not installed are listed and skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result_file import write_result
from latfix.cli.shared.address_flow import AddressOptions, replay_of, spec_of
from latfix.statistics.censored import outcomes_of
from latfix.traffic.schedule import Traffic

_BATCH, _WINDOW_MS, _WIDTH, _LAYERS = 8, 2.0, 768, 6
_START_S = 120.0

MODEL = f"""
import torch

torch.set_num_threads(1)
torch.set_num_interop_threads(1)


def make():
    torch.manual_seed(0)
    layers = []
    for _ in range({_LAYERS}):
        layers += [torch.nn.Linear({_WIDTH}, {_WIDTH}), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear({_WIDTH}, 1)).eval()


def tensor(body):
    return torch.full(({_WIDTH},), float(body["value"]))


def answers(model, tensors):
    with torch.inference_mode():
        return [{{"answer": float(each)}} for each in model(torch.stack(tensors))]
"""

LATFIX = """
import contextlib
import latfix
from fastapi import FastAPI, Request

runner = None


@contextlib.asynccontextmanager
async def lifespan(app):
    global runner
    runner = latfix.load_runner("workload")
    yield
    await runner.aclose()


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(request: Request):
    return {"answer": await runner.infer({"payload": await request.json()})}


if __name__ == "__main__":
    import sys, uvicorn
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""

WORKLOAD = """
import sys
sys.path.insert(0, "..")
import model
from latfix import Workload


class Served(Workload):
    def load(self, device):
        return model.make()

    def prepare(self, request):
        return model.tensor(request.payload)

    def finish(self, output, request):
        return float(output)
"""

WORKLOAD_TOML = f"""
[workload]
name = "served"
entry = "workload:Served"
traffic = "traffic.jsonl"

[runner]
device = "cpu"
max_batch_size = {_BATCH}
batch_window_ms = {_WINDOW_MS}
workers = 1
prepare_threads = 1
intra_op_threads = 1
warmup_requests = 8
"""

LITSERVE = f"""
import sys
import litserve
import model


class Api(litserve.LitAPI):
    def setup(self, device):
        self.model = model.make()

    def decode_request(self, request):
        return model.tensor(request)

    def batch(self, inputs):
        return inputs

    def predict(self, inputs):
        return model.answers(self.model, inputs)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    api = Api(max_batch_size={_BATCH}, batch_timeout={_WINDOW_MS / 1e3})
    litserve.LitServer(api, accelerator="cpu", workers_per_device=1).run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="error", generate_client_file=False
    )
"""

MOSEC = f"""
import json
import sys
from mosec import Server, Worker

port = sys.argv.pop(1)
sys.argv += ["--port", port, "--log-level", "error"]


class Model(Worker):
    def __init__(self):
        import model
        self.kit, self.model = model, model.make()

    def deserialize(self, data):
        return json.loads(data)

    def forward(self, data):
        return self.kit.answers(self.model, [self.kit.tensor(body) for body in data])


if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=1, route="/predict", max_batch_size={_BATCH}, max_wait_time={int(_WINDOW_MS)})
    server.run()
"""

RAY = f"""
import sys
import time
import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=1000, ray_actor_options={{"num_cpus": 1}})
class Model:
    def __init__(self):
        import model
        self.kit, self.model = model, model.make()

    @serve.batch(max_batch_size={_BATCH}, batch_wait_timeout_s={_WINDOW_MS / 1e3})
    async def answer(self, bodies):
        return self.kit.answers(self.model, [self.kit.tensor(body) for body in bodies])

    async def __call__(self, request: Request):
        return await self.answer(await request.json())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={{"host": "127.0.0.1", "port": int(sys.argv[1])}})
    serve.run(Model.bind(), route_prefix="/predict")
    time.sleep(1e6)
"""

#: By name: the program and the packages it needs.
SERVERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "latfix + FastAPI": (LATFIX, ("fastapi", "uvicorn")),
    "LitServe": (LITSERVE, ("litserve",)),
    "mosec": (MOSEC, ("mosec",)),
    "Ray Serve": (RAY, ("ray", "starlette")),
}


@dataclass(frozen=True, slots=True)
class Rung:
    """One replay: the offered rate and its result."""

    server: str
    round: int
    rate: float
    p50_ms: float
    p99_ms: float
    ok: int
    lost: int


def traffic(rate: float, seconds: float, seed: int) -> Traffic:
    """Poisson arrivals; the same for every server."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(int(rate * seconds), 1))
    arrivals = (np.cumsum(gaps) * 1e9).astype(np.int64)
    return Traffic.plain(arrivals, payloads=[{"value": k % 7} for k in range(len(arrivals))])


@contextlib.contextmanager
def served(folder: Path, name: str) -> Iterator[str]:
    """Run a server in its own process; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = folder / "server.py"
    program.write_text(SERVERS[name][0])
    address = f"http://127.0.0.1:{port}/predict"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), str(port)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _wait_until_it_answers(process, address, folder / "server.log")
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    request = urllib.request.Request(address, data=b'{"value": 1}', headers={"content-type": "application/json"})
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                assert "answer" in json.loads(answer.read())
                return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: {error}\n{log.read_text()[-2000:]}") from error
            time.sleep(0.2)


def climb(address: str, name: str, number: int, rates: list[float], seconds: float, limit_ms: float) -> list[Rung]:
    """The rates of one server in one round, up to the second in a row above the limit."""
    found: list[Rung] = []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "t.jsonl")
        path.write_text("")
        spec = spec_of(address, AddressOptions(metrics="off"), path, None)
        warm = replay_of(address, AddressOptions(metrics="off"), spec, traffic(rates[0], 3.0, 99), seed=0)
        warm(Path(place, "warm"))
        for k, rate in enumerate(rates):
            schedule = traffic(rate, seconds, 1000 * number + k)
            record = replay_of(address, AddressOptions(metrics="off"), spec, schedule, seed=0)(Path(place, str(k)))
            figures = outcomes_of(record).summary_ms()
            ok = record.counts()["ok"]
            found.append(Rung(name, number, rate, figures["p50"], figures["p99"], ok, len(schedule) - ok))
            print(found[-1], flush=True)
            if all(each.p99_ms > limit_ms for each in found[-2:]) and len(found) > 1:
                break
    return found


def throughput(rungs: list[Rung], rates: list[float], rounds: int, limit_ms: float) -> float:
    """The highest rate that held in most rounds, together with all lower ones."""
    held = 0.0
    for rate in rates:
        good = sum(each.p99_ms <= limit_ms for each in rungs if each.rate == rate)
        if 2 * good <= rounds:
            return held
        held = rate
    return held


def main() -> None:
    """Measure, print, and write the results if requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 150, 200, 250, 300, 350, 400, 500, 600])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-ms", type=float, default=50.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    missing = {
        name: needed
        for name, (_, packages) in SERVERS.items()
        if (needed := [each for each in packages if importlib.util.find_spec(each) is None])
    }
    names = [name for name in SERVERS if name not in missing]
    rungs: list[Rung] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "workload").mkdir()
        (folder / "model.py").write_text(MODEL)
        (folder / "workload" / "workload.py").write_text(WORKLOAD)
        (folder / "workload" / "workload.toml").write_text(WORKLOAD_TOML)
        lines = (json.dumps({"arrival_s": k / 100, "payload": {"value": 1}}) for k in range(16))
        (folder / "workload" / "traffic.jsonl").write_text("\n".join(lines) + "\n")
        for number in range(options.rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                with served(folder, name) as address:
                    rungs += climb(address, name, number, options.rates, options.seconds, options.limit_ms)
    found: dict[str, Any] = {
        "limit_ms": options.limit_ms,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "not_installed": {name: list(packages) for name, packages in missing.items()},
        "throughput_rps": {
            name: throughput([r for r in rungs if r.server == name], options.rates, options.rounds, options.limit_ms)
            for name in names
        },
        "rungs": [asdict(each) for each in rungs],
    }
    print(json.dumps({key: value for key, value in found.items() if key != "rungs"}, indent=2))
    write_result(options.out, found)


if __name__ == "__main__":
    main()
