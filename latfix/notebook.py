"""The Python API: read a run as pandas frames, diagnose it, compare two, replay a workload."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfix.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from latfix.results.comparison import Comparison
    from latfix.results.diagnosis import Diagnosis
    from latfix.run_record.chunked_record import RecordFile
    from latfix.run_record.run_meta import RunMeta
    from latfix.run_record.run_record import RunRecord

#: Columns that are points in time, counted from the run's start; other ``*_ns`` columns are durations.
_MOMENTS = ("t", "arrival", "free", "open", "close", "collated", "h2d_end", "compute_end", "d2h_end", "finish_end")


@dataclass(frozen=True)
class Run:
    """A recorded run. Frames are read on first access; durations are in milliseconds (``latency_ms``), points in time
    in seconds from the run's start (``arrival_s``)."""

    record: RunRecord | RecordFile

    @property
    def folder(self) -> Path:
        """The folder that it was read from."""
        return self.record.folder

    @property
    def meta(self) -> RunMeta:
        """What was replayed, where and how: ``run.json``."""
        return self.record.meta

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request: ``id``, ``arrival_s``, a column per stage, ``latency_ms``, ``status``, features."""
        return self._frame("requests").set_index("index")

    @cached_property
    def batches(self) -> pd.DataFrame:
        """One row per batch: when it opened, closed and ended, its size, what its thread did."""
        return self._frame("batches").set_index("batch_id")

    @cached_property
    def events(self) -> pd.DataFrame:
        """Collections, compilations, spans, errors and notes; ``detail`` is a dict."""
        frame = self._frame("events")
        frame["detail"] = frame["detail"].map(json.loads)
        return frame

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Samples taken during the run: ``t_s``, ``series``, ``value`` in the unit that the series names."""
        return self._frame("samples")

    @cached_property
    def causes(self) -> pd.DataFrame:
        """One row per request and cause: own and propagated milliseconds beyond a quiet request."""
        from latfix.profilers.diagnose import write_causes

        path = self.folder / "causes.parquet"
        if path.exists():
            return _read(path)
        with tempfile.TemporaryDirectory() as folder:
            write_causes(diagnose(self), Path(folder) / "causes.parquet")
            return _read(Path(folder) / "causes.parquet")

    def _repr_html_(self) -> str:
        """For notebooks: workload and state, the number of requests, latencies, start time and folder."""
        from latfix.formatting import LATENCY_KEYS, count, html_table, key_label, milliseconds
        from latfix.statistics.censored import outcomes_of

        outcomes, meta = outcomes_of(self.record), self.meta
        latency_ms = outcomes.summary_ms()
        rows = [("requests", count(len(outcomes))), ("ended ok", count(len(outcomes.ok_ns)))]
        rows += [(key_label(key), milliseconds(latency_ms.get(key))) for key in LATENCY_KEYS]
        rows += [("started", meta.started), ("folder", str(self.folder))]
        return html_table(f"{meta.workload} on {meta.device}: {meta.state}", (), ("", "run"), rows)

    def _frame(self, name: str) -> pd.DataFrame:
        from latfix.run_record.run_record import finalize

        path = self.folder / f"{name}.parquet"
        if path.exists():
            return _read(path)
        with tempfile.TemporaryDirectory() as folder:  # the runner was killed: convert its segments to Parquet
            copy = Path(folder) / "run"
            shutil.copytree(self.folder, copy)
            finalize(copy)
            return _read(copy / f"{name}.parquet")


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    with path.open("rb") as file:
        frame = pd.read_parquet(file)
    names = {}
    for name in frame.columns:
        if name.endswith("_ns") and pd.api.types.is_numeric_dtype(frame[name]):
            base = name.removesuffix("_ns")
            names[name] = f"{base}_s" if base in _MOMENTS else f"{base}_ms"
            frame[name] = frame[name] / (1e9 if base in _MOMENTS else 1e6)
    return frame.rename(columns=names)


def read_run(folder: str | Path) -> Run:
    """Read a run's folder, complete or not.

    :raises InputError: it is not the folder of a run, or is damaged.
    """
    from latfix.run_record.chunked_record import open_record

    return Run(open_record(Path(folder)))


def diagnose(run: Run | str | Path, *, percentile: float | None = None, seed: int = 0) -> Diagnosis:
    """Attribute the tail of a run to causes.

    :param run: a run, or its folder.
    :param percentile: where the tail begins, from 1 to below 100; ``None`` for the workload's objective.
    :param seed: of the bootstrap.
    :raises InputError: it is not the folder of a run, or ``percentile`` is none.
    """
    from latfix.cli.shared.diagnose_flow import check_percentile
    from latfix.profilers.diagnose import diagnose as attribute

    check_percentile(percentile)
    return attribute(_run(run).record, percentile=percentile, seed=seed)


def compare(
    base: Run | str | Path | Sequence[Run | str | Path],
    new: Run | str | Path | Sequence[Run | str | Path],
    *,
    seed: int = 0,
) -> Comparison:
    """Compare runs before and after, in pairs.

    :param base: a run or its folder; or several, replayed in turns with as many of ``new``.
    :raises InputError: a folder is not that of a run, or ``base`` and ``new`` are none or differ in number.
    """
    from latfix.profilers.latency_causes import explained
    from latfix.results.comparison import compare_rounds
    from latfix.run_record.run_record import RunRecord

    def loaded(runs: Run | str | Path | Sequence[Run | str | Path]) -> list[RunRecord]:
        several = [runs] if isinstance(runs, Run | str | Path) else runs
        records = [each.record if isinstance(each, Run) else Path(each) for each in several]
        folders = [each if isinstance(each, Path) else each.folder for each in records]
        return [
            each if isinstance(each, RunRecord) else RunRecord.load(folder)
            for each, folder in zip(records, folders, strict=True)
        ]

    before, after = loaded(base), loaded(new)
    if not before or len(before) != len(after):
        raise InputError(f"compare: found {len(before)} runs before and {len(after)} after; expected pairs of runs")
    return explained(compare_rounds(before, after, seed=seed), before, after, seed=seed)


def replay(
    workload: str | Path,
    traffic: str | Path | None = None,
    *,
    out: str | Path | None = None,
    profile: str = "",
    limit: int | None = None,
    speed: float = 1.0,
    seed: int = 0,
    **settings: Any,
) -> Run:
    """Replay recorded traffic against a workload, in a separate process.

    :param workload: a workload's folder, a model file, or the name of a sample.
    :param traffic: recorded traffic instead of the workload's own.
    :param out: a new folder for the run; ``None`` for one under ``latfix-runs/``.
    :param profile: a profile of the workload's ``workload.toml``.
    :param limit: replay only the first ``limit`` requests.
    :param speed: multiple of the recorded speed.
    :param settings: of the runner, by their names in ``workload.toml``: ``max_batch_size=4``.
    :raises InputError: an argument or a file is wrong.
    :raises RunnerError: the model or its runner failed.
    """
    from latfix.cli.shared.options import TrafficOptions, load_traffic
    from latfix.config.settings_tables import validate_settings
    from latfix.config.workload_toml import check_runs, load_spec
    from latfix.files.toml_reader import TomlFile
    from latfix.runners.replay.run_session import Replay, default_folder, open_folder, run

    options = TrafficOptions(limit=limit, speed=speed)
    options.check()
    spec = load_spec(str(workload), traffic=None if traffic is None else Path(traffic), profile=profile)
    check_runs(spec)
    checked = validate_settings(settings, TomlFile(Path("replay")), "settings")
    schedule = load_traffic(spec, options)
    folder = open_folder(Path(out) if out is not None else default_folder(spec.name, "replay"))
    job = Replay(spec=spec, traffic=schedule, settings=spec.settings.with_overrides(checked), seed=seed)
    return Run(run(folder, job))


def _run(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else read_run(run)
