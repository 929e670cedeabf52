"""``latfix selftest``: inject known faults on this machine, and score the diagnosis."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared.options import JsonOption, KeepOption, check_seed, check_whole
from latfix.cli.shared.output_options import Destination
from latfix.errors import EXIT_INTERRUPTED, EXIT_OK, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from latfix.results.selftest_scoreboard import CaseScore, Scoreboard
    from latfix.runners.selftest.case import Case

_SEED = 1000


def selftest(
    quick: Annotated[bool, typer.Option("--quick", help="A few cases, in under three minutes.")] = False,
    cause: Annotated[
        list[str] | None,
        typer.Option(
            "--cause", metavar="ID", help="Only cases that inject this cause, and quiet ones; may be repeated."
        ),
    ] = None,
    intensity: Annotated[
        list[str] | None,
        typer.Option(
            "--intensity",
            metavar="weak|small|medium|large",
            help="Only faults of this intensity; may be repeated.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of traffic and faults; 1000 and above were not used in development.")
    ] = _SEED,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", help="Replay every case N times, with different seeds.")
    ] = 1,
    rescore: Annotated[
        Path | None,
        typer.Option(
            "--rescore", metavar="DIR", help="Score the records of an earlier --out again, without replays."
        ),
    ] = None,
    out: KeepOption = None,
    json_file: JsonOption = None,
) -> int:
    """Inject known faults here, and score the diagnosis."""
    from rich.console import Console

    from latfix.cli.shared.diagnose_flow import kept_or_temporary
    from latfix.files.atomic_write import write_json
    from latfix.reports.terminal.selftest import minutes
    from latfix.runners.selftest.plan import by_group, estimate_s, plan_cases
    from latfix.runners.selftest.run import rescore as score_again
    from latfix.runners.selftest.run import run_selftest

    console = Console(stderr=True, highlight=False)
    on_case = partial(_show, console)
    check_seed(seed)
    check_whole("--repeat", repeat, 1, 1000)
    if rescore is not None:
        if quick or cause or intensity or out is not None or (seed, repeat) != (_SEED, 1):
            raise InputError(
                "--rescore: found --quick, --cause, --intensity, --seed, --repeat or --out as well; expected no "
                "option but --json"
            )
        target = Destination.open("--json", json_file)
        return _conclude(score_again(rescore, on_case=on_case), target)
    chosen = {"causes": tuple(cause or ()), "intensities": tuple(intensity or ())}
    cases = plan_cases(quick=quick, seed=seed, repeat=repeat, **chosen)
    target = Destination.open("--json", json_file)
    with kept_or_temporary(out, "latfix-selftest-") as folder:
        groups = ", ".join(f"{number} {group}" for group, number in by_group(cases).items())
        console.print(f"selftest: {len(cases)} runs ({groups}), about {minutes(estimate_s(cases))}")
        board = run_selftest(cases, folder, keep=out is not None, seed=seed, quick=quick, on_case=on_case)
        write_json(folder / "selftest.json", board.to_json())
    return _conclude(board, target)


def _show(console: Console, place: int, of: int, case: Case, score: CaseScore | None) -> None:
    """Print a case when it starts, on a terminal, and when it is scored."""
    from latfix.reports.terminal.selftest import case_line

    if score is not None or console.is_terminal:
        end = "\n" if score is not None else "\r"
        console.print(case_line(place, of, case.id, score), end=end, soft_wrap=True)


def _conclude(board: Scoreboard, target: Destination) -> int:
    """Write the document and show the scoreboard."""
    from latfix.reports.terminal.selftest import render_scoreboard

    target.report(board, lambda: render_scoreboard(board))
    return EXIT_INTERRUPTED if board.interrupted else EXIT_OK
