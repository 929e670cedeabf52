"""The precision of a model's layers: which layers can change, which stay, and the change itself."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from latfix.errors import InputError
from latfix.formatting import did_you_mean
from latfix.runners.calls.tensor_tree import map_plain
from latfix.runners.model_transforms.precision_support import by_torchao, device_capability, uses_torchao
from latfix.settings import Precision

if TYPE_CHECKING:
    import torch

#: Packages of layers that take only inputs of their own type.
_STRICT = ("torch.nn.", "latfix.")


def in_precision(model: torch.nn.Module, precision: Precision, keep: Collection[str] = ()) -> torch.nn.Module:
    """The model with its layers in ``precision``, except those in ``keep``.

    ``tf32`` changes no layer, but how this process multiplies float32 on a GPU; ``int8_dynamic`` changes
    ``nn.Linear``; ``bf16`` and ``fp16`` change all floating-point weights;
    ``int8_weight_only`` and ``fp8_dynamic`` change the linear layers whose sizes the kernel takes, and everything
    else to bfloat16. On a GPU torchao makes the 8-bit layers. Use only the returned model: the given one may change.

    :param model: on the device that it runs on.
    :param keep: names of modules, as in :meth:`torch.nn.Module.named_modules`, including their submodules.
    :raises InputError: ``keep`` names an unknown module.
    :raises ImportError: torchao is needed and missing.
    """
    kept = kept_modules(model, keep)
    if precision == "tf32":
        import torch

        torch.set_float32_matmul_precision("high")
    if precision in ("default", "tf32"):
        return model
    if precision in ("bf16", "fp16"):
        return _cast(model, kept, activation_dtype(precision))
    if precision == "fp8_dynamic" or _gpu(model) is not None:
        return _by_its_layers(_by_torchao(model, precision, kept))
    if precision == "int8_dynamic":
        return _by_its_layers(_to_int8_dynamic(model, kept))
    return _by_its_layers(_to_int8_weight_only(model, kept))


def quantizable(model: torch.nn.Module, precision: Precision) -> dict[str, torch.nn.Module]:
    """The layers that ``precision`` would change and that can be kept individually, by name, without duplicates."""
    import torch

    if precision in ("default", "tf32"):
        return {}
    if precision in ("bf16", "fp16"):
        inside = {id(part) for whole in model.modules() if _indivisible(whole) for part in _parts(whole)}
        return {
            name: module
            for name, module in model.named_modules()
            if name and id(module) not in inside and (_indivisible(module) or _holds_numbers(module))
        }
    # NonDynamicallyQuantizableLinear, whose weight attention reads, is another type and is not changed.
    fits = _fitting(precision, on_gpu=_gpu(model) is not None)
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear and fits(module) and not by_torchao(module.weight)
    }


def _fitting(precision: Precision, *, on_gpu: bool) -> Callable[[torch.nn.Linear], bool]:
    """A predicate: the kernels of this precision take a linear layer's sizes."""
    from latfix.runners.model_transforms import int8_linear, torchao_layers

    if on_gpu or precision == "fp8_dynamic":
        return lambda layer: torchao_layers.fits(layer, precision)
    if precision == "int8_dynamic":  # the kernel of the CPU fails for other inputs
        import torch

        return lambda layer: layer.weight.dtype is torch.float32
    return lambda layer: layer.in_features % int8_linear.STEP == 0


def layer_in_precision(layer: torch.nn.Module, precision: Precision) -> torch.nn.Module:
    """A copy of one layer in another precision, with the layer's input and output types."""
    import torch

    outer, inner = _own_dtype(layer), activation_dtype(precision)
    changed = in_precision(torch.nn.Sequential(copy.deepcopy(layer)), precision)
    if inner is not None:
        _bridge(changed, inner=inner, outer=outer)
    return changed.eval()


def activation_dtype(precision: Precision) -> torch.dtype | None:
    """Type of activations, inputs and outputs; ``None`` if the precision does not change it."""
    import torch

    if precision == "fp16":
        return torch.float16
    return torch.bfloat16 if precision in ("bf16", "int8_weight_only", "fp8_dynamic") else None


def pays_only_compiled(model: torch.nn.Module, precision: Precision) -> bool:
    """True if a precision's layers are slower unless they are compiled."""
    gpu = _gpu(model)
    return gpu is not None and uses_torchao(precision, str(gpu))


def _gpu(model: torch.nn.Module) -> torch.device | None:
    """The model's CUDA device; ``None`` for the CPU."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda), None)


def kept_modules(model: torch.nn.Module, keep: Collection[str]) -> set[int]:
    """Identities of the modules that ``keep`` names, and of their submodules.

    :raises InputError: an unknown name; with the nearest known one.
    """
    names = dict(model.named_modules(remove_duplicate=False))
    for name in keep:
        if name not in names:
            near = did_you_mean(name, names)
            raise InputError(
                f"keep_precision: found {name!r}, which is no module of {type(model).__name__}; expected names from "
                f"named_modules(){f'; {near}' if near else ''}"
            )
    return {id(part) for name in keep for part in names[name].modules()}


def _to_int8_dynamic(model: torch.nn.Module, kept: set[int]) -> torch.nn.Module:
    import torch
    from torch.ao.quantization import default_dynamic_qconfig

    layers = {id(m): m.weight.dtype for m in model.modules() if type(m) is torch.nn.Linear}
    other = {key for key, dtype in layers.items() if dtype is not torch.float32}
    if other and len(other) == len(layers):
        found = ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in layers.values()}))
        raise ValueError(f"found linear layers in {found}; expected float32, which the int8 kernel takes on the CPU")
    spec: dict[Any, Any] = {torch.nn.Linear: default_dynamic_qconfig}
    # Under all its names, because the first name found decides about a shared module.
    spec |= {name: None for name, m in model.named_modules(remove_duplicate=False) if id(m) in kept | other}
    with warnings.catch_warnings():
        # Deprecated in favor of torchao, whose int8 pays only when compiled; this one works today.
        warnings.simplefilter("ignore")
        quantized: torch.nn.Module = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            model,
            spec,
            dtype=torch.qint8,
            inplace=True,  # the model may not be copyable
        )
    for layer in quantized.modules():
        if isinstance(layer, torch.ao.nn.quantized.dynamic.Linear):
            layer.forward = partial(_of_any_rank, layer.forward)  # type: ignore[method-assign]
    return quantized


def _of_any_rank(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Take also a single vector, as ``nn.Linear`` does: the int8 kernel takes only rows."""
    return forward(x) if x.dim() > 1 else forward(x[None])[0]


def _by_torchao(model: torch.nn.Module, precision: Precision, kept: set[int]) -> torch.nn.Module:
    from latfix.runners.model_transforms.torchao_layers import quantize_layers

    dtype, gpu = activation_dtype(precision), _gpu(model)
    if dtype is not None:  # as for int8 weights on the CPU
        kept = _with_shared(model, kept)
    layers = [layer for layer in quantizable(model, precision).values() if id(layer) not in kept]
    if dtype is not None:
        model = _cast(model, kept, dtype)
    capability = None if gpu is None else device_capability(str(gpu))
    quantize_layers(layers, precision, capability)  # type: ignore[arg-type]
    return model


def _to_int8_weight_only(model: torch.nn.Module, kept: set[int]) -> torch.nn.Module:
    from latfix.runners.model_transforms.int8_linear import Int8WeightLinear

    # Of modules that must have one precision, no layer may change if another one is kept.
    kept = _with_shared(model, kept)
    layers = quantizable(model, "int8_weight_only")
    made = {id(layer): Int8WeightLinear(layer) for layer in layers.values() if id(layer) not in kept}  # type: ignore[arg-type]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children lists only the first name of a shared layer
            if id(child) in made:
                parent._modules[name] = made[id(child)]
    return _cast(made.get(id(model), model), kept, activation_dtype("int8_weight_only"))


def _by_its_layers(model: torch.nn.Module) -> torch.nn.Module:
    """Make torch's encoders call their linear layers: the fused inference kernel would read those layers' weights
    itself, and fails if they are not float."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            layers = (module.linear1, module.linear2)
            if any(type(layer) is not torch.nn.Linear or by_torchao(layer.weight) for layer in layers):
                module.activation_relu_or_gelu = 0  # disables the kernel; the layers use ``activation``
        elif isinstance(module, torch.nn.TransformerEncoder):
            module.use_nested_tensor = False  # only that kernel takes nested tensors
    return model


def _cast(model: torch.nn.Module, kept: set[int], dtype: torch.dtype | None) -> torch.nn.Module:
    assert dtype is not None, "only for precisions that change activations"
    # Module.to would also cast complex numbers, and keep only their real parts.
    if not kept and not any(tensor.is_complex() for tensor in (*model.parameters(), *model.buffers())):
        model = model.to(dtype)
    kept = _with_shared(model, kept)
    for module in model.modules():
        if id(module) not in kept:
            module._apply(_caster(dtype), recurse=False)  # type: ignore[no-untyped-call]
            if type(module).__module__.startswith(_STRICT) and (_indivisible(module) or _holds_numbers(module)):
                module.forward = partial(_in_own_type, module.forward, _caster(dtype))
    inside = {id(part) for whole in model.modules() if id(whole) in kept for part in _parts(whole)}
    for module in model.modules():
        if id(module) in kept and id(module) not in inside:
            _bridge(module, inner=_own_dtype(module), outer=dtype)
    return model


def _in_own_type(
    forward: Callable[..., Any], cast: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any
) -> Any:
    """Call a layer that takes only its own type: ``forward`` of the model may make other floats, as for a mask.

    Not by a hook: with hooks torch's encoders do without their fused kernel.
    """
    if kwargs:
        kwargs = map_plain(kwargs, cast)
    return forward(*[map_plain(value, cast) for value in args], **kwargs)


def _with_shared(model: torch.nn.Module, kept: set[int]) -> set[int]:
    """``kept`` and all modules that must have the precision of one of them.

    Those read its weights themselves (attention) or share a parameter with it (tied embeddings).
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
    """True if a module computes with its children's weights itself, so that they must have its precision."""
    import torch

    return isinstance(module, torch.nn.MultiheadAttention | torch.nn.TransformerEncoderLayer)


def _parts(module: torch.nn.Module) -> Iterable[torch.nn.Module]:
    return (part for part in module.modules() if part is not module)


def _holds_numbers(module: torch.nn.Module) -> bool:
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.is_floating_point() for tensor in own)


def _own_dtype(module: torch.nn.Module) -> torch.dtype:
    """The type in which a module computes: that of its first floating-point tensor, or float32."""
    import torch

    held = (tensor.dtype for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point())
    return next(held, torch.float32)


def _caster(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(dtype) if tensor.dtype is not dtype and tensor.is_floating_point() else tensor


def _bridge(module: torch.nn.Module, *, inner: torch.dtype, outer: torch.dtype) -> None:
    """Make a module compute in ``inner`` and return ``outer``."""

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        return cast_floats(args, inner), cast_floats(kwargs, inner)

    def leave(_: Any, __: Any, output: Any) -> Any:
        return cast_floats(output, outer)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave)


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """``value`` with its floating-point tensors, also in plain tuples, lists and dicts, cast to ``dtype``."""
    return map_plain(value, _caster(dtype))
