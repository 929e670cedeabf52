"""``memory.device_allocator``: the setting of torch's CUDA allocator with the fewest stalls for the run's history.

It depends on the sizes, the order and the lifetimes of allocations. The history is recorded in a replay whose timings
are not used, and replayed through models of the allocator (:mod:`latfix.profilers.allocator_lab`).
"""

from __future__ import annotations

from latfix.errors import LatfixError
from latfix.profilers.allocator_lab.compare_policies import Choice
from latfix.profilers.gpu.alloc_conf import ALLOC_CONF, OLDER_CONF, conf_environment, merged_conf, read_conf
from latfix.runners.fixes.fix import Applied, Bench, Change, Context, Fix, SetUp, Verified
from latfix.runners.fixes.memory.allocation_replay import recorded_choice
from latfix.runners.fixes.shared.device_memory_facts import TREATS, calls, not_in_effect, trouble
from latfix.runners.gpu_memory.caching_allocator import standing_conf
from latfix.runners.replay.arm import Arm


def _measure(bench: Bench, base: Arm) -> Choice:
    try:
        return recorded_choice(bench, base)
    except LatfixError as error:
        return Choice(description=error.message)


def _chosen(context: Context) -> Choice | None:
    found: Choice | None = context.found.get(FIX.id)
    return found


def _better_setting(context: Context) -> str:
    choice = _chosen(context)
    if choice is None:
        return "no history of allocations was recorded"
    if not choice.setting:
        return choice.description
    wanted = read_conf(choice.setting)
    if wanted.items() <= read_conf(standing_conf(context.settings)).items():
        return f"the allocator has {choice.setting} already"
    limit = wanted.get("max_split_size_mb", "")
    if limit.isdecimal() and context.settings.reserve_mb >= int(limit):
        return f"with {choice.setting} the reserved {context.settings.reserve_mb} MiB would not serve any request"
    return ""


def _sets(context: Context) -> Change:
    choice = _chosen(context)
    assert choice is not None, "a precondition ensures it"
    return {"env": conf_environment(merged_conf(standing_conf(context.settings), choice.setting))}


def _verify(applied: Applied) -> Verified:
    wanted = applied.settings.env.get(ALLOC_CONF, "")
    missing = not_in_effect(applied.record, wanted)
    now, before = applied.both(calls)
    counts = now.compared_with(before)
    if missing or not wanted:
        what = ", ".join(missing) or "any setting"
        return Verified(False, f"the allocator does not report {what}; {counts}")
    # Expandable segments are mapped page by page: more calls, but none of them waits like a stall.
    return Verified(now.fewer_stalls_than(before), f"the allocator has {wanted}; {counts}")


FIX = Fix(
    id="memory.device_allocator",
    title="the setting of torch's CUDA allocator with the fewest stalls for this service's allocations",
    treats=TREATS,
    relief=0.7,
    gentle=True,
    alone=True,
    risk="with expandable segments tensors cannot be shared with other processes; other settings hold more memory",
    needs=(trouble, _better_setting),
    sets=_sets,
    variables=(ALLOC_CONF, OLDER_CONF),
    set_up=SetUp(due=lambda context: not trouble(context), measure=_measure, shown=lambda choice: choice.description),
    verify=_verify,
)
