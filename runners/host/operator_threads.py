"""How many threads the framework runs one operator on, for the thread that calls it."""

from __future__ import annotations

from latfix.settings import RunnerSettings


def limit_operator_threads(settings: RunnerSettings, cores: int) -> int:
    """Set it for the calling thread, by the settings and by the cores that it was given; returns how many there are.

    The same on every thread that calls a model: a graph is compiled for a number of threads.

    :param cores: no more threads than so many; 0 for any number.
    """
    import torch

    if settings.intra_op_threads:
        torch.set_num_threads(settings.intra_op_threads)
    if 0 < cores < torch.get_num_threads():
        torch.set_num_threads(cores)
    return torch.get_num_threads()
