"""A run from its options to its record: the folder, the runner process, progress, and an orderly end."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import latfix
from latfix.config.workload_toml import WorkloadSpec, traffic_arguments
from latfix.errors import InputError, LatfixError, RunnerError, disk_is_full
from latfix.profilers.probes.neighbor_watch import LINE, NeighborWatch
from latfix.run_record.run_meta import RUN_FILE, RunMeta, write_meta
from latfix.run_record.run_record import SCHEDULE, SEGMENTS, RunRecord, finalize
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.run_record.validation import check_document
from latfix.runners.host.kernel_files import System
from latfix.runners.measure.compute_pace import typical_batches
from latfix.runners.replay.folder_lock import claim, claim_again, unused
from latfix.runners.replay.run_origin import run_origin
from latfix.runners.replay.runner_process import OnEvent, RunnerProcess
from latfix.settings import RunnerSettings
from latfix.traffic.io.stored_schedule import save_schedule
from latfix.traffic.schedule import Traffic

#: Maximum duration of profiling a few batches.
_PROFILE_S = 120.0
#: Free disk space that a run's folder needs before the run starts.
_NEEDED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The specification of a replay.

    :param traffic: the schedule, already scaled and cut.
    :param settings: how the service runs.
    :param plan: path or name of the plan that the settings come from, for the record.
    """

    spec: WorkloadSpec
    traffic: Traffic
    settings: RunnerSettings
    plan: str | None = None
    seed: int = 0
    fixes: tuple[str, ...] = ()


@dataclass(slots=True)
class RunFolder:
    """A run's folder while it is written."""

    path: Path
    meta: RunMeta

    def update(self, **found: Any) -> None:
        """Set fields of ``run.json``, which is written at the end."""
        self.meta = self.meta.updated(**found)

    def fail(self, why: str) -> RunRecord:
        """Close the folder as a failed run; returns what was recorded until then."""
        self.update(state="failed", failure=why)
        return _close(self)

    def discard(self) -> None:
        """Remove what was written before the replay, so that a corrected command may use the folder."""
        with contextlib.suppress(OSError):
            (self.path / SEGMENTS).rmdir()  # fails if something was recorded
            (self.path / SCHEDULE).unlink()
            (self.path / RUN_FILE).unlink()


class Interrupted(Exception):
    """Ctrl-C ended a replay in order; ``record`` is what was recorded."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__("interrupted")
        self.record = record


class Hung(RunnerError):
    """A service stopped answering and its replay was ended; ``record`` is what was recorded."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(f"{record.meta.failure} (output of the runner: {record.folder / 'runner.log'})")
        self.record = record


def default_folder(workload: str, command: str) -> Path:
    """Create a new, empty folder for a run, under ``latfix-runs/`` in the working directory."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("latfix-runs") / f"{plain_name(workload, 'workload')}-{command}-{stamp}"
    path, k = base, 1
    with writing_into(base):
        base.parent.mkdir(exist_ok=True)
    while True:
        # A check first would let two runs in the same second pick the same name.
        with writing_into(path), contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
        k += 1
        path = base.with_name(f"{base.name}-{k}")


def new_folder(path: Path) -> Path:
    """The path, or the path with the first free number appended."""
    new, k = path, 1
    while new.exists():
        k += 1
        new = path.with_name(f"{path.name}-{k}")
    return new


def check_folder(path: Path) -> None:
    """Check that a folder for results is new or unused, without creating it.

    :raises InputError: it is a file, holds something, or cannot be looked into.
    """
    with writing_into(path):
        if path.exists() and not path.is_dir():
            raise InputError(f"{path}: found a file; expected a new or empty folder for --out")
        if path.is_dir() and not unused(path):
            raise _not_empty(path)


def open_folder(path: Path) -> Path:
    """Create a run's folder, check that it is writable, and claim it for this command, before anything is replayed.

    :raises InputError: it exists and is not empty, cannot be written, or its disk is full.
    """
    check_folder(path)
    with writing_into(path):
        path.mkdir(parents=True, exist_ok=True)
        if not claim(path):
            raise _not_empty(path)
        free = shutil.disk_usage(path).free
    if free < _NEEDED_BYTES:
        raise InputError(f"{path}: found {free >> 20} MiB free; expected {_NEEDED_BYTES >> 20} MiB or more")
    return path


def reopen_folder(path: Path) -> Path:
    """Claim a folder that an earlier command wrote, to continue in it.

    :raises InputError: another process works in it, or it cannot be written.
    """
    try:
        if not claim_again(path):
            raise InputError(f"{path}: found another latfix at work in it; wait until it ends, or end it first")
    except OSError as error:
        raise InputError(
            f"{path}: cannot write there ({error.strerror}); expected the folder of an earlier command"
        ) from error
    return path


def _not_empty(path: Path) -> InputError:
    return InputError(f"{path}: found a folder that is not empty; name another with --out, nothing is overwritten")


@contextlib.contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Turn an ``OSError`` in the block into an error about the folder.

    :raises InputError: the folder cannot be written.
    :raises LatfixError: its disk is full.
    """
    try:
        yield
    except OSError as error:
        if disk_is_full(error):
            raise _disk_error(folder, error) from error
        raise InputError(
            f"{folder}: cannot write there ({error.strerror}); name another folder with --out"
        ) from error


def prepare_folder(path: Path, replay: Replay) -> RunFolder:
    """Write the schedule and the first ``run.json`` into a run's folder.

    :raises InputError: the folder has segments of another run, whose rows would mix with these; or an input holds a
        number with which its record could not be read.
    """
    meta = _first_meta(replay)
    check_document(meta.workload, meta.to_json())
    path.mkdir(parents=True, exist_ok=True)
    try:
        (path / SEGMENTS).mkdir()
    except FileExistsError as error:
        raise _not_empty(path) from error
    except OSError as error:
        raise _disk_error(path, error) from error
    try:
        save_schedule(replay.traffic, path / SCHEDULE)
        folder = RunFolder(path, meta)
        write_meta(path, folder.meta)
    except OSError as error:
        raise _disk_error(path, error) from error
    return folder


def replay_into(
    process: RunnerProcess,
    folder: RunFolder,
    *,
    on_event: OnEvent | None = None,
    profile: bool = False,
    most_s: float = math.inf,
    starts_s: float | None = None,
) -> RunRecord:
    """Replay the schedule in ``folder`` on a started process, and close the folder in any case.

    :param profile: if the model is on a device, profile a few batches after the replay.
    :param most_s: seconds after which a backlog is not waited for.
    :param starts_s: how long the service may be silent before the replay begins; ``None`` for the usual limit.
    :raises Interrupted: Ctrl-C; carries the record.
    :raises Hung: the service stopped answering; carries the record.
    :raises LatfixError: the runner failed or died; what was recorded is kept.
    """
    folder.update(**{key: process.ready[key] for key in ("machine", "load_s", "device")})
    interrupted = False
    neighbors = _neighbors(process.pid, folder.meta)
    try:
        try:
            with neighbors:
                outcome = process.replay(folder.path, on_event=on_event, most_s=most_s, starts_s=starts_s)
        except KeyboardInterrupt:
            interrupted = True
            process.interrupt()
            try:
                outcome = process.wait_for_end()
            except LatfixError as error:  # it no longer responds, or the signal ended it
                outcome = {"state": "interrupted", "failure": error.message}
    except (LatfixError, KeyboardInterrupt) as error:
        folder.fail(str(error) or "interrupted twice")
        raise
    folder.update(**{key: value for key, value in outcome.items() if key not in ("event", "do")})
    if folder.meta.t0_ns is not None and (folder.path / SEGMENTS).is_dir():
        folder.update(probes={**folder.meta.probes, "neighbors": LINE})
        try:
            neighbors.write(folder.path, folder.meta.t0_ns)
        except OSError as error:
            raise _disk_error(folder.path, error) from error
    record = _close(folder)
    if interrupted:
        raise Interrupted(record)
    if folder.meta.state == "failed":
        raise Hung(record)
    if profile and folder.meta.device != "cpu":
        folder.update(**device_profile(process, record))
        write_meta(folder.path, folder.meta)
        record = replace(record, meta=folder.meta)
    return record


def waited_before() -> float | None:
    """Share of the last minute in which a runnable task waited for a core; ``None`` if the kernel keeps none."""
    return System().pressure("/proc/pressure/cpu")


def _neighbors(pid: int | None, meta: RunMeta) -> NeighborWatch:
    """A watch of all processes but the service's; against an address, the started process only sends requests."""
    started, served = ({number} if number else set() for number in (pid, meta.http.get("pid")))
    return NeighborWatch(served, latfix=started) if meta.is_http else NeighborWatch(started)


def device_profile(process: RunnerProcess, record: RunRecord) -> dict[str, Any]:
    """Profile some of the replay's batches, one by one; on failure, returns only the reason."""
    batches = typical_batches(record)
    try:
        result: dict[str, Any] = process.command(
            "device_profile", folder=str(record.folder), batches=batches, timeout_s=_PROFILE_S
        )
    except LatfixError as error:
        return {"device_profile_failure": error.message}
    return dict(result["profile"])


def run(path: Path, replay: Replay, *, on_event: OnEvent | None = None) -> RunRecord:
    """One replay in a process of its own, recorded in ``path``; see :func:`replay_into`."""
    folder = prepare_folder(path, replay)
    with RunnerProcess(replay.spec.folder, replay.spec.entry, replay.settings, path / "runner.log") as process:
        try:
            process.start()
        except InputError:
            folder.discard()
            raise
        except (LatfixError, KeyboardInterrupt) as error:
            folder.fail(str(error) or "interrupted while loading")
            raise
        return replay_into(process, folder, on_event=on_event, profile=True)


def _close(folder: RunFolder) -> RunRecord:
    """Convert segments to Parquet and write the final ``run.json``; returns the record."""
    folder.update(ended=_now(), state="failed" if folder.meta.state == "running" else folder.meta.state)
    try:
        write_meta(folder.path, folder.meta)
        finalize(folder.path)
    except OSError as error:
        raise _disk_error(folder.path, error) from error
    return RunRecord.load(folder.path)


def _disk_error(path: Path, error: OSError) -> LatfixError:
    todo = "free space there and run again" if disk_is_full(error) else "check it and run again"
    kept = "what was recorded is kept" if path.is_dir() else "the folder is gone, with what was recorded"
    return LatfixError(f"{path}: could not be written ({error.strerror}); {kept}; {todo}")


def _first_meta(replay: Replay) -> RunMeta:
    spec, traffic = replay.spec, replay.traffic
    return begun_meta(
        spec,
        replay.settings,
        device=replay.settings.device,
        fixes=replay.fixes,
        plan=replay.plan,
        seed=replay.seed,
        scheduled=len(traffic),
        traffic=dict(traffic.metadata),
        traffic_arguments=tuple(
            traffic_arguments(
                spec, traffic.metadata.get("mapping", {}), skipped_lines=traffic.metadata.get("skipped_lines", 0)
            )
        ),
        traffic_sha256=schedule_digest(traffic),
        waited_before=waited_before(),
        origin=run_origin(spec.folder),
    )


def begun_meta(spec: WorkloadSpec, settings: RunnerSettings, **more: Any) -> RunMeta:
    """``run.json`` of a recording that this process begins now, with ``more`` fields."""
    return RunMeta(
        rows={"requests": REQUEST_DTYPE.names or (), "batches": BATCH_DTYPE.names or ()},
        pid=os.getpid(),
        workload=spec.name,
        workload_folder=str(spec.folder),
        entry=spec.entry,
        settings=settings,
        objective=spec.objective,
        versions=versions(),
        started=_now(),
        **more,
    )


def schedule_digest(traffic: Traffic) -> str:
    """A digest of the schedule: runs with the same digest replayed the same requests at the same times."""
    import hashlib

    digest = hashlib.sha256(traffic.arrival_ns.tobytes())
    digest.update("\0".join(traffic.ids).encode())
    for name, column in sorted(traffic.features.items()):
        digest.update(f"{name}={column.tolist()!r}".encode())
    digest.update(repr(traffic.payloads).encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of latfix and of the packages that its figures depend on, without importing them."""
    return {"latfix": latfix.__version__, **installed_versions("torch", "numpy", "pandas", "pyarrow")}


@cache
def installed_versions(*names: str) -> dict[str, str]:
    """Versions of the packages among ``names`` that are installed, without importing them."""
    from importlib import metadata

    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def plain_name(name: str, otherwise: str) -> str:
    """A name as part of a folder's; ``otherwise`` if nothing is left of it."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-") or otherwise
