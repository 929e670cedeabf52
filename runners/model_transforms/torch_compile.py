"""``torch.compile`` for a service: counted graphs, a cache shared between processes, no silent fallback."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from latfix.runners.backends.artifact_cache import cache_folder
from latfix.runners.calls.call_counters import Tally
from latfix.settings import Compile

#: Maximum versions of one function per model instance; with more, loading fails.
_VERSIONS = 64


@dataclass(slots=True)
class Graphs:
    """The compiled graphs.

    :param count: number of graphs, one for each part of the model and each kind of shape.
    :param dtypes: number of operators by output type.
    """

    count: int = 0
    dtypes: Counter[str] = field(default_factory=Counter)

    def add(self, graph: Any) -> None:
        """Count a graph that is about to be compiled."""
        import torch

        self.count += 1
        for node in graph.graph.nodes:
            if node.op not in ("call_function", "call_method", "call_module"):
                continue
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor):
                self.dtypes[str(value.dtype).removeprefix("torch.")] += 1


def compiled(model: Any, tally: Tally, graphs: Graphs, mode: Compile, *, freezing: bool) -> Any:
    """The model, or the parts that its ``compile_parts`` names, compiled for dynamic shapes.

    Runs of compiled code are counted in ``tally``. If too many versions are needed, torch would silently run
    uncompiled; here it fails at warm-up.

    :param mode: ``max-autotune`` also times several kernels for each matrix product and takes the fastest.
        ``reduce-overhead`` compiles like ``dynamic``; captured graphs are left to
        :mod:`latfix.runners.gpu.cuda_graphs`, which captures a bounded number, and none during a request.
    :param freezing: see :func:`configure_compiler`.
    """
    import torch

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder("inductor")))
    configure_compiler(freezing=freezing)

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        graphs.add(graph)
        run: Any = compile_fx(graph, inputs, **_options(mode))
        return tally.counting(run)

    parts = getattr(model, "compile_parts", None)
    if parts is None:
        return torch.compile(model, dynamic=True, backend=backend)
    # A model with a Python loop (token by token) names the parts inside it that are worth compiling.
    for name in parts():
        setattr(model, name, torch.compile(getattr(model, name), dynamic=True, backend=backend))
    return model


def _options(mode: Compile) -> dict[str, Any]:
    if mode != "max-autotune":
        return {}
    from torch._inductor import list_mode_options

    return {"config_patches": list_mode_options("max-autotune-no-cudagraphs")}


def configure_compiler(*, freezing: bool) -> None:
    """Configure the compiler in this thread: in torch 2.13 its settings are per thread.

    :param freezing: weights become constants of the compiled code. Not for torchao: with torch 2.13 on the CPU, the
        relative error of its int8 layers was a third with freezing and a hundredth without.
    """
    import torch._dynamo.config
    import torch._inductor.config

    torch._inductor.config.freezing = freezing
    torch._dynamo.config.recompile_limit = _VERSIONS
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def compiler_evidence(graphs: Graphs) -> dict[str, Any]:
    """The compiler's graphs, and how many of them were cached."""
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    return {
        "graphs": graphs.count,
        "graph_dtypes": dict(graphs.dtypes),
        "compile_cache_hits": inductor["fxgraph_cache_hit"],
        "compile_cache_misses": inductor["fxgraph_cache_miss"],
        # Graphs with frozen weights packed for oneDNN cannot be cached; only their kernels are.
        "compile_cache_bypassed": inductor["fxgraph_cache_bypass"],
    }


def compiler_missing() -> str:
    """Why ``torch.compile`` cannot work here; empty if it can."""
    if any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        return ""
    return "torch.compile needs a C++ compiler; found neither g++ nor clang++"
