"""``latfix.load_runner``: a workload and its plan, loaded, warmed up and ready to serve in this process."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latfix.config.plan import Plan, read_plan
from latfix.config.settings_tables import validate_settings
from latfix.config.workload_toml import WorkloadSpec, check_runs, load_spec
from latfix.errors import InputError
from latfix.files.toml_reader import TomlFile
from latfix.formatting import shown
from latfix.profilers.probes.stage_recorder import EventLog
from latfix.runners.host.apply_plan import check_environment
from latfix.runners.host.start_environment import warn_unless_in_effect
from latfix.runners.live.live_record import LiveRecord
from latfix.runners.live.runner import Runner, WhenFull, no_traffic
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.io.reader import read_traffic

#: Events that a runner keeps without a record, which never flushes them.
_EVENTS = 1000
#: Events that may wait for the disk if there is a record.
_RECORDED_EVENTS = 100_000
#: Shapes that an instance remembers to mark the first batch of each.
_SHAPES = 65_536
_MOST_SLOTS = 1_000_000


class _Shapes(set[tuple[Any, ...]]):
    """A bounded set of shapes, so that inputs of ever new shapes do not fill the memory of a service."""

    def add(self, shape: tuple[Any, ...]) -> None:
        if len(self) < _SHAPES:
            super().add(shape)


def load_runner(
    workload: str | Path,
    *,
    plan: Plan | Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    traffic: Path | str | None = None,
    warm: bool = True,
    slots: int = 1024,
    when_full: WhenFull = "shed",
    record: Path | str | None = None,
    record_mb: float = 256.0,
) -> Runner:
    """Load a workload with its plan, and start serving in this process. Takes as long as loading the model.

    :param workload: its folder, a model file, or the name of a sample, as on the command line.
    :param plan: the result of ``latfix optimize``: the file, its folder, or a plan already read; ``None`` serves with
        the workload's own settings.
    :param settings: overrides of both, by name, e.g. ``{"device": "cpu"}``.
    :param traffic: recorded traffic that replaces the workload's own for warming up.
    :param warm: read the recorded traffic, run its shapes and first requests as the settings require, and check what
        took effect. Without it, the first requests pay for one-time costs.
    :param slots: maximum number of requests inside at once, in any stage.
    :param when_full: handling of further requests: ``shed`` them, or let them ``wait`` in line until one ends.
    :param record: a folder for a record of the served requests, which ``latfix diagnose``, ``latfix report`` and
        ``latfix watch`` can read while the runner serves.
    :param record_mb: maximum size of the record in megabytes; the oldest requests are deleted.
    :raises InputError: the workload, the plan, or an argument is wrong.
    :raises RunnerError: the adapter or its model failed.
    """
    spec = load_spec(str(workload), traffic=None if traffic is None else Path(traffic))
    check_runs(spec)
    applied = plan if plan is None or isinstance(plan, Plan) else read_plan(Path(plan))
    chosen = _settings(spec, applied, {} if settings is None else settings)
    _check(chosen, warm=warm, slots=slots, when_full=when_full)
    if not isinstance(record_mb, int | float) or isinstance(record_mb, bool) or not 1 <= record_mb < 1e9:
        raise InputError(f"load_runner: found record_mb = {record_mb!r}; expected a number of 1 or more")
    if applied is not None and (strange := applied.strange_to(spec.name)):
        warnings.warn(strange, RuntimeWarning, stacklevel=2)
    environment = warn_unless_in_effect(chosen)
    service = Service(
        spec.folder, spec.entry, chosen, events=EventLog(most=_EVENTS if record is None else _RECORDED_EVENTS)
    )
    service.load()
    try:
        for instance in service.models.instances:
            instance.seen = _Shapes(instance.seen)
        recorded = read_traffic(spec.traffic, mapping=spec.traffic_map) if warm else no_traffic()
        if warm:
            service.warm_shapes(recorded)
        service.protect()
        # The profiler would stay in a program that serves.
        evidence = service.evidence(recorded, profiled=False)
        runner = Runner(
            spec,
            service,
            plan=applied,
            evidence=evidence,
            environment=environment,
            slots=slots,
            when_full=when_full,
            record=None if record is None else LiveRecord(Path(record), spec, service, record_mb),
        )
    except BaseException:
        service.release()
        raise
    try:
        # Last, as before a replay: whatever is not compiled by now stays uncompiled for these requests too.
        runner.warm_up([recorded.request(k % len(recorded)) for k in range(chosen.warmup_requests if warm else 0)])
        if service.collector is None:
            gc.collect()  # walk what loading left now, instead of for a tenth of a second or more in a request
        runner.start_record()
    except BaseException:
        runner.close(timeout_s=0.0)
        raise
    return runner


def _settings(spec: WorkloadSpec, plan: Plan | None, overrides: Mapping[str, Any]) -> RunnerSettings:
    if not isinstance(overrides, Mapping) or not all(isinstance(key, str) for key in overrides):
        raise InputError(f"load_runner: found settings = {shown(overrides)}; expected a mapping of settings by name")
    settings = spec.settings
    if plan is not None:
        check_environment(plan.environment(), settings, "load_runner: plan")
    # A plan that was not read from a file is as unchecked as the overrides.
    for changes in ({} if plan is None else plan.settings(), overrides):
        table = {key: list(value) if isinstance(value, tuple) else value for key, value in changes.items()}
        checked = validate_settings(table, TomlFile(Path("load_runner")), "settings")
        settings = settings.with_overrides(checked)
    return settings


def _check(settings: RunnerSettings, *, warm: bool, slots: int, when_full: str) -> None:
    if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= _MOST_SLOTS:
        raise InputError(f"load_runner: found slots = {slots!r}; expected a whole number from 1 to {_MOST_SLOTS}")
    if when_full not in ("shed", "wait"):
        raise InputError(f"load_runner: found when_full = {when_full!r}; expected 'shed' or 'wait'")
    for name, plain in (("compile", "off"), ("backend", "torch")):
        if getattr(settings, name) != plain and not warm:
            raise InputError(
                f"load_runner: found warm = False and {name} = {getattr(settings, name)!r}; expected warm = True, "
                "because the model is compiled or converted during warm-up only"
            )
