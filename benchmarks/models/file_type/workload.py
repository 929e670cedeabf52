"""File types from content (Magika, ONNX): the first and the last kilobyte of a file in, its type out.

Score: share of files of Python's installation whose type matches their suffix.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import PACKAGES, OnnxModule, case_of, labeled, number

MODEL = PACKAGES / "magika" / "models" / "standard_v3_3"
#: Suffix of a file, and the model's name of its type.
TYPES = {".py": "python", ".pyc": "pythonbytecode", ".h": "c", ".so": "elf", ".png": "png", ".ttf": "ttf"}
TYPES |= {".svg": "svg", ".pdf": "pdf", ".csv": "csv", ".html": "html", ".npz": "npz", ".gz": "gzip", ".zip": "zip"}
EACH, END, EMPTY = 12, 1024, 256


class FileType(Workload):
    """Adapter."""

    def load(self, device: str) -> torch.nn.Module:
        del device
        self._names = json.loads((MODEL / "config.min.json").read_text(encoding="utf-8"))["target_labels_space"]
        library, include = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("include"))
        places = [library, library / "__pycache__", library / "lib-dynload", include]
        found = [file for place in places for file in sorted(place.glob("*"))]
        found += sorted(Path(matplotlib.get_data_path()).rglob("*"))
        self._files = [
            (file.read_bytes(), kind)
            for suffix, kind in TYPES.items()
            for file in islice((one for one in found if one.suffix == suffix and one.stat().st_size >= 64), EACH)
        ]
        return OnnxModule(MODEL / "model.onnx")

    def prepare(self, request: Request) -> torch.Tensor:
        case = case_of(request)
        content = self._files[number(request) % len(self._files) if case is None else case][0]
        values = np.full(2 * END, EMPTY, np.int32)
        first, last = content[: 4 * END].lstrip()[:END], content[-4 * END :].rstrip()[-END:]
        values[: len(first)] = np.frombuffer(first, np.uint8)
        values[2 * END - len(last) :] = np.frombuffer(last, np.uint8)
        return torch.from_numpy(values)

    def finish(self, output: torch.Tensor, request: Request) -> str:
        del request
        return self._names[int(output.argmax())]

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        answers = predict(labeled(range(len(self._files))))
        return float(np.mean([a == kind for a, (_, kind) in zip(answers, self._files, strict=True)]))
