"""The table of a workload's backends, measured in a separate process.

Native code runs model files of unknown origin: if it kills that process, ``latfix`` reports it in one line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.config.workload_toml import WorkloadSpec, declared_outputs
from latfix.errors import EXIT_INPUT, EXIT_RUNNER, InputError, LatfixError, RunnerError
from latfix.files.atomic_write import write_json
from latfix.profilers.causes.host.core_takers import last_takers
from latfix.profilers.probes.neighbor_watch import NeighborWatch
from latfix.results.answer_check import BackendRow, BackendsTable, Estimate
from latfix.runners.backend_comparison.cold_load import last_line
from latfix.runners.replay.run_session import installed_versions
from latfix.runners.replay.runner_process import LOAD_TIMEOUT_S
from latfix.settings import RunnerSettings
from latfix.statistics.decision import Interval
from latfix.traffic.io.stored_schedule import load_schedule, save_schedule
from latfix.traffic.schedule import Traffic

#: Runs a program; replaced in tests.
run_process = subprocess.run
#: Requests, spread over the traffic, that every backend serves in each round.
_SAMPLE = 24
#: Largest share of the time for one round of all backends.
_ROUND_SHARE = 0.1
_FEWEST_SAMPLE = 4
_JOB, _SCHEDULE, _RESULT, _LOG = "job.json", "schedule.parquet", "result.json", "output.log"


def measure_backends(
    spec: WorkloadSpec,
    traffic: Traffic,
    settings: RunnerSettings,
    *,
    batch: int,
    explicit: bool,
    seconds: float,
    seed: int,
) -> BackendsTable:
    """Load the workload's model in every backend that takes it, compare their answers, and time them in turns.

    :param batch: requests in a batch.
    :param explicit: the user requested this batch size; otherwise it is reduced to the model's limit.
    :param seconds: duration of the measurement, without conversions.
    :raises LatfixError: the model does not load, or the process died.
    """
    with tempfile.TemporaryDirectory(prefix="latfix-backends-") as name:
        folder = Path(name)
        save_schedule(traffic, folder / _SCHEDULE)
        write_json(folder / _JOB, job_of(spec, settings, batch=batch, explicit=explicit, seconds=seconds, seed=seed))
        # -P: a file in the working directory must not shadow a module of the same name.
        command = [sys.executable, "-P", "-m", "latfix.runners.backend_comparison.comparison", str(folder)]
        log = folder / _LOG
        try:
            with log.open("wb") as output:
                ended = run_process(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **settings.env},
                    timeout=LOAD_TIMEOUT_S + 10 * seconds,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            raise RunnerError(f"comparing the backends took more than {error.timeout:.0f} s; stopped") from error
        if not (folder / _RESULT).is_file():
            code = ended.returncode
            why = f"was killed by {signal.strsignal(-code) or 'a signal'}" if code < 0 else f"had exit code {code}"
            last = last_line(log.read_bytes())
            raise RunnerError(f"the process that ran the backends {why}, with no result; its last output: {last}")
        document = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
        if "failed" in document:
            kind = InputError if document["exit_code"] == EXIT_INPUT else RunnerError
            raise kind(document["failed"])
        return BackendsTable.from_json(document)


def job_of(spec: WorkloadSpec, settings: RunnerSettings, **options: Any) -> dict[str, Any]:
    """The job of the separate process; ``options`` as of :func:`measure_backends`."""
    settled = {"settings": settings.to_json(), **options}
    return {"name": spec.name, "folder": str(spec.folder), "entry": spec.entry, **settled}


def measure_here(job: dict[str, Any], traffic: Traffic) -> BackendsTable:
    """The whole table, in the separate process; see :func:`measure_backends`."""
    import torch

    from latfix.runners.backend_comparison.candidates import Candidate, candidates, own_backend
    from latfix.runners.backend_comparison.cold_load import first_load_s
    from latfix.runners.backend_comparison.throughput import serve
    from latfix.runners.gpu.device_selection import resolve_device
    from latfix.runners.model_files.file_workload import FileWorkload
    from latfix.runners.service.adapter_file import load_adapter
    from latfix.runners.service.load import load_module

    settings = RunnerSettings(**job["settings"])
    torch.manual_seed(settings.seed)
    if settings.intra_op_threads:
        torch.set_num_threads(settings.intra_op_threads)
    if resolve_device(settings.device) != "cpu":
        raise InputError("backends are compared on the CPU in this version; use --device cpu")
    started = time.perf_counter()
    adapter = load_adapter(Path(job["folder"]), job["entry"])
    batch = _batch_size(adapter, job["batch"], explicit=job["explicit"])
    model = load_module(adapter, "cpu")
    load_s = time.perf_counter() - started
    if isinstance(adapter, FileWorkload):
        adapter.check_traffic(traffic)
        names = [given.name for given in adapter.layout.inputs]
        # In a fresh process, like the other backends.
        load_s = first_load_s(adapter.layout.file, own_backend(adapter), names, torch.get_num_threads())
    own = Candidate(backend=own_backend(adapter), model=model, load_s=load_s)
    requests, prepared = _prepared(adapter, traffic)
    if not job["explicit"] and settings.max_batch_size == 1 and not _takes(model, adapter, prepared[:batch]):
        batch = 1  # its service never batches, and it cannot
    batches = _batches(adapter, prepared, batch)
    with tempfile.TemporaryDirectory(prefix="latfix-converted-") as folder:
        found = candidates(adapter, own, [*batches[0], *batches[1]], Path(folder))
    work = replace(
        _work(found, adapter, requests, prepared, batch, job["seconds"]),
        names=adapter.output_names if isinstance(adapter, FileWorkload) else (),
        rules=declared_outputs(Path(job["folder"]), job["entry"]),
    )
    watch = NeighborWatch({os.getpid()}, latfix={os.getppid()})
    watch.look()
    served, check = serve(found, work, job["seconds"], job["seed"])
    watch.look()
    return BackendsTable(
        workload=job["name"],
        entry=job["entry"],
        device="cpu",
        threads=torch.get_num_threads(),
        versions={"torch": torch.__version__, **installed_versions("onnxruntime", "onnx", "openvino")},
        requests=len(work.singles),
        batch_size=batch,
        answers=check,
        inputs=tuple(adapter.describe_inputs(traffic)) if isinstance(adapter, FileWorkload) else (),
        disturbed=last_takers(watch.samples),
        backends=tuple(_row(candidate, served, found[0].backend, work) for candidate in found),
    )


def _batch_size(adapter: Any, wanted: int, *, explicit: bool) -> int:
    from latfix.runners.model_files.file_workload import FileWorkload

    most = adapter.layout.largest_batch if isinstance(adapter, FileWorkload) else None
    if most is None or wanted <= most:
        return wanted
    if explicit:
        raise InputError(f"--batch: found {wanted}; {adapter.layout.file} takes batches of at most {most}")
    return int(most)


def _takes(model: Any, adapter: Any, inputs: list[Any]) -> bool:
    """True if a model answers these inputs as one batch."""
    import torch

    from latfix.runners.calls.model_call import USER_ERRORS, call_on_copy, split_output

    try:
        with torch.no_grad():
            split_output(call_on_copy(model, adapter.collate(inputs)), len(inputs))
    except USER_ERRORS:
        return False
    return True


def _prepared(adapter: Any, traffic: Traffic) -> tuple[list[str], list[Any]]:
    """Ids and inputs of requests spread evenly over the traffic."""
    from latfix.runners.calls.model_call import USER_ERRORS, raised_by

    picks = np.unique(np.linspace(0, len(traffic) - 1, min(_SAMPLE, len(traffic))).round().astype(int))
    ids, inputs = [], []
    for pick in picks.tolist():
        request = traffic.request(pick)
        ids.append(request.id)
        try:
            inputs.append(adapter.prepare(request))
        except USER_ERRORS as error:
            raise RunnerError(raised_by(f"prepare of request {request.id!r}", error)) from error
    return ids, inputs


def _batches(adapter: Any, inputs: Sequence[Any], size: int) -> tuple[list[Any], list[Any], list[int]]:
    """All inputs as batches of one, as batches of ``size``, and the number of requests in each of the latter."""
    from latfix.runners.calls.model_call import USER_ERRORS, raised_by

    groups = [inputs[k : k + size] for k in range(0, len(inputs), size)]
    try:
        singles = [adapter.collate([value]) for value in inputs]
        return singles, [adapter.collate(list(group)) for group in groups], [len(group) for group in groups]
    except USER_ERRORS as error:
        raise RunnerError(raised_by(f"collate of {size} requests", error)) from error


def _work(
    found: Sequence[Any], adapter: Any, ids: Sequence[str], inputs: Sequence[Any], batch: int, seconds: float
) -> Any:
    """The work of a round: few enough requests that several rounds of all backends fit into the time."""
    from latfix.runners.backend_comparison.throughput import Work, one_pass_s

    singles, batches, sizes = _batches(adapter, inputs, batch)
    each_s = one_pass_s(found[0], singles) / len(singles)
    backends = sum(not candidate.missing for candidate in found)
    fitting = int(_ROUND_SHARE * seconds / max(2 * each_s * backends, 1e-9))
    wanted = min(len(inputs), max(fitting, _FEWEST_SAMPLE, batch))
    if wanted < len(inputs):
        picks = np.unique(np.linspace(0, len(inputs) - 1, wanted).round().astype(int)).tolist()
        singles, batches, sizes = _batches(adapter, [inputs[pick] for pick in picks], batch)
        ids = [ids[pick] for pick in picks]
    return Work(singles, batches, sizes, ids)


def _row(candidate: Any, served: Any, first: str, work: Any) -> BackendRow:
    from latfix.runners.backend_comparison.throughput import rate, speedup

    one = served.get(candidate.backend)
    missing = candidate.missing or (one.failure if one is not None else "")
    if one is None or one.failure:
        return BackendRow(backend=candidate.backend, load_s=None, convert_s=None, missing=missing)
    base, requests = served[first], len(work.singles)
    compared = candidate.backend != first and bool(base.single_ns)
    return BackendRow(
        backend=candidate.backend,
        load_s=candidate.load_s,
        convert_s=candidate.convert_s,
        missing=missing,
        rounds=len(one.single_ns),
        single_rps=_estimate(rate(one.single_ns, requests)),
        batched_rps=_estimate(rate(one.batched_ns, requests)),
        agreeing=one.agreeing,
        compared=one.compared,
        agreement=one.agreement,
        deviation=one.deviation if np.isfinite(one.deviation) else None,
        single_speedup=_estimate(speedup(base.single_ns, one.single_ns)) if compared else None,
        batched_speedup=_estimate(speedup(base.batched_ns, one.batched_ns)) if compared else None,
    )


def _estimate(found: Interval) -> Estimate:
    return Estimate.from_json(found.to_json())


def main() -> int:
    """``python -m … FOLDER``: read the job from the folder and write the result there."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / _JOB).read_text(encoding="utf-8"))
    try:
        document = measure_here(job, load_schedule(folder / _SCHEDULE)).to_json()
    except LatfixError as error:
        document = {"failed": error.message, "exit_code": error.exit_code}
    except Exception as error:
        from latfix.runners.calls.model_call import describe

        document = {"failed": f"comparing the backends failed: {describe(error)}", "exit_code": EXIT_RUNNER}
        write_json(folder / _RESULT, document)
        raise
    write_json(folder / _RESULT, document)
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # a backend's thread pools may not end cleanly
