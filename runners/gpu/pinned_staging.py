"""Pinned host memory through which batches and answers travel: made once for each bucket, then used again.

A device copies to and from page-locked memory by itself. From pageable memory the driver copies through a buffer of
its own, the host waits meanwhile, and a copy that was asked not to block does so all the same.
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

    Where the workload batches by the default collate, it writes a request's tensors straight into a buffer; what a
    collate of its own returns is copied into one. A buffer is used again once nobody holds a view of it, and a batch
    on its way holds its buffers until the device is done with them.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def stage(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
        """A batch's tensor in pinned memory: itself where it is, otherwise a copy in a buffer."""
        if self._accelerator.is_pinned(tensor):
            return tensor
        flat, there = self._take(self._inputs, (*path, tensor.dtype), tensor.numel(), tensor)
        self.hits, self.misses = self.hits + there, self.misses + (not there)
        return flat.view(tensor.shape).copy_(tensor)

    def landing(self, like: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
        """A buffer for an answer that lies on the device, one-dimensional."""
        flat, there = self._take(self._answers, (*path, like.dtype), like.numel(), like)
        self.answer_hits, self.answer_misses = self.answer_hits + there, self.answer_misses + (not there)
        return flat

    def _stack(self, tensors: Sequence[torch.Tensor], path: tuple[Any, ...]) -> torch.Tensor:
        if len(tensors) == 1 and tensors[0].is_contiguous() and self._accelerator.is_pinned(tensors[0]):
            return tensors[0].unsqueeze(0)
        return super()._stack(tensors, path)

    def _memory(self, elements: int, like: torch.Tensor) -> torch.Tensor:
        return self._accelerator.pinned(elements, like.dtype)
