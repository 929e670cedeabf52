"""One part in a process of its own: a hang, a failed device and reserved memory are no other part's.

    python -m benchmarks.gpu.child PART FILE DEADLINE OUT

Started by ``run.py``. Results go to FILE after each item; DEADLINE is on the clock of ``time.monotonic``.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu.commands import LATFIX, Ended, run
from benchmarks.gpu.findings import Findings

#: Its three runs take as long as all other tests together, and they are a part of their own.
_OWN_PART = "tests/gpu/test_device_memory.py::test_a_p99_of_stalls_is_told_and_gone_with_the_pool"
_OUTPUT = 6000
#: A line of ``pytest -v``: a test, and behind it what became of it once it has ended.
_TEST = re.compile(r"^(tests/\S+?\.py::.+?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*)?$")


def about(found: Findings) -> None:
    """Whether there is a device, what machine this is, and in which versions everything is there."""
    import torch

    from latfix.runners.replay.run_session import versions
    from latfix.runners.replay.runner_main import machine

    found.put("cuda", torch.cuda.is_available())
    found.put("machine", machine("cuda"))
    known = versions()
    for name in ("triton", "torchao", "torch-tensorrt", "tensorrt", "nvidia-ml-py", "typer", "pytest"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    if torch.cuda.is_available():
        try:
            cudnn = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # another version than torch was built with
            cudnn = f"refused: {' '.join(str(error).split())}"
        known |= {"cuda": str(torch.version.cuda), "cudnn": cudnn, "driver": _driver()}
    found.put("versions", known)


def _driver() -> str:
    from latfix.profilers.gpu.nvml_api import LiveNvml, NvmlRefused

    try:
        calls = LiveNvml()
        version = str(calls.ask("SystemGetDriverVersion"))
        calls.close()
    except (NvmlRefused, ImportError) as error:
        return f"not told: {error}"
    return version


def doctor(found: Findings, deadline: float) -> None:
    """What ``latfix doctor`` finds on the machine; it changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "doctor.json"
        _put(found, run([sys.executable, "-c", LATFIX, "doctor", "--json", str(file)], deadline - time.monotonic()))
        if file.exists():
            found.put("findings", json.loads(file.read_text(encoding="utf-8"))["findings"])


def tests(found: Findings, deadline: float) -> None:
    """All tests that need a GPU, but for the one that is a part of its own."""
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "--durations=10", "-p", "no:cacheprovider"]
    # On a device that the tests have not met, a new warning must not hide what they would show.
    command += ["-o", "filterwarnings=default", "--deselect", _OWN_PART, "tests/gpu"]
    ended = run(command, deadline - time.monotonic())
    _put(found, ended)
    for key, value in outcomes(ended.output).items():
        found.put(key, value)


def outcomes(output: str) -> dict[str, Any]:
    """What became of tests, from what ``pytest -v`` printed, to its end or not.

    :returns: how many ``passed`` and were ``skipped``, which did ``not_passed``, and the one that was ``under_way``.
    """
    last: dict[str, str] = {}
    for line in output.splitlines():
        if (hit := _TEST.match(line)) is not None:
            last[hit[1].strip()] = hit[2] or ""
        if line.startswith("====") and last:  # what follows is the summary, which tells of tests again
            break
    by_outcome: dict[str, list[str]] = defaultdict(list)
    for name, outcome in last.items():
        by_outcome[outcome].append(name)
    return {
        "passed": len(by_outcome["PASSED"]),
        "skipped_tests": len(by_outcome["SKIPPED"]),
        "not_passed": [*by_outcome["FAILED"], *by_outcome["ERROR"], *by_outcome["XPASS"]],
        "under_way": by_outcome[""],
    }


def probes(found: Findings, deadline: float) -> None:
    """What latfix's probes cost a service on the GPU: the same requests with and without them, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probes.json"
        command = [sys.executable, "benchmarks/probe_cost.py", "vision", "--profile", "gpu"]
        command += ["--blocks", "4", "--seconds", "3", "--out", str(file)]
        _put(found, run(command, deadline - time.monotonic()))
        if file.exists():
            found.put("measured", json.loads(file.read_text(encoding="utf-8")))


def _put(found: Findings, ended: Ended) -> None:
    found.put("exit_code", ended.exit_code)
    found.put("ended", ended.why)
    found.put("output", ended.output[-_OUTPUT:])


def _ceilings(found: Findings, deadline: float) -> None:
    from benchmarks.gpu import ceilings

    ceilings.measure(found, deadline)


def _stages(found: Findings, deadline: float) -> None:
    from benchmarks.gpu import stages

    stages.measure(found, deadline)


def _faults(found: Findings, deadline: float) -> None:
    from benchmarks.gpu import faults

    faults.measure(found, deadline)


def _fragmentation(found: Findings, deadline: float) -> None:
    from benchmarks.gpu import fragmentation

    fragmentation.measure(found, deadline)


MEASURES: Mapping[str, Callable[[Findings, float], None]] = {
    "about": lambda found, _: about(found),
    "doctor": doctor,
    "ceilings": _ceilings,
    "stages": _stages,
    "tests": tests,
    "faults": _faults,
    "fragmentation": _fragmentation,
    "probes": probes,
}


def main() -> int:
    """Measure the part that is named on the command line."""
    part, file, deadline, out = sys.argv[1:]
    kind, _, name = part.partition(".")
    found = Findings(Path(file))
    if kind == "samples":
        from benchmarks.gpu import samples

        samples.measure(found, name, float(deadline), Path(out))
    else:
        MEASURES[kind](found, float(deadline))
    return 0


if __name__ == "__main__":
    sys.exit(main())
