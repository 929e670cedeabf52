"""Preallocated batch buffers: ``memory.pool`` writes each batch into memory that is already there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from latfix.workload import check_stackable, map_structure

if TYPE_CHECKING:
    import torch


class BufferPool:
    """A drop-in for the default collate that reuses one buffer for each tensor of a workload's inputs.

    A buffer grows by half when a batch does not fit and is never given back, so that after a few batches no
    allocation, page fault or heap growth remains in the path. One pool belongs to one worker: a batch must
    not be collated before the last one's inputs are done with.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], torch.Tensor] = {}
        self.hits = 0
        self.misses = 0

    def collate(self, inputs: Sequence[Any]) -> Any:
        """As :func:`latfix.workload.default_collate`, into the pool's buffers."""
        return map_structure(inputs, self._stack)

    def release(self, output: Any) -> Any:
        """``output`` with whatever lies in the pool's buffers copied out of them.

        A model may return its input, or a view of it; the next batch would overwrite that answer.
        """
        import torch

        if isinstance(output, torch.Tensor):
            held = {buffer.untyped_storage().data_ptr() for buffer in self._buffers.values()}
            return output.clone() if output.untyped_storage().data_ptr() in held else output
        if isinstance(output, dict):
            return {key: self.release(item) for key, item in output.items()}
        if isinstance(output, tuple | list):
            return type(output)(self.release(item) for item in output) if _plain(output) else output
        return output

    def _stack(self, tensors: Sequence[torch.Tensor], path: tuple[Any, ...]) -> torch.Tensor:
        check_stackable(tensors)
        first = tensors[0]
        rest = first.shape[1:]
        longest = max(t.shape[0] for t in tensors) if first.dim() else 0
        shape = (len(tensors), longest, *rest) if first.dim() else (len(tensors),)
        out = self._buffer((*path, first.dtype), math.prod(shape), first).view(shape)
        for row, tensor in enumerate(tensors):
            if tensor.dim() and tensor.shape[0] < longest:
                out[row, tensor.shape[0] :].zero_()
                out[row, : tensor.shape[0]].copy_(tensor)
            else:
                out[row].copy_(tensor)
        return out

    def _buffer(self, key: tuple[Any, ...], elements: int, like: torch.Tensor) -> torch.Tensor:
        held = self._buffers.get(key)
        if held is None or held.numel() < elements:
            self.misses += 1
            size = max(elements, 0 if held is None else held.numel() * 3 // 2)
            held = self._buffers[key] = like.new_zeros(size)
        else:
            self.hits += 1
        return held[:elements]


def _plain(output: Any) -> bool:
    """A tuple or list, and no subclass with a constructor of its own."""
    return type(output) in (tuple, list)
