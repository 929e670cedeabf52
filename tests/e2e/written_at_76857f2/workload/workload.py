"""A small service whose requests wait for the batch timer."""

import torch

from latfix import Request, Workload


class Small(Workload):
    def load(self, device: str) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Linear(8, 2).to(device)

    def prepare(self, request: Request) -> torch.Tensor:
        return torch.full((8,), float(request.features["size"]))
