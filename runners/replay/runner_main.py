"""The runner's process: loads the service, replays traffic against it, and records. Started by ``runner_process``.

The measured service and the probes share this process with nothing else. The replayer has its own process, so that
code that holds this interpreter delays no request. User code may print; standard output and error go to
``runner.log`` in the run's folder.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from latfix.errors import EXIT_RUNNER, LatfixError, RunnerError, disk_is_full
from latfix.profilers.gpu.device_ids import device_index
from latfix.run_record.run_record import SCHEDULE
from latfix.runners.calls.model_call import describe
from latfix.runners.gpu_memory.allocation_history import begin_history, end_history
from latfix.runners.host.cpu_quota import machine_facts
from latfix.runners.measure.accuracy import evaluate
from latfix.runners.measure.compute_pace import measure_pace
from latfix.runners.measure.layer_sensitivity import measure as measure_sensitivity
from latfix.runners.replay.pipe_protocol import STACKS_SIGNAL, LineReader, LineWriter, commands_of, serve_parent
from latfix.runners.replay.recorded_replay import RecordedReplay
from latfix.runners.service.load import pool_applies
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.io.stored_schedule import load_schedule
from latfix.traffic.schedule import Traffic

#: Requests that warm up a fresh service before a replay that does not measure its first requests.
_PRIMING = 24
#: First batches of new shapes whose median is what a new shape costs.
_NEW_SHAPES = 3
#: One batch in this many is also computed while requests are prepared: this is slow, and yields a single factor.
_PREPARED_BESIDE = 3
#: Before user code is loaded.
_CLOCK = time.perf_counter_ns


class Child:
    """Executes the parent's commands one at a time."""

    def __init__(self, job: dict[str, Any], commands: LineReader, parent: LineWriter) -> None:
        self._parent = parent
        self._home = Path.cwd()  # user code may change it
        self._commands = commands
        self._stop = threading.Event()
        self._service = Service(Path(job["folder"]), job["entry"], RunnerSettings(**job["settings"]))
        self._warmed = False

    def run(self) -> None:
        """Load, report ``ready``, and serve commands until ``exit`` or the parent's death."""
        commands = commands_of(self._commands, self._stop)  # an interrupt while loading counts too
        self._service.load()
        if time.perf_counter_ns is not _CLOCK:
            raise RunnerError(
                f"{self._service.entry}: found time.perf_counter_ns replaced; expected Python's own, by which latfix "
                "measures: replace it in tests only"
            )
        self._parent.send({"event": "ready", **self._ready()})
        for command in commands:
            action = command["do"]
            result = getattr(self, f"do_{action}")(command)
            self._parent.send({"event": "done", "do": action, **result})

    def _ready(self) -> dict[str, Any]:
        models = self._service.models
        return {
            "load_s": models.load_s,
            "device": models.device,
            "default_collate": pool_applies(models.adapter),
            "evaluates": models.adapter.has_evaluate(),
            "machine": machine(models.device),
        }

    def _warm(self, traffic: Traffic) -> None:
        if not self._warmed:
            self._warmed = True
            self._service.warm_shapes(traffic)
            self._service.protect()

    def do_prime(self, command: dict[str, Any]) -> dict[str, Any]:
        """Serve some requests of the schedule untimed, so that the next replay meets a service in use."""
        traffic = self._schedule(command)
        self._warm(traffic)
        picks = np.unique(np.linspace(0, len(traffic) - 1, min(_PRIMING, len(traffic))).astype(int))
        self._service.predict([traffic.request(int(pick)) for pick in picks], in_flight=len(picks))
        return {"primed": len(picks)}

    def do_evidence(self, command: dict[str, Any]) -> dict[str, Any]:
        """Evidence of the settings; requested after a replay because gathering it warms the service."""
        return {"evidence": self._service.evidence(self._schedule(command))}

    def do_evaluate(self, command: dict[str, Any]) -> dict[str, Any]:
        """The accuracy: the adapter's own score, or agreement with saved outputs of the original."""
        traffic = self._schedule(command)
        self._warm(traffic)
        reference, save = command.get("reference"), command.get("save")
        measured = evaluate(
            self._service,
            traffic,
            self._home / reference if reference else None,
            max_drop=command.get("max_drop"),
            save=self._home / save if save else None,
        )
        return asdict(measured)

    def do_facts(self, command: dict[str, Any]) -> dict[str, Any]:
        """What can be changed in the model: evidence of the unmodified service, and its layers' times."""
        return {"facts": self._service.facts(self._schedule(command))}

    def do_device_profile(self, command: dict[str, Any]) -> dict[str, Any]:
        """Profile a few batches on the device; requested after a replay."""
        return {"profile": self._service.device_profile(self._schedule(command), command["batches"])}

    def do_sensitivity(self, command: dict[str, Any]) -> dict[str, Any]:
        """Which layers must keep their precision. It loads other services and leaves this process unusable."""
        folder, entry, settings = self._service.folder, self._service.entry, self._service.settings
        # These are loaded one after the other, and the device may lack memory for this service in addition.
        self._service.release()
        self._service = Service(folder, entry, settings)
        gc.collect()
        sensitivity = measure_sensitivity(
            folder,
            entry,
            settings,
            self._schedule(command),
            precision=command["precision"],
            max_drop=command["max_drop"],
            budget_s=command["budget_s"],
        )
        return {"sensitivity": asdict(sensitivity)}

    def do_history(self, command: dict[str, Any]) -> dict[str, Any]:
        """Record allocations on the device from now on; with ``file``, write them there and stop."""
        file = command.get("file")
        if file is None:
            return {"why_not": begin_history(self._service.models.device)}
        return {"retries": end_history(self._home / file)}

    def do_pace(self, command: dict[str, Any]) -> dict[str, Any]:
        """How fast the service computes some batches; see :mod:`latfix.runners.measure.compute_pace`."""
        traffic = self._schedule(command)
        self._warm(traffic)
        failures, new_shapes = list[str](), list[float]()
        paces: dict[str, Any] = {"failures": failures}
        workers = self._service.settings.workers
        batches = command["batches"]
        few = [batch if k % _PREPARED_BESIDE == 0 else [] for k, batch in enumerate(batches)]
        for name, some, together, preparing in (
            ("alone", batches, 1, False),
            ("together", batches, workers, False),
            ("beside", few, 1, bool(command.get("preparing"))),
        ):
            if paces.get("alone") and together == 1 and not preparing:
                paces[name] = paces["alone"]
                continue
            pace = measure_pace(
                self._service,
                traffic,
                some,
                command["seconds"],
                workers=together,
                preparing=preparing,
                failures=failures,
                new_shapes=new_shapes,
            )
            paces[name] = [value if math.isfinite(value) else None for value in pace]
            del failures[1:]
        return paces | {"new_shape": median(new_shapes) if len(new_shapes) >= _NEW_SHAPES else 0.0}

    def do_replay(self, command: dict[str, Any]) -> dict[str, Any]:
        """Replay the schedule in ``folder`` and record into it."""
        traffic = self._schedule(command)
        self._warm(traffic)
        folder = self._home / command["folder"]
        limits = {"first": command["first"], "most_s": command["most_s"]}
        return RecordedReplay(self._service, traffic, folder, self._parent, self._stop, **limits).run()

    def _schedule(self, command: dict[str, Any]) -> Traffic:
        return load_schedule(self._home / command["folder"] / SCHEDULE)


def machine(device: str = "cpu") -> dict[str, Any]:
    """The machine, for the run's record and to decide whether two runs can be compared.

    :param device: the torch device that the model is on; its GPU is named, or the first one.
    """
    import torch

    return {
        **machine_facts(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(device_index(device) or 0) if torch.cuda.is_available() else None,
    }


def _work(job: dict[str, Any], commands: LineReader, parent: LineWriter) -> None:
    try:
        Child(job, commands, parent).run()
    except (LatfixError, OSError):
        raise
    except Exception as error:  # one line for the parent; runner.log has the traceback
        parent.send({"event": "failed", "message": f"the runner failed: {describe(error)}", "exit_code": EXIT_RUNNER})
        raise


def _disk_words(error: OSError) -> str:
    if error.strerror is None:  # not of a file: a library that cannot be loaded
        return f"the runner failed: {describe(error)}"
    where = f"{error.filename}: " if error.filename else ""
    todo = "free space and run again" if disk_is_full(error) else "check it and run again"
    return f"{where}the runner could not write its record ({error.strerror}); {todo}"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    faulthandler.register(STACKS_SIGNAL)
    serve_parent(_work, _disk_words)
