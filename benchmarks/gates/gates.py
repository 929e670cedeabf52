"""Error rate and power of comparisons: how often they are wrong, and how often they detect 10 %.

Two parts, each merged into the results file as soon as it is done:

    python -m benchmarks.gates.gates --simulated 2000 --planted-simulated 300 --ended-simulated 300
        queues on simulated machines (gate_worlds.py) compared with themselves, with p99 a tenth higher, and with
        an overload that ends

    python -m benchmarks.gates.gates --rounds 60 --work /tmp/gates
        a small service on real processes: each round replays it twice, and a copy whose every request takes a tenth
        longer, on fresh processes; comparisons are then drawn from the rounds

A real round takes about half a minute and is kept in ``--work``. The same command continues an interrupted one, and a
larger ``--rounds`` adds to it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gates.gate_worlds import ENDED, PLANTED, WORLDS, Bench, Floats, World
from benchmarks.gates.real_gates import ARMS, REQUESTS, TooLate, replay_round, write_service
from benchmarks.result_file import RESULTS, earlier_result, write_result
from latfix.runners.optimize.final_replay import MOST_ROUNDS
from latfix.runners.replay.run_session import versions
from latfix.statistics.bootstrap_ratio import arm_ratios
from latfix.statistics.decision import FINAL, Rule
from latfix.statistics.distributions import wilson_interval
from latfix.statistics.group_sequential import FIRST_LOOK, look_level
from latfix.statistics.score_bounds import FREE_OF_ALLOWANCE, Rounds, allowance, decision_bounds, round_bounds

KEYS: dict[str, float | None] = {"mean": None, "p95": 0.95, "p99": 0.99}
FIXED = (1, 2, 3, 4, 5, 8, 12, 15)
MOST = MOST_ROUNDS
REQUESTS_A_ROUND = (300, 1000, 3000)
REQUESTS_ENDED = 300
#: Numbers of real rounds that are evaluated once.
REAL_ROUNDS = (5, 10, 15, 20, 25, 30)
CHUNK = 25
#: Resamples of the interval that a percentile of few rounds uses.
REPLICATES = 200


def verdict(base: list[Floats], new: list[Floats], each: Floats, q: float | None, rule: Rule) -> str:
    """``better``, ``worse`` or ``other``, by latfix's decision bounds.

    For speed, the 95 % interval, which can widen the bounds, is computed only where it decides. Bounds are not
    computed if one part of them contains 1.

    :param each: the rounds' log ratios.
    """
    few = len(each) < FREE_OF_ALLOWANCE
    if few and abs(log_ratio(np.concatenate(base), np.concatenate(new), q)) <= allowance(each, rule):
        return "other"
    if not few:
        least, most = round_bounds(each, rule.level)
        if least <= 0 <= most:
            return "other"
    scored = Rounds.of(base, new, paired=True)
    found = _side(decision_bounds(scored, q, rule))
    if found == "other" and (not few or q is None or _side(decision_bounds(scored, None, rule)) == "other"):
        return found
    # A percentile whose slow requests are in few stretches uses the decided mean and its own interval.
    key = next(key for key, fraction in KEYS.items() if fraction == q)
    return _side(arm_ratios(base, new, seed=0, replicates=REPLICATES, keys=[key], rule=rule)[key].bounds)


def _side(bounds: tuple[float, float]) -> str:
    return "better" if bounds[1] < 1 else "worse" if bounds[0] > 1 else "other"


def log_ratio(base: Floats, new: Floats, q: float | None) -> float:
    """The logarithm of new over base."""
    first, second = (float(np.nanmean(arm) if q is None else np.nanquantile(arm, q)) for arm in (base, new))
    return math.log(second / first)


def simulated(world: World, requests: int, factor: float, lengthen: bool, seeds: range) -> dict[str, Any]:
    """Counts of verdicts by statistic and number of rounds; ``sequential`` stops when a look decides."""
    counts: dict[str, Any] = {key: {} for key in KEYS}
    for seed in seeds:
        rng = np.random.default_rng([seed, requests])
        base, new = Bench(world, requests, rng, factor, lengthen).rounds(MOST)
        for key, q in KEYS.items():
            each = np.array([log_ratio(*pair, q) for pair in zip(base, new, strict=True)])
            for count in FIXED:
                found = verdict(base[:count], new[:count], each[:count], q, FINAL)
                _add(counts[key], str(count), found, count)
            _add(counts[key], "sequential", *decided(list(zip(base, new, strict=True)), q, MOST))
    return counts


def _add(counts: dict[str, Any], name: str, found: str, rounds: int) -> None:
    entry = counts.setdefault(name, {"comparisons": 0, "better": 0, "worse": 0, "rounds": 0})
    entry["comparisons"] += 1
    entry["rounds"] += rounds
    if found != "other":
        entry[found] += 1


def merged(parts: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Counts added up."""
    total: dict[str, Any] = {}
    for part in parts:
        for key, by_rounds in part.items():
            for name, entry in by_rounds.items():
                mine = total.setdefault(key, {}).setdefault(name, dict.fromkeys(entry, 0))
                for field, value in entry.items():
                    mine[field] += value
    return total


def _job(arguments: tuple[World, int, float, bool, range]) -> dict[str, Any]:
    return simulated(*arguments)


def simulate(world: World, requests: int, factor: float, lengthen: bool, many: int, jobs: int) -> dict[str, Any]:
    """Many comparisons of one world, over processes."""
    chunks = [(world, requests, factor, lengthen, range(k, min(k + CHUNK, many))) for k in range(0, many, CHUNK)]
    if jobs == 1:
        return merged(map(_job, chunks))
    with ProcessPoolExecutor(jobs) as pool:
        return merged(pool.map(_job, chunks))


def rates(counts: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Counts as shares with Wilson's 95 % interval; ``names`` are the verdicts that count as called different."""
    shown: dict[str, Any] = {}
    for key, by_rounds in counts.items():
        shown[key] = {}
        for rounds, entry in by_rounds.items():
            called, total = sum(entry[name] for name in names), entry["comparisons"]
            shown[key][rounds] = {
                "called": called,
                "comparisons": total,
                "share": called / total,
                "ci95": list(wilson_interval(called, total)),
                "mean_rounds": entry["rounds"] / total,
            }
    return shown


def line(name: str, found: dict[str, Any]) -> str:
    """One line: shares called different, by number of rounds."""
    cells = [f"{rounds:>4}: {100 * entry['share']:5.1f} %" for rounds, entry in found.items()]
    return f"{name:<44}" + "  ".join(cells)


def run_simulated(options: argparse.Namespace, document: dict[str, Any], save: Callable[[], None]) -> None:
    """Both simulated parts."""
    for name, world in WORLDS.items():
        for requests in options.requests:
            if options.simulated and name in (options.worlds or WORLDS):
                counts = simulate(world, requests, 1.0, False, options.simulated, options.jobs)
                found = rates(counts, ("better", "worse"))
                document.setdefault("simulated_itself", {}).setdefault(name, {})[str(requests)] = found
                for key in KEYS:
                    print(line(f"{name}, {requests} requests, {key}", found[key]), flush=True)
                save()
    for name, planted in PLANTED.items():
        for requests in options.requests:
            if options.planted_simulated:
                factor = planted.factor(requests)
                many = options.planted_simulated
                counts = simulate(planted.world, requests, factor, planted.lengthen, many, options.jobs)
                found = {"factor": factor, **rates(counts, ("worse",))}
                document.setdefault("simulated_planted", {}).setdefault(name, {})[str(requests)] = found
                print(line(f"{name}, {requests} requests, p99 (x{factor:.3f})", found["p99"]), flush=True)
                save()


def run_ended(options: argparse.Namespace, document: dict[str, Any], save: Callable[[], None]) -> None:
    """How often an overload that ends is called better."""
    for name, (world, factor) in ENDED.items():
        if options.ended_simulated:
            counts = simulate(world, REQUESTS_ENDED, factor, False, options.ended_simulated, options.jobs)
            found = {"factor": factor, **rates(counts, ("better",))}
            document.setdefault("simulated_ended", {})[name] = found
            print(line(f"{name}, p99", found["p99"]), flush=True)
            save()


def run_real(options: argparse.Namespace, document: dict[str, Any], save: Callable[[], None]) -> None:
    """Record missing rounds on real processes, and compare draws of them."""
    work: Path = options.work
    kept = work / "rounds"
    kept.mkdir(parents=True, exist_ok=True)
    spec = write_service(work / "service")
    late, started = 0, time.monotonic()
    while (have := len(list(kept.glob("*.npz")))) < options.rounds:
        folder = work / "now"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            found = replay_round(spec, folder, options.factor, have + late)
        except TooLate as arm:
            late += 1
            print(f"round {have + 1}: the replay of {arm} was too late; made again", flush=True)
            continue
        part = kept / "part"
        with part.open("wb") as file:
            np.savez_compressed(file, one=found["one"], again=found["again"], slower=found["slower"])
        part.rename(kept / f"{have:04d}.npz")
        p99 = {name: np.nanquantile(values, 0.99) / 1e6 for name, values in found.items()}
        figures = ", ".join(f"{name} {value:.3g} ms" for name, value in p99.items())
        print(f"round {have + 1} of {options.rounds}: p99 {figures}; {time.monotonic() - started:.0f} s", flush=True)
    rounds = [{name: data[name] for name in ARMS} for data in map(np.load, sorted(kept.glob("*.npz")))]
    document["real"] = drawn(rounds, options.draws, options.factor)
    for kind in ("itself", "planted"):
        for key, of in document["real"][kind].items():
            called = f"{of['called']} of {of['comparisons']} called"
            print(f"{kind:<8} {key:<5} {called}, {of['mean_rounds']:.1f} rounds on average", flush=True)
    save()


def drawn(rounds: list[dict[str, Floats]], many: int, factor: float) -> dict[str, Any]:
    """Comparisons of draws from real rounds, decided like the final replay of `latfix optimize`.

    Each draws rounds without replacement, in random order; if the service is compared with itself, the new arm's
    replay is random, too. Comparisons share rounds, so the number of rounds, not of comparisons, limits how well the
    rates are known.
    """
    most = min(MOST, len(rounds))
    counts: dict[str, dict[str, Any]] = {"itself": {key: {} for key in KEYS}, "planted": {key: {} for key in KEYS}}
    for seed in range(many):
        rng = np.random.default_rng(seed)
        chosen = [rounds[k] for k in rng.permutation(len(rounds))[:most]]
        swapped = rng.random(most) < 0.5
        pairs = {
            "itself": [
                (r["again"], r["one"]) if swap else (r["one"], r["again"])
                for r, swap in zip(chosen, swapped, strict=True)
            ],
            "planted": [(r["one"], r["slower"]) for r in chosen],
        }
        for kind, of in pairs.items():
            for key, q in KEYS.items():
                _add(counts[kind][key], "until decided", *decided(of, q, most))
    summary: dict[str, Any] = {"rounds": len(rounds), "requests_a_replay": REQUESTS, "factor": factor}
    for kind, names in (("itself", ("better", "worse")), ("planted", ("worse",))):
        summary[kind] = {key: found["until decided"] for key, found in rates(counts[kind], names).items()}
    summary["by_rounds"] = {
        str(count): called_at(rounds, count, many) for count in REAL_ROUNDS if count <= len(rounds)
    }
    for kind, arm in (("itself", "again"), ("planted", "slower")):
        each = [log_ratio(r["one"], r[arm], 0.99) for r in rounds]
        summary[f"p99_ratio_{kind}"] = {
            "mean": math.exp(float(np.mean(each))),
            "sd_of_log": float(np.std(each, ddof=1)),
        }
    return summary


def called_at(rounds: list[dict[str, Floats]], count: int, many: int) -> dict[str, Any]:
    """The number of comparisons of p99 that are called different after ``count`` rounds, evaluated once."""
    called = {"itself": 0, "planted": 0}
    for seed in range(many):
        rng = np.random.default_rng([seed, count])
        chosen = [rounds[k] for k in rng.permutation(len(rounds))[:count]]
        swapped = rng.random(count) < 0.5
        sides = [("again", "one") if swap else ("one", "again") for swap in swapped]
        pairs = {
            "itself": [(r[first], r[second]) for r, (first, second) in zip(chosen, sides, strict=True)],
            "planted": [(r["one"], r["slower"]) for r in chosen],
        }
        for kind, of in pairs.items():
            each = np.array([log_ratio(*pair, KEYS["p99"]) for pair in of])
            found = verdict([pair[0] for pair in of], [pair[1] for pair in of], each, KEYS["p99"], FINAL)
            called[kind] += found == "worse" or (kind == "itself" and found == "better")
    return {**called, "comparisons": many}


def decided(pairs: list[tuple[Floats, Floats]], q: float | None, most: int) -> tuple[str, int]:
    """The verdict of the deciding or the last look, and its number of rounds."""
    base, new = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    each = np.array([log_ratio(*pair, q) for pair in pairs])
    found = "other"
    for count in range(min(FIRST_LOOK, most), most + 1):
        found = verdict(base[:count], new[:count], each[:count], q, Rule(level=look_level(count, most)))
        if found != "other":
            return found, count
    return found, most


def main() -> int:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--simulated", type=int, default=0, help="comparisons of each world with itself")
    parser.add_argument("--planted-simulated", type=int, default=0, help="comparisons with p99 a tenth higher")
    parser.add_argument("--ended-simulated", type=int, default=0, help="comparisons of an overload that ends")
    parser.add_argument("--requests", type=int, nargs="+", default=list(REQUESTS_A_ROUND), help="of one replay")
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), help="only these; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="processes of the simulated part")
    parser.add_argument("--rounds", type=int, default=0, help="real rounds to record, those in --work included")
    parser.add_argument("--draws", type=int, default=200, help="comparisons drawn from the real rounds")
    parser.add_argument("--factor", type=float, default=1.10, help="how much longer the copy's requests take")
    parser.add_argument("--work", type=Path, default=Path("latfix-runs/gates"), help="keeps the real rounds")
    parser.add_argument("--out", type=Path, default=RESULTS / "gates.json")
    options = parser.parse_args()
    document = earlier_result(options.out)

    def save() -> None:
        write_result(options.out, document | {"versions": versions(), "level": FINAL.level}, levels=5)

    with contextlib.suppress(KeyboardInterrupt):
        run_simulated(options, document, save)
        run_ended(options, document, save)
        if options.rounds:
            run_real(options, document, save)
        return 0
    print("interrupted; finished rounds are kept, and the same command continues", file=sys.stderr)
    return 130


if __name__ == "__main__":
    sys.exit(main())
