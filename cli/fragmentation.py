"""``latfix fragmentation``: would another setting of the allocator have avoided a stall?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from latfix.cli.options import JsonOption, JsonTarget, SeedOption, check_seed
from latfix.errors import EXIT_OK, InputError

_TRACE, _DOCUMENT = "trace.jsonl", "fragmentation.json"
_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_MOST = 1 << 50
_MADE_FOR = "4GiB"


def fragmentation(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACE]",
            help="What torch.cuda.memory._dump_snapshot wrote, or JSON lines; made-up traffic without.",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity", metavar="SIZE", help=f"Memory of the device: 80GiB. Made-up traffic: {_MADE_FOR}."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="SETTING",
            help='As in PYTORCH_ALLOC_CONF ("max_split_size_mb:256"), or "buddy"; may be repeated.',
        ),
    ] = None,
    turns: Annotated[int, typer.Option("--turns", metavar="N", help="Requests of made-up traffic.")] = 4000,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder for the trace and fragmentation.json.")
    ] = None,
    json_file: JsonOption = None,
) -> int:
    """Replay allocation traffic through models of allocators: which would have stalled or failed, and why."""
    from rich.console import Console

    from latfix.profilers.fragmentation.generator import Traffic, generate
    from latfix.profilers.fragmentation.laboratory import ARENAS, SETTINGS, compare, document
    from latfix.profilers.fragmentation.trace import read_trace, write_trace
    from latfix.record import write_json
    from latfix.reports.terminal_fragmentation import render_fragmentation
    from latfix.runners.session import open_folder

    check_seed(seed)
    if not 1 <= turns <= 1_000_000:
        raise InputError(f"--turns: found {turns}; expected a whole number from 1 to 1000000")
    if trace is not None and capacity is None:
        raise InputError("--capacity: found none; expected the memory that the device had, such as 80GiB")
    room = _bytes(capacity or _MADE_FOR)
    names = ("", *policy) if policy else (*SETTINGS, *ARENAS)
    target = JsonTarget.open(json_file)
    folder = None if out is None else open_folder(out)
    made = read_trace(trace) if trace is not None else generate(seed, Traffic(turns=turns, capacity=room))
    console = Console(file=sys.stderr if target.to_stdout else sys.stdout)
    with Console(stderr=True).status("replaying …"):
        found = document(made, room, compare(made, room, names))
    if folder is not None:
        write_trace(folder / _TRACE, made)
        write_json(folder / _DOCUMENT, found)
    target.write(found)
    if not target.to_stdout:
        console.print(render_fragmentation(found))
    return EXIT_OK


def _bytes(text: str) -> int:
    """Bytes of ``80GiB``, ``512MiB``, ``40GB``, ``1000000``."""
    number = text.rstrip("KMGiIbBkmg")
    unit = text[len(number) :].upper()
    try:
        value = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        value = 0
    if not 0 < value <= _MOST:
        raise InputError(f"--capacity: found {text!r}; expected a size such as 80GiB, 512MiB or 40GB")
    return value
