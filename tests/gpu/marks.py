"""Marks of tests that need a CUDA device."""

import pytest
import torch

ON_CUDA = [
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
