"""Sources of adapters that several tests replay."""

from __future__ import annotations


def sleeper(seconds: str) -> str:
    """A model that is asleep, so that the machine's other work changes little.

    :param seconds: for how long, an expression in its batch ``x``.
    """
    return f"""
import time
import torch
from latfix import Request, Workload

class Model(torch.nn.Module):
    def forward(self, x):
        time.sleep({seconds})
        return x * 2

class Sleeper(Workload):
    def load(self, device):
        return Model()

    def prepare(self, request):
        return torch.full((4,), float(request.features.get("value", 0)))
"""
