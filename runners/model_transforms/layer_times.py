"""How long single layers take, unmodified and in another precision, on the inputs of a request."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from latfix.runners.calls.model_call import call_on_copy
from latfix.runners.calls.tensor_tree import shapes_of, tensors_of
from latfix.runners.model_transforms.precision import activation_dtype, cast_floats, in_precision, quantizable
from latfix.settings import Precision

#: Turns of each layer, fewer if time runs out. A single turn, which has cold caches, is enough only if it is slow.
_TURNS, _SLOW_S = 8, 0.5
#: Time for the turns of all precisions that are compared.
_SECONDS = 1.0
#: The precisions whose matrix products are compared.
LINEAR_PRECISIONS: tuple[Precision, ...] = ("bf16", "int8_dynamic", "int8_weight_only")

Call = tuple[Any, Any]


def layer_times(
    model: Any, names: Iterable[str], batch: Any, precisions: Sequence[Precision], seconds: float
) -> dict[str, tuple[float, ...]]:
    """Nanoseconds of each layer in one forward pass, unmodified and then in each of the precisions.

    All layers run in sequence, unmodified and changed in turns, so that each finds the caches as the others left
    them: that is where int8 gains, and a repeated layer would find its own weights cached. The minimum over turns
    counts, as disturbances only add time. Conversions between layers are not included.

    :param batch: the model's input for one call, which shows the inputs of each layer.
    :param seconds: time after which fewer turns are made.
    """
    modules = dict(model.named_modules())
    wanted = {name: modules[name] for name in names}
    plan = _in_order({name: _distinct(calls) for name, calls in _recorded(wanted, model, batch).items()})
    deadline = time.perf_counter() + seconds
    least: list[list[int]] = [[2**62] * len(plan) for _ in range(1 + len(precisions))]
    before = [(wanted[name], call) for name, call, _ in plan]
    settle = _settling(batch)
    for number in range(1, max(len(precisions), 1) + 1):
        compared = [(0, before), *((number, _changed(plan, wanted, one)) for one in precisions[number - 1 : number])]
        began = time.perf_counter()
        for turn in range(_TURNS):
            for kind, steps in compared:
                for place, spent in enumerate(_timed(steps, settle)):
                    least[kind][place] = min(least[kind][place], spent)
            now = time.perf_counter()
            if now > deadline and (turn or now - began > max(seconds, _SLOW_S)):
                break
    found = {name: [0.0] * len(least) for name in wanted}
    for kind, times in enumerate(least):
        for (name, _, often), spent in zip(plan, times, strict=True):
            found[name][kind] += often * spent
    return {name: tuple(times) for name, times in found.items()}


def linear_ms(model: Any, batch: Any) -> dict[str, float]:
    """Milliseconds of all linear layers in one forward pass, by precision; empty for a model without any.

    On one thread: with more, a busy neighbor delays some kernels more than others.
    """
    import torch

    names = list(quantizable(model, "int8_dynamic"))
    if not names:
        return {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        every = layer_times(model, names, batch, LINEAR_PRECISIONS, _SECONDS)
    finally:
        torch.set_num_threads(threads)
    sums = [sum(times) / 1e6 for times in zip(*every.values(), strict=True)]
    return {name: round(total, 4) for name, total in zip(("default", *LINEAR_PRECISIONS), sums, strict=True)}


def few_row_products(model: Any, batch: Any) -> int | None:
    """How many products of linear layers in one forward pass have few enough rows for packed int8 weights to help.

    ``None`` if no layer that could have such weights ran.
    """
    from latfix.runners.model_transforms.int8_linear import FEW_ROWS

    modules = dict(model.named_modules())
    calls = _recorded({name: modules[name] for name in quantizable(model, "int8_weight_only")}, model, batch)
    rows = [
        next(iter(tensors_of(call))).numel() // modules[name].in_features
        for name, made in calls.items()
        for call in made
    ]
    return sum(number <= FEW_ROWS for number in rows) if rows else None


def _changed(
    plan: Sequence[tuple[str, Call, int]], layers: Mapping[str, Any], precision: Precision
) -> list[tuple[Any, Call]]:
    """The plan's calls with copies of the layers in another precision."""
    import torch

    changed = {
        name: in_precision(torch.nn.Sequential(copy.deepcopy(module)), precision) for name, module in layers.items()
    }
    return [(changed[name], _cast(*call, precision)) for name, call, _ in plan]


def _settling(batch: Any) -> Callable[[], None]:
    """A function that waits until the device has finished; on the CPU it does nothing."""
    import torch

    device = next((tensor.device for tensor in tensors_of(batch) if tensor.is_cuda), None)
    return (lambda: None) if device is None else partial(torch.cuda.synchronize, device)


def _cast(args: Any, kwargs: Any, precision: Precision) -> Call:
    dtype = activation_dtype(precision)
    return (args, kwargs) if dtype is None else (cast_floats(args, dtype), cast_floats(kwargs, dtype))


def _recorded(modules: dict[str, Any], model: Any, batch: Any) -> dict[str, list[Call]]:
    """The arguments of each module in one pass."""
    calls: dict[str, list[Call]] = {}

    def note(name: str) -> Any:
        def hook(_: Any, args: Any, kwargs: Any) -> None:
            calls.setdefault(name, []).append((args, kwargs))

        return hook

    handles = [module.register_forward_pre_hook(note(name), with_kwargs=True) for name, module in modules.items()]
    try:
        call_on_copy(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _distinct(calls: Sequence[Call]) -> list[tuple[Call, int]]:
    """One call of each shape, and its count."""
    kinds: dict[tuple[Any, ...], list[Any]] = {}
    for args, kwargs in calls:
        key = shapes_of(tensors_of((args, kwargs)))
        kinds.setdefault(key, [(args, kwargs), 0])[1] += 1
    return [(call, times) for call, times in kinds.values()]


def _in_order(calls: Mapping[str, Sequence[tuple[Call, int]]]) -> list[tuple[str, Call, int]]:
    """First calls of all layers, then second ones, so that no layer runs twice in a row if there are others."""
    most = max((len(kinds) for kinds in calls.values()), default=0)
    return [(name, *kinds[number]) for number in range(most) for name, kinds in calls.items() if number < len(kinds)]


def _timed(steps: Sequence[tuple[Any, Call]], settle: Callable[[], None]) -> list[int]:
    """Nanoseconds of each call in sequence, including the device's work."""
    spent = []
    settle()
    for module, (args, kwargs) in steps:
        start = time.perf_counter_ns()
        module(*args, **kwargs)
        settle()
        spent.append(time.perf_counter_ns() - start)
    return spent
