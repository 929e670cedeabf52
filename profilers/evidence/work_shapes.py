"""How work grows with its inputs: squares, products, maxima, bends and steps, each of which must predict better.

Terms are added one by one to a model of work (:mod:`latfix.profilers.evidence.work_model`). A term is kept only if it
predicts parts of the run that its fit did not see so much better that chance does not explain it. All terms grow with
their inputs, so that the fit can stay nonnegative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.evidence.work_model import MIN_SAMPLES, predicted_out_of_fold

#: Most terms that are added, and candidates of each form that are fitted: those that go best with the remainder.
_MOST_TERMS, _FITTED = 8, 2
#: A term is kept if it reduces the error by this share, and by so many standard errors, also between so many blocks.
_LEAST_GAIN, _SURE, _BLOCKS = 0.02, 4.0, 12
#: The simplest form with this share of the largest gain is preferred.
_AS_GOOD = 0.98
#: Relative errors are counted up to this multiple of their median, so that faults do not decide.
_FAULT = 8.0
#: Where bends are looked for, as quantiles of the input; lengths of the stretches beside a step, likewise.
_BENDS, _BESIDE, _LEAST_BESIDE = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95), (0.02, 0.08, 0.25), 6
#: Shares of requests in which the second of two inputs is the larger one after its factor.
_TURNS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: Multiples to which inputs are padded.
_MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)
#: Least distinct values of an input that is more than a few kinds.
_KINDS = 3


@dataclass(frozen=True, slots=True)
class Term:
    """A column that grows with one input, or with two.

    :param inputs: their names.
    :param form: one of :data:`_FORMS`, or of two inputs one of :data:`_PAIRS`.
    :param at: where it bends or steps, the multiple to which it is padded, or the factor of the second input.
    """

    inputs: tuple[str, ...]
    form: str = "itself"
    at: float = 0.0

    def column(self, values: Mapping[str, Floats]) -> Floats:
        """``(n,)`` of inputs ``(n,)`` each, by name."""
        first, last = values[self.inputs[0]], values[self.inputs[-1]]
        pair = _PAIRS.get(self.form)
        return _FORMS[self.form](first, self.at) if pair is None else pair(first, last, self.at)

    @property
    def words(self) -> str:
        """What the work follows, for evidence."""
        return _WORDS[self.form].format(*self.inputs, at=self.at).replace(", 1 × ", ", ")


@dataclass(frozen=True, slots=True)
class Sample:
    """Units of work by which terms are chosen, in order of time: requests, or batches of them.

    :param rows: ``(n,)`` the requests; ``unit`` ``(n,)`` the unit of each.
    :param time_ns: ``(m,)`` duration of each unit.
    :param design_of: the design ``(m, columns)`` of columns of requests ``(n, k)``, the first of which are ones; its
        last column grows with the last of them.
    """

    rows: Ints
    unit: Ints
    time_ns: Floats
    design_of: Callable[[Floats], Floats]


def of_requests(time_ns: Ints, most: int) -> Sample:
    """At most twice so many requests as units of work, evenly over time."""
    rows = np.arange(0, len(time_ns), max(len(time_ns) // most, 1))
    return Sample(rows, np.arange(len(rows)), np.maximum(time_ns[rows], 0).astype(np.float64), np.asarray)


_FORMS: dict[str, Callable[[Floats, float], Floats]] = {
    "itself": lambda x, _: x,
    "square": lambda x, _: x * x,
    "root": lambda x, _: np.sqrt(x),
    "log": lambda x, _: np.log1p(x),
    "beyond": lambda x, at: np.maximum(x - at, 0.0),
    "up to": lambda x, at: np.minimum(x, at),
    "above": lambda x, at: (x > at).astype(np.float64),
    "multiple": lambda x, at: np.ceil(x / at) * at,
    "power of 2": lambda x, _: np.exp2(np.ceil(np.log2(np.maximum(x, 1.0)))),
}
_PAIRS: dict[str, Callable[[Floats, Floats, float], Floats]] = {
    "product": lambda x, y, _: x * y,
    "larger": lambda x, y, at: np.maximum(x, at * y),
    "smaller": lambda x, y, at: np.minimum(x, at * y),
}
_WORDS = {
    "itself": "{0}",
    "square": "{0}²",
    "root": "√{0}",
    "log": "log {0}",
    "beyond": "{0} beyond {at:.6g}",
    "up to": "{0} up to {at:.6g}",
    "above": "steps of {0}",
    "multiple": "{0} in multiples of {at:.6g}",
    "power of 2": "{0} in powers of 2",
    "product": "{0} × {1}",
    "larger": "max({0}, {at:.3g} × {1})",
    "smaller": "min({0}, {at:.3g} × {1})",
}


def earned_terms(
    values: Mapping[str, Floats],
    kinds: Mapping[str, Floats],
    given: Sequence[Term],
    sample: Sample,
) -> tuple[Term, ...]:
    """The given terms, and those that predict the work better.

    :param values: inputs by name, ``(n,)`` each, finite and nonnegative, in order of time.
    :param kinds: indicators, such as of routes, ``(n,)`` each; those of ``given`` are part of the design.
    """
    chosen, both, time_ns = list(given), {**values, **kinds}, sample.time_ns
    some = np.flatnonzero(time_ns > 0)
    if len(some) < MIN_SAMPLES:
        return tuple(chosen)
    one = np.ones(len(sample.unit))

    def design(terms: Sequence[Term]) -> Floats:
        return sample.design_of(np.column_stack([one, *(term.column(both) for term in terms)]))

    typical = float(np.median(time_ns[some]))
    predicted, rows = predicted_out_of_fold(design(chosen), time_ns)

    def gain_of(terms: Sequence[Term]) -> tuple[float, float, Floats]:
        """By how much a model of terms is better than ``predicted``, how much counts, and what it predicts."""
        trial, _ = predicted_out_of_fold(design(terms), time_ns)
        # Relative to the larger prediction, or what only one of them predicts would count as a fault.
        level = np.maximum(np.maximum(predicted, trial), 0.1 * typical)
        before, after = (np.abs(time_ns[rows] - each) / level for each in (predicted, trial))
        most = _FAULT * float(np.median(before))
        before, after = np.minimum(before, most), np.minimum(after, most)
        gain = before - after
        # Faults come together: then neighbors gain, or lose, together.
        together = [part.mean() for part in np.array_split(gain, _BLOCKS)]
        error = max(float(gain.std()) / math.sqrt(len(rows)), float(np.std(together)) / math.sqrt(_BLOCKS))
        return float(gain.mean()), max(_LEAST_GAIN * float(before.mean()), _SURE * error), trial

    while len(chosen) < len(given) + _MOST_TERMS:
        level = np.maximum(np.maximum(predicted, time_ns[rows]), 0.1 * typical)
        left = np.zeros(len(time_ns))
        left[rows] = (time_ns[rows] - predicted) / level
        candidates = (each for each in _candidates(values, kinds, left[sample.unit]) if each not in chosen)
        trials = [
            (*gain_of([*chosen, term]), term)
            for term in _likeliest(candidates, design, chosen, rows, left[rows], level)
        ]
        most = max((gain for gain, *_ in trials), default=0.0)
        good = (
            each for each in trials if each[0] > each[1] and each[0] >= _AS_GOOD * most
        )  # simple forms come first
        _, _, trial, term = next(good, (0.0, 0.0, predicted, None))
        if term is None:
            break
        chosen.append(term)
        predicted = trial
    for term in chosen[len(given) :]:  # which later ones may have replaced
        others = [each for each in chosen if each != term]
        loss, least, _ = gain_of(others)
        if -loss < least:
            chosen = others
    return tuple(chosen)


def _candidates(values: Mapping[str, Floats], kinds: Mapping[str, Floats], left: Floats) -> Iterator[Term]:
    for name, x in values.items():
        yield Term((name,))
        if len(distinct := np.unique(x)) <= _KINDS:
            yield from (Term((name,), "above", float(at)) for at in distinct[:-1])
            continue
        yield from (Term((name,), form) for form in ("square", "root", "log"))
        bends = np.unique(np.quantile(x, _BENDS)).tolist()
        yield from (Term((name,), form, at) for at in bends for form in ("beyond", "up to"))
        yield from (Term((name,), "above", at) for at in _steps(x, left))
        if (x == np.rint(x)).all():
            most = float(np.quantile(x, 0.95))
            yield from (Term((name,), "multiple", float(at)) for at in _MULTIPLES if at < most)
            yield Term((name,), "power of 2")
    for pair in combinations(values, 2):
        yield Term(pair, "product")
        first, second = (values[name] for name in pair)
        both = second > 0
        factors = np.quantile(first[both] / second[both], _TURNS).tolist() if both.any() else []
        yield from (Term(pair, form, at) for form in ("larger", "smaller") for at in (1.0, *factors))
    yield from (Term((name, kind), "product") for name in values for kind in kinds)


def _steps(x: Floats, left: Floats) -> set[float]:
    """Values beyond which the remainder is higher at once."""
    order = np.argsort(x, kind="stable")
    at, running = x[order], np.concatenate([[0.0], np.cumsum(left[order])])
    cuts = np.flatnonzero(np.diff(at) > 0) + 1
    found = set()
    for part in _BESIDE:
        width = max(int(part * len(x)), _LEAST_BESIDE)
        inside = cuts[(cuts >= width) & (cuts <= len(x) - width)]
        if len(inside):
            jump = running[inside + width] - 2 * running[inside] + running[inside - width]
            place = int(inside[np.argmax(jump)])
            found.add(float(at[place - 1] + at[place]) / 2)
    return found


def _likeliest(
    candidates: Iterator[Term],
    design: Callable[[Sequence[Term]], Floats],
    chosen: Sequence[Term],
    rows: Ints,
    left: Floats,
    level: Floats,
) -> list[Term]:
    """Of each form, the candidates that go best with what is left, apart from what the chosen terms say."""
    known, _ = np.linalg.qr(design(chosen)[rows] / level[:, None])
    best: dict[str, list[tuple[float, Term]]] = {}
    for term in candidates:
        column = design([term])[rows, -1] / level
        length = float(np.linalg.norm(column))
        column = column - known @ (known.T @ column)
        apart = float(np.linalg.norm(column))
        if apart > 1e-6 * length and (fit := float(column @ left) / apart) > 0:
            best.setdefault(term.form, []).append((fit, term))
    return [term for each in best.values() for _, term in sorted(each, key=lambda one: -one[0])[:_FITTED]]
