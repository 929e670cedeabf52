"""Runs one case and keeps its record, the injectors' log and the plan.

``python -m latfix.runners.selftest.run_case --out DIR --case gc_model --intensity large --seed 7`` writes
``DIR/gc_model-large-7/`` with ``record/`` (an ordinary run's folder), ``faults.jsonl`` (which the diagnosis never
reads) and ``case.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.config.workload_toml import read_spec
from latfix.errors import InputError, LatfixError
from latfix.files.atomic_write import write_json
from latfix.run_record.run_record import RunRecord
from latfix.runners.replay.run_session import Replay, run
from latfix.runners.selftest.case import CLEAN_START, INTENSITIES, ITEMS, Case, Draft, steady_gaps
from latfix.runners.selftest.faults.cpu_hogs import Hogs
from latfix.runners.selftest.faults.cpu_quota import Quota, ThrottledNeighbor
from latfix.runners.selftest.faults.fault_log import LOG_FILE, LOG_VARIABLE, FaultLog
from latfix.runners.selftest.plan import make_case
from latfix.runners.selftest.recipes import RECIPES

SERVICE = Path(__file__).resolve().parent / "service"
CASE_FILE, RECORD = "case.json", "record"
_PREFIX = "LATFIX_SELFTEST_"
#: Intended duration of the model per request; the number of blocks follows from the machine's speed.
_MODEL_MS = 4.5
_FIRST_BLOCKS = 8
_LENGTHS = np.array([56, 60, 64, 68, 72])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast this machine serves the self-test's requests.

    :param blocks: layers of the model, chosen so that it takes a few milliseconds.
    :param typical_ms: latency of a request without waits.
    """

    blocks: int
    typical_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A replayed case in ``folder``.

    :param neighbors: share of the machine's cores that other programs used during the replay; ``None`` if unknown.
    """

    case: Case
    folder: Path
    pace: Pace
    neighbors: float | None = None

    @property
    def record(self) -> Path:
        return self.folder / RECORD

    @property
    def log(self) -> Path:
        return self.folder / LOG_FILE


def watch_neighbors() -> Callable[[], float | None]:
    """Tells the share of all cores that other programs used since now; ``None`` if the system does not report it."""
    began, busy_then, own_then = time.monotonic(), _busy_s(), _own_s()

    def neighbors() -> float | None:
        busy = _busy_s()
        if busy is None or busy_then is None:
            return None
        wall = max(time.monotonic() - began, 1e-3) * (os.cpu_count() or 1)
        return min(max((busy - busy_then - (_own_s() - own_then)) / wall, 0.0), 1.0)

    return neighbors


def _busy_s() -> float | None:
    """Total busy seconds of all cores since boot."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _wait, interrupts, soft = (int(field) for field in fields[:7])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """CPU seconds of this process and of its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def draft_case(case: Case, typical_ms: float) -> Draft:
    """The case's traffic and settings; a pure function of its arguments.

    The causes of a mix have different intensities, each one step above the previous.
    """
    names = sorted(RECIPES)
    rng = np.random.default_rng([case.seed, INTENSITIES.index(case.intensity), *map(names.index, case.recipes)])
    load = max(RECIPES[name].load for name in case.recipes)
    mean_s = typical_ms / 1e3 / load
    n = max(int(case.seconds / mean_s), 3 * CLEAN_START)
    draft = Draft(
        typical_ms=typical_ms,
        intensity=case.intensity,
        rng=rng,
        gaps=steady_gaps(rng, n, mean_s),
        items=rng.choice(_LENGTHS, n),
        taken=np.arange(n) < CLEAN_START,
    )
    first = INTENSITIES.index(case.intensity)
    for step, name in enumerate(case.recipes):
        draft.intensity = INTENSITIES[(first + step) % len(INTENSITIES)]
        RECIPES[name].build(draft)
    return draft


def run_case(case: Case, out: Path, pace: Pace) -> Kept:
    """Replay a case in a separate process and keep it in ``out/<id>``.

    :raises LatfixError: the runner failed, or the folder cannot be written.
    """
    folder = out / case.id
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); name a new folder") from error
    kept = Kept(case=case, folder=folder, pace=pace)
    document = {**asdict(case), **asdict(pace)}
    write_json(folder / CASE_FILE, document)
    neighbors = watch_neighbors()
    FaultLog(kept.log).close()
    draft = draft_case(case, pace.typical_ms)
    with contextlib.ExitStack() as stack:
        starts: list[Callable[[], None]] = []
        if draft.neighbor:
            neighbor = stack.enter_context(ThrottledNeighbor())
            starts.append(neighbor.start)
            draft.env["NEIGHBOR"] = str(neighbor.folder)
        replay = _replay(case, draft, pace, kept.log)
        if draft.hogs:
            starts.append(stack.enter_context(Hogs(draft.hogs, kept.log)).start)
        if draft.quota is not None:
            starts.append(stack.enter_context(Quota(*draft.quota, kept.log)).start)

        def on_event(event: Mapping[str, Any]) -> None:
            if event["event"] == "status" and event["at_ns"] > 0:
                for start in starts:
                    start()

        run(kept.record, replay, on_event=on_event)
    kept = replace(kept, neighbors=neighbors())
    write_json(folder / CASE_FILE, {**document, "neighbors": kept.neighbors})
    return kept


def load_kept(folder: Path) -> Kept:
    """Load a case written by :func:`run_case`.

    :raises InputError: the folder is no case.
    """
    file = folder / CASE_FILE
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
        pace = Pace(blocks=int(row.pop("blocks")), typical_ms=float(row.pop("typical_ms")))
        neighbors = row.pop("neighbors", None)
        case = Case(**{**row, "recipes": tuple(row["recipes"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: found no case ({error}); expected a folder kept by a self-test") from error
    unknown = [name for name in case.recipes if name not in RECIPES]
    if unknown:
        raise InputError(f"{file}: found recipe {unknown[0]!r}; expected one of {', '.join(RECIPES)}")
    return Kept(case=case, folder=folder, pace=pace, neighbors=neighbors)


def _replay(case: Case, draft: Draft, pace: Pace, log: Path) -> Replay:
    env = {
        LOG_VARIABLE: str(log.absolute()),
        f"{_PREFIX}BLOCKS": str(pace.blocks),
        f"{_PREFIX}KINDS": ",".join(f"{kind}={ms:.3f}" for kind, ms in draft.kinds.items()),
        **{f"{_PREFIX}{name}": value for name, value in draft.env.items()},
    }
    spec = read_spec(SERVICE)
    settings = spec.settings.with_overrides({**draft.overrides, "env": env})
    return Replay(spec=spec, traffic=draft.traffic(), settings=settings, seed=case.seed)


def measure_pace() -> Pace:
    """Serve a short quiet run and choose the model's size from its speed.

    :raises LatfixError: the runner failed.
    """
    guess = Pace(blocks=_FIRST_BLOCKS, typical_ms=12.0)
    case = Case(recipes=("quiet_low",), group="quiet", intensity="small", seed=0, seconds=2.0)
    with tempfile.TemporaryDirectory(prefix="latfix-selftest-") as folder:
        record = RunRecord.load(run_case(case, Path(folder), guess).record)
    rows = record.requests
    keep = record.measured & (rows["items" if "items" in rows else "input_length"] <= 2 * ITEMS)
    # The fastest tenth: the machine's own speed, without its neighbors.
    compute_ms = float(np.quantile(rows["compute_ns"][keep], 0.1)) / 1e6
    rest_ms = float(np.quantile((rows["latency_ns"] - rows["compute_ns"])[keep], 0.1)) / 1e6
    blocks = max(1, round(_FIRST_BLOCKS * _MODEL_MS / max(compute_ms, 1e-3)))
    return Pace(blocks=blocks, typical_ms=compute_ms * blocks / _FIRST_BLOCKS + rest_ms)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a case, keep it, and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m latfix.runners.selftest.run_case", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="parent of the case's folder")
    parser.add_argument("--case", required=True, help=f"recipes joined by +: {', '.join(RECIPES)}")
    parser.add_argument("--intensity", choices=INTENSITIES, default="medium")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--blocks", type=int, help="size of the model, with --typical-ms; measured by default")
    parser.add_argument("--typical-ms", type=float, help="a typical request's latency, with --blocks")
    options = parser.parse_args(arguments)
    recipes = tuple(options.case.split("+"))
    unknown = [name for name in recipes if name not in RECIPES]
    if unknown:
        parser.error(f"--case: found {unknown[0]!r}; expected one of {', '.join(RECIPES)}")
    try:
        if options.blocks and options.typical_ms:
            pace = Pace(blocks=options.blocks, typical_ms=options.typical_ms)
        else:
            pace = measure_pace()
        case = make_case(recipes, options.intensity, options.seed, options.seconds)
        kept = run_case(case, options.out, pace)
    except LatfixError as error:
        sys.stderr.write(f"latfix: {error.message}\n")
        return error.exit_code
    sys.stdout.write(f"{kept.folder} blocks={pace.blocks} typical_ms={pace.typical_ms:.3f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
