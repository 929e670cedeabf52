"""Time and memory of a diagnosis, by size of the record.

    python -m benchmarks.profilers.attribution_scale                      100,000 and 1,000,000 requests
    python -m benchmarks.profilers.attribution_scale --requests 10000000  another size
    python -m benchmarks.profilers.attribution_scale --causes             with every request's entries in a file

Each size is generated (a simulated service with batches, queueing and known faults, written as an ordinary run's
folder), then read and diagnosed in a separate process, whose peak of resident memory is reported. The machine's load
before and after is kept with the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.result_file import write_result
from latfix.queueing.queue_simulator import Policy, replay
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.run_record import SCHEDULE
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.traffic.io.stored_schedule import save_schedule
from latfix.traffic.schedule import Traffic

_MS = 1_000_000
_PIECE = 500_000
_ROW_GROUP = 65_536
_MAX_BATCH = 4
_LOAD = 0.6
_WORKER = 9000


def main() -> None:
    """Measure, and print or write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--keep", type=Path, help="keep the records in this folder")
    parser.add_argument("--causes", action="store_true", help="write causes.parquet too")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(_diagnose(arguments.only, causes=arguments.causes)))
        return
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for requests in arguments.requests:
            folder = (arguments.keep or Path(scratch)) / f"run-{requests}"
            if not folder.exists():
                make_record(folder, requests)
            command = [sys.executable, "-m", "benchmarks.profilers.attribution_scale", "--only", str(folder)]
            command += ["--causes"] if arguments.causes else []
            before = os.getloadavg()[0]
            line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            result = {
                "requests": requests,
                **json.loads(line),
                "load_before": before,
                "load_after": os.getloadavg()[0],
            }
            result["us_per_request"] = 1e6 * result["wall_s"] / requests
            print(
                f"{requests:>10,} requests: diagnosed in {result['wall_s']:.1f} s (CPU {result['cpu_s']:.1f} s), "
                f"{result['us_per_request']:.1f} us a request, peak {result['peak_mib']:,.0f} MiB, "
                f"verdict {result['verdict']}, conservation error {result['conservation_error_ns']} ns",
                flush=True,
            )
            results.append(result)
    found = {"numpy": np.__version__, "causes_written": arguments.causes, "results": results}
    write_result(arguments.out, found)


def _diagnose(folder: Path, *, causes: bool) -> dict[str, object]:
    from latfix.cli.shared.diagnose_flow import diagnosed
    from latfix.run_record.chunked_record import open_record

    start = time.perf_counter(), time.process_time()
    diagnosis = diagnosed(open_record(folder), folder=folder if causes else None)
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    truth = {"memory.page_faults", "python.gc", "host.contention"}
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "verdict": diagnosis.verdict,
        "injected_causes_lead": {cause.cause for cause in diagnosis.causes[:3]} == truth,
        "conservation_error_ns": diagnosis.ledger.conservation_error_ns(),
    }


def make_record(folder: Path, requests: int, seed: int = 0) -> None:
    """Write the folder of a simulated run, in pieces of half a million requests."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    writers: dict[str, pq.ParquetWriter] = {}
    first, begin, batches, events = 0, 0, 0, []
    while first < requests:
        count = min(_PIECE, requests - first)
        rows, runs, collections, begin = _piece(rng, count, first, begin, batches)
        plain = {name: rows[name] for name in REQUEST_DTYPE.names or ()}
        status = pa.array(np.full(count, "ok"))
        tables = {
            "requests": pa.table({**plain, "status": status, "error": pa.nulls(count, pa.string())}),
            "batches": pa.table({name: runs[name] for name in BATCH_DTYPE.names or ()}),
            SCHEDULE.removesuffix(".parquet"): _schedule(folder, rows),
        }
        for name, table in tables.items():
            if name not in writers:
                writers[name] = pq.ParquetWriter(folder / f"{name}.parquet", table.schema)
            writers[name].write_table(table, row_group_size=_ROW_GROUP)
        events.append(collections)
        first, batches = first + count, batches + len(runs)
    for writer in writers.values():
        writer.close()
    start, duration = (np.concatenate(column) for column in zip(*events, strict=True))
    kinds = len(start)
    event = {"t_ns": start, "duration_ns": duration, "kind": np.full(kinds, "gc"), "thread": np.full(kinds, _WORKER)}
    event |= {"request": np.full(kinds, -1), "batch_id": np.full(kinds, -1), "detail": np.full(kinds, "{}")}
    pq.write_table(pa.table(event), folder / "events.parquet")
    sample = {
        "t_ns": pa.array([], pa.int64()),
        "series": pa.array([], pa.string()),
        "value": pa.array([], pa.float64()),
    }
    pq.write_table(pa.table(sample), folder / "samples.parquet")
    meta = {
        "schema": RunMeta.SCHEMA,
        "state": "complete",
        "workload": "simulated",
        "device": "cpu",
        "scheduled": requests,
        "torch_threads": 1,
        "settings": {"max_batch_size": _MAX_BATCH, "workers": 1, "prepare_threads": 1},
        "threads": {"worker": [_WORKER], "prepare": [_WORKER + 1]},
        "calibration": {"minor_fault_ns": 500.0},
        "objective": {"percentile": 99},
    }
    (folder / "run.json").write_text(json.dumps(meta))


def _schedule(folder: Path, rows: npt.NDArray[np.void]) -> Any:
    import pyarrow.parquet as pq

    traffic = Traffic.plain(
        rows["arrival_ns"],
        ids=[f"r{index}" for index in rows["index"].tolist()],
        features={"items": rows["input_length"]},
    )
    path = folder / ".schedule.parquet"
    save_schedule(traffic, path)
    table = pq.read_table(path)
    path.unlink()
    return table


def _piece(
    rng: np.random.Generator, count: int, first: int, begin: int, batches: int
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], int]:
    """Requests from ``first``, their batches and collections; and when the next piece may begin."""
    items = np.clip(rng.lognormal(4.0, 0.5, count), 1, 2000).astype(np.int64)
    reference = np.array([0.0, *(2.0 + 0.5 * size for size in range(1, _MAX_BATCH + 1))]) * _MS
    gap = reference[-1] / _MAX_BATCH / _LOAD * 1.25
    arrival = begin + 10 * _MS + np.cumsum(rng.exponential(gap, count)).astype(np.int64)
    prepare = (0.3 * _MS * (1 + 0.05 * np.abs(rng.standard_normal(count)))).astype(np.int64)
    prepared = _one_by_one(arrival, prepare)
    work = items * 10_000.0 + 0.02 * _MS * np.abs(rng.standard_normal(count))
    hit = rng.random(count)
    pause = {"gc": hit < 0.003, "runq": (hit >= 0.003) & (hit < 0.006), "faults": (hit >= 0.006) & (hit < 0.01)}
    fault = np.where(hit < 0.01, 20.0 * _MS * rng.uniform(0.7, 1.3, count), 0.0)
    policy = Policy(workers=1, max_batch=_MAX_BATCH, window=0.0, reference=reference)
    served = replay(policy, prepared.astype(np.float64), work + fault, np.zeros(count, np.int64))
    opened, ended = (served.by_request(each).astype(np.int64) for each in (served.opened, served.end))
    head = np.concatenate([[True], np.diff(opened) > 0])
    batch, start = np.cumsum(head) - 1, np.flatnonzero(head)
    size = np.diff(np.append(start, count))
    rows = np.zeros(count, REQUEST_DTYPE)
    rows["index"], rows["arrival_ns"], rows["batch_id"] = first + np.arange(count), arrival, batches + batch
    rows["prepare_ns"], rows["prepare_wait_ns"] = prepared - arrival, prepared - prepare - arrival
    rows["prepare_cpu_ns"], rows["queue_ns"] = prepare, np.maximum(opened - prepared, 0)
    rows["compute_ns"] = ended - np.maximum(opened, prepared)
    rows["latency_ns"] = ended - arrival
    rows["input_elements"] = rows["input_length"] = items
    runs = np.zeros(len(start), BATCH_DTYPE)
    runs["batch_id"], runs["size"] = batches + np.arange(len(start)), size
    for name in ("open_ns", "close_ns", "collated_ns", "h2d_end_ns"):
        runs[name] = opened[start]
    for name in ("compute_end_ns", "d2h_end_ns", "finish_end_ns"):
        runs[name] = ended[start]
    runs["free_ns"] = np.concatenate([[begin], ended[start][:-1]])
    for kind, name in (("runq", "compute_runq_ns"), ("faults", "compute_minflt")):
        amount = np.add.reduceat(np.where(pause[kind], fault, 0.0), start)
        runs[name] = amount / (500.0 if kind == "faults" else 1.0)
    runs["compute_cpu_ns"] = ended[start] - opened[start] - runs["compute_runq_ns"]
    runs["real_elements"] = runs["padded_elements"] = np.add.reduceat(items, start)
    collections = np.flatnonzero(pause["gc"])
    events = opened[collections] + _MS // 10, fault[collections].astype(np.int64)
    return rows, runs, events, int(ended.max())


def _one_by_one(arrival: npt.NDArray[np.int64], service: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    before = np.cumsum(service) - service
    return np.asarray(np.maximum.accumulate(arrival - before) + before + service, dtype=np.int64)


if __name__ == "__main__":
    main()
