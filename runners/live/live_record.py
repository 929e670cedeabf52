"""``load_runner(..., record=DIR)``: records the engine's rows on bounded disk space while it serves."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from numbers import Real
from pathlib import Path

from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import InputError
from latfix.profilers.calibration.microbenchmarks import unit_costs
from latfix.profilers.probes.own_thread import OwnThread
from latfix.profilers.probes.pause_probes import GcPauses
from latfix.profilers.probes.ring_recorder import RecordedRing
from latfix.profilers.probes.sampler import Sampler
from latfix.profilers.probes.stage_recorder import SampleLog, SegmentWriter
from latfix.request import PRIORITIES, Request
from latfix.run_record.live_record import LIVE, SCHEDULE_LINES, part_folders, part_name
from latfix.run_record.run_meta import RunMeta, write_meta
from latfix.run_record.run_record import SEGMENTS
from latfix.runners.engine.engine import Engine
from latfix.runners.host.cpu_quota import usable_cores
from latfix.runners.replay.recorded_replay import host_probes
from latfix.runners.replay.run_session import begun_meta
from latfix.runners.service.loaded_service import Service

#: Number of parts of a full folder; how often to check if the current part is full.
_PARTS, _LOOK_S = 8, 1.0
#: Maximum number of requests whose lines wait for the disk.
_MOST_LINES = 100_000
_LOGGER = logging.getLogger("latfix")


class LiveRecord(OwnThread):
    """Writes a runner's record in parts, from its own threads, until it is closed.

    If the disk is full, it logs a warning and the record ends; the runner continues to serve.

    :param folder: of the record; parts of other processes in it count towards ``most_mb`` too.
    """

    def __init__(self, folder: Path, spec: WorkloadSpec, service: Service, most_mb: float) -> None:
        super().__init__("live-record")
        self.folder = folder.absolute()
        self._spec, self._service = spec, service
        self._most_bytes = int(most_mb * 1e6)
        self._lines: deque[tuple[int, Request]] = deque(maxlen=_MOST_LINES)
        self._costs = unit_costs()
        self._samples = SampleLog()
        self._number = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot record there ({error.strerror}); name another folder") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise InputError(f"{folder}: cannot record there (no right to write); name another folder")

    def begin(self, recorder: RecordedRing, engine: Engine) -> None:
        self._recorder, self._engine = recorder, engine
        self.__enter__()

    def ended(self, number: int, request: Request) -> None:
        """Add the features of a request that ended; the recorder has its row."""
        self._lines.append((number, request))

    def close(self) -> None:
        """Write the remainder."""
        self.__exit__()

    def _run(self) -> None:
        events = self._service.events
        lines: dict[str, str] = {}
        probes = host_probes(self._engine, lines)
        try:
            with GcPauses(events), Sampler(probes, self._samples, events, name="sampler"):
                while True:
                    with self._part(lines) as (part, writer):
                        self._fill(part, writer)
                    if self._stop.is_set():  # checked last, so that a service that ends at once has a record too
                        break
        except OSError as error:
            _LOGGER.warning("%s: latfix stopped recording there (%s)", self.folder, error.strerror)

    @contextlib.contextmanager
    def _part(self, probe_lines: dict[str, str]) -> Iterator[tuple[Path, SegmentWriter]]:
        self._make_room()
        part = self.folder / part_name(self._number)
        self._number += 1
        (part / SEGMENTS).mkdir(parents=True)
        write_meta(part, self._meta(probe_lines))
        for name, value in self._costs.items():
            self._samples.add(time.perf_counter_ns(), f"cost.{name}", value)
        with SegmentWriter(part, self._recorder, self._service.events, self._samples) as writer:
            yield part, writer

    def _fill(self, part: Path, writer: SegmentWriter) -> None:
        """Write until the part is full or the record ends; an OSError if the disk is full."""
        with (part / SEGMENTS / SCHEDULE_LINES).open("a", encoding="utf-8") as file:
            while True:
                ended = self._stop.wait(_LOOK_S)
                for number, request in [self._lines.popleft() for _ in range(len(self._lines))]:
                    priority = PRIORITIES.index(request.priority)
                    line = json.dumps([number, request.id, priority, dict(request.features)], default=_plain)
                    file.write(line + "\n")
                file.flush()
                writer.check()
                # Another process may have deleted the part to make room.
                if ended or not part.is_dir() or _size(part) >= self._most_bytes // _PARTS:
                    return

    def _make_room(self) -> None:
        parts = part_folders(self.folder)
        sizes = [_size(part) for part in parts]
        while parts and sum(sizes) > self._most_bytes - self._most_bytes // _PARTS:
            shutil.rmtree(parts.pop(0), ignore_errors=True)
            sizes.pop(0)

    def _meta(self, probe_lines: dict[str, str]) -> RunMeta:
        return begun_meta(
            self._spec,
            self._service.settings,
            state="complete",  # each part is complete in itself
            source={"kind": LIVE, "path": str(self.folder)},
            device=self._service.models.device,
            calibration=self._costs,
            probes=probe_lines,
            threads={role: tuple(ids) for role, ids in self._engine.thread_ids().items()},
            cores=usable_cores(),
            t0_ns=self._recorder.t0_ns,
        )


def _plain(value: object) -> float | str:
    """A feature of a type that JSON does not know: NumPy's numbers, or anything else in a program's own request."""
    return float(value) if isinstance(value, Real) else str(value)


def _size(part: Path) -> int:
    """Bytes of its segments, as far as no other process deletes it meanwhile."""
    total = 0
    with contextlib.suppress(OSError):
        for path in (part / SEGMENTS).iterdir():
            total += path.stat().st_size
    return total
