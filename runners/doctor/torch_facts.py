"""Facts about the installed torch as one line of JSON: ``python -m latfix.runners.doctor.torch_facts``.

It runs in a separate process, because a broken library can kill the process that loads it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_TIMEOUT_S = 120.0


def torch_facts() -> dict[str, Any]:
    """Facts about the installed torch; only ``error``, one line, if it does not load."""
    command = [sys.executable, "-P", "-m", "latfix.runners.doctor.torch_facts"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"torch had not loaded after {_TIMEOUT_S:.0f} s"}
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        how = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return {"error": lines[-1] if lines else how}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    import torch

    found: dict[str, Any] = {
        "version": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        "built_for_cuda": torch.version.cuda,
        "cuda": torch.cuda.is_available(),
        "devices": [],
    }
    if found["cuda"]:
        try:
            torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # another version than torch was built with
            found["cudnn_error"] = " ".join(str(error).split())
        found["devices"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
