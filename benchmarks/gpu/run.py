"""All that needs a GPU, in one go and within nine minutes, or part by part in several calls.

Doctor, ceilings of the card and what the samples reach of them, stages by events and by the profiler, tests, planted
faults, the allocator's stalls, what the probes cost, and `latfix optimize` of each sample in its profile `gpu`.

Each part runs in a process of its own, with a limit. What time does not allow is said, and counts as not shown.
Writes ``benchmarks/results/gpu.json``: what each part found, with machine, versions and date; another call adds its
parts to it. Beside it ``nvml.jsonl``: the calls of NVML and their answers while a sample ran, for tests on machines
without a GPU. Exits with 0 where everything shows what it is to show, 1 where not, 3 where nothing could be run.
It has not been run on a GPU yet.

    python benchmarks/gpu/run.py [--only PART ...] [--sample NAME ...] [--limit SECONDS] [--out DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Nothing heavy is imported here, torch least of all: the clock starts with the program.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.commands import ROOT, TIMED_OUT, Ended, run
from benchmarks.gpu.findings import NO_TIME, lacks, no_time
from benchmarks.gpu.judging import problems
from benchmarks.gpu.needs import missing
from benchmarks.gpu.parts import GRACE_S, KINDS, LIMIT_S, SAMPLES, Part, chosen, seconds_for, together
from benchmarks.gpu.results import Results

STARTED = time.monotonic()
_ABOUT_S = 90.0
_NOTHING_RUN = 3
#: Of what a part's process printed, in its result.
_OUTPUT = 3000


def main() -> int:
    """Run what time allows and write the results; the exit code says whether all of it shows what it is to show."""
    options = _arguments()
    parts = chosen(options.only, options.sample)
    file = options.out / "gpu.json"
    try:
        results = Results(file)
    except (OSError, ValueError) as error:
        print(f"{file}: cannot be added to ({error}); move it away, or name another folder with --out")
        return 2
    lacking = missing(list(dict.fromkeys(part.kind for part in parts)))
    for line, kinds in lacking.items():
        print(f"missing: {line} (needed by {', '.join(kinds)})")
    without = {kind: line for line, kinds in lacking.items() for kind in kinds}
    with _scratch() as scratch:
        about = {} if all(part.kind in without for part in parts) else asked_about(scratch)
        if (reason := lacks(about)) or not about["cuda"]:
            for part in parts:
                print(f"{part.name}: not run, {without.get(part.kind) or reason or 'there is no CUDA device here'}")
            return _NOTHING_RUN
        deadline = STARTED + options.limit
        left = deadline - time.monotonic()
        print(f"{about['machine']['gpu']}; {left:.0f} s for {len(parts)} parts", flush=True)
        if together(parts) > left:
            print(f"they may take {together(parts):.0f} s: what comes last may be left out for time", flush=True)
        summary = {}
        for k, part in enumerate(parts):
            print(f"{part.name} ...", flush=True)
            left = deadline - time.monotonic()
            entry = {**_about_entry(about), **measured(part, parts[k + 1 :], left, without, scratch, options.out)}
            entry["problems"] = problems(part.name, entry["found"])
            kept = results.add(part.name, entry)
            summary[part.name] = said(entry) + ("" if kept else "; the file keeps what an earlier call found")
            print(f"{part.name}: {summary[part.name]}", flush=True)
    print(f"\nwritten to {file}")
    return concluded(parts, summary)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="PART", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--sample", nargs="+", choices=SAMPLES, metavar="NAME", help=f"of {', '.join(SAMPLES)}")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="for everything")
    options = parser.parse_args()
    options.out = options.out.resolve()
    return options


def asked_about(scratch: Path) -> dict[str, Any]:
    """What machine this is; asked in another process, so that this one holds nothing of the device."""
    ended, found = _part("about", _ABOUT_S, scratch, scratch)
    if "versions" in found:
        return found
    return {"failed": f"looking for a device {ended.why}"}


def _about_entry(about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": about["machine"],
        "versions": about["versions"],
    }


def measured(
    part: Part, following: Sequence[Part], left: float, without: Mapping[str, str], scratch: Path, out: Path
) -> dict[str, Any]:
    """A part's result, and whether it ran to its end.

    :param left: seconds for it and those that follow.
    :param without: by kind of part, the package that it lacks.
    """
    if part.kind in without:
        return {"seconds": 0.0, "complete": False, "found": {"skipped": without[part.kind]}}
    seconds = seconds_for(part, following, left)
    if not seconds:
        return {"seconds": 0.0, "complete": False, "found": no_time(left, part.least)}
    ended, found = _part(part.name, seconds, scratch, out)
    if ended.exit_code != 0:
        found["cut" if found else "failed"] = f"its process {ended.why}"
        found["process"] = ended.output[-_OUTPUT:]
    return {"seconds": round(ended.seconds, 1), "complete": _complete(found), "found": found}


def _part(name: str, seconds: float, scratch: Path, out: Path) -> tuple[Ended, dict[str, Any]]:
    file = scratch / f"{name}.json"
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds - GRACE_S
    command = [sys.executable, "-m", "benchmarks.gpu.child", name, str(file), repr(deadline), str(out)]
    # What a killed process leaves in temporary folders goes with this program's own.
    ended = run(command, seconds, {"TMPDIR": str(scratch)})
    return ended, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _complete(found: Mapping[str, Any]) -> bool:
    """Whether time cut nothing off."""
    if any(key in found for key in ("cut", "failed", "skipped")) or found.get("exit_code") == TIMED_OUT:
        return False
    return not any(NO_TIME in lacks(item) for item in found.values() if isinstance(item, dict) and item)


def said(entry: Mapping[str, Any]) -> str:
    """A part's result in a line."""
    if entry["found"].get("skipped"):
        return f"skipped: {entry['found']['skipped']}"
    if not entry["problems"]:
        items = [(name, item) for name, item in entry["found"].items() if isinstance(item, dict)]
        untold = [
            f"; {name} cannot be told: {item['cannot_be_told']}" for name, item in items if "cannot_be_told" in item
        ]
        return f"passed ({entry['seconds']:.0f} s){''.join(untold)}"
    more = f" (and {len(entry['problems']) - 3} more)" if len(entry["problems"]) > 3 else ""
    return f"NOT PASSED ({entry['seconds']:.0f} s): {'; '.join(entry['problems'][:3])}{more}"


def concluded(parts: Sequence[Part], summary: Mapping[str, str]) -> int:
    """Say how many parts of this call passed, and how those that were left out are run; the exit code."""
    passed = sum(line.startswith("passed") for line in summary.values())
    print(f"{passed} of {len(parts)} parts passed")
    left_out = [part.name for part in parts if f"skipped: {NO_TIME}" in summary[part.name]]
    if left_out:
        print(f"left out for time: {', '.join(left_out)}; to be run in calls of their own:")
        for name in left_out:
            kind, _, sample = name.partition(".")
            print(f"    python benchmarks/gpu/run.py --only {kind}{f' --sample {sample}' if sample else ''}")
    return int(passed < len(parts))


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for what is of use during the call alone; a request to end is heeded as Ctrl-C is."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="latfix-gpu-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
