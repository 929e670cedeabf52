"""Make the recommender sample's data: feature store, traffic, validation data, weights.

    python train.py             all of it, about five minutes on one core
    python train.py --data      everything except the weights, a few seconds
    python train.py --traffic   only traffic.jsonl, from the feature store

The same seed gives the same data with the same NumPy; weights agree to rounding between machines.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sqlite3
import sys
import time
import zlib
from contextlib import closing
from pathlib import Path
from types import ModuleType

import numpy as np

HERE = Path(__file__).parent
SEED = 20240611
TRAFFIC_USERS = 720
VALIDATION_USERS = 240
TRAFFIC_SLATES = 480
DURATION_S = 42.0
BASE_RATE = 9.0  # requests per second at the start of the evening
PEAK_RATE = 12.0
#: Start, length (seconds) and factor of each burst.
BURSTS = ((7.0, 1.2, 3.4), (15.5, 1.4, 3.4), (24.0, 1.0, 3.8), (31.0, 1.4, 3.2), (38.0, 1.0, 3.6))


def sibling(name: str) -> ModuleType:
    """Load a file of this folder, which is not a package; other samples have files of the same name."""
    key = f"recommender_{name}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    spec.loader.exec_module(module)
    return module


def rate_at(second: float) -> float:
    """Requests per second: an evening's rise, and bursts at push notifications."""
    rate = BASE_RATE + (PEAK_RATE - BASE_RATE) * np.sin(np.pi * min(second / DURATION_S, 1.0)) ** 2
    for start, length, factor in BURSTS:
        if start <= second < start + length:
            rate *= factor
    return float(rate)


def traffic_lines(store: Path) -> str:
    """The recorded traffic as JSON Lines: an inhomogeneous Poisson process by thinning."""
    with closing(sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        lengths = dict(connection.execute("SELECT id, length FROM users ORDER BY id"))
    rng = np.random.default_rng(SEED + 3)
    popularity = np.cumsum((np.arange(TRAFFIC_USERS) + 5.0) ** -0.6)
    order = np.argsort(rng.random(TRAFFIC_USERS))
    ceiling = PEAK_RATE * max(factor for _, _, factor in BURSTS)
    lines, second = [], 0.0
    while True:
        second -= float(np.log1p(-rng.random())) / ceiling
        if second >= DURATION_S:
            return "".join(lines)
        keep, who, which = rng.random(3)
        if keep * ceiling >= rate_at(second):
            continue
        user = int(order[np.searchsorted(popularity, who * popularity[-1])])
        record = {
            "id": f"r{len(lines):05d}",
            "arrival_s": round(second, 6),
            "history": lengths[user],
            "candidates": 120,
            "payload": {"user": user, "slate": int(which * TRAFFIC_SLATES)},
        }
        lines.append(json.dumps(record, separators=(",", ":")) + "\n")


def write_store(path: Path) -> None:
    """Write users, slates, items, segment statistics, and the validation labels."""
    world_module, adapter = sibling("world"), sibling("workload")
    world = world_module.World.create(SEED)
    rng = np.random.default_rng(SEED + 1)
    count = TRAFFIC_USERS + VALIDATION_USERS
    lengths = world_module.history_lengths(rng, count)
    users, slates, labels = [], [], []
    for number in range(count):
        one = world.users(rng, 1, int(lengths[number]))
        packed = adapter.pack_history(one.items[0], one.kinds[0])
        users.append((number, int(one.segments[0]), int(lengths[number]), packed))
        slate = world.slates(rng, one)
        if number >= TRAFFIC_USERS:
            labels.append(world.clicks(rng, one, slate)[0])
        if number < TRAFFIC_SLATES or number >= TRAFFIC_USERS:
            slates.append((len(slates), slate[0].astype("<u2").tobytes()))
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, category INT, price REAL, popularity REAL)")
        store.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, segment INT, length INT, history BLOB)")
        store.execute("CREATE TABLE slates (id INTEGER PRIMARY KEY, items BLOB)")
        store.execute("CREATE TABLE segments (id INTEGER PRIMARY KEY, statistics BLOB)")
        store.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?)",
            [
                (i + 1, i // world_module.PER_CATEGORY, float(world.price[i]), float(np.log(world.popularity[i])))
                for i in range(world_module.ITEMS)
            ],
        )
        store.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", users)
        store.executemany("INSERT INTO slates VALUES (?, ?)", slates)
        for segment in range(world_module.SEGMENTS):
            counts = np.stack((world.shown[segment], world.clicked[segment])).astype(np.uint8)
            store.execute("INSERT INTO segments VALUES (?, ?)", (segment, zlib.compress(counts.tobytes(), 9)))
    np.savez_compressed(
        HERE / "validation.npz",
        user=np.arange(TRAFFIC_USERS, count, dtype=np.int32),
        slate=np.arange(TRAFFIC_SLATES, TRAFFIC_SLATES + VALIDATION_USERS, dtype=np.int32),
        label=np.stack(labels),
    )


def train(path: Path, budget_steps: int) -> None:
    """Train on users drawn anew for each step, and write the weights in half precision."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    world_module, adapter = sibling("world"), sibling("workload")
    world = world_module.World.create(SEED)
    rng = np.random.default_rng(SEED + 2)
    model = adapter.RankerModel()
    with torch.no_grad():
        # Items start from the shop's content vectors, as from a text or image encoder, and are trained further.
        content = torch.from_numpy(world.latent).float() * world_module.LATENT**0.5
        model.item_table.weight[1:, : world_module.LATENT] = content
        model.item_table.weight[1:, world_module.LATENT :] *= 0.2
    optimizer = torch.optim.AdamW(model.parameters(), lr=7e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=7e-4, total_steps=budget_steps)
    started, shown = time.process_time(), 0.0
    for step in range(budget_steps):
        length = int(np.clip(np.exp(np.log(70.0) + 0.6 * rng.normal()), 12, 320))
        users = world.users(rng, 16, length)
        slates = world.slates(rng, users)
        clicks = world.clicks(rng, users, slates)
        logits = model(
            items=torch.from_numpy(users.items),
            events=torch.from_numpy(users.kinds),
            candidates=torch.from_numpy(slates),
            categories=torch.from_numpy((slates - 1) // world_module.PER_CATEGORY),
            dense=torch.from_numpy(world.dense(users, slates)),
            segment=torch.from_numpy(users.segments),
        )
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(clicks).float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        shown += float(loss.detach())
        if (step + 1) % 100 == 0:
            spent = time.process_time() - started
            print(f"step {step + 1}/{budget_steps}  loss {shown / 100:.4f}  {spent:.0f} s of CPU", flush=True)
            shown = 0.0
    save_file({name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}, path)
    path.chmod(0o644)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traffic", action="store_true", help="write traffic.jsonl alone")
    parser.add_argument("--data", action="store_true", help="write everything except the weights")
    parser.add_argument("--steps", type=int, default=1600, help="training steps")
    options = parser.parse_args()
    store = HERE / "features.sqlite"
    if not options.traffic:
        write_store(store)
    (HERE / "traffic.jsonl").write_text(traffic_lines(store), encoding="utf-8")
    if not (options.traffic or options.data):
        train(HERE / "model.safetensors", options.steps)


if __name__ == "__main__":
    main()
