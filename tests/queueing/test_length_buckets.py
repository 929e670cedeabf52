"""Length and padding of batches."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.queueing.length_buckets import LENGTH_RATIO, LENGTH_SLACK, alike, padded_elements, padding_share


def test_alike_bounds_the_padding_in_both_directions() -> None:
    assert alike(100, 150) and alike(150, 100)
    assert not alike(100, int(100 * LENGTH_RATIO) + 1) and not alike(1000, 600)
    assert alike(1, 1 + LENGTH_SLACK) and not alike(1, 2 + LENGTH_SLACK)


def test_padding_is_the_excess_over_members_elements() -> None:
    batches = {"size": np.array([1, 2]), "real_elements": np.array([10, 30]), "padded_elements": np.array([10, 40])}
    assert padding_share(batches) == pytest.approx(1 - 40 / 50)


def test_a_mask_that_collate_adds_is_not_padding() -> None:
    # Every batch carries as many elements again in a mask; only the second one is padded, by a third.
    batches = {"size": np.array([1, 2]), "real_elements": np.array([10, 30]), "padded_elements": np.array([20, 80])}
    assert padded_elements(batches).tolist() == [10.0, 40.0]
    assert padding_share(batches) == pytest.approx(1 - 40 / 50)


def test_no_batches_have_no_padding() -> None:
    empty = {name: np.zeros(0, np.int64) for name in ("size", "real_elements", "padded_elements")}
    assert padding_share(empty) == 0.0
