"""Traffic from a random process with known properties: the same seed gives the same traffic."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats
from latfix.errors import InputError
from latfix.formatting import shown
from latfix.traffic.parsed_fields import REQUEST_FIELDS
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import MAX_REQUESTS
from latfix.traffic.value_parsers import MAX_SECONDS, NS_PER_S

Kind = Literal["poisson", "gamma", "bursts", "periodic"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Gaps that vary by less are equal in floating point; below 1e-154 the distribution's shape overflows.
_CONSTANT_CV = 1e-16

_FEATURE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(lognormal|uniform|constant)\s*\(([^()]*)\)\s*")
_FEATURE_FORMS = "lognormal(mu,sigma,low,high), uniform(low,high) or constant(value)"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_ARGUMENTS = {"lognormal": 4, "uniform": 2, "constant": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """How a feature is drawn for each request, independently of the others.

    :param name: the feature.
    :param distribution: ``lognormal`` (of ``mu``, ``sigma``, clipped to ``low`` … ``high``), ``uniform``
        (from ``low`` to ``high``) or ``constant``.
    :param arguments: in that order.
    :param whole: values are whole numbers, because the bounds were written without a decimal point.
    """

    name: str
    distribution: str
    arguments: tuple[float, ...]
    whole: bool

    @classmethod
    def parse(cls, text: str) -> FeatureSpec:
        """Parse a feature of the command line: ``input_tokens=lognormal(4.3,0.8,8,512)``.

        :raises InputError: another form, a wrong number of arguments, or arguments out of their range.
        """
        match = _FEATURE.fullmatch(text)
        if match is None:
            raise InputError(f"--feature: found {shown(text)}; expected NAME={_FEATURE_FORMS}")
        name, distribution = match[1], match[2]
        parts = [part.strip() for part in match[3].split(",")]
        numbers = tuple(float(part) for part in parts if _NUMBER.fullmatch(part))
        if name in REQUEST_FIELDS:
            raise InputError(f"--feature: found {name}, a field of the request; expected a feature's name")
        if len(parts) != _ARGUMENTS[distribution] or len(numbers) != len(parts):
            raise InputError(f"--feature: found {shown(text)}; expected {_FEATURE_FORMS}, with numbers")
        bounds = parts[2:] if distribution == "lognormal" else parts
        whole = all(re.fullmatch(r"[+-]?[0-9]+", part) for part in bounds)
        spec = cls(name=name, distribution=distribution, arguments=numbers, whole=whole)
        spec._check(text)
        return spec

    def _check(self, text: str) -> None:
        if any(not abs(number) < 2**53 for number in self.arguments):
            raise InputError(f"--feature: found {shown(text)}; expected numbers below 2**53")
        if self.distribution == "lognormal" and (self.arguments[1] < 0 or abs(self.arguments[0]) > 50):
            raise InputError(f"--feature: found {shown(text)}; expected sigma of 0 or more and |mu| of at most 50")
        if self.distribution != "constant" and self.arguments[-2] > self.arguments[-1]:
            raise InputError(f"--feature: found {shown(text)}; expected low <= high")

    def draw(self, count: int, random: np.random.Generator) -> npt.NDArray[Any]:
        """``count`` values: int64 if whole, else float64."""
        if self.distribution == "constant":
            values = np.full(count, self.arguments[0])
        elif self.distribution == "uniform":
            low, high = self.arguments
            if self.whole:
                return random.integers(int(low), int(high), size=count, endpoint=True, dtype=np.int64)
            values = random.uniform(low, high, count)
        else:
            mu, sigma, low, high = self.arguments
            exponents = np.clip(mu + sigma * random.standard_normal(count), -700, 700)
            values = np.clip(np.exp(exponents), low, high)
        return np.rint(values).astype(np.int64) if self.whole else values


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """A random process of arrivals.

    :param kind: ``poisson``; ``gamma`` (independent gamma-distributed gaps); ``bursts`` (a Poisson process that
        switches between two rates after exponentially distributed times); ``periodic`` (a Poisson process whose
        rate follows a sine).
    :param rate: mean requests per second, over all of the traffic.
    :param duration_s: seconds; arrivals lie in ``[0, duration_s)``.
    :param cv: ``gamma``: coefficient of variation of the gaps; 1 is Poisson, 0 (or too small for a float) a constant
        gap.
    :param burst_on_s: ``bursts``: mean length of a burst.
    :param burst_off_s: ``bursts``: mean time between bursts.
    :param burst_factor: ``bursts``: the rate within a burst as a multiple of ``rate``; at most
        ``(on + off) / on``, with which nothing arrives between bursts.
    :param period_s: ``periodic``: length of a period.
    :param amplitude: ``periodic``: how far the rate swings, as a share of ``rate``, above 0 and at most 1.
    """

    kind: Kind
    rate: float
    duration_s: float
    seed: int = 0
    cv: float = 2.0
    burst_on_s: float = 1.0
    burst_off_s: float = 4.0
    burst_factor: float = 4.0
    period_s: float = 10.0
    amplitude: float = 0.8

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"--kind: found {shown(self.kind)}; expected one of {', '.join(KINDS)}")
        for name in ("rate", "duration_s", "burst_on_s", "burst_off_s", "burst_factor", "period_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                option = "--" + name.removesuffix("_s").replace("_", "-")
                raise InputError(f"{option}: found {value}; expected a finite number above 0")
        if not self.duration_s <= MAX_SECONDS:
            raise InputError(f"--duration: found {self.duration_s:g}; expected at most {MAX_SECONDS:.0e} s")
        if not self.rate * self.duration_s <= MAX_REQUESTS:
            found = f"{self.rate:g} requests a second for {self.duration_s:g} s"
            raise InputError(f"--rate: found {found}; expected at most {MAX_REQUESTS} requests in all")
        if not (math.isfinite(self.cv) and 0 <= self.cv <= 100):
            raise InputError(f"--cv: found {self.cv}; expected 0 to 100")
        if not 0 < self.amplitude <= 1:
            raise InputError(f"--amplitude: found {self.amplitude}; expected above 0 and at most 1")
        if self.seed < 0:
            raise InputError(f"--seed: found {self.seed}; expected 0 or more")
        most = (self.burst_on_s + self.burst_off_s) / self.burst_on_s
        if self.kind == "bursts" and not 1 <= self.burst_factor <= most * (1 + 1e-9):
            raise InputError(
                f"--burst-factor: found {self.burst_factor:g}; expected 1 to {most:g}, "
                "the (on + off) / on with which nothing arrives between bursts"
            )

    def parameters(self) -> dict[str, Any]:
        """The parameters that apply to this kind."""
        own = {
            "poisson": (),
            "gamma": ("cv",),
            "bursts": ("burst_on_s", "burst_off_s", "burst_factor"),
            "periodic": ("period_s", "amplitude"),
        }[self.kind]
        every = asdict(self)
        return {name: every[name] for name in ("kind", "rate", "duration_s", "seed", *own)}


def synthesize(synthesis: Synthesis, features: Sequence[FeatureSpec] = ()) -> Traffic:
    """Traffic drawn from ``synthesis``, each request with ``features``.

    :raises InputError: a feature is given twice, or nothing arrives in the duration.
    """
    names = [feature.name for feature in features]
    if len(set(names)) != len(names):
        raise InputError(f"--feature: found {', '.join(names)}; expected each feature once")
    arrivals_random, feature_random = (
        np.random.default_rng(seed) for seed in np.random.SeedSequence(synthesis.seed).spawn(2)
    )
    seconds = np.sort(_arrivals(synthesis, arrivals_random))
    count = len(seconds)
    if count == 0:
        raise InputError(
            f"--duration: found no arrival in {synthesis.duration_s:g} s at {synthesis.rate:g} requests a second; "
            "expected a duration or rate that gives at least one; try a larger one or another seed"
        )
    return Traffic.plain(
        np.rint(seconds * NS_PER_S).astype(np.int64),
        features={feature.name: feature.draw(count, feature_random) for feature in features},
        metadata={
            "format": "synthetic",
            "synthesis": synthesis.parameters(),
            "features": {
                feature.name: {"distribution": feature.distribution, "arguments": list(feature.arguments)}
                for feature in features
            },
            "rows": count,
            "transforms": [],
        },
    )


def _arrivals(synthesis: Synthesis, random: np.random.Generator) -> Floats:
    if synthesis.kind == "poisson":
        return _poisson(synthesis.rate, synthesis.duration_s, random)
    if synthesis.kind == "gamma":
        return _gamma(synthesis, random)
    if synthesis.kind == "bursts":
        return _bursts(synthesis, random)
    # Thinning (Lewis and Shedler, 1979): candidates at the highest rate, kept in proportion to the current rate.
    highest = synthesis.rate * (1 + synthesis.amplitude)
    candidates = _poisson(highest, synthesis.duration_s, random)
    swing = 1 + synthesis.amplitude * np.sin(2 * np.pi * candidates / synthesis.period_s)
    return candidates[random.random(len(candidates)) * (1 + synthesis.amplitude) < swing]


def _poisson(rate: float, duration_s: float, random: np.random.Generator) -> Floats:
    # Given their number, the arrivals of a Poisson process are uniform.
    return random.uniform(0.0, duration_s, random.poisson(rate * duration_s))


def _gamma(synthesis: Synthesis, random: np.random.Generator) -> Floats:
    mean = 1.0 / synthesis.rate
    if synthesis.cv < _CONSTANT_CV:
        return np.arange(0.0, synthesis.duration_s, mean)
    shape = synthesis.cv**-2
    parts: list[Floats] = []
    reached = 0.0
    while reached < synthesis.duration_s:
        size = int(synthesis.rate * (synthesis.duration_s - reached) * 1.1) + 100
        part = reached + np.cumsum(random.gamma(shape, mean / shape, size))
        parts.append(part)
        reached = float(part[-1])
    arrivals = np.concatenate(parts)
    return arrivals[arrivals < synthesis.duration_s]


def _bursts(synthesis: Synthesis, random: np.random.Generator) -> Floats:
    on, off, factor = synthesis.burst_on_s, synthesis.burst_off_s, synthesis.burst_factor
    high = synthesis.rate * factor
    low = max(0.0, (synthesis.rate * (on + off) - high * on) / off)
    cycles = int(synthesis.duration_s / (on + off) * 1.5) + 50
    if cycles > MAX_REQUESTS:
        raise InputError(f"--burst-on: found {on:g} s; expected fewer than {MAX_REQUESTS} bursts in all")
    starts_on = bool(random.random() < on / (on + off))
    lengths = np.empty(0)
    while lengths.sum() < synthesis.duration_s:
        pair = np.stack([random.exponential(on, cycles), random.exponential(off, cycles)], axis=1)
        lengths = np.concatenate([lengths, (pair if starts_on else pair[:, ::-1]).ravel()])
    ends = np.cumsum(lengths)
    begins = ends - lengths
    inside = begins < synthesis.duration_s
    begins, ends = begins[inside], np.minimum(ends[inside], synthesis.duration_s)
    bursting = (np.arange(len(begins)) % 2 == 0) == starts_on
    counts = random.poisson(np.where(bursting, high, low) * (ends - begins))
    return random.uniform(np.repeat(begins, counts), np.repeat(ends, counts))
