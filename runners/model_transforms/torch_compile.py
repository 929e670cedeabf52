"""``torch.compile`` as a service uses it: counted graphs, a cache that outlives the process, no silent fallback."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from latfix.runners.backends.artifact_cache import cache_folder
from latfix.runners.calls.call_counters import Tally
from latfix.settings import Compile

#: Versions of one function that may be compiled, for each model instance; beyond it, loading fails and says so.
_VERSIONS = 64


@dataclass(slots=True)
class Graphs:
    """What the compiler was given.

    :param count: graphs, one for each part of the model and each kind of shape that it had to tell apart.
    :param dtypes: what the operators in them answer in.
    """

    count: int = 0
    dtypes: Counter[str] = field(default_factory=Counter)

    def add(self, graph: Any) -> None:
        """Account for a graph that is about to be compiled."""
        import torch

        self.count += 1
        for node in graph.graph.nodes:
            if node.op not in ("call_function", "call_method", "call_module"):
                continue
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor):
                self.dtypes[str(value.dtype).removeprefix("torch.")] += 1


def compiled(model: Any, tally: Tally, graphs: Graphs, mode: Compile = "dynamic", *, freezing: bool = True) -> Any:
    """The model, or the parts of it that its ``compile_parts`` names, compiled for dynamic shapes.

    Whatever is compiled counts itself in ``tally`` when it runs. Where more versions would be needed than are
    allowed, the framework would go on uncompiled and say nothing; here it fails, at warm-up.

    :param mode: ``max-autotune`` also times several kernels for each matrix product and takes the fastest.
        ``reduce-overhead`` compiles as ``dynamic`` does: what it means in the framework, captured graphs, is left to
        :mod:`latfix.runners.gpu.cuda_graphs`, which captures a bounded number of them and none in a request.
    :param freezing: as in :func:`configure_compiler`.
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
    # A model with a Python loop of its own (token by token) names what is worth compiling inside it.
    for name in parts():
        setattr(model, name, torch.compile(getattr(model, name), dynamic=True, backend=backend))
    return model


def _options(mode: Compile) -> dict[str, Any]:
    if mode != "max-autotune":
        return {}
    from torch._inductor import list_mode_options

    return {"config_patches": list_mode_options("max-autotune-no-cudagraphs")}


def configure_compiler(*, freezing: bool = True) -> None:
    """Set the compiler up in this thread: in torch 2.13 its settings are each thread's own.

    :param freezing: weights become constants of the compiled code. Not those of torchao: with torch 2.13 its int8
        layers answered with errors of a third of their size on the CPU then, and of a hundredth without.
    """
    import torch._dynamo.config
    import torch._inductor.config

    torch._inductor.config.freezing = freezing
    torch._dynamo.config.recompile_limit = _VERSIONS
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def compiler_evidence(graphs: Graphs) -> dict[str, Any]:
    """What the compiler made, and how much of it lay in the cache already."""
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    return {
        "graphs": graphs.count,
        "graph_dtypes": dict(graphs.dtypes),
        "compile_cache_hits": inductor["fxgraph_cache_hit"],
        "compile_cache_misses": inductor["fxgraph_cache_miss"],
        # Graphs whose frozen weights are packed for oneDNN, which nothing can store: their kernels alone are kept.
        "compile_cache_bypassed": inductor["fxgraph_cache_bypass"],
    }


def compiler_missing() -> str:
    """Why ``torch.compile`` cannot work here; empty where it can."""
    wanted = os.environ.get("CXX", "g++")
    if any(shutil.which(name) for name in (wanted, "g++", "clang++")):
        return ""
    return "torch.compile needs a C++ compiler and found neither g++ nor clang++"
