"""Sensitivity of layers: what quantizing each one costs in accuracy and saves in time, and which layers to keep.

A cheap measure orders the layers: each one alone is quantized, and the change of the model's outputs on traffic is
divided by the milliseconds that it saves. The accuracy itself (the workload's score, or agreement) then decides how
many of them must keep their precision: by bisection, always on a service that is loaded with exactly those settings.
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
from latfix.formatting import counted
from latfix.runners.answers.named_outputs import outputs_of
from latfix.runners.calls.model_call import USER_ERRORS, call_on_copy, describe
from latfix.runners.calls.tensor_tree import move
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

#: Number of requests on which a layer's effect is measured.
_REQUESTS = 24
#: Minimum speedup to change a layer; below it, accuracy is lost for nothing.
_WINS = 1.02
#: Assumed share of a layer's time that eight bits save, if they need a compiler to save any.
_ASSUMED = 0.5
#: Share of the budget for single layers; the remainder is for the accuracy of the choices.
_LAYERS_SHARE = 0.35
#: The first guess keeps the layers that make up this share of the squared change of the outputs.
_NEARLY_ALL = 0.9
#: Layers that save less are ordered by their effect alone.
_LEAST_MS = 1e-3


@dataclass(slots=True, kw_only=True)
class Layer:
    """Layers that were changed together; a single one if time allowed.

    :param effect: root mean squared change of the model's outputs, relative to their size, if only these are changed.
    :param saves_ms: of one request's forward pass.
    :param kept: ``no gain`` or ``accuracy`` if they keep their precision; empty if they are changed.
    """

    names: tuple[str, ...]
    effect: float = 0.0
    saves_ms: float = 0.0
    kept: str = ""

    @property
    def price(self) -> float:
        """Effect per saved millisecond: the layers with the highest one are kept first."""
        return self.effect / max(self.saves_ms, _LEAST_MS)


@dataclass(slots=True, kw_only=True)
class Sensitivity:
    """Result of the measurement.

    :param keep: modules that must keep their precision, with the effect of each; if empty, ``reason`` says why.
    :param score: of the original.
    :param trials: numbers of layers that were kept for accuracy, each with the resulting accuracy.
    """

    precision: Precision
    layers: list[Layer] = field(default_factory=list)
    keep: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    score: float = 0.0
    trials: list[dict[str, Any]] = field(default_factory=list)


def measure(
    folder: Path,
    entry: str,
    settings: RunnerSettings,
    traffic: Traffic,
    *,
    precision: Precision,
    max_drop: float,
    budget_s: float,
) -> Sensitivity:
    """Find the layers that must keep their precision for the accuracy to stay within ``max_drop``.

    :param settings: of the service; the modules in its ``keep_precision`` are always kept.
    :param traffic: if it is long enough, choices are made on other requests than those of the guard; a workload with
        a score of its own uses that score for both.
    :param budget_s: about how long it may take; the measurements until then decide.
    :raises RunnerError: the workload itself fails.
    """
    until = time.monotonic() + budget_s
    neutral = {"precision": "default", "compile": "off", "backend": "torch", "attention": "default"}
    plain = settings.with_overrides({**neutral, "memory_format": "default", "warmup_shapes": 0})
    found = Sensitivity(precision=precision)
    with tempfile.TemporaryDirectory(prefix="latfix-sensitivity-") as scratch:
        reference = Path(scratch) / "original.npz"

        def measure_layers() -> None:
            with _loaded(folder, entry, plain) as service:
                found.score = evaluate(service, traffic, None, save=reference, spare=True).score
                layers_until = until - (1.0 - _LAYERS_SHARE) * (until - time.monotonic())
                found.layers = _layers(service, traffic, plain, precision, lambda: layers_until - time.monotonic())

        measure_layers()  # a function of its own, so that no reference keeps the service alive

        def accuracy_of(keep: Collection[str]) -> Accuracy:
            change = {"precision": precision, "keep_precision": (*plain.keep_precision, *keep)}
            with _loaded(folder, entry, plain.with_overrides(change)) as changed:
                return evaluate(changed, traffic, reference, max_drop=max_drop, spare=True)

        _choose(found, accuracy_of, max_drop, lambda: until - time.monotonic())
    return found


def _choose(
    found: Sensitivity,
    accuracy_of: Callable[[Collection[str]], Accuracy],
    max_drop: float,
    left_s: Callable[[], float],
) -> None:
    """Find the smallest number of layers to keep, highest price first, with which the accuracy is allowed."""
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
        ok, reason = judge(asdict(scored), found.score, max_drop)
        found.trials.append({"kept": count, "score": scored.score, "allowed": bool(ok), "said": reason})
        least_s = max(least_s, before - left_s())
        return bool(ok)

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
    """Why there is no choice: the accuracy, or the time."""
    last = max(trials, key=lambda trial: int(trial["kept"]))
    if last["kept"] >= most - 1:
        return f"the accuracy is not kept even with {last['kept']} of {most} layers left out: {last['said']}"
    tried = counted(len(trials), "trial")
    return f"time was up after {tried}; with {last['kept']} of {most} layers left out: {last['said']}"


def _outstanding(layers: Sequence[Layer]) -> int:
    """Number of first layers that make up nearly all of the change: the first guess of how many must be kept."""
    squares = np.square([layer.effect for layer in layers])
    return 1 + int(np.searchsorted(np.cumsum(squares), _NEARLY_ALL * squares.sum()))


def _fewest(most: int, allowed: Callable[[int], bool], in_time: Callable[[], bool], *, first: int) -> int | None:
    """The smallest allowed count below ``most``, by bisection; ``None`` if none was found in time.

    Layers are ordered by price, so keeping more of them is assumed not to be worse. The returned count was tested.

    :param first: where bisection begins; 0 for the middle.
    """
    if allowed(0):
        return 0
    low, high, best = 1, most - 1, None
    middle = min(first, high) or (low + high) // 2

    while low <= high and in_time():
        if allowed(middle):
            best, high = middle, middle - 1
        else:
            low = middle + 1
        middle = (low + high) // 2
    return best


@contextmanager
def _loaded(folder: Path, entry: str, settings: RunnerSettings) -> Iterator[Service]:
    gc.collect()  # the previous service is in a reference cycle, and a device may have no room for both
    service = Service(folder, entry, settings)
    service.load()
    try:
        yield service
    finally:
        service.release()


def _layers(
    service: Service, traffic: Traffic, plain: RunnerSettings, precision: Precision, left_s: Callable[[], float]
) -> list[Layer]:
    """Effect and saving of each layer, or of groups of neighbors if time is short."""
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
            # The outputs of a nondeterministic model change anyway.
            effect = effect if effect > 3 * noise else 0.0
            layers.append(Layer(names=tuple(group), effect=effect, saves_ms=sum(saves[name] for name in group)))
    return layers


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    """Disable the fused encoder kernel, which would bypass a changed layer."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _savings(model: Any, names: Sequence[str], batch: Any, precision: Precision, seconds: float) -> dict[str, float]:
    """Milliseconds that changing each layer saves.

    If that needs a compiler, it cannot be timed layer by layer; the same share of each layer's time is assumed, which
    is enough to order them.
    """
    if pays_only_compiled(model, precision):
        times = layer_times(model, names, batch, (), seconds)
        return {name: _ASSUMED * times[name][0] / 1e6 for name in names}
    times = layer_times(model, names, batch, (precision,), seconds)
    return {name: _saved_ms(times[name][0], times[name][1], precision) for name in names}


def _saved_ms(before_ns: float, after_ns: float, precision: Precision) -> float:
    """Milliseconds that changing a layer saves; 0 if it is not clearly faster.

    Layers that exchange 16-bit activations always count: leaving one out costs its neighbors two conversions.
    """
    wins = before_ns > _WINS * after_ns or activation_dtype(precision) is not None
    return max(before_ns - after_ns, 0.0) / 1e6 if wins else 0.0


def _batches(service: Service, traffic: Traffic) -> list[Any]:
    """Batches of one, spread over the sample: in larger ones padding would matter, too."""
    requests = sample_requests(traffic, spare=True)[:_REQUESTS]
    adapter = service.models.adapter
    batches = []
    for request in requests:
        try:
            batches.append(adapter.collate([adapter.prepare(request)]))
        except USER_ERRORS:  # reported when the request is replayed
            continue
    if not batches:
        raise RunnerError("no request of the traffic could be prepared to measure layers with")
    return batches


def _answer(model: Any, batch: Any) -> list[Any]:
    try:
        return [output.values for output in outputs_of(call_on_copy(model, batch))]
    except USER_ERRORS as error:
        raise RunnerError(f"the model raised {describe(error)} while its layers were measured") from error


def _change(exact: Sequence[Sequence[Any]], changed: Sequence[Sequence[Any]]) -> float:
    """Root mean squared difference, each tensor relative to its own size.

    For integers (classes, tokens) the square is the share that changed. An answer of other shapes (more detections,
    fewer) changed as a whole.
    """
    shares = []
    for first, second in zip(exact, changed, strict=True):
        if [a.shape for a in first] != [b.shape for b in second]:
            shares.append(1.0)
            continue
        for a, b in zip(first, second, strict=True):
            if a.dtype.kind != "f":
                shares.append(float(np.mean(a != b)) if a.size else 0.0)
            elif (size := float(np.square(a, dtype=np.float64).sum())) > 0:
                apart = float(np.square(a.astype(np.float64) - b).sum()) / size
                shares.append(apart if np.isfinite(apart) else 1e6)
    return float(np.sqrt(np.mean(shares))) if shares else 0.0


def _groups(names: Sequence[str], passes: int) -> list[list[str]]:
    """The names one by one, or in groups of neighbors if there is only time for ``passes``."""
    count = min(max(passes, 1), len(names))
    return [list(part) for part in np.array_split(np.array(names, dtype=object), count)]


@contextmanager
def _changed(model: torch.nn.Module, names: Sequence[str], precision: Precision) -> Iterator[None]:
    """The model with only these layers in another precision."""
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
