"""Make the vision sample's data: labeled images, traffic, weights.

    python train.py             all of it, about three minutes on one core
    python train.py --data      everything except the weights, a few seconds
    python train.py --traffic   only traffic.jsonl, from the images' resolutions

The same seed gives the same data with the same NumPy; weights agree to rounding between machines.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np

HERE = Path(__file__).parent
SEED = 20240612
#: Number of labeled images of each resolution, and its share of the traffic.
COUNTS = {64: 130, 96: 110, 128: 64, 192: 24, 256: 10, 320: 6}
SHARES = {64: 0.18, 96: 0.27, 128: 0.31, 192: 0.15, 256: 0.065, 320: 0.025}
DURATION_S = 42.0
RATE = 10.0  # requests per second between bursts
#: Start, length (seconds) and factor of each burst.
BURSTS = ((5.0, 1.0, 3.6), (12.5, 1.4, 3.4), (20.0, 0.8, 3.8), (27.0, 1.6, 3.2), (35.5, 1.2, 3.5))


def sibling(name: str) -> ModuleType:
    """Load a file of this folder, which is not a package; other samples have files of the same name."""
    key = f"vision_{name}"
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
    """Requests per second: a steady line of parts, and bursts when a tray of parts passes the cameras."""
    for start, length, factor in BURSTS:
        if start <= second < start + length:
            return RATE * factor
    return RATE


def traffic_lines() -> str:
    """The recorded traffic as JSON Lines: an inhomogeneous Poisson process by thinning."""
    rng = np.random.default_rng(SEED + 2)
    first, firsts = 0, {}
    for side, count in COUNTS.items():
        firsts[side] = first
        first += count
    sides = list(SHARES)
    cumulative = np.cumsum([SHARES[side] for side in sides])
    ceiling = RATE * max(factor for _, _, factor in BURSTS)
    lines, second = [], 0.0
    while True:
        second -= float(np.log1p(-rng.random())) / ceiling
        if second >= DURATION_S:
            return "".join(lines)
        keep, which, image = rng.random(3)
        if keep * ceiling >= rate_at(second):
            continue
        side = sides[int(np.searchsorted(cumulative, which * cumulative[-1], side="right"))]
        record = {
            "id": f"v{len(lines):05d}",
            "arrival_s": round(second, 6),
            "resolution": side,
            "payload": {"image": firsts[side] + int(image * COUNTS[side])},
        }
        lines.append(json.dumps(record, separators=(",", ":")) + "\n")


def write_images(path: Path) -> None:
    """Write the labeled images as PNG files in one archive, ordered by resolution."""
    adapter, textures = sibling("workload"), sibling("textures")
    rng = np.random.default_rng(SEED)
    packed, labels, resolutions = [], [], []
    for side, count in COUNTS.items():
        for _ in range(count):
            label = len(labels) % len(adapter.CLASSES)
            packed.append(adapter.encode_png(textures.render(rng, label, side)))
            labels.append(label)
            resolutions.append(side)
    np.savez(
        path,
        png=np.frombuffer(b"".join(packed), dtype=np.uint8),
        end=np.cumsum([len(one) for one in packed]).astype(np.int64),
        label=np.array(labels, dtype=np.int64),
        resolution=np.array(resolutions, dtype=np.int64),
    )


def train(path: Path, steps: int) -> None:
    """Train on images of 64 and 96 pixels drawn anew for each step; write the matrices in half precision."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    adapter, textures = sibling("workload"), sibling("textures")
    rng = np.random.default_rng(SEED + 1)
    model = adapter.InspectorModel().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    started, right, seen = time.process_time(), 0, 0
    for step in range(steps):
        side = 96 if step % 4 == 3 else 64
        labels = rng.integers(len(adapter.CLASSES), size=24)
        images = np.stack([adapter.normalize(textures.render(rng, int(label), side)) for label in labels])
        target = torch.from_numpy(labels)
        image = torch.from_numpy(images)[:, None]
        logits = model(image, torch.ones_like(image))
        loss = torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.02)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        right += int((logits.argmax(1) == target).sum())
        seen += len(labels)
        if (step + 1) % 50 == 0:
            spent = time.process_time() - started
            print(f"step {step + 1}/{steps}  accuracy {right / seen:.3f}  {spent:.0f} s of CPU", flush=True)
            right, seen = 0, 0
    stored = {name: t.half() if t.dim() > 1 else t for name, t in model.state_dict().items()}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, path)
    path.chmod(0o644)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traffic", action="store_true", help="write traffic.jsonl alone")
    parser.add_argument("--data", action="store_true", help="write everything except the weights")
    parser.add_argument("--steps", type=int, default=800, help="training steps")
    options = parser.parse_args()
    if not options.traffic:
        write_images(HERE / "images.npz")
    (HERE / "traffic.jsonl").write_text(traffic_lines(), encoding="utf-8")
    if not (options.traffic or options.data):
        train(HERE / "model.safetensors", options.steps)


if __name__ == "__main__":
    main()
