"""Which of several processes served each request of a service behind an address, and what each of them did.

A connection stays with the process that accepted it. Its own requests and counters explain a process's latency, those
of its siblings do not. The lines of time of all processes are therefore laid one after the other: whatever is
inferred of requests, counters and threads at the same time is then inferred of one process. Requests keep their times
in the run; :func:`~latfix.profilers.evidence.outside.outside_view.presence` gives those on the line of their process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import percent
from latfix.profilers.evidence.outside.outside_view import MOVED, presence
from latfix.profilers.evidence.outside.service_process import (
    COLLECTED,
    CONNECTION,
    CORES,
    CPU,
    DISK,
    MAJOR_FAULTS,
    METRICS,
    MINOR_FAULTS,
    PROCESSES,
    RUN_QUEUE,
    STOPPED,
    THROTTLED,
    WHOLE_CPU,
    by_name,
    of_process,
)
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns
from latfix.stages import Status

#: Least share of requests whose process is known, and requests for each process; largest share of the time on cores
#: that processes used which hold no connection.
_KNOWN, _LEAST, _OTHERS = 0.95, 20, 0.1
#: Between the lines of time of two processes, nanoseconds.
_APART_NS = 1_000_000_000
_OWN = of_process(0, "").partition("0")[0]
#: Counters, and series that are the same for all processes.
_COUNTERS = (CPU, RUN_QUEUE, STOPPED, COLLECTED, MINOR_FAULTS, MAJOR_FAULTS, DISK)
_COMMON = (CORES, THROTTLED)

_Series = Mapping[str, tuple[Ints, Floats]]


def served_by(record: RunRecord) -> Ints:
    """``(n,)`` the process that held each request's connection; 0 if that is not known."""
    rows, series = record.requests, by_name(record.samples)
    came, result = rows["arrival_ns"] + rows["dispatch_ns"], np.zeros(len(rows["index"]), np.int64)
    for name in filter(lambda name: name.startswith(CONNECTION), series):
        (at, pids), own = series[name], np.flatnonzero(rows["client_port"] == int(name.removeprefix(CONNECTION)))
        opened = np.sort(came[own[rows["new_connection"][own] > 0]])  # a port may be used again
        holder = dict(zip(np.searchsorted(opened, at).tolist(), pids.tolist(), strict=True))
        result[own] = [holder.get(k, 0) for k in np.searchsorted(opened, came[own], side="right").tolist()]
    return result


def find_processes(record: RunRecord) -> tuple[tuple[int, ...], str]:
    """The processes that serve, in ascending order, if it is known which of them served nearly all requests.

    :returns: none if a single one serves, or it is not known; then why, as a sentence.
    """
    series, served = by_name(record.samples), served_by(record)
    ran = {int(name.split(".")[1]): name for name in series if name.startswith(_OWN) and name.endswith(".cpu_ns")}
    there, own = record.requests["client_port"] > 0, np.unique(served[served > 0]).tolist()
    known = float(np.mean(served[there] > 0)) if there.any() else 0.0
    if max(len(own), len(ran)) < 2 or not there.any() or (len(own) == 1 and known >= _KNOWN):
        return (), ""
    so = "what the counters show is that of all processes together"
    if known < _KNOWN:
        return (), (
            f"Which of the service's processes served a request is known for {percent(known)} of them, so {so}: "
            "a proxy or a container is in between, connections ended at once, or /proc/PID/fd cannot be read."
        )
    ended = {pid: int(presence(record.requests)[1][served == pid].max()) for pid in own}
    read = [pid for pid in own if pid in ran and series[ran[pid]][0][-1] + _APART_NS > ended[pid]]
    if len(read) < len(own) or len(served) < _LEAST * len(own):
        return (), f"The service's {len(own)} processes are too many to tell them apart: {so}."
    spent = {pid: float(np.ptp(series[name][1])) for pid, name in ran.items()}
    others = {pid: ns for pid, ns in spent.items() if pid not in own}
    if (share := sum(others.values()) / max(sum(spent.values()), 1.0)) > _OTHERS:
        most = max(others, key=lambda pid: others[pid])
        return (), (
            f"Processes that hold no connection, such as {most}, had {percent(share)} of the service's time on "
            f"cores, and may work for those that do, so {so}."
        )
    return tuple(own), ""


def laid_apart(record: RunRecord, processes: tuple[int, ...]) -> RunRecord:
    """The record with the line of time of each process after that of the one before.

    Requests whose process is not known come first, where nothing was read. Requests get the column :data:`MOVED`.
    """
    if not processes:
        return record
    rows, series, times = record.requests, by_name(record.samples), record.samples["t_ns"]
    served = served_by(record)
    lane = np.where(np.isin(served, processes), np.searchsorted(processes, served), -1)
    came, ended = rows["arrival_ns"], rows["arrival_ns"] + rows["latency_ns"]
    length = int(max(times.max(), ended.max()) - min(times.min(), came.min())) + _APART_NS
    moved = lane * length
    names, at, values = list[str](), list[Ints](), list[Floats]()
    reached: dict[str, float] = {}
    for k, pid in enumerate(processes):
        for name, (when, value) in _of(series, pid).items():
            if name in _COUNTERS:  # goes on where that of the process before ended
                value = value - value[0] + reached.get(name, 0.0)
                reached[name] = float(value[-1])
            names += [name] * len(when)
            at.append(when + k * length)
            values.append(value)
    order = np.argsort(np.concatenate(at), kind="stable")
    samples = {"t_ns": np.concatenate(at)[order], "series": np.array(names, dtype=object)[order]}
    events, request = record.events, record.events["request"]
    place = np.clip(np.searchsorted(rows["index"], request), 0, len(moved) - 1)
    later = np.where(rows["index"][place] == request, moved[place], 0)
    return replace(
        record,
        requests={**rows, MOVED: moved},
        samples={**samples, "value": np.concatenate(values)[order]},
        events={**events, "t_ns": events["t_ns"] + later},
    )


def came_while_others_idled(rows: Columns, served: Ints, unused: bool) -> Bools:
    """``(n,)`` True if a request came to a process that had others, while another process had none.

    :param rows: as recorded; ``served`` as from :func:`served_by`.
    :param unused: another one had none all the time.
    """
    at, end = presence(rows)
    there = {
        pid: np.searchsorted(np.sort(at[served == pid]), at)
        - np.searchsorted(np.sort(end[served == pid]), at, "right")
        for pid in np.unique(served[served > 0]).tolist()
    }
    met, idle = np.zeros(len(at), dtype=bool), np.full(len(at), unused)
    for pid, others in there.items():
        met |= (served == pid) & (others > 0)
        idle |= (served != pid) & (others == 0)
    return np.asarray(met & idle & (rows["status"] == Status.OK))


def _of(series: _Series, pid: int) -> dict[str, tuple[Ints, Floats]]:
    """The series of one process, under the names of a service that has no other."""
    own = of_process(pid)
    others = ("server.", METRICS, CONNECTION, _OWN)
    result = {name: read for name, read in series.items() if name in _COMMON or not name.startswith(others)}
    result |= {f"server.{name.removeprefix(own)}": read for name, read in series.items() if name.startswith(own)}
    result[WHOLE_CPU] = series[CPU]
    result[PROCESSES] = result[CPU][0][:1], np.ones(1)
    return result
