"""An ONNX file run by OpenVINO, for the table of backends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latfix.errors import RunnerError
from latfix.runners.backends.openvino_graph import OpenVinoGraph
from latfix.runners.backends.requirements import backend_missing


class OpenVinoModule(torch.nn.Module):
    """An ONNX file in OpenVINO, which takes its tensors in order.

    :param inputs: names of the tensors, in order; those that the model does not have are left out.
    :raises RunnerError: OpenVINO is not installed.
    """

    def __init__(self, file: Path, inputs: Sequence[str]) -> None:
        super().__init__()
        missing = backend_missing("openvino")
        if missing:
            raise RunnerError(missing)
        self._graph = OpenVinoGraph(file, inputs, threads=torch.get_num_threads())

    def forward(self, *tensors: torch.Tensor) -> Any:
        arrays = [np.ascontiguousarray(tensor.detach().numpy()) for tensor in tensors]
        found = tuple(torch.from_numpy(array) for array in self._graph.run(arrays))
        return found[0] if len(found) == 1 else found
