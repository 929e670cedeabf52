"""``latfix compare``: pairs of recorded runs, before and after, and gates on the difference."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from latfix.cli.shared import address_flow
from latfix.cli.shared.options import GateOption, KeepOption, SeedOption, TrafficOption, check_seed, refuse_given
from latfix.cli.shared.output_options import OutputOptions, Outputs
from latfix.errors import InputError


def compare(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="The folder of the run before, or an address.", show_default=False)
    ],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="The folder of the run after, or an address.", show_default=False)
    ],
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="BASE NEW", help="Further pairs of runs, each a round.", show_default=False),
    ] = None,
    *,
    gate: GateOption = None,
    seed: SeedOption = 0,
    out: KeepOption = None,
    written: OutputOptions,
    traffic: TrafficOption = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", help="For two addresses: replays of each; default 3.")
    ] = None,
    service: address_flow.ComparedOptions,
) -> int:
    """Compare recorded runs, and judge gates on the difference.

    Shows percentiles and their ratios with intervals; runs may be incomplete. Two addresses are replayed
    alternately.
    """
    from latfix.cli.shared.diagnose_flow import conclude_comparison
    from latfix.gates.evaluate import check_gates, evaluate
    from latfix.gates.subject import with_percentile_ratios
    from latfix.gates.syntax import parse_gate
    from latfix.profilers.latency_causes import explained
    from latfix.results.comparison import compare_rounds
    from latfix.run_record.run_record import RunRecord
    from latfix.runners.http_target.address import is_address, parse_address
    from latfix.runners.replay.run_session import default_folder, open_folder

    check_seed(seed)
    gates = [parse_gate(text) for text in gate or ()]
    texts = [one.text for one in gates]
    outputs = Outputs.open("compare", written)
    folder, pairs = None if out is None else open_folder(out), [Path(base), Path(new), *(more or ())]
    if is_address(base) or is_address(new):
        check_gates(gates, baseline=True, accuracy=False, causes=False)
        folder = folder or open_folder(default_folder("addresses", "compare"))
        with outputs.in_any_case(parse_address(new).name if is_address(new) else new, texts):
            pairs = address_flow.replay_in_turns(
                (base, new, *map(str, more or ())), service, traffic, rounds, seed, folder
            )
    else:
        service.refuse(base)
        why = f"found {base}, a recorded run, which is not replayed; omit the option"
        refuse_given({"--traffic": traffic, "--rounds": rounds}, why)
    in_turns = _rounds(pairs)
    befores, afters = ([RunRecord.load(pair[k]) for pair in in_turns] for k in (0, 1))
    before, after = befores[-1], afters[-1]
    scored = all(record.meta.accuracy is not None for record in (*befores, *afters))
    workload = after.meta.workload or after.folder.name
    with outputs.in_any_case(workload, texts):
        check_gates(gates, baseline=True, accuracy=scored, causes=False)
        comparison = compare_rounds(befores, afters, seed=seed)
        metrics = [one.metric for one in gates]
        subject, baseline = with_percentile_ratios(*comparison.gate_subjects(), (after, before), metrics)
        results = [evaluate(one, subject, baseline) for one in gates]
        records = {name: str(record.folder.absolute()) for name, record in (("base", before), ("new", after))}
        more_by = "--rounds" if is_address(base) else ""
        comparison = explained(comparison, befores, afters, metrics=metrics, seed=seed)
        comparison = replace(comparison.gated(results), records=records, more_by=more_by)
        return conclude_comparison(comparison, before, after, outputs, folder, workload=workload, seed=seed)


def _rounds(folders: Sequence[Path]) -> list[tuple[Path, Path]]:
    """The pairs to compare, each a round."""
    if len(folders) % 2:
        raise InputError(f"{folders[-1]}: found a run without its counterpart; expected pairs: BASE NEW BASE NEW")
    rounds = list(zip(folders[::2], folders[1::2], strict=True))
    seen: set[str] = set()
    for pair in rounds:
        used = {os.path.realpath(folder) for folder in pair}  # Path.resolve() raises for a loop of links
        if used & seen:
            raise InputError(f"{pair[0]} {pair[1]}: found a run that is also in an earlier pair; expected other runs")
        seen |= used
    return rounds
