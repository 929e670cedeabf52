"""``gpu.clocks``: the device computed at a lower clock than in most of the run: heat, power, idleness."""

from __future__ import annotations

from functools import partial

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.evidence.nvml_samples import at_batches, share_since
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.gpu.nvml import CLOCK_REASONS, VIOLATIONS
from latfix.run_record.schema import device_series

_SERIES = "nvml.sm_clock_mhz"
#: Clocks vary by about a percent all the time.
_LOWER = 0.03
#: Counters of the time for which a policy lowered the clocks. Idleness is no policy.
_VIOLATIONS = tuple(f"nvml.violation_{name}_ns" for name in VIOLATIONS if name != "low_utilization")
#: A smaller share of the time between two polls is within their timing error.
_LEAST_HELD = 0.05


def _claim(evidence: Evidence, _left: Left) -> Claim:
    lowered, held_down = _lowered(evidence), share_since(evidence, _VIOLATIONS)
    if lowered is None and held_down is None:
        return Claim()
    unit = evidence.units["compute"]
    claimed = np.zeros(len(unit.wall), np.int64)
    if lowered is not None:
        clock, usual = lowered
        # Work bound by memory takes no longer at a lower clock, so this is an upper bound.
        longer = np.where(clock < (1.0 - _LOWER) * usual, usual / np.maximum(clock, 1.0) - 1.0, 0.0)
        claimed = np.rint(unit.expected_cpu * np.nan_to_num(longer)).astype(np.int64)
    if held_down is not None:
        # The counters cover the time between two readings of the clock, but not how low it was.
        counted = np.rint(unit.wall * np.where(held_down > _LEAST_HELD, held_down, 0.0)).astype(np.int64)
        claimed = np.maximum(claimed, counted)
    return Claim(units={"compute": Parts(excess=claimed)})


def _lowered(evidence: Evidence) -> tuple[Floats, Floats] | None:
    """The clock at each batch, and that of a typical batch on the same device; ``None`` if it was not read."""
    clock = at_batches(evidence, _SERIES)
    if clock is None:
        return None
    numbers = evidence.setup.device_numbers(evidence.batches["worker"])
    usual = np.full(len(clock), np.nan)
    for number in np.unique(numbers).tolist():
        here = numbers == number
        quiet = clock[here & evidence.quiet_batch & np.isfinite(clock)]
        key = device_series("gpu.clock", number)
        usual[here] = evidence.norms.of(key, partial(_median, quiet))
    return (clock, usual) if np.isfinite(usual).any() else None


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    lowered, held_down = _lowered(evidence), share_since(evidence, _VIOLATIONS)
    fell = "the device's clock was held down"
    if lowered is not None:
        clock, usual = lowered
        worst = int(np.nanargmin(clock / usual))
        fell = f"the device's clock fell to {clock[worst]:.0f} MHz, {usual[worst]:.0f} MHz at a typical batch"
    bits = 0
    for number in np.unique(evidence.setup.device_numbers(evidence.batches["worker"])).tolist():
        _, values = evidence.series(device_series("nvml.clock_event_reasons", number))
        bits |= int(np.bitwise_or.reduce(values.astype(np.int64), initial=0))
    reasons = ", ".join(text for bit, text in CLOCK_REASONS.items() if bits & bit)
    counted = "" if held_down is None else f", for up to {share(held_down.max())} of a second by NVML's counters"
    return (
        fell
        + (f" (NVML's reasons in the run: {reasons})" if reasons else "")
        + (counted if held_down is not None and held_down.max(initial=0.0) > _LEAST_HELD else "")
        + f"; {figures.parts_and_largest}."
    )


CAUSE = Cause(id="gpu.clocks", fixes=("host.routing",), claim=_claim, sentence=_sentence)
