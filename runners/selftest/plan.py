"""The cases of a self-test: every cause alone at each intensity, mixes, unlisted causes, quiet runs.

The diagnosis's thresholds are tuned only on seeds below :data:`HELD_OUT`; a self-test uses seeds from there on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from latfix.errors import InputError
from latfix.runners.selftest.case import INTENSITIES, Case, Group, Intensity
from latfix.runners.selftest.recipes import NOT_INJECTABLE, RECIPES

HELD_OUT = 1000
QUICK_S, FULL_S = 6.0, 20.0
#: Time of a case beyond its traffic: starting a process, loading libraries, and the diagnosis.
OVERHEAD_S = 5.5

SINGLE: tuple[str, ...] = tuple(name for name, recipe in RECIPES.items() if recipe.cause not in ("", "unexplained"))
UNLISTED: tuple[str, ...] = ("sleep_model", "lock_model")
QUIET: tuple[str, ...] = ("quiet_low", "quiet_busy", "quiet_varied", "quiet_constant", "quiet_threads")
MIXES: tuple[tuple[str, ...], ...] = (
    ("sleep_prepare", "gc_model"),
    ("gc_prepare", "faults_model"),
    ("work_model", "span_prepare"),
    ("faults_prepare", "sleep_finish"),
    ("work_model", "gc_prepare"),
    ("heavy_inputs", "sleep_prepare"),
    ("hogs", "gc_model"),
    ("burst", "faults_model"),
    ("sleep_prepare", "gc_model", "faults_prepare"),
    ("work_model", "span_prepare", "gc_prepare"),
    ("heavy_inputs", "gc_model", "sleep_finish"),
)
#: Cases of ``--quick``: the most common causes, one mix, one unlisted cause, two quiet runs.
QUICK: tuple[tuple[tuple[str, ...], Intensity], ...] = (
    (("gc_model",), "medium"),
    (("sleep_prepare",), "medium"),
    (("faults_model",), "large"),
    (("work_model",), "medium"),
    (("hogs",), "large"),
    (("spinner",), "medium"),
    (("burst",), "medium"),
    (("window",), "large"),
    (("heavy_inputs",), "medium"),
    (("sleep_prepare", "gc_model"), "small"),
    (("sleep_model",), "large"),
    (("quiet_low",), "small"),
    (("quiet_varied",), "small"),
)


def make_case(recipes: Sequence[str], intensity: Intensity, seed: int, seconds: float) -> Case:
    groups: dict[str, Group] = {"": "quiet", "unexplained": "unlisted"}
    group: Group = "mixed" if len(recipes) > 1 else groups.get(RECIPES[recipes[0]].cause, "single")
    return Case(recipes=tuple(recipes), group=group, intensity=intensity, seed=seed, seconds=seconds)


def plan_cases(
    *,
    quick: bool,
    causes: Sequence[str] = (),
    intensities: Sequence[str] = (),
    seed: int = HELD_OUT,
    repeat: int = 1,
) -> list[Case]:
    """The cases of a self-test, in the order of their replay.

    :param causes: include only cases that inject one of these; ``quiet`` selects cases without faults; empty for all.
    :param intensities: include only these; empty for all.
    :param repeat: number of repetitions, each with another seed.
    :raises InputError: a cause or intensity is unknown, or cannot be injected on this machine.
    """
    known = sorted({_injected(name) for name in RECIPES} | set(NOT_INJECTABLE))
    for cause in causes:
        if cause not in known:
            raise InputError(f"--cause: found {cause!r}; expected one of {', '.join(known)}")
    for each in intensities:
        if each not in INTENSITIES:
            raise InputError(f"--intensity: found {each!r}; expected one of {', '.join(INTENSITIES)}")
    wanted = tuple(each for each in INTENSITIES if each in intensities)
    obstacles = not_injectable()
    chosen = [
        (recipes, intensity)
        for recipes, intensity in (_quick(causes, wanted) if quick else _full())
        if (not wanted or intensity in wanted)
        and not any(RECIPES[name].cause in obstacles and RECIPES[name].obstacle() for name in recipes)
        and (not causes or any(_injected(name) in causes for name in recipes))
    ]
    if not chosen:
        options = [*(f"--cause {cause}" for cause in causes), *(f"--intensity {each}" for each in wanted)]
        reason = "; ".join(f"{cause}: {obstacles[cause]}" for cause in causes if cause in obstacles)
        raise InputError(
            f"{' '.join(options)}: found no case that can be injected here ({reason or 'none is planned'})"
        )
    seconds = QUICK_S if quick else FULL_S
    return [
        make_case(recipes, intensity, seed + round_, seconds)
        for round_ in range(repeat)
        for recipes, intensity in chosen
    ]


def not_injectable() -> dict[str, str]:
    """Reasons why no recipe works on this machine, by cause."""
    by_cause: dict[str, list[str]] = defaultdict(list)
    for recipe in RECIPES.values():
        if recipe.cause:
            by_cause[recipe.cause].append(recipe.obstacle())
    return {**NOT_INJECTABLE, **{cause: found[0] for cause, found in by_cause.items() if all(found)}}


def estimate_s(cases: Sequence[Case]) -> float:
    return sum(case.seconds + OVERHEAD_S for case in cases)


def _full() -> Iterator[tuple[tuple[str, ...], Intensity]]:
    alone = [(name,) for name in (*SINGLE, *UNLISTED)]
    for intensity in INTENSITIES:
        for recipes in (*alone, *MIXES, *((name,) for name in QUIET)):
            yield recipes, intensity


def _quick(causes: Sequence[str], intensities: tuple[Intensity, ...]) -> Iterator[tuple[tuple[str, ...], Intensity]]:
    """The shipped selection, or one case per recipe of the requested causes and intensity."""
    if not causes:
        yield from QUICK
        return
    for name in RECIPES:
        if _injected(name) in causes:
            yield from (((name,), intensity) for intensity in intensities or ("medium",))


def _injected(name: str) -> str:
    """The cause that a recipe injects; ``quiet`` for one without a fault."""
    return RECIPES[name].cause or "quiet"


def by_group(cases: Sequence[Case]) -> Mapping[Group, int]:
    return Counter(case.group for case in cases)
