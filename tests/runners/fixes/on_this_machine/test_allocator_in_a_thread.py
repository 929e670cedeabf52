"""What ``memory.allocator`` sets keeps large blocks of a worker's thread, not only those of the main one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from latfix.runners.fixes.memory import allocator as memory_allocator
from latfix.runners.host.process_setup import process_environment
from latfix.settings import RunnerSettings

#: Blocks that fit into no thread's own heap of 64 MiB together.
CODE = """
import ctypes, resource, threading
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)

def work():
    for k in range(6):
        blocks = [c.malloc(40 << 20) for _ in range(3)]
        for block in blocks:
            ctypes.memset(block, 1, 40 << 20)
        for block in blocks:
            c.free(block)
        if k == 1:
            global before
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def faults(settings: RunnerSettings) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        env=process_environment(settings),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(ended.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc only")
def test_large_blocks_of_a_thread_are_kept() -> None:
    change = memory_allocator.FIX.change(None)  # type: ignore[arg-type]
    with_it, without = faults(RunnerSettings(**change)), faults(RunnerSettings())
    assert without > 20_000, "they are mapped anew each time"
    assert with_it < 0.01 * without
