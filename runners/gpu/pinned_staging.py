"""Pinned host memory for batches and answers, allocated once per bucket and reused.

A device reads and writes page-locked memory without the host. With pageable memory the driver copies through its own
buffer and the host waits, even for a copy that is declared non-blocking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from latfix.runners.calls.buffer_pool import BufferPool

if TYPE_CHECKING:
    import torch

    from latfix.runners.gpu.accelerator import Accelerator


class Staging(BufferPool):
    """A buffer pool in pinned memory.

    The default collate writes a request's tensors directly into a buffer; the result of a custom collate is copied
    into one. A buffer is reused when no view of it is left; a batch in flight holds its buffers until the device is
    done with them.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def stage(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
        """A batch's tensor in pinned memory: itself if it already is, otherwise a copy in a buffer."""
        if self._accelerator.is_pinned(tensor):
            return tensor
        flat, there = self._take(self._inputs, (*path, tensor.dtype), tensor.numel(), tensor)
        self.hits, self.misses = self.hits + there, self.misses + (not there)
        return flat.view(tensor.shape).copy_(tensor)

    def landing(self, like: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
        """A one-dimensional buffer for an answer that is on the device."""
        flat, there = self._take(self._answers, (*path, like.dtype), like.numel(), like)
        self.answer_hits, self.answer_misses = self.answer_hits + there, self.answer_misses + (not there)
        return flat

    def _stack(self, tensors: Sequence[Any], path: tuple[Any, ...]) -> Any:
        if len(tensors) == 1 and tensors[0].is_contiguous() and self._accelerator.is_pinned(tensors[0]):
            return tensors[0].unsqueeze(0)
        return super()._stack(tensors, path)

    def _memory(self, elements: int, like: torch.Tensor) -> torch.Tensor:
        return self._accelerator.pinned(elements, like.dtype)
