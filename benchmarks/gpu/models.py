"""Models as a user brings them to a GPU, with random weights: latfix's plan beside obvious single changes.

``transformers``' BERT (lengths differ, a mask) and ``torchvision``'s ResNet-50 (images), each first deployed in
float32, in batches with a window. ``latfix optimize`` finds a plan; ``latfix try`` replays it and each change in
turns.
"""

from __future__ import annotations

import json
import random
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.gpu.commands import LATFIX
from benchmarks.gpu.parts import Part

#: By workload: the package it needs, requests per second between and in bursts, and the median length.
MODELS = {"encoder": ("transformers", 150.0, 600.0, 96.0), "images": ("torchvision", 300.0, 900.0, 1.0)}
#: Obvious changes, each alone.
ALONE = ("cuda_graphs=true", "precision=bf16", "max_batch_size=1", "compile=reduce-overhead")
_SECONDS = 6.0
_OUTPUT = 6000
#: Time of each command beyond its budget, to finish the current step and write the report.
_BEYOND_S = 30.0
#: Time of one replay of ``latfix try`` with its start, and of compiling.
_ARM_S, _COMPILING_S = 25.0, 90.0
_ADAPTERS = {
    "encoder": """
        import random
        import torch
        from latfix import Workload

        class Encoder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                from transformers import BertConfig, BertModel

                self.encoder = BertModel(BertConfig())

            def forward(self, input_ids, attention_mask):
                tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
                mask = attention_mask[..., None].to(tokens.dtype)
                return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=1)

        class Service(Workload):
            def load(self, device):
                torch.manual_seed(0)
                return Encoder().eval().to(device)

            def prepare(self, request):
                rng = random.Random(request.id)
                ids = torch.tensor([rng.randrange(1000, 30000) for _ in range(int(request.features["length"]))])
                return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

            def finish(self, output, request):
                return output.tolist()
    """,
    "images": """
        import zlib
        import torch
        from latfix import Workload

        class Service(Workload):
            def load(self, device):
                from torchvision.models import resnet50

                torch.manual_seed(0)
                return resnet50().eval().to(device)

            def prepare(self, request):
                seed = torch.Generator().manual_seed(zlib.crc32(request.id.encode()))
                image = torch.randint(0, 256, (3, 224, 224), generator=seed, dtype=torch.uint8)
                return (image.float() / 255.0 - 0.45) / 0.225

            def finish(self, output, request):
                return output.softmax(0).tolist()
    """,
}


def write_workload(folder: Path, name: str) -> Path:
    """The service's folder, with six seconds of traffic: Poisson, with bursts a twelfth of the time."""
    _, rate, burst, median = MODELS[name]
    folder.mkdir(parents=True)
    (folder / "workload.toml").write_text(
        f'[workload]\nname = "{name}"\nentry = "adapter:Service"\ntraffic = "traffic.jsonl"\n'
        '[runner]\ndevice = "cuda"\nmax_batch_size = 8\nbatch_window_ms = 10.0\n',
        encoding="utf-8",
    )
    (folder / "adapter.py").write_text(textwrap.dedent(_ADAPTERS[name]).lstrip(), encoding="utf-8")
    rng, at, rows = random.Random(name), 0.0, list[str]()
    while at < _SECONDS:
        at += rng.expovariate(burst if at % 1.2 < 0.1 else rate)
        length = min(max(int(rng.lognormvariate(0.0, 0.7) * median), 8), 384)
        rows.append(json.dumps({"arrival_s": round(at, 6), "id": str(len(rows)), "length": length}))
    (folder / "traffic.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def measure(part: Part, name: str, budget_s: float) -> list[str]:
    """Optimize, then replay the plan and each change in turns, and keep what both say.

    :param budget_s: of ``latfix optimize``.
    :returns: how the commands failed.
    """
    runs = part.runs()
    folder, out = write_workload(runs / name, name), runs / "run"
    optimize = [*LATFIX, "optimize", str(folder), "--budget", f"{budget_s:.0f}s", "--out", str(out)]
    ended = [part.command([*optimize, "--json", str(runs / "optimization.json")], budget_s + _BEYOND_S)]
    part.put("optimize", ended[0].output[-_OUTPUT:])
    if optimized := _kept(part, runs / "optimization.json", "optimized"):
        plan = ["--plan", str(out / optimized["plan"])] if optimized["plan"] else []
        ideas = [word for change in ALONE for word in ("--set", change)]
        seconds = _ARM_S * (len(ALONE) + 1 + len(plan) / 2) + _COMPILING_S
        alone = [*LATFIX, "try", str(folder), *plan, *ideas, "--rounds", "1", "--budget", f"{seconds:.0f}s"]
        alone += ["--out", str(runs / "try"), "--json", str(runs / "try.json")]
        ended.append(part.command(alone, seconds + _BEYOND_S))
        _kept(part, runs / "try.json", "tried")
    return [each.why for each in ended if each.why]


def _kept(part: Part, file: Path, item: str) -> dict[str, Any]:
    if not file.exists():
        return {}
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    part.put(item, document)
    return document
