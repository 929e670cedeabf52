"""Which requests are alike enough in length to share a batch, where batches are ordered by length."""

from __future__ import annotations

#: A member's length lies within this factor of the head's, or within this many elements, so that padding
#: stays bounded.
LENGTH_RATIO = 1.5
LENGTH_SLACK = 16


def alike(length: int, head: int) -> bool:
    """Whether a request may join the batch of ``head``.

    :param length: elements in all of its inputs; ``head`` likewise.
    """
    longer, shorter = max(length, head), min(length, head)
    return longer <= shorter * LENGTH_RATIO or longer - shorter <= LENGTH_SLACK
