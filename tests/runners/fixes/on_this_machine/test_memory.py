"""Fixes of memory: preconditions, settings, and evidence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.runners.fixes.memory import allocator as memory_allocator
from latfix.runners.fixes.memory import huge_pages as memory_huge_pages
from latfix.runners.fixes.memory import jemalloc as memory_jemalloc
from latfix.runners.fixes.memory import page_prefault as memory_page_prefault
from latfix.runners.fixes.memory import pool as memory_pool
from latfix.runners.fixes.memory import preloaded_allocators as preload
from latfix.runners.fixes.memory import tcmalloc as memory_tcmalloc
from latfix.runners.fixes.shared.conditions import in_tail, tail_share
from latfix.runners.host.process_setup import KEEP_FREED, tunables_text
from tests.runners.fixes.on_this_machine.conftest import make_context, make_record, verified

MIB = 1 << 20
KEPT = tunables_text(KEEP_FREED)
ALLOCATOR, PREFAULT = memory_allocator.FIX, memory_page_prefault.FIX
HUGE, POOL = memory_huge_pages.FIX, memory_pool.FIX


def test_evidence_that_is_split_among_causes_is_added_up() -> None:
    """Page faults, growing heaps and fragmentation are the same trouble in three rows of the ledger."""
    split = {"memory.page_faults": 0.02, "memory.allocator": 0.025, "memory.fragmentation": 0.01}
    assert ALLOCATOR.obstacle(make_context(make_record(faults=20), split)) == ""
    for missing in split:
        rest = {cause: share for cause, share in split.items() if cause != missing}
        assert "of the tail is memory" in ALLOCATOR.obstacle(make_context(make_record(faults=20), rest))


def test_faults_of_every_request_are_reason_enough() -> None:
    assert ALLOCATOR.obstacle(make_context(make_record(faults=300), {})) == ""
    found = ALLOCATOR.obstacle(make_context(make_record(faults=299), {"memory.allocator": 0.049}))
    assert "only 299 page faults a request, and 4.9 % of the tail is memory" in found


def test_memory_that_is_kept_already_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    faulting = make_record(faults=900)
    assert "prefault_mb" in ALLOCATOR.obstacle(make_context(faulting, prefault_mb=64))
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")
    assert ALLOCATOR.obstacle(make_context(faulting)) == "", "the user's own tunables do something else"
    monkeypatch.setenv("GLIBC_TUNABLES", f"glibc.malloc.perturb=1:{KEPT}")
    assert ALLOCATOR.obstacle(make_context(faulting)) == "glibc keeps freed memory already (GLIBC_TUNABLES)"


def test_both_sources_of_preloads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    traced = make_context(make_record(faults=900), env={"LD_PRELOAD": "/opt/trace.so"})
    assert memory_tcmalloc.FIX.obstacle(traced) == "jemalloc is preloaded already"


def test_an_allocator_that_the_user_preloads_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4")
    context = make_context(make_record(faults=900))
    assert ALLOCATOR.obstacle(context) == "another allocator is preloaded"
    assert memory_jemalloc.FIX.obstacle(context) == "tcmalloc is preloaded already"
    assert "preloaded" in PREFAULT.obstacle(context)


@pytest.mark.parametrize("module", [memory_jemalloc, memory_tcmalloc])
def test_a_preload_names_the_library_and_configures_it(module: Any) -> None:
    context = make_context(make_record(faults=900), env={"LD_PRELOAD": "/opt/trace.so"})
    assert module.FIX.obstacle(context) == ""
    env = module.FIX.change(context)["env"]
    name = module.FIX.id.partition(".")[2]
    assert env["LD_PRELOAD"].startswith(f"lib{name}") and env["LD_PRELOAD"].endswith(":/opt/trace.so")
    assert len(env) > 1
    after = context.settings.with_overrides({"env": env})
    assert "already" in module.FIX.obstacle(make_context(make_record(faults=900), env=after.env))


@pytest.mark.parametrize("module", [memory_jemalloc, memory_tcmalloc])
def test_an_impossible_preload_shows_why(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faulting = make_record(faults=900)
    kept = make_context(faulting, env={"GLIBC_TUNABLES": KEPT})
    assert module.FIX.obstacle(kept) == "glibc keeps freed memory already (GLIBC_TUNABLES)"
    assert "prefault_mb" in module.FIX.obstacle(make_context(faulting, prefault_mb=64))
    other = make_context(faulting, env={"GLIBC_TUNABLES": "glibc.malloc.perturb=1"})
    assert module.FIX.obstacle(other) == ""
    assert "page faults a request" in module.FIX.obstacle(make_context(make_record(faults=3)))
    monkeypatch.setattr(preload, "preload_name", lambda _: "")
    assert "is not installed" in module.FIX.obstacle(make_context(faulting))
    monkeypatch.setattr("sys.platform", "darwin")
    assert "only be preloaded on Linux" in module.FIX.obstacle(make_context(faulting))


def grown(start: int, peak: int, **more: Any) -> dict[str, Any]:
    return {"resident_start_bytes": start * MIB, "peak_bytes": peak * MIB, **more}


def test_prefaulting_covers_the_growth_of_memory() -> None:
    context = make_context(make_record(memory=grown(400, 500)))
    assert PREFAULT.obstacle(context) == ""
    assert PREFAULT.change(context) == {"prefault_mb": 128}
    assert "128 MiB are prefaulted already" in PREFAULT.obstacle(make_context(context.record, prefault_mb=128))


def test_a_record_without_a_peak_goes_by_its_samples() -> None:
    record = make_record()
    record.samples["series"] = np.array(["process.rss_bytes"] * 3, dtype=object)
    record.samples["value"] = np.array([100.0, 132.0, 110.0]) * MIB
    assert PREFAULT.change(make_context(record)) == {"prefault_mb": 48}


def test_prefaulting_is_refused_if_it_is_needless_or_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "memory grew by only 7.00 MiB" in PREFAULT.obstacle(make_context(make_record(memory=grown(400, 407))))
    assert "only 0 MiB" in PREFAULT.obstacle(make_context(make_record()))
    monkeypatch.setattr(memory_page_prefault, "available_bytes", lambda: 200 * MIB)
    found = PREFAULT.obstacle(make_context(make_record(memory=grown(400, 500))))
    assert found == "128 MiB would be needed, 200 MiB are available"
    monkeypatch.setattr(memory_allocator, "platform", SimpleNamespace(libc_ver=lambda: ("", "")))
    assert "not glibc" in PREFAULT.obstacle(make_context(make_record(memory=grown(400, 500))))


def test_huge_pages_need_a_kernel_a_library_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    large = make_record(memory={"model_bytes": 64 * MIB})
    assert HUGE.obstacle(make_context(large)) == HUGE.obstacle(make_context(make_record(faults=900))) == ""
    assert HUGE.change(make_context(large)) == {"huge_pages": "always"}
    assert "already" in HUGE.obstacle(make_context(large, huge_pages="never"))
    small = make_record(faults=5, memory={"model_bytes": MIB})
    assert HUGE.obstacle(make_context(small)) == "only 5 page faults a request, and the weights are 1.00 MiB"
    assert HUGE.obstacle(make_context(make_record(faults=5))) == "only 5 page faults a request"
    assert HUGE.obstacle(make_context(make_record(faults=1))) == "only 1 page fault a request"
    for version in (None, (2, 34)):
        monkeypatch.setattr(memory_huge_pages, "glibc_version", lambda version=version: version)
        assert "from 2.35" in HUGE.obstacle(make_context(large))
    for mode, words in (("always", "every process already"), ("never", "off"), ("", "off")):
        monkeypatch.setattr(memory_huge_pages, "huge_page_mode", lambda mode=mode: mode)
        assert words in HUGE.obstacle(make_context(large))


def test_a_pool_reports_its_answers() -> None:
    answers = {"hits": 30, "misses": 2, "held": 1, "bytes": 3 * MIB}
    effective, said = verified(POOL, make_record(pool_hits=70, pool_misses=4, pool_answers=answers))
    assert effective and "answers 30 and 2; 1 times a buffer was still held" in said and "3.0 MiB" in said
    assert not verified(POOL, make_record(pool_hits=4, pool_misses=4))[0]
    assert not verified(POOL, make_record())[0]


def test_shares_of_several_causes() -> None:
    known = make_context(shares={"a": 0.2, "b": -0.05, "c": 0.5})
    assert tail_share(known.diagnosis, ("a", "b")) == pytest.approx(0.15)
    assert in_tail("a", "b")(known) == ""
    assert in_tail("b", "d")(known) == "b and d made up 0.0 % of the tail"
    assert in_tail("a")(make_context(shares={})) == "", "nothing is known"
