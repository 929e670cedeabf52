"""ONNX files run on the CPU by ONNX Runtime or OpenVINO: arrays in, arrays out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import RunnerError
from latfix.runners.backends.requirements import import_package

_ONLY_ERRORS = 3


def onnxruntime_session(file: Path, threads: int) -> Any:
    """A session on the CPU.

    Its idle threads sleep: if they spun, they would take cores from prepare threads and other workers.

    :raises RunnerError: ONNX Runtime is not installed, or does not import.
    """
    todo = "pip install 'latfix[onnx]'"
    package = import_package("onnxruntime", user="ONNX files need", todo=todo, missing=RunnerError)
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ONLY_ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return package.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


class OnnxRuntimeGraph:
    """An ONNX file in ONNX Runtime; several threads may run it at once.

    :param inputs: names in the order of the arrays; names that the file lacks are skipped.
    """

    def __init__(self, session: Any, inputs: Sequence[str]) -> None:
        self._session = session
        self._inputs = tuple(inputs)
        self._taken = frozenset(given.name for given in session.get_inputs())
        self.version = str(import_package("onnxruntime", user="ONNX files need").__version__)

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs in order, for arrays in the order of the input names given at loading."""
        feed = {name: array for name, array in zip(self._inputs, arrays, strict=True) if name in self._taken}
        return list(self._session.run(None, feed))

    def precisions(self) -> dict[str, int]:
        """Number of operators by compute type: ONNX Runtime does not report it."""
        return {}


class OpenVinoGraph:
    """An ONNX file compiled by OpenVINO; several threads may run it at once.

    :param inputs: names in the order of the arrays; names that the file lacks are skipped.
    :param half: compute in bfloat16.
    :param cache: folder for compiled models, for the next process; none by default.
    """

    def __init__(
        self, file: Path, inputs: Sequence[str], *, threads: int, half: bool = False, cache: Path | None = None
    ) -> None:
        import openvino

        config: dict[str, Any] = {
            # OpenVINO's default is bfloat16 on CPUs that support it.
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
        """The outputs in order, for arrays in the order of the input names given at loading."""
        request = getattr(self._own, "request", None)
        if request is None:
            request = self._own.request = self._compiled.create_infer_request()
        feed = {place: array for place, array in zip(self._places, arrays, strict=True) if place is not None}
        request.infer(feed, share_inputs=True)
        return [_copied(request.get_output_tensor(k)) for k in range(len(self._compiled.outputs))]

    def precisions(self) -> dict[str, int]:
        """Number of operators by compute type."""
        found: Counter[str] = Counter()
        for operator in self._compiled.get_runtime_model().get_ordered_ops():
            info = operator.get_rt_info()
            if "runtimePrecision" in info:
                found[str(info["runtimePrecision"].astype(str))] += 1
        found.pop("", None)
        return dict(found)


def _copied(output: Any) -> Any:
    """The numbers of a tensor that the next run overwrites. NumPy has no bfloat16, so that they become float32."""
    numbers = np.array(output.data)
    if output.element_type.get_type_name() != "bf16":
        return numbers
    return (numbers.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


#: An ONNX file, loaded by one of the runtimes.
OnnxGraph = OnnxRuntimeGraph | OpenVinoGraph
