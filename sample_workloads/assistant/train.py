"""Make this folder's data: weights, labeled validation texts and traffic, each from a seed.

    python train.py                    # all, into this folder; about five minutes on one core
    python train.py --only traffic     # or validation, or weights
    python train.py --out DIR          # elsewhere

Traffic and validation texts are reproduced byte for byte. Weights are reproduced on the same machine and
version of PyTorch; elsewhere rounding differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent

SEED = 20_240_601
STEPS, BATCH, PEAK_LEARNING_RATE = 800, 16, 3e-3
#: Texts are short for this share of the steps, then as long as the context.
SHORT_SHARE, SHORT, LONG = 0.7, 112, 288

VALIDATION_CASES, VALIDATION_NEXT = 400, 4

DURATION_S = 42.0
#: New conversations per second, outside and inside the bursts, which start at these times.
QUIET_RATE, BURST_RATE = 4.2, 20.0
BURSTS_S = ((6.0, 1.6), (14.5, 1.2), (22.0, 2.0), (29.5, 1.4), (37.0, 1.6))
WARM_S = 20.0


def _workload() -> Any:
    spec = importlib.util.spec_from_file_location("_latfix_assistant_workload", HERE / "workload.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {HERE / 'workload.py'}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


workload = _workload()
language, network = workload.language, workload.network


def train_weights(out: Path) -> None:
    """Train from scratch on generated texts, each used once."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = network.Assistant().decoder
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            scale = 0.02 / math.sqrt(2 * network.LAYERS) if name.endswith(("out.weight", "down.weight")) else 0.02
            torch.nn.init.normal_(parameter, std=scale)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95))
    started = time.monotonic()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * _schedule(step)
        length, rows = (SHORT, BATCH) if step < SHORT_SHARE * STEPS else (LONG, BATCH * SHORT // LONG)
        texts = [language.tokens(f"train {step} {row}", length + 1) for row in range(rows)]
        batch = torch.tensor(texts)
        x, _ = model.hidden(batch[:, :-1])
        loss = F.cross_entropy(model.logits(x).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step:4d}  loss {loss.item():.3f}  {time.monotonic() - started:5.0f} s", flush=True)
    weights = {name: tensor.detach().half().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"made_by": "train.py", "seed": str(SEED)})


def _schedule(step: int) -> float:
    warm_up = min(1.0, (step + 1) / 40)
    return warm_up * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / STEPS)))


def validation_lines() -> list[str]:
    """Texts not used in training, cut at a random place, with the tokens that follow."""
    rng = random.Random(f"validation {SEED}")
    lines = []
    for case in range(VALIDATION_CASES):
        cut = 3 + int(rng.random() ** 2 * 237)
        text = language.tokens(f"validation {case}", cut + VALIDATION_NEXT)
        lines.append(json.dumps({"tokens": text[:cut], "next": text[cut:]}, separators=(",", ":")))
    return lines


def best_accuracy() -> float:
    """The score of a perfect model on the validation texts."""
    right = counted = 0
    for line in validation_lines():
        case = json.loads(line)
        state = language.State()
        for token in case["tokens"]:
            state.advance(token)
        for token in case["next"]:
            counted += 1
            if token != max(state.distribution(), key=lambda choice: choice[1])[0]:
                break
            right += 1
            state.advance(token)
    return right / counted


def traffic_lines() -> list[str]:
    """Synthesized chat traffic: conversations begin at random, more often in bursts, and last some turns.

    Each turn's prompt is the whole conversation so far. Most answers are short, some are long.
    """
    rng = random.Random(f"traffic {SEED}")
    requests: list[dict[str, Any]] = []
    for number, start_s in enumerate(_session_starts(rng)):
        requests += _session(rng, f"s{number:04d}", start_s)
    requests.sort(key=lambda request: (request["arrival_s"], request["session"]))
    return [
        json.dumps(
            {"id": f"r{number:05d}", **request, "arrival_s": round(request["arrival_s"], 4)}, separators=(",", ":")
        )
        for number, request in enumerate(requests)
    ]


def _session_starts(rng: random.Random) -> list[float]:
    """Poisson arrivals with a higher rate in bursts, beginning before time 0 so that conversations are under way."""
    starts, now = [], -WARM_S
    while now < DURATION_S:
        now += -math.log(1.0 - rng.random()) / BURST_RATE
        in_burst = any(start <= now < start + length for start, length in BURSTS_S)
        if rng.random() * BURST_RATE < (BURST_RATE if in_burst else QUIET_RATE):
            starts.append(now)
    return starts


def _session(rng: random.Random, session: str, start_s: float) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = []
    u = rng.random()
    priority = "high" if u < 0.08 else "low" if u > 0.88 else "normal"
    now, prompt = start_s, _log_normal(rng, 30.0, 0.6)
    while True:
        long_answer = rng.random() < 0.1
        answer = 32 + int(rng.random() * 33) if long_answer else min(_log_normal(rng, 12.0, 0.55), 31)
        if 0.0 <= now < DURATION_S:
            requests.append(
                {
                    "arrival_s": now,
                    "session": session,
                    "priority": priority,
                    "input_tokens": min(prompt, network.MAX_PROMPT),
                    "output_tokens": answer,
                }
            )
        if rng.random() < 0.3:
            return requests
        now += 0.6 + _log_normal(rng, 3000.0, 0.7) / 1000
        prompt += answer + _log_normal(rng, 12.0, 0.6)


def _log_normal(rng: random.Random, median: float, sigma: float) -> int:
    """A log-normal length of at least 1, from two uniform numbers (Box and Muller's method)."""
    normal = math.sqrt(-2.0 * math.log(1.0 - rng.random())) * math.cos(2.0 * math.pi * rng.random())
    return max(1, round(median * math.exp(sigma * normal)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the sample assistant's weights and data.")
    parser.add_argument("--only", choices=["weights", "validation", "traffic"])
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only in (None, "traffic"):
        (options.out / "traffic.jsonl").write_text("\n".join(traffic_lines()) + "\n", encoding="utf-8")
    if options.only in (None, "validation"):
        (options.out / "validation.jsonl").write_text("\n".join(validation_lines()) + "\n", encoding="utf-8")
        print(f"a perfect model's accuracy: {best_accuracy():.3f}")
    if options.only in (None, "weights"):
        train_weights(options.out)


if __name__ == "__main__":
    main()
