"""``latfix fragmentation``: would another setting of the allocator have avoided a stall?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared.options import JsonOption, SeedOption, Target, check_seed
from latfix.errors import EXIT_OK, InputError

if TYPE_CHECKING:
    from latfix.profilers.allocator_lab.trace import AllocationTrace

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
            "--capacity",
            metavar="SIZE",
            help=f"Memory that the process could have: 80GiB. Made-up traffic: {_MADE_FOR}. A recording with a "
            "stall: what it held at most.",
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
    """Find the allocator settings that would not have stalled.

    Replays allocation traffic through models of allocators: which would have stalled or failed, and why.
    """
    from rich.console import Console

    from latfix.files.atomic_write import write_json
    from latfix.profilers.allocator_lab.compare_policies import ARENAS, SETTINGS, compare
    from latfix.profilers.allocator_lab.compare_policies import fragmentation as compared
    from latfix.profilers.allocator_lab.synthetic_trace import Traffic, generate
    from latfix.profilers.allocator_lab.torch_caching import known_settings
    from latfix.profilers.allocator_lab.trace import read_trace, write_trace
    from latfix.reports.terminal.fragmentation import render_fragmentation
    from latfix.runners.replay.run_session import open_folder

    check_seed(seed)
    if not 1 <= turns <= 1_000_000:
        raise InputError(f"--turns: found {turns}; expected a whole number from 1 to 1000000")
    read = None if trace is None else read_trace(trace)
    room = _bytes(capacity or _MADE_FOR) if read is None or capacity is not None else _held_when_it_stalled(read)
    target = Target.open("--json", json_file)
    folder = None if out is None else open_folder(out)
    made = read or generate(seed, Traffic(turns=turns, capacity=room))
    standing = known_settings(made.setting)
    names = (standing, *policy) if policy else (standing, *(each for each in SETTINGS if each != standing), *ARENAS)
    with Console(stderr=True).status("replaying …"):
        found = compared(made, room, compare(made, room, names))
    if folder is not None:
        write_trace(folder / _TRACE, made)
        write_json(folder / _DOCUMENT, found.to_json())
    target.report(found.to_json(), lambda: render_fragmentation(found))
    return EXIT_OK


def _held_when_it_stalled(trace: AllocationTrace) -> int:
    """What the process had from the device at most, which was all that it could have where it stalled."""
    held = trace.recorded.get("peak_reserved", 0)
    if not held or not trace.recorded.get("retries"):
        raise InputError(
            "--capacity: found none, and only a recording with a stall tells it; expected the memory that the "
            "process could have, such as 80GiB"
        )
    return held


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
