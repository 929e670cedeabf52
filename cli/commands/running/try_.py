"""``latfix try``: the user's own ideas on the same traffic, in one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared import options, output_options
from latfix.errors import EXIT_INTERRUPTED, EXIT_OK, InputError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from latfix.config.workload_toml import WorkloadSpec
    from latfix.results.comparison import Trial
    from latfix.runners.side_by_side.ideas import Idea

_MOST_IDEAS, _MOST_ROUNDS = 20, 100


def try_ideas(
    workload: options.WorkloadArgument,
    *,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE[,…]", help="An idea: the workload with these settings; may be repeated."
        ),
    ] = None,
    profiles: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="An idea: a profile of the workload; may be repeated."),
    ] = None,
    plans: Annotated[
        list[Path] | None,
        typer.Option("--plan", metavar="FILE", help="An idea: a plan that latfix optimize wrote; may be repeated."),
    ] = None,
    combine: Annotated[bool, typer.Option("--combine", help="Add an idea: all --set options together.")] = False,
    budget: options.BudgetOption = "3m",
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", metavar="N", help="Replay at most N rounds; default: as the budget allows, at least 1."
        ),
    ] = None,
    replayed: Annotated[options.ReplayOptions, {"profile"}],
    out: options.OutOption = None,
    json_file: options.JsonOption = None,
) -> int:
    """Replay your own ideas side by side, in one table.

    Each alternates with the unmodified workload on the same traffic. Shows latency with intervals, accuracy and
    memory.
    """
    from latfix.cli.shared.replay_progress import ReplayLines
    from latfix.config.workload_toml import check_runs, load_spec
    from latfix.runners.replay.run_origin import origin_now
    from latfix.runners.replay.run_session import default_folder, open_folder
    from latfix.runners.side_by_side.replay_in_turns import SideBySide

    replayed.check()
    options.check_whole("--rounds", rounds, 1, _MOST_ROUNDS)
    budget_s, shown = options.parse_budget(budget), ReplayLines()
    spec = load_spec(workload, traffic=replayed.traffic)
    ideas = parse_ideas(
        spec,
        sets or (),
        [load_spec(workload, traffic=replayed.traffic, profile=name) for name in profiles or ()],
        plans or (),
        combine=combine,
        device=options.check_device(replayed.device),
        say=shown.say,
    )
    for idea in ideas:
        check_runs(idea.spec)
    schedule = options.load_traffic(spec, replayed)
    target = output_options.Destination.open("--json", json_file)
    folder = open_folder(out or default_folder(spec.name, "try"))
    origin = origin_now(spec.folder)
    found = SideBySide(
        ideas,
        schedule,
        folder,
        budget_s=budget_s,
        rounds=rounds,
        seed=replayed.seed,
        watch=shown.replay,
        say=shown.say,
    ).run()
    return _conclude(folder, replace(found, origin=origin), target)


def parse_ideas(
    spec: WorkloadSpec,
    sets: Sequence[str],
    profiles: Sequence[WorkloadSpec],
    plans: Sequence[Path],
    *,
    combine: bool,
    device: dict[str, str],
    say: Callable[[str], None],
) -> list[Idea]:
    """The unmodified workload, followed by the ideas.

    :param profiles: the workload with each profile.
    :param device: settings that all ideas share.
    :param say: called with each warning.
    :raises InputError: there is no idea, none changes the workload, or one is invalid.
    """
    from latfix.cli.shared.setting_options import parse_changes
    from latfix.runners.side_by_side import ideas

    base = ideas.Idea(name=ideas.AS_IT_IS, spec=spec, settings=spec.settings.with_overrides(device))
    found = [base]
    changes = {text: parse_changes(text) for text in sets}
    found += [ideas.idea_of_changes(text, base, changes[text]) for text in sets]
    for each in profiles:
        idea = ideas.idea_of_profile(base, each)
        found.append(replace(idea, settings=idea.settings.with_overrides(device)))
        own = (each.traffic, each.traffic_map, each.speed, each.repeat)
        if own != (spec.traffic, spec.traffic_map, spec.speed, spec.repeat):
            say(f"warning: {idea.name} has its own traffic, which is ignored: all ideas get the same traffic")
    for path in plans:
        idea, plan = ideas.idea_of_plan(base, path)
        found.append(idea)
        if strange := plan.strange_to(spec.name):
            say(f"warning: {strange}")
    if combine:
        found.append(ideas.idea_of_changes(ideas.TOGETHER, base, ideas.together(list(changes.values()))))
    if all(idea.service == base.service for idea in found):
        expected = "--set KEY=VALUE, --profile NAME or --plan FILE"
        raise InputError(f"try: found no idea that changes the workload; expected {expected}")
    if len(found) - 1 > _MOST_IDEAS:
        raise InputError(f"try: found {len(found) - 1} ideas; expected at most {_MOST_IDEAS}")
    return ideas.distinct(found, say)


def _conclude(folder: Path, found: Trial, target: output_options.Destination) -> int:
    from latfix.cli.shared.diagnose_flow import write_trial_page
    from latfix.files.atomic_write import write_json
    from latfix.reports.terminal.trial import render_trial
    from latfix.runners.replay.run_session import writing_into

    with writing_into(folder):
        write_json(folder / "trial.json", found.to_json())
        write_trial_page(folder / "report.html", found, folder)
    target.report(found, lambda: render_trial(found, folder=folder))
    if found.interrupted:
        return EXIT_INTERRUPTED
    if found.failure:
        raise RunnerError(f"{found.workload}: the unmodified workload failed: {found.failure}")
    if all(idea.failure for idea in found.ideas):
        raise RunnerError(f"{found.workload}: all ideas failed; the first one: {found.ideas[0].failure}")
    return EXIT_OK
