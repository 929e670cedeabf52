"""A service whose model another backend runs, and a fix's verification of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from latfix.runners.fixes import Applied
from latfix.runners.service.loaded_service import Service
from latfix.traffic.schedule import Traffic
from tests.records import build_record
from tests.runners.engine.served import loaded_service

#: Two named inputs, integers (padded to the longest of the batch) and numbers; two answers of different shapes.
#: EACH is replaced by the first answer.
PADDED = """
import torch
from latfix import Workload

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 8, padding_idx=0)
        self.mix = torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, 3)

    def forward(self, tokens, scale):
        x = torch.relu(self.mix(self.embed(tokens))) * scale[:, None, None]
        return {"each": EACH, "all": self.out(x.sum(1))}

class Padded(Workload):
    def load(self, device):
        torch.manual_seed(0)
        return Net()

    def prepare(self, request):
        k = int(request.features["value"])
        return {"scale": torch.tensor(1.0 + k), "tokens": torch.arange(k + 2) % 8 + 1}
"""


def traffic(n: int = 12) -> Traffic:
    return Traffic.plain(np.arange(n) * 1_000_000, features={"value": np.arange(n)})


def loaded(folder: Path, n: int = 12, **values: Any) -> Service:
    return loaded_service(folder, "adapter:Padded", warm=traffic(n), **{"max_batch_size": 4, **values})


def verified(fix: Any, service: Service) -> Any:
    """The fix's verification of the service after its traffic."""
    record = build_record(traffic=traffic(), settings=service.settings)
    return fix.verify(Applied(evidence=service.evidence(traffic()), record=record, without=record))
