"""Time and memory of ``latfix diagnose`` on large recordings: an access log, and a trace of a GPU.

    python -m benchmarks.profilers.large_recordings [--lines 10000000] [--trace TRACE.json.gz --trace-mb 55]

The log is simulated (nginx's combined format with request and upstream time; one server, load 0.7). The trace is a
real one, repeated in time until its JSON has the given size. Each is diagnosed by the command, in a process of its
own. Prints and writes the seconds, and the peak of resident memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result_file import RESULTS, write_result

_AT_ONCE = 200_000
#: Ids within a trace that link its events, shifted in each repetition.
_LINKS = ("correlation", "External id", "External Id", "cbid")


def main() -> None:
    """Generate, diagnose, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--trace", type=Path, help="a trace of torch.profiler")
    parser.add_argument("--trace-mb", type=float, default=55.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "large_recordings.json")
    options = parser.parse_args()
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if options.lines:
            log = Path(scratch) / "access.log"
            write_log(log, options.lines)
            measured[f"access log, {options.lines:,} lines"] = diagnosed(log, Path(scratch))
        if options.trace:
            trace = Path(scratch) / "trace.json"
            write_trace(trace, options.trace, options.trace_mb)
            measured[f"{options.trace.name}, repeated"] = diagnosed(trace, Path(scratch))
    for name, found in measured.items():
        print(f"{name}: {found['file_mb']:.0f} MB in {found['seconds']:.1f} s, {found['peak_mib']:,.0f} MiB")
    write_result(options.out, {"recordings": measured})


def write_log(path: Path, lines: int) -> None:
    """An access log of a server that takes 5 ms on average, at a load of 0.7."""
    rng = np.random.default_rng(1)
    free, now = 0.0, 1_700_000_000.0
    with path.open("w", encoding="utf-8") as file:
        for first in range(0, lines, _AT_ONCE):
            n = min(_AT_ONCE, lines - first)
            arrival = now + np.cumsum(rng.exponential(0.005 / 0.7, n))
            # The end of each service is the latest of the sums that begin at an earlier arrival (Lindley).
            total = np.cumsum(service := rng.lognormal(np.log(0.0042), 0.6, n))
            end = total + np.maximum.accumulate(np.maximum(arrival, free) - (total - service))
            now, free = float(arrival[-1]), float(end[-1])
            took = end - arrival
            stamps = [datetime.fromtimestamp(each, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000") for each in end.tolist()]
            routes = rng.integers(0, 20, n).tolist()
            file.writelines(
                f'10.0.0.1 - - [{stamp}] "GET /api/{route}/list HTTP/1.1" 200 512 "-" "-" {each:.3f} {each:.3f}\n'
                for stamp, route, each in zip(stamps, routes, took.tolist(), strict=True)
            )


def write_trace(path: Path, original: Path, megabytes: float) -> None:
    """A trace, one after the other, until the file has a size."""
    opened: Any = gzip.open if original.suffix == ".gz" else open
    with opened(original, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    timed = [event for event in trace["traceEvents"] if "ts" in event and event.get("ph") != "M"]
    others = [event for event in trace["traceEvents"] if "ts" not in event or event.get("ph") == "M"]
    begin = min(float(event["ts"]) for event in timed)
    period = max(float(event["ts"]) + float(event.get("dur", 0)) for event in timed) - begin + 1_000
    size = 0
    with path.open("w", encoding="utf-8") as file:
        head = {key: value for key, value in trace.items() if key != "traceEvents"}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(map(json.dumps, others)))
        turn = 0
        while size < megabytes * 1e6:
            text = ",\n".join(json.dumps(_shifted(event, turn, period)) for event in timed)
            file.write(f",\n{text}")
            size += len(text)
            turn += 1
        file.write("\n]}\n")


def _shifted(event: dict[str, Any], turn: int, period: float) -> dict[str, Any]:
    result = {**event, "ts": float(event["ts"]) + turn * period}
    shift = turn * 10_000_000
    if isinstance(result.get("id"), int):
        result["id"] += shift
    if isinstance(args := result.get("args"), dict):
        linked = {name: args[name] + shift for name in _LINKS if isinstance(args.get(name), int)}
        result["args"] = {**args, **linked}
    return result


def diagnosed(recording: Path, scratch: Path) -> dict[str, Any]:
    """The size of a file, and the seconds, memory and verdict of its diagnosis."""
    result = scratch / f"{recording.name}.diagnosis.json"
    command = [str(Path(sys.executable).with_name("latfix")), "diagnose", str(recording), "--json", str(result)]
    command += ["--out", str(scratch / f"{recording.name}.run")]
    load, started = os.getloadavg()[0], time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    unit = 1024 if sys.platform == "darwin" else 1
    found = json.loads(result.read_text(encoding="utf-8"))
    return {
        "file_mb": recording.stat().st_size / 1e6,
        "seconds": seconds,
        "peak_mib": used.ru_maxrss / 1024 / unit,
        "load_before": load,
        "units": found["source"]["read"].get("requests") or found["source"]["read"].get("steps"),
        "verdict": found["verdict"],
    }


if __name__ == "__main__":
    main()
