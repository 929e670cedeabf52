"""Precision of a model's layers: which there are, which are to stay as they are, and the change of the others."""

from __future__ import annotations

import copy
import difflib
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from latfix.errors import InputError
from latfix.settings import Precision

if TYPE_CHECKING:
    import torch


def in_precision(model: torch.nn.Module, precision: Precision, keep: Collection[str] = ()) -> torch.nn.Module:
    """The model with its layers in ``precision``, those in ``keep`` as they were.

    ``int8_dynamic`` changes ``nn.Linear``, ``bf16`` everything that holds numbers; ``int8_weight_only`` does both,
    as far as the kernel's sizes allow. The model that is given is changed or left, so only the one that is returned
    may be used.

    :param keep: names of modules, as :meth:`torch.nn.Module.named_modules` says them; what is inside of one stays
        with it.
    :raises InputError: ``keep`` names a module that is not there.
    """
    kept = kept_modules(model, keep)
    if precision == "bf16":
        return _to_bf16(model, kept)
    if precision == "int8_dynamic":
        return _by_its_layers(_to_int8_dynamic(model, kept))
    if precision == "int8_weight_only":
        return _by_its_layers(_to_int8_weight_only(model, kept))
    return model


def quantizable(model: torch.nn.Module, precision: Precision) -> dict[str, torch.nn.Module]:
    """The layers that ``precision`` would change and that can be left out one by one, by name.

    A module that is used under several names is there once.
    """
    import torch

    from latfix.runners.int8_linear import STEP

    if precision == "default":
        return {}
    if precision == "bf16":
        inside = {id(part) for whole in model.modules() if _indivisible(whole) for part in _parts(whole)}
        return {
            name: module
            for name, module in model.named_modules()
            if name and id(module) not in inside and (_indivisible(module) or _holds_numbers(module))
        }
    # NonDynamicallyQuantizableLinear, which attention reads the weight of, is another type, and stays.
    step = STEP if precision == "int8_weight_only" else 1
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear and module.in_features % step == 0
    }


def layer_in_precision(layer: torch.nn.Module, precision: Precision) -> torch.nn.Module:
    """A copy of one layer in another precision, which takes and answers what the layer did."""
    import torch

    changed = in_precision(torch.nn.Sequential(copy.deepcopy(layer)), precision)
    if answers_bf16(precision):
        _bridge(changed, inner=torch.bfloat16, outer=torch.float32)
    return changed.eval()


def answers_bf16(precision: Precision) -> bool:
    """Whether what lies between the layers is bfloat16."""
    return precision in ("bf16", "int8_weight_only")


def kept_modules(model: torch.nn.Module, keep: Collection[str]) -> set[int]:
    """Identities of the modules that ``keep`` names, and of all that is inside of them.

    :raises InputError: a name that no module has, with the nearest one that there is.
    """
    names = dict(model.named_modules(remove_duplicate=False))
    for name in keep:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            todo = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"keep_precision: found {name!r}, which is no module of {type(model).__name__}; expected names as"
                f" named_modules() gives them{todo}"
            )
    return {id(part) for name in keep for part in names[name].modules()}


def _to_int8_dynamic(model: torch.nn.Module, kept: set[int]) -> torch.nn.Module:
    import torch
    from torch.ao.quantization import default_dynamic_qconfig

    spec: dict[Any, Any] = {torch.nn.Linear: default_dynamic_qconfig}
    # Under each of its names, because the first one that is met decides about a shared module.
    spec |= {name: None for name, m in model.named_modules(remove_duplicate=False) if id(m) in kept}
    with warnings.catch_warnings():
        # Deprecated in favor of torchao, whose int8 pays only when compiled; this one works today.
        warnings.simplefilter("ignore")
        quantized: torch.nn.Module = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            model, spec, dtype=torch.qint8
        )
    return quantized


def _to_int8_weight_only(model: torch.nn.Module, kept: set[int]) -> torch.nn.Module:
    from latfix.runners.int8_linear import Int8WeightLinear

    # Of what has to stay together (below), no layer may be changed where another one is kept.
    kept = _with_what_is_shared(model, kept)
    layers = quantizable(model, "int8_weight_only")
    made = {id(layer): Int8WeightLinear(layer) for layer in layers.values() if id(layer) not in kept}  # type: ignore[arg-type]
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if id(child) in made:
                setattr(parent, name, made[id(child)])
    return _to_bf16(made.get(id(model), model), kept)


def _by_its_layers(model: torch.nn.Module) -> torch.nn.Module:
    """Have the framework's encoders call their linear layers: the fused kernel that stands in for them in inference
    reads those layers' weights itself, and fails where they are not float."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            if not type(module.linear1) is type(module.linear2) is torch.nn.Linear:
                module.activation_relu_or_gelu = 0  # one of the kernel's conditions; the layers go by ``activation``
        elif isinstance(module, torch.nn.TransformerEncoder):
            module.use_nested_tensor = False  # which only that kernel takes
    return model


def _to_bf16(model: torch.nn.Module, kept: set[int]) -> torch.nn.Module:
    import torch

    if not kept:
        return model.to(torch.bfloat16)
    kept = _with_what_is_shared(model, kept)
    for module in model.modules():
        if id(module) not in kept:
            module._apply(_caster(torch.bfloat16), recurse=False)  # type: ignore[no-untyped-call]
    inside = {id(part) for whole in model.modules() if id(whole) in kept for part in _parts(whole)}
    for module in model.modules():
        if id(module) in kept and id(module) not in inside:
            _bridge(module, inner=torch.float32, outer=torch.bfloat16)
    return model


def _with_what_is_shared(model: torch.nn.Module, kept: set[int]) -> set[int]:
    """``kept`` with all modules that cannot have another precision than one in it.

    They read its weights themselves (attention), or hold one of its parameters too (tied embeddings).
    """
    grown = set(kept)
    for whole in model.modules():
        if _indivisible(whole) and any(id(part) in grown for part in whole.modules()):
            grown |= {id(part) for part in whole.modules()}
    held = {id(p) for module in model.modules() if id(module) in grown for p in module.parameters(recurse=False)}
    for module in model.modules():
        if any(id(parameter) in held for parameter in module.parameters(recurse=False)):
            grown.add(id(module))
    return grown


def _indivisible(module: torch.nn.Module) -> bool:
    """Whether a module computes with its children's weights by itself, so that they cannot differ from its own."""
    import torch

    return isinstance(module, torch.nn.MultiheadAttention | torch.nn.TransformerEncoderLayer)


def _parts(module: torch.nn.Module) -> Iterable[torch.nn.Module]:
    return (part for part in module.modules() if part is not module)


def _holds_numbers(module: torch.nn.Module) -> bool:
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.is_floating_point() for tensor in own)


def _caster(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor


def _bridge(module: torch.nn.Module, *, inner: torch.dtype, outer: torch.dtype) -> None:
    """Have a module answer its neighbors in ``outer`` while it computes in ``inner``."""

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        return cast_floats(args, inner), cast_floats(kwargs, inner)

    def leave(_: Any, args: Any, output: Any) -> Any:
        del args
        return cast_floats(output, outer)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave)


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """``value`` with the floating-point tensors in plain tuples, lists and dicts in ``dtype``."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(cast_floats(item, dtype) for item in value)
    if type(value) is dict:
        return {key: cast_floats(item, dtype) for key, item in value.items()}
    return value
