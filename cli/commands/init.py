"""``latfix init``: a commented workload to start from, which runs unchanged."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from latfix.errors import InputError

_SETTINGS = """\
# A workload: a model, the current settings of its service, and recorded traffic.
# It runs unchanged:  latfix diagnose .      then:  latfix optimize .

[workload]
name = "{name}"
entry = "workload:Example"        # file:Class of the adapter, relative to this folder
traffic = "traffic.jsonl"         # recorded traffic; see: latfix traffic inspect traffic.jsonl

[runner]                          # current settings of the service: the "before"
device = "auto"                   # auto | cpu | cuda | cuda:N
max_batch_size = 8                # maximum number of requests in one call of the model
batch_window_ms = 5.0             # longest wait of a request for its batch to fill
workers = 1                       # model instances, each on its own thread
prepare_threads = 1               # threads that run prepare(); above 1 it must be thread-safe
# intra_op_threads = 1            # threads of one operator; default: the framework's own
# max_queue = 0                   # shed new requests if this many are inside; 0 = no limit
# timeout_ms = 0                  # default deadline of requests; 0 = none
# hang_limit_ms = 60000           # a batch that takes longer ends the replay; 0 = no limit
warmup_requests = 0               # sent before the measurement; recorded, but excluded from figures
seed = 0

[objective]
percentile = 99
slo_ms = 200.0
max_accuracy_drop = 0.01          # largest loss of accuracy by a fix, in the unit of evaluate()

# Features derived from others, for traffic with other names:
# [traffic.map]
# length = "min(input_tokens / 16, 256)"
"""

_ADAPTER = '''\
"""The adapter: how latfix loads the model and turns a recorded request into tensors and back."""

import torch

from latfix import Request, Workload


class Encoder(torch.nn.Module):
    """A stand-in for your model: attention over a sequence of variable length, then two scores."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(1000, width, padding_idx=0)
        self.query, self.key, self.value = (torch.nn.Linear(width, width) for _ in range(3))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.score = torch.nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        real = tokens.ne(0)  # collate pads with zeros; padding must not change the answer
        x = self.embed(tokens)
        q, k, v = self.query(x).unsqueeze(1), self.key(x).unsqueeze(1), self.value(x).unsqueeze(1)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        x = x + seen.squeeze(1)
        x = x + self.down(torch.relu(self.up(x)))
        weight = real.unsqueeze(-1).to(x.dtype)
        return self.score((x * weight).sum(1) / weight.sum(1)).float()


class Example(Workload):
    def load(self, device: str) -> torch.nn.Module:
        """The model, on the device, in eval mode. self.folder is this folder, for weights."""
        torch.manual_seed(0)
        return Encoder().to(device).eval()

    def prepare(self, request: Request) -> torch.Tensor:
        """The tensors of ONE request on the host, without a batch dimension."""
        length = max(1, int(request.features.get("length", 64)))
        generator = torch.Generator().manual_seed(length)
        # Declare time spent outside (a database, another service), so that it is not attributed to Python:
        # with latfix.span("feature_store"):
        #     rows = store.get(request.payload["user"])
        return torch.randint(1, 1000, (length,), generator=generator)

    # def collate(self, inputs):        # default: stack; pad dimension 0 with zeros to the longest
    # def finish(self, output, request): # default: the output unchanged

    # Without evaluate, accuracy is the agreement of answers with the unmodified model.
    # def evaluate(self, predict):
    #     outputs = predict([Request(id="0", arrival_s=0.0, features={"length": 10})])
    #     return score(outputs)           # higher is better
'''


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
) -> None:
    """Write a commented workload to start from.

    Writes workload.toml, an adapter and 20 s of traffic, which run unchanged.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: found a folder that is not empty, or a file; expected a new or empty folder")
    try:
        files = write_starter(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror}); name another folder") from error
    for file in files:
        typer.echo(f"wrote {file}")
    typer.echo(f"next: latfix diagnose {shlex.quote(str(folder))}")


def write_starter(folder: Path) -> list[Path]:
    """Write the workload into ``folder`` and return its files.

    :raises OSError: the folder cannot be written.
    """
    from latfix.traffic.io.writer import write_traffic
    from latfix.traffic.synthesize import FeatureSpec, Synthesis, synthesize

    folder.mkdir(parents=True, exist_ok=True)
    settings, adapter, traffic = (folder / name for name in ("workload.toml", "workload.py", "traffic.jsonl"))
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in folder.resolve().name) or "example"
    settings.write_text(_SETTINGS.format(name=name), encoding="utf-8")
    adapter.write_text(_ADAPTER, encoding="utf-8")
    lengths = FeatureSpec.parse("length=lognormal(4.3,0.8,8,512)")
    write_traffic(synthesize(Synthesis(kind="bursts", rate=40.0, duration_s=20.0), [lengths]), traffic)
    return [settings, adapter, traffic]
