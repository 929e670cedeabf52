"""The memory layout of images."""

from __future__ import annotations

import torch
from torch import nn

from latfix.runners.model_transforms.attention_and_layout import in_channels_last


def test_a_model_of_images_and_of_films_is_laid_out_as_far_as_it_goes() -> None:
    """Weights of five dimensions have no such layout."""
    model = nn.Sequential(nn.Conv3d(3, 4, (1, 3, 3)), nn.Flatten(1, 2), nn.Conv2d(8, 4, 3))
    assert in_channels_last(model) == 1
    assert model.get_parameter("2.weight").is_contiguous(memory_format=torch.channels_last)
    assert model(torch.ones(1, 3, 2, 9, 9)).shape == (1, 4, 5, 5)
