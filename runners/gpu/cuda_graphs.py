"""``cuda_graphs``: a model's operators captured once for each bucket of shapes, and issued as one from then on.

A captured graph is replayed on the memory that it was captured with: inputs are copied into it, padded to the
bucket's size as a batch of the default collate would be, and outputs are copied out of it, cut to the size that they
would have had. A batch that fits no bucket runs as if there were no graphs, and is counted.

Sharing one pool, graphs are captured from the largest to the smallest, so that the smaller find the larger's memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from latfix.errors import RunnerError
from latfix.runners.calls.call_counters import Tally
from latfix.runners.calls.model_call import USER_ERRORS, as_called, call_model, describe
from latfix.runners.calls.tensor_tree import flatten, unflatten

#: Runs before a capture, in which libraries set up what they keep: workspaces, plans, chosen kernels.
_WARM_RUNS = 2
Shape = tuple[int, ...]


class Capturer(Protocol):
    """Captures what a function puts into a stream."""

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """What does it all again, on the same memory, and the function's result, which lies in that memory."""


class CudaCapturer:
    """CUDA graphs of one device, in one pool of memory."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture on the stream in use; other threads of the process may go on using the device."""
        stream = torch.cuda.current_stream(self._device)
        for _ in range(_WARM_RUNS):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # A product's workspace is kept by thread and stream, and its address becomes part of the graph. Where it was
        # there before, another worker's graph may have the same one; made anew within, it lies in the graph's pool.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                result = run()
        finally:
            torch._C._cuda_clearCublasWorkspaces()
        stream.synchronize()
        return graph.replay, result


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One captured graph.

    :param inputs: the memory that it reads, flattened; ``outputs`` what it writes.
    :param structure: of its outputs.
    """

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    structure: Any
    replay: Callable[[], None]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of its inputs."""
        return tuple(tuple(tensor.shape) for tensor in self.inputs)


@dataclass(slots=True)
class GraphFacts:
    """What became of the batches of a model with graphs.

    :param captured: graphs; ``capture_s`` what capturing took.
    :param replays: batches that ran as one; ``padded`` those among them that were smaller than their bucket.
    :param misses: batches that did not, by why.
    """

    captured: int = 0
    capture_s: float = 0.0
    replays: int = 0
    padded: int = 0
    misses: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """Forget what became of batches: another replay begins."""
        self.replays = self.padded = 0
        self.misses.clear()

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the evidence."""
        return {
            "graphs_captured": self.captured,
            "capture_s": round(self.capture_s, 3),
            "graph_replays": self.replays,
            "graph_padded": self.padded,
            "graph_misses": dict(self.misses),
        }


def facts_of(models: Iterable[GraphedModel]) -> dict[str, Any]:
    """The facts of all workers' graphs together, as evidence; empty where there are none."""
    found = [model.facts for model in models]
    if not found:
        return {}
    total = GraphFacts(
        captured=found[0].captured,
        capture_s=sum(each.capture_s for each in found),
        replays=sum(each.replays for each in found),
        padded=sum(each.padded for each in found),
        misses=sum((each.misses for each in found), start=Counter[str]()),
    )
    return total.to_json()


class GraphedModel(torch.nn.Module):
    """Stands in for a model of one worker; what :meth:`capture` has captured is replayed.

    Graphs share memory, so that one thread at a time may call it, on one stream.

    :param capturer: of the model's device.
    :param tally: counts the replays.
    :param ragged: which of the flattened inputs are padded in dimension 1 by the default collate; other dimensions
        than the batch's must be met exactly.
    """

    def __init__(
        self, original: torch.nn.Module, capturer: Capturer, tally: Tally, ragged: Iterable[int] = ()
    ) -> None:
        super().__init__()
        # Not as a submodule: whoever looks for layers to change must not find them behind graphs of others.
        self._original = (original,)
        self._capturer = capturer
        self._tally = tally
        self._ragged = frozenset(ragged)
        self._buckets: list[Bucket] = []
        self._chosen: dict[Any, Bucket | None] = {}
        self._names: Any = None
        self._dtypes: tuple[torch.dtype, ...] = ()
        self._lengths: list[dict[int, int]] = []
        self.facts = GraphFacts()

    @property
    def original(self) -> torch.nn.Module:
        """The model as it is without graphs."""
        return self._original[0]

    def capture(self, batches: Sequence[Any]) -> None:
        """Capture a graph for each shape among batches that lie on the device.

        :raises RunnerError: the model cannot be captured, or answers something else as a graph.
        """
        started = time.perf_counter()
        flat = [flatten(as_called(batch)) for batch in batches]
        flat.sort(key=lambda each: -sum(tensor.numel() for tensor in each[0]))
        for tensors, names in flat:
            self._names = self._names if self._names is not None else names
            self._dtypes = self._dtypes or tuple(tensor.dtype for tensor in tensors)
            if any(bucket.shapes == _shapes(tensors) for bucket in self._buckets):
                continue
            self._buckets.append(self._captured(tensors, names))
        # From the smallest on, the first that a batch fits into is the tightest.
        self._buckets.sort(key=lambda bucket: sum(tensor.numel() for tensor in bucket.inputs))
        self._lengths = self._following()
        self.facts.captured = len(self._buckets)
        self.facts.capture_s += time.perf_counter() - started

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original would return."""
        inputs = kwargs if kwargs else args
        try:
            tensors, names = flatten(inputs)
        except TypeError:
            return self._miss("inputs that are no tensors", args, kwargs)
        key = (_shapes(tensors), tuple(tensor.dtype for tensor in tensors), repr(names))
        if key not in self._chosen:
            self._chosen[key] = self._fitting(tensors, names)
        bucket = self._chosen[key]
        if bucket is None:
            return self._miss(f"no graph of {_in_words(key[0])}", args, kwargs)
        return self._run(bucket, tensors)

    def _run(self, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> Any:
        for place, tensor in zip(bucket.inputs, tensors, strict=True):
            _fill(place, tensor)
        self._tally.counting(bucket.replay)()
        self.facts.replays += 1
        self.facts.padded += bucket.shapes != _shapes(tensors)
        outputs = []
        for index, output in enumerate(bucket.outputs):
            cut = output
            if output.dim() and output.shape[0] == bucket.inputs[0].shape[0]:
                cut = cut.narrow(0, 0, tensors[0].shape[0])
            for dimension, source in self._lengths[index].items():
                cut = cut.narrow(dimension, 0, tensors[source].shape[1])
            # The next replay writes where this one did.
            outputs.append(cut.clone())
        return unflatten(bucket.structure, outputs)

    def _miss(self, why: str, args: Any, kwargs: Any) -> Any:
        self.facts.misses[why] += 1
        return self.original(*args, **kwargs)

    def _captured(self, tensors: Sequence[torch.Tensor], names: Any) -> Bucket:
        inputs = [tensor.clone() for tensor in tensors]
        try:
            expected = flatten(call_model(self.original, unflatten(names, inputs)))[0]
            replay, outputs = self._capturer.capture(lambda: call_model(self.original, unflatten(names, inputs)))
            made, structure = flatten(outputs)
            replay()
        except USER_ERRORS as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise RunnerError(
                f"cuda_graphs: capturing a batch of {_in_words(_shapes(tensors))} raised {describe(error)}; a model "
                "that reads numbers on the host (.item()), or whose work depends on them, cannot be captured"
            ) from error
        if len(expected) != len(made) or not all(map(_same, expected, made)):
            raise RunnerError(
                f"cuda_graphs: a captured batch of {_in_words(_shapes(tensors))} answers something else than "
                "the model; use cuda_graphs = false"
            )
        return Bucket(inputs=inputs, outputs=made, structure=structure, replay=replay)

    def _fitting(self, tensors: Sequence[torch.Tensor], names: Any) -> Bucket | None:
        if repr(names) != repr(self._names) or tuple(tensor.dtype for tensor in tensors) != self._dtypes:
            return None
        return next((bucket for bucket in self._buckets if self._fits(tensors, bucket)), None)

    def _fits(self, tensors: Sequence[torch.Tensor], bucket: Bucket) -> bool:
        # A batch is filled up only where each tensor has a row for each request.
        rows = {tensor.shape[0] if tensor.dim() else -1 for tensor in tensors}
        fillable = len(rows) == 1 and -1 not in rows and len({shape[0] for shape in bucket.shapes if shape}) == 1
        for k, (tensor, shape) in enumerate(zip(tensors, bucket.shapes, strict=True)):
            if tensor.dim() != len(shape):
                return False
            for dimension, (size, room) in enumerate(zip(tensor.shape, shape, strict=True)):
                grows = (dimension == 0 and fillable) or (dimension == 1 and k in self._ragged)
                if size != room and not (grows and 0 < size < room):
                    return False
        return True

    def _following(self) -> list[dict[int, int]]:
        """For each output, its dimensions that are as long as dimension 1 of some padded input, in every graph."""
        if not self._buckets:
            return []
        found: list[dict[int, int]] = [{} for _ in self._buckets[0].outputs]
        for source in self._ragged:
            if len({bucket.inputs[source].shape[1] for bucket in self._buckets}) < 2:
                continue  # of one length alone, nobody can say what follows it
            for place, dimensions in enumerate(found):
                for dimension in range(1, self._buckets[0].outputs[place].dim()):
                    if all(
                        bucket.outputs[place].dim() > dimension
                        and bucket.outputs[place].shape[dimension] == bucket.inputs[source].shape[1]
                        for bucket in self._buckets
                    ):
                        dimensions.setdefault(dimension, source)
        return found


def _fill(place: torch.Tensor, tensor: torch.Tensor) -> None:
    """Put a batch into a bucket's memory: lengths padded with zeros, as the default collate does, missing rows with
    copies of the first, which no operator can object to."""
    if place.shape == tensor.shape:
        place.copy_(tensor)
        return
    rows = tensor.shape[0]
    inner = place[:rows]
    if place.dim() > 1 and place.shape[1] > tensor.shape[1]:
        inner[:, tensor.shape[1] :].zero_()
        inner[:, : tensor.shape[1]].copy_(tensor)
    else:
        inner.copy_(tensor)
    if rows < place.shape[0]:
        place[rows:].copy_(place[:1].expand_as(place[rows:]))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(
        one.float(), other.float(), rtol=1e-2, atol=1e-3, equal_nan=True
    )


def _shapes(tensors: Sequence[torch.Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _in_words(shapes: Sequence[Shape]) -> str:
    return ", ".join("x".join(map(str, shape)) or "a number" for shape in shapes)
