"""Which layers matter: what each costs in accuracy when it alone is quantized, what it saves, and which to keep.

Two measures, a cheap one for the order and the true one for the verdict. Each layer alone is changed and the
model's outputs on traffic are compared with the original's; layers are then ordered by that effect for each
millisecond that changing them saves. How many of them must keep their precision is found by bisection, from those
that stand out, on the accuracy itself (the workload's score, or agreement), always of a service loaded with exactly
those settings.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latfix.errors import RunnerError
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe
from latfix.runners.calls.tensor_tree import move, tensors_of
from latfix.runners.measure.accuracy import Accuracy, evaluate, sample_requests
from latfix.runners.measure.accuracy_guard import judge
from latfix.runners.model_transforms.layer_times import layer_times
from latfix.runners.model_transforms.precision import (
    activation_dtype,
    layer_in_precision,
    pays_only_compiled,
    quantizable,
)
from latfix.runners.service.loaded_service import Service
from latfix.settings import Precision, RunnerSettings
from latfix.traffic.schedule import Traffic

if TYPE_CHECKING:
    import torch

#: Requests on whose outputs a layer's effect is measured.
_REQUESTS = 24
#: A layer is changed only where that is at least this much faster; otherwise it costs accuracy for nothing.
_WINS = 1.02
#: The share of a layer's time that eight bits are taken to save where only a compiler brings it out.
_ASSUMED = 0.5
#: The share of the budget for the layers one by one; the rest is for the accuracy of what was chosen.
_LAYERS_SHARE = 0.35
#: The share of the squared change of the answers by which layers stand out.
_NEARLY_ALL = 0.9
#: Layers that save less are told apart by their effect alone.
_LEAST_MS = 1e-3


@dataclass(slots=True, kw_only=True)
class Layer:
    """Some layers that were changed together; one where time allowed.

    :param effect: root of the mean squared change of the model's outputs, as a share of their own size, when only
        these are changed.
    :param saves_ms: of one request's forward pass, by changing these.
    :param kept: ``no gain`` or ``accuracy`` where they keep their precision; empty where they are changed.
    """

    names: tuple[str, ...]
    effect: float = 0.0
    saves_ms: float = 0.0
    kept: str = ""

    @property
    def price(self) -> float:
        """Effect for each millisecond that is saved: the highest is the first to be kept."""
        return self.effect / max(self.saves_ms, _LEAST_MS)


@dataclass(slots=True, kw_only=True)
class Sensitivity:
    """What was found.

    :param keep: modules that are to keep their precision, with the effect of each; empty where ``reason`` says why
        there is no such choice.
    :param score: of the original.
    :param trials: how many layers were kept for their accuracy, and what the accuracy was then.
    """

    precision: Precision
    layers: list[Layer] = field(default_factory=list)
    keep: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    score: float = 0.0
    trials: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "layers": [{**asdict(layer), "names": list(layer.names)} for layer in self.layers]}


def measure(
    folder: Path,
    entry: str,
    settings: RunnerSettings,
    traffic: Traffic,
    *,
    precision: Precision,
    max_drop: float,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Sensitivity:
    """Find the layers that must keep their precision for the accuracy to stay within ``max_drop``.

    :param settings: how the service runs; its modules in ``keep_precision`` are kept in any case.
    :param traffic: choices are made on requests that the guard does not judge by, where there are enough; a workload
        with a score of its own has that one score for both.
    :param budget_s: about how long it may take; what was measured until then decides.
    :raises RunnerError: the workload itself fails.
    """
    started = clock()
    neutral = {"precision": "default", "compile": "off", "backend": "torch", "attention": "default"}
    plain = settings.with_overrides({**neutral, "memory_format": "default", "warmup_shapes": 0})
    found = Sensitivity(precision=precision)
    with tempfile.TemporaryDirectory(prefix="latfix-sensitivity-") as scratch:
        reference = Path(scratch) / "original.npz"

        def look_at_layers() -> None:
            with _loaded(folder, entry, plain) as service:
                found.score = evaluate(service, traffic, None, save=reference, spare=True).score
                layers_until = clock() + _LAYERS_SHARE * (started + budget_s - clock())
                found.layers = _layers(service, traffic, plain, precision, lambda: layers_until - clock())

        look_at_layers()  # and that service is gone with it

        def accuracy_of(keep: Collection[str]) -> Accuracy:
            way = {"precision": precision, "keep_precision": (*plain.keep_precision, *keep)}
            with _loaded(folder, entry, plain.with_overrides(way)) as changed:
                return evaluate(changed, traffic, reference, max_drop=max_drop, spare=True)

        _choose(found, accuracy_of, max_drop, lambda: started + budget_s - clock())
    return found


def _choose(
    found: Sensitivity,
    accuracy_of: Callable[[Collection[str]], Accuracy],
    max_drop: float,
    left_s: Callable[[], float],
) -> None:
    """Decide how many of the dearest layers are kept: the fewest with which the accuracy is allowed."""
    for layer in found.layers:
        layer.kept = "no gain" if layer.saves_ms <= 0 and activation_dtype(found.precision) is None else ""
    useless = [layer for layer in found.layers if layer.kept]
    useful = sorted((layer for layer in found.layers if not layer.kept), key=lambda layer: -layer.price)
    if not useful:
        found.reason = f"no layer of {len(found.layers)} is faster in {found.precision}"
        return
    least_s = 0.0

    def allowed(count: int) -> bool:
        nonlocal least_s
        before = left_s()
        keep = [name for layer in (*useless, *useful[:count]) for name in layer.names]
        scored = accuracy_of(keep)
        ok, said = judge(asdict(scored), found.score, max_drop)
        found.trials.append({"kept": count, "score": scored.score, "allowed": ok, "said": said})
        least_s = max(least_s, before - left_s())
        return ok

    best = _fewest(len(useful), allowed, lambda: left_s() > 1.5 * least_s, first=_outstanding(useful))
    if best is None:
        found.reason = _refusal(found.trials, len(useful))
        return
    for layer in useful[:best]:
        layer.kept = "accuracy"
    if not best and not useless:
        found.reason = f"the accuracy is kept with all {len(useful)} layers changed"
    found.keep = {name: layer.effect for layer in (*useless, *useful[:best]) for name in layer.names}


def _refusal(trials: Sequence[Mapping[str, Any]], most: int) -> str:
    """Why there is no choice: accuracy, or time to find one."""
    last = max(trials, key=lambda trial: int(trial["kept"]))
    if last["kept"] >= most - 1:
        return f"the accuracy is not kept with {last['kept']} of {most} layers left out either: {last['said']}"
    return f"time was up after {len(trials)} trial(s); with {last['kept']} of {most} layers left out: {last['said']}"


def _outstanding(dearest: Sequence[Layer]) -> int:
    """How many of the dearest layers make nearly all of the change, as a first guess of how many must be kept."""
    squares = np.square([layer.effect for layer in dearest])
    return 1 + int(np.searchsorted(np.cumsum(squares), _NEARLY_ALL * squares.sum()))


def _fewest(most: int, allowed: Callable[[int], bool], in_time: Callable[[], bool], *, first: int = 0) -> int | None:
    """The smallest count below ``most`` that is allowed, by bisection; ``None`` where none was found in time.

    The dearest layers come first, so that keeping more of them is taken for no worse. What is returned was itself
    seen to be allowed.

    :param first: where bisection begins; in the middle by default.
    """
    if allowed(0):
        return 0
    low, high, best = 1, most - 1, None
    middle = min(first, high) or (low + high) // 2
    # Where even the cheapest layer alone costs too much, nothing else need be tried.
    while low <= high and in_time():
        if allowed(middle):
            best, high = middle, middle - 1
        else:
            low = middle + 1
        middle = (low + high) // 2
    return best


@contextmanager
def _loaded(folder: Path, entry: str, settings: RunnerSettings) -> Iterator[Service]:
    gc.collect()  # the one before refers to itself, and a device may have no room for both
    service = Service(folder, entry, settings)
    service.load()
    try:
        yield service
    finally:
        service.release()


def _layers(
    service: Service, traffic: Traffic, plain: RunnerSettings, precision: Precision, left_s: Callable[[], float]
) -> list[Layer]:
    """Each layer's effect and what it saves; groups of neighbors where there is no time for each."""
    instance = service.models.instances[0]
    model = instance.model
    kept = set(plain.keep_precision)
    names = [
        name
        for name in quantizable(model, precision)
        if not any(name == one or name.startswith(f"{one}.") for one in kept)
    ]
    if not names:
        return []
    batches = [move(batch, instance.device) for batch in _batches(service, traffic)]
    with instance.guard(), _layer_by_layer():
        started = time.perf_counter()
        exact = [_answer(model, batch) for batch in batches]
        again = [_answer(model, batch) for batch in batches]
        pass_s = (time.perf_counter() - started) / 2
        noise = _change(exact, again)
        saves = _savings(model, names, batches[len(batches) // 2], precision, max(left_s() / 3, 0.0))
        layers = []
        for group in _groups(names, int(max(left_s(), 0.0) / max(pass_s, 1e-9))):
            with _changed(model, group, precision):
                effect = _change(exact, [_answer(model, batch) for batch in batches])
            # A model that does not repeat itself has an effect only beyond that.
            effect = effect if effect > 3 * noise else 0.0
            layers.append(Layer(names=tuple(group), effect=effect, saves_ms=sum(saves[name] for name in group)))
    return layers


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    """No fused kernel in the place of an encoder's layers, which could not see that one of them was changed."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _savings(model: Any, names: Sequence[str], batch: Any, precision: Precision, seconds: float) -> dict[str, float]:
    """Milliseconds that changing each layer saves; where that cannot be timed layer by layer, because it takes a
    compiler, the same share of each layer's time: what is asked is their order."""
    if pays_only_compiled(model, precision):
        times = layer_times(model, names, batch, (), seconds)
        return {name: _ASSUMED * times[name][0] / 1e6 for name in names}
    times = layer_times(model, names, batch, (precision,), seconds)
    return {name: _saved_ms(times[name][0], times[name][1], precision) for name in names}


def _saved_ms(before_ns: float, after_ns: float, precision: Precision) -> float:
    """What changing a layer saves; nothing where it is not clearly faster, except among layers that talk in a
    format of 16 bits: there one that is left out costs its neighbors two conversions."""
    wins = before_ns > _WINS * after_ns or activation_dtype(precision) is not None
    return max(before_ns - after_ns, 0.0) / 1e6 if wins else 0.0


def _batches(service: Service, traffic: Traffic) -> list[Any]:
    """Batches of one, spread over the sample; batches of several would tell padding from no padding as well."""
    requests = sample_requests(traffic, spare=True)[:_REQUESTS]
    adapter = service.models.adapter
    batches = []
    for request in requests:
        try:
            batches.append(adapter.collate([adapter.prepare(request)]))
        except USER_ERRORS:  # a request that fails is reported when it is replayed
            continue
    if not batches:
        raise RunnerError("no request of the traffic could be prepared to measure layers with")
    return batches


def _answer(model: Any, batch: Any) -> list[Any]:
    try:
        tensors = tensors_of(call_model(model, batch))
    except USER_ERRORS as error:
        raise RunnerError(f"the model raised {describe(error)} while its layers were measured") from error
    return [(tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().numpy() for tensor in tensors]


def _change(exact: Sequence[Sequence[Any]], changed: Sequence[Sequence[Any]]) -> float:
    """Root of the mean squared difference, each tensor as a share of its own size, so that none drowns the others.

    Integers (classes, tokens) are the same or not: the square is the share that changed.
    """
    shares = []
    for first, second in zip(exact, changed, strict=True):
        for a, b in zip(first, second, strict=True):
            if a.dtype.kind != "f":
                shares.append(float(np.mean(a != b)) if a.shape == b.shape and a.size else float(a.shape != b.shape))
                continue
            size = float(np.square(a, dtype=np.float64).sum())
            if a.shape != b.shape or size <= 0:
                continue
            apart = float(np.square(a.astype(np.float64) - b).sum()) / size
            shares.append(apart if np.isfinite(apart) else 1e6)
    return float(np.sqrt(np.mean(shares))) if shares else 0.0


def _groups(names: Sequence[str], passes: int) -> list[list[str]]:
    """The names one by one, or neighbors together where there is only time for so many passes."""
    count = min(max(passes, 1), len(names))
    return [list(part) for part in np.array_split(np.array(names, dtype=object), count)]


@contextmanager
def _changed(model: torch.nn.Module, names: Sequence[str], precision: Precision) -> Iterator[None]:
    """Only these layers in another precision, for a while."""
    modules = dict(model.named_modules())
    replaced = {id(modules[name]): layer_in_precision(modules[name], precision) for name in names}
    places = [
        (parent, name, child)
        for parent in list(model.modules())
        for name, child in parent._modules.items()
        if id(child) in replaced
    ]
    try:
        for parent, name, child in places:
            parent._modules[name] = replaced[id(child)]
        yield
    finally:
        for parent, name, child in places:
            parent._modules[name] = child
