"""Preallocated buffers for batches and answers (``memory.pool``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from latfix.adapter_api import check_stackable, map_structure
from latfix.runners.calls.tensor_tree import map_tensors

if TYPE_CHECKING:
    import torch

#: Maximum number of buffers kept per kind; beyond it, callers hold on to all of them.
MOST_BUFFERS = 8
#: Answers of larger batches are returned as the model made them: copying would take longer.
LARGEST_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Memory for one tensor.

    :param flat: all of it, one-dimensional.
    :param storage: the storage under ``flat`` and every view of it.
    :param alone: the storage's reference count when only the pool refers to it.
    """

    flat: torch.Tensor
    storage: torch.UntypedStorage
    alone: int

    @property
    def free(self) -> bool:
        """True if no view of it is held: no model keeps its input, no caller keeps an answer."""
        return _references(self.storage) <= self.alone


class BufferPool:
    """A drop-in for the default collate that reuses buffers for batches and answers.

    A buffer is as large as its bucket (:func:`bucket_elements`) and serves every tensor that fits. It is reused once
    no view of it is held: a model may keep or return its input, and a caller may keep an answer. A larger batch
    replaces buffers that have become too small, so after a few batches the path has no allocation, page fault or heap
    growth. Answers are copied out of the model's own tensors, so a caller's reference does not keep a whole batch's
    output or the end of the heap alive.

    Each worker has its own pool.

    :ivar hits: batch tensors written into an existing buffer; ``misses`` needed a new one.
    :ivar answer_hits: answer tensors written into an existing buffer; ``answer_misses`` needed a new one.
    :ivar held: times a fitting buffer was skipped because a view of it was still held.
    """

    def __init__(self) -> None:
        self._inputs: dict[tuple[Any, ...], list[_Buffer]] = {}
        self._answers: dict[tuple[Any, ...], list[_Buffer]] = {}
        self.hits = self.misses = 0
        self.answer_hits = self.answer_misses = 0
        self.held = 0

    def collate(self, inputs: Sequence[Any]) -> Any:
        """As :func:`latfix.adapter_api.default_collate`, into the pool's buffers."""
        return map_structure(inputs, self._stack)

    def release(self, output: Any) -> Any:
        """Copy ``output`` into buffers for answers; larger outputs are returned unchanged.

        A view of a batch's buffer is never returned: the next batch overwrites it.
        """
        return map_tensors(output, self._answer)

    @property
    def bytes_held(self) -> int:
        kept = (*self._inputs.values(), *self._answers.values())
        return sum(buffer.storage.nbytes() for buffers in kept for buffer in buffers)

    def _stack(self, tensors: Sequence[Any], path: tuple[Any, ...]) -> Any:
        import torch

        if all(isinstance(tensor, np.ndarray) for tensor in tensors):
            return self._stack([torch.from_numpy(array) for array in tensors], path).numpy()
        check_stackable(tensors)
        first = tensors[0]
        rest = first.shape[1:]
        longest = max(t.shape[0] for t in tensors) if first.dim() else 0
        shape = (len(tensors), longest, *rest) if first.dim() else (len(tensors),)
        flat, reused = self._take(self._inputs, (*path, first.dtype), math.prod(shape), first)
        self.hits, self.misses = self.hits + reused, self.misses + (not reused)
        out = flat.view(shape)
        if all(tensor.shape == first.shape and tensor.device == out.device for tensor in tensors):
            return torch.stack(list(tensors), out=out)
        for row, tensor in enumerate(tensors):
            if tensor.dim() and tensor.shape[0] < longest:
                out[row, tensor.shape[0] :].zero_()
                out[row, : tensor.shape[0]].copy_(tensor)
            else:
                out[row].copy_(tensor)
        return out

    def _answer(self, output: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
        import torch

        if output.device.type != "cpu" or output.layout != torch.strided or output.is_quantized:
            return output
        large = output.numel() * output.element_size() > LARGEST_ANSWER
        if large or output.requires_grad:
            return output.clone() if self._ours(output) else output
        # Tensors of inference mode stay tensors of inference mode, also of a model that alone enters it.
        inference = output.is_inference()
        kind = (*path, output.dtype, inference)
        flat, reused = self._take(self._answers, kind, output.numel(), output, inference=inference)
        self.answer_hits, self.answer_misses = self.answer_hits + reused, self.answer_misses + (not reused)
        with torch.inference_mode(inference):
            return flat.view(output.shape).copy_(output)

    def _ours(self, tensor: torch.Tensor) -> bool:
        """True if the tensor is a view of a batch's buffer."""
        where = tensor.untyped_storage().data_ptr()
        return any(buffer.storage.data_ptr() == where for kept in self._inputs.values() for buffer in kept)

    def _take(
        self,
        kept: dict[tuple[Any, ...], list[_Buffer]],
        key: tuple[Any, ...],
        elements: int,
        like: torch.Tensor,
        *,
        inference: bool = False,
    ) -> tuple[torch.Tensor, bool]:
        """The smallest free buffer that holds ``elements`` (a new one if there is none), and whether it existed."""
        buffers = kept.setdefault(key, [])
        for buffer in buffers:  # ascending by size
            if buffer.flat.numel() >= elements:
                if buffer.free:
                    return buffer.flat[:elements], True
                self.held += 1
        fresh = self._new_buffer(bucket_elements(elements), like, inference=inference)
        # Smaller buffers would never be chosen while this one is free.
        buffers[:] = [buffer for buffer in buffers if buffer.flat.numel() >= elements or not buffer.free]
        if len(buffers) < MOST_BUFFERS:
            buffers.append(fresh)
            buffers.sort(key=lambda buffer: buffer.flat.numel())
        return fresh.flat[:elements], False

    def _new_buffer(self, elements: int, like: torch.Tensor, *, inference: bool) -> _Buffer:
        import torch

        # A tensor of inference mode cannot be written to outside of it, where warm-up may run.
        with torch.inference_mode(inference):
            flat = self._memory(elements, like)
            flat.zero_()  # fault its pages in before the first batch
        storage = flat.untyped_storage()
        return _Buffer(flat, storage, _references(storage))

    def _memory(self, elements: int, like: torch.Tensor) -> torch.Tensor:
        """One-dimensional uninitialized memory of the dtype and device of ``like``."""
        import torch

        return torch.empty(elements, dtype=like.dtype, device=like.device)


def bucket_elements(elements: int) -> int:
    """The bucket size for ``elements``: powers of two and the midpoints between them (4, 6, 8, 12, …)."""
    if elements <= 4:
        return 4
    power = 1 << (elements - 1).bit_length()
    return power * 3 // 4 if elements <= power * 3 // 4 else power


def _references(storage: torch.UntypedStorage) -> int:
    """Number of references to the storage, including those from C++."""
    import torch

    return torch._C._storage_Use_Count(storage._cdata)
