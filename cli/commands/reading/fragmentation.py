"""``latfix fragmentation``: which allocator setting would have avoided a stall."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared.options import JsonOption, KeepOption, SeedOption, check_seed, check_whole, refuse_given
from latfix.cli.shared.output_options import Destination
from latfix.errors import EXIT_OK, InputError

if TYPE_CHECKING:
    from latfix.profilers.allocator_lab.trace import AllocationTrace

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_MOST = 1 << 50
_MADE_FOR, _TURNS = "4GiB", 4000


def fragmentation(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACE]",
            help="A file of torch.cuda.memory._dump_snapshot, or JSON lines; synthetic traffic without it.",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity",
            metavar="SIZE",
            help=f"Memory available to the process, such as 80GiB; default: {_MADE_FOR} for synthetic traffic, the "
            "peak for a recording with a stall.",
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
    turns: Annotated[
        int | None, typer.Option("--turns", metavar="N", help=f"Requests of synthetic traffic; default: {_TURNS}.")
    ] = None,
    seed: SeedOption = 0,
    out: KeepOption = None,
    json_file: JsonOption = None,
) -> int:
    """Find the allocator settings that would not have stalled.

    Replays allocations through models of allocators. Shows which would have stalled or failed, and why.
    """
    from rich.console import Console

    from latfix.profilers.allocator_lab.compare_policies import ARENAS, SETTINGS, compare
    from latfix.profilers.allocator_lab.compare_policies import fragmentation as compared
    from latfix.profilers.allocator_lab.synthetic_trace import Traffic, generate
    from latfix.profilers.allocator_lab.torch_caching import known_settings
    from latfix.profilers.allocator_lab.trace import read_trace, write_trace
    from latfix.reports.terminal.fragmentation import render_fragmentation
    from latfix.runners.replay.run_session import open_folder

    check_seed(seed)
    if trace is not None:
        refuse_given({"--turns": turns}, f"found {trace}, which is read; expected no TRACE")
    check_whole("--turns", turns, 1, 1_000_000)
    read = None if trace is None else read_trace(trace)
    room = _bytes(capacity or _MADE_FOR) if read is None or capacity is not None else _peak_reserved(read)
    target = Destination.open("--json", json_file)
    folder = None if out is None else open_folder(out)
    made = read or generate(seed, Traffic(turns=turns or _TURNS, capacity=room))
    current = known_settings(made.setting)
    names = (current, *policy) if policy else (current, *(each for each in SETTINGS if each != current), *ARENAS)
    with Console(stderr=True).status("replaying …"):
        found = compared(made, room, compare(made, room, names))
    if folder is not None:
        write_trace(folder / "trace.jsonl", made)
    keep = None if folder is None else folder / "fragmentation.json"
    target.report(found, lambda: render_fragmentation(found), keep=keep)
    return EXIT_OK


def _peak_reserved(trace: AllocationTrace) -> int:
    """The process's peak of device memory; after a stall, this was all that was available."""
    held = trace.recorded.get("peak_reserved", 0)
    if not held or not trace.recorded.get("retries"):
        raise InputError(
            "--capacity: found none, and the recording has no stall that would show it; expected the memory "
            "available to the process, such as 80GiB"
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
