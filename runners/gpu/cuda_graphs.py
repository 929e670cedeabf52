"""``cuda_graphs``: a model's operators captured once for each bucket of shapes, and then issued as one.

A captured graph is replayed on the memory it was captured with: inputs are copied into it, padded to the bucket's
size like a batch of the default collate, and outputs are copied out, cut to their proper size. A batch that fits no
bucket runs without graphs, and is counted.

Graphs share one pool and are captured from the largest to the smallest, so that the smaller ones reuse memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from latfix.errors import RunnerError
from latfix.runners.calls.call_counters import Tally
from latfix.runners.calls.model_call import USER_ERRORS, as_called, call_model, describe
from latfix.runners.calls.tensor_tree import constants_of, flatten, shapes_of, unflatten

#: Runs before a capture, in which libraries set up workspaces, plans and kernel choices.
_WARM_RUNS = 2
Shape = tuple[int, ...]
#: Captures the work that a function puts into a stream. Returns a function that repeats the work on the same memory,
#: and the result, which is in that memory.
Capture = Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]]


def capture_on(device: str) -> Capture:
    """Captures CUDA graphs on one device, in one memory pool, on the stream in use.

    Other threads may use the device at the same time.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        stream = torch.cuda.current_stream(device)
        for _ in range(_WARM_RUNS):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # cuBLAS keeps a workspace per thread and stream, and its address becomes part of the graph. An existing one
        # may also be in another worker's graph; one allocated during the capture is in the graph's pool.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                result = run()
        finally:
            torch._C._cuda_clearCublasWorkspaces()
        stream.synchronize()
        return graph.replay, result

    return capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One captured graph.

    :param inputs: the memory that it reads, flattened; ``outputs``: the memory that it writes.
    :param structure: the structure of its outputs.
    """

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    structure: Any
    replay: Callable[[], None]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return shapes_of(self.inputs)


@dataclass(slots=True)
class GraphFacts:
    """How the batches of a model with graphs ran.

    :param captured: number of graphs; ``capture_s``: duration of capturing.
    :param replays: batches that ran as a graph; ``padded``: those of them smaller than their bucket.
    :param misses: batches that ran without a graph, by reason.
    """

    captured: int = 0
    capture_s: float = 0.0
    replays: int = 0
    padded: int = 0
    misses: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """Reset the counts of batches for another replay."""
        self.replays = self.padded = 0
        self.misses.clear()


def facts_of(models: Iterable[GraphedModel]) -> dict[str, Any]:
    """The facts of all workers' graphs together, as evidence."""
    found = [model.facts for model in models]
    return {
        "graphs_captured": found[0].captured,
        "capture_s": round(sum(each.capture_s for each in found), 3),
        "graph_replays": sum(each.replays for each in found),
        "graph_padded": sum(each.padded for each in found),
        "graph_misses": dict(sum((each.misses for each in found), start=Counter[str]())),
    }


class GraphedModel(torch.nn.Module):
    """Replaces one worker's model, and replays the graphs of :meth:`capture`.

    Graphs share memory, so only one thread at a time may call it, on one stream.

    :param capture: captures on the model's device.
    :param tally: counts the replays.
    :param ragged: indices of flattened inputs that the default collate pads in dimension 1; all other dimensions
        except the batch must match exactly.
    """

    def __init__(self, original: torch.nn.Module, capture: Capture, tally: Tally, ragged: Iterable[int] = ()) -> None:
        super().__init__()
        # In a tuple, so that it is no submodule: its layers must not be found and changed behind captured graphs.
        self._original = (original,)
        self._capture = capture
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
        """The model without graphs."""
        return self._original[0]

    def capture(self, batches: Sequence[Any]) -> None:
        """Capture a graph for each shape among batches on the device.

        :raises RunnerError: the model cannot be captured, or the graph's answers differ.
        """
        started = time.perf_counter()
        flat = [flatten(as_called(batch)) for batch in batches]
        flat.sort(key=lambda each: -sum(tensor.numel() for tensor in each[0]))
        for tensors, names in flat:
            self._names = self._names if self._names is not None else names
            self._dtypes = self._dtypes or tuple(tensor.dtype for tensor in tensors)
            if repr(names) != repr(self._names) or any(
                bucket.shapes == shapes_of(tensors) for bucket in self._buckets
            ):
                continue
            self._buckets.append(self._captured(tensors, names))
        # In ascending order, the first bucket that a batch fits into is the tightest.
        self._buckets.sort(key=lambda bucket: sum(tensor.numel() for tensor in bucket.inputs))
        self._lengths = self._following()
        self.facts.captured = len(self._buckets)
        self.facts.capture_s += time.perf_counter() - started

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inputs = kwargs if kwargs else args
        try:
            tensors, names = flatten(inputs)
        except TypeError:
            return self._miss("inputs that are no tensors", args, kwargs)
        key = (shapes_of(tensors), tuple(tensor.dtype for tensor in tensors), repr(names))
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
        self.facts.padded += bucket.shapes != shapes_of(tensors)
        outputs = []
        for index, output in enumerate(bucket.outputs):
            cut = output
            if output.dim() and output.shape[0] == bucket.inputs[0].shape[0]:
                cut = cut.narrow(0, 0, tensors[0].shape[0])
            for dimension, source in self._lengths[index].items():
                cut = cut.narrow(dimension, 0, tensors[source].shape[1])
            # The next replay overwrites this memory.
            outputs.append(cut.clone())
        return unflatten(bucket.structure, outputs)

    def _miss(self, why: str, args: Any, kwargs: Any) -> Any:
        self.facts.misses[why] += 1
        return self.original(*args, **kwargs)

    def _captured(self, tensors: Sequence[torch.Tensor], names: Any) -> Bucket:
        inputs, shapes = [tensor.clone() for tensor in tensors], _in_words(shapes_of(tensors))
        try:
            expected, constants = flatten(call_model(self.original, unflatten(names, inputs)))
            replay, outputs = self._capture(lambda: call_model(self.original, unflatten(names, inputs)))
            made, structure = flatten(outputs)
            replay()
        except USER_ERRORS as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise RunnerError(
                f"cuda_graphs: capturing a batch of {shapes} raised {describe(error)}; a model "
                "that reads values on the host (.item()), or whose work depends on them, cannot be captured"
            ) from error
        same = len(expected) == len(made) and all(map(_same, expected, made))
        if not same or repr(constants_of(constants)) != repr(constants_of(structure)):
            raise RunnerError(
                f"cuda_graphs: a captured batch of {shapes} gives other answers than the model; "
                "use cuda_graphs = false"
            )
        return Bucket(inputs=inputs, outputs=made, structure=structure, replay=replay)

    def _fitting(self, tensors: Sequence[torch.Tensor], names: Any) -> Bucket | None:
        if repr(names) != repr(self._names) or tuple(tensor.dtype for tensor in tensors) != self._dtypes:
            return None
        return next((bucket for bucket in self._buckets if self._fits(tensors, bucket)), None)

    def _fits(self, tensors: Sequence[torch.Tensor], bucket: Bucket) -> bool:
        # A number or text of the answer may follow from the sizes.
        exact = any(value is not None for value in constants_of(bucket.structure).values())
        # A batch is filled up only if each tensor has a row for each request.
        rows = {tensor.shape[0] if tensor.dim() else -1 for tensor in tensors}
        fillable = len(rows) == 1 and -1 not in rows and len({shape[0] for shape in bucket.shapes if shape}) == 1
        for k, (tensor, shape) in enumerate(zip(tensors, bucket.shapes, strict=True)):
            if tensor.dim() != len(shape):
                return False
            for dimension, (size, room) in enumerate(zip(tensor.shape, shape, strict=True)):
                grows = (dimension == 0 and fillable) or (dimension == 1 and k in self._ragged)
                if size != room and (exact or not (grows and 0 < size < room)):
                    return False
        return True

    def _following(self) -> list[dict[int, int]]:
        """For each output, its dimensions that are as long as dimension 1 of a padded input in every graph."""
        if not self._buckets:
            return []
        found: list[dict[int, int]] = [{} for _ in self._buckets[0].outputs]
        for source in self._ragged:
            if len({bucket.inputs[source].shape[1] for bucket in self._buckets}) < 2:
                continue  # with a single length, dependent dimensions cannot be identified
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
    """Copy a batch into a bucket's memory. Lengths are padded with zeros, like the default collate's; missing rows
    are copies of the first, which every operator takes."""
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


def _in_words(shapes: Sequence[Shape]) -> str:
    return ", ".join("x".join(map(str, shape)) or "a number" for shape in shapes)
