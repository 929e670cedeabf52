"""An ONNX file compiled by OpenVINO for the CPU, in the precision that was asked for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class OpenVinoGraph:
    """A compiled file; several threads may run it at a time.

    :param inputs: names of the file's inputs, in the order of the arrays; one that the file has no use for may be
        among them.
    :param half: compute in bfloat16.
    :param cache: where what was compiled is kept for the next process; nowhere by default.
    """

    def __init__(
        self, file: Path, inputs: Sequence[str], *, threads: int, half: bool = False, cache: Path | None = None
    ) -> None:
        import openvino

        config: dict[str, Any] = {
            # On CPUs with the instructions for it, its default is bfloat16, which nobody has asked for.
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if cache is not None:
            config["CACHE_DIR"] = str(cache)
        core = openvino.Core()
        self._compiled = core.compile_model(core.read_model(str(file)), "CPU", config)
        places = {name: k for k, each in enumerate(self._compiled.inputs) for name in each.get_names()}
        self._places = [places.get(name) for name in inputs]
        self._own = threading.local()  # a request object serves one thread at a time
        self.version = str(openvino.__version__).split("-")[0]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The file's outputs, in its order."""
        request = getattr(self._own, "request", None)
        if request is None:
            request = self._own.request = self._compiled.create_infer_request()
        feed = {place: array for place, array in zip(self._places, arrays, strict=True) if place is not None}
        request.infer(feed, share_inputs=True)
        # The next run writes its answer to the same place.
        return [np.array(request.get_output_tensor(k).data) for k in range(len(self._compiled.outputs))]

    def precisions(self) -> dict[str, int]:
        """How many operators compute in what, by its name of it."""
        found: Counter[str] = Counter()
        for operator in self._compiled.get_runtime_model().get_ordered_ops():
            info = operator.get_rt_info()
            if "runtimePrecision" in info:
                found[str(info["runtimePrecision"].astype(str))] += 1
        found.pop("", None)
        return dict(found)
