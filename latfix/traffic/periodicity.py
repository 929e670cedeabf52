"""Detects a period in arrivals: the strongest line of their spectrum, verified from cycle to cycle."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats

#: Bins of the spectrum's time axis; far finer than any period of interest.
_BINS = 2**18
#: A period must be observed at least this often, and a cycle must hold this many requests.
MIN_CYCLES = 4
MIN_REQUESTS_PER_CYCLE = 3
#: A line must exceed the surrounding spectrum by this factor. Noise exceeds its own mean 20-fold with a probability
#: of exp(-20) per frequency, and there are at most 1e5 of them.
_LINE_RATIO = 20.0
#: Relative swing of the rate below which a period is irrelevant.
_MIN_AMPLITUDE = 0.2
#: Share of the rate's variation that the period must explain.
MIN_STRENGTH = 0.5
_CANDIDATES = 8
_REFINE_EVENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A period of the arrivals.

    :param seconds: length of one cycle.
    :param strength: share of the rate's variation (beyond that of independent arrivals) that one cycle predicts of
        the others; 1 is a perfect repetition.
    :param amplitude: swing of the rate at this period as a share of its mean; a full sine swing is 1.
    :param cycles: how often it was observed.
    """

    seconds: float
    strength: float
    amplitude: float
    cycles: float


def find_period(seconds: Floats) -> Period | None:
    """The period of sorted arrival times, ``None`` if there is none.

    A line of the Hann-windowed spectrum of arrivals must exceed the median of its surroundings (random bursts have a
    broad spectrum, a period has a line), swing the rate by a fifth, and predict each cycle from the others.
    """
    span = float(seconds[-1] - seconds[0]) if len(seconds) else 0.0
    highest = min(len(seconds) // MIN_REQUESTS_PER_CYCLE, _BINS // 2 - 1)
    if span <= 0 or highest < MIN_CYCLES:
        return None
    times = seconds - seconds[0]
    power = _spectrum(times, span)
    best: Period | None = None
    for frequency in _lines(power, highest):
        refined = _refined(times, span, frequency)
        for divisor in (1, 2, 3, 4):
            if refined / divisor < MIN_CYCLES:
                break
            period = _period(times, span, refined / divisor, divisor)
            # A multiple of the period repeats as well as the period itself, so it must be clearly better.
            if period is not None and (best is None or period.strength > best.strength + 0.1):
                best = period
    return best


@functools.cache
def _hann() -> Floats:
    return 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(_BINS) + 0.5) / _BINS)


def _spectrum(times: Floats, span: float) -> Floats:
    """Power by whole cycles per span; 1 on average for independent arrivals."""
    counts = np.bincount(np.minimum((times / span * _BINS).astype(np.int64), _BINS - 1), minlength=_BINS)
    window = _hann()
    centered = (counts - counts.mean()) * window
    power: Floats = np.abs(np.fft.rfft(centered)) ** 2 / (len(times) * np.mean(window**2))
    return power


def _lines(power: Floats, highest: int) -> list[int]:
    """Frequencies whose power exceeds their surroundings, the strongest first."""
    strongest = np.argsort(power[MIN_CYCLES : highest + 1])[::-1][:64] + MIN_CYCLES
    lines: list[int] = []
    for frequency in strongest.tolist():
        if any(abs(frequency - line) <= 3 for line in lines):
            continue
        low, high = max(1, frequency // 2), max(2 * frequency, frequency + 20)
        around = np.concatenate([power[low : max(low, frequency - 3)], power[frequency + 4 : high + 1]])
        background = max(float(np.median(around)) / np.log(2), 1.0)
        if power[frequency] >= _LINE_RATIO * background:
            lines.append(frequency)
        if len(lines) == _CANDIDATES:
            break
    return lines


def _refined(times: Floats, span: float, frequency: int) -> float:
    """The fractional frequency at which the arrivals' own spectrum is highest."""
    some = times[:: max(1, len(times) // _REFINE_EVENTS)]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * some / span)  # suppresses the mean and the ends
    best = float(frequency)
    for step in (0.1, 0.01):
        tried = best + step * np.arange(-8, 9)
        heights = [abs((window * np.exp(-2j * np.pi * f / span * some)).sum()) for f in tried]
        best = float(tried[int(np.argmax(heights))])
    return best


def _period(times: Floats, span: float, frequency: float, divisor: int) -> Period | None:
    cycles = int(frequency)
    length = span / frequency
    phase = np.exp(-2j * np.pi * divisor * times / length)
    amplitude = 2 * abs(phase.mean())
    if amplitude < _MIN_AMPLITUDE:
        return None
    strength = _strength(times, length, cycles)
    # Few cycles agree by chance more often than many do.
    if strength < MIN_STRENGTH + 1 / cycles:
        return None
    return Period(seconds=length, strength=strength, amplitude=amplitude, cycles=frequency)


def _strength(times: Floats, length: float, cycles: int) -> float:
    """The share of the variation between phases that each cycle has in common with the mean of the others.

    Independent noise does not carry over from cycle to cycle, so it does not bias the covariance. The whole variation
    is corrected for it by subtracting the Poisson variance, the mean count.
    """
    phases = int(np.clip(len(times) / cycles / 2, 4, 16))
    # Arrivals on a strict beat all have one phase: put it into the middle of a bin, not on an edge.
    beat = float(np.angle(np.exp(2j * np.pi * times / length).mean())) / (2 * np.pi) % 1.0
    index = np.floor((times / length - beat) * phases + 0.5).astype(np.int64)
    whole_cycles = (index >= 0) & (index < cycles * phases)
    counts = np.bincount(index[whole_cycles], minlength=cycles * phases)
    folded = counts.reshape(cycles, phases).astype(np.float64)
    mean = float(folded.mean())
    deviations = folded - mean
    others = (deviations.sum(axis=0) - deviations) / (cycles - 1)
    shared = float((deviations * others).mean())
    whole = float(deviations.var()) - mean  # Poisson variance is the mean
    if whole <= 0:
        return 0.0
    return min(1.0, max(0.0, shared / whole))
