"""Sampled series of simulated records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns

Series = Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]


def sample_columns(series: Series) -> Columns:
    """Columns of series: name → times in nanoseconds, values."""
    times = np.concatenate([np.zeros(0, np.int64), *(t for t, _ in series.values())]).astype(np.int64)
    values = np.concatenate([np.zeros(0), *(v for _, v in series.values())])
    names = np.empty(len(times), object)
    names[:] = [name for name, (t, _) in series.items() for _ in range(len(t))]
    order = np.argsort(times, kind="stable")
    return {"t_ns": times[order], "series": names[order], "value": values[order]}


def values_in_order(series: Mapping[str, Sequence[float]]) -> Columns:
    """Columns of series whose values are a nanosecond apart."""
    return sample_columns({name: (np.arange(len(each)), np.asarray(each)) for name, each in series.items()})


def add_samples(record: RunRecord, series: Series) -> RunRecord:
    """The record with more sampled series."""
    known = {name: np.concatenate([record.samples[name], more]) for name, more in sample_columns(series).items()}
    order = np.argsort(known["t_ns"], kind="stable")
    return replace(record, samples={name: column[order] for name, column in known.items()})
