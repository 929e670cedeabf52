"""The model of torch's caching allocator, step by step, compared with its source."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from latfix.errors import InputError
from latfix.profilers.allocator_lab.arena_policies import BestFit, Buddy, SizeClasses, class_of
from latfix.profilers.allocator_lab.compare_policies import ARENAS, SETTINGS, policy_of
from latfix.profilers.allocator_lab.free_blocks import Block
from latfix.profilers.allocator_lab.policy import OutOfMemory, Policy
from latfix.profilers.allocator_lab.torch_caching import (
    CachingAllocator,
    Settings,
    known_settings,
    parse_settings,
    rounded,
)
from latfix.profilers.allocator_lab.torch_expandable import ExpandableAllocator

_MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "divisions", "wanted"),
    [
        (1, 1, 512),
        (512, 1, 512),
        (513, 1, 1024),
        (3 * _MIB + 1, 1, 3 * _MIB + 512),
        (1200 * _MIB, 4, 1280 * _MIB),
        (1024 * _MIB, 4, 1024 * _MIB),
        (1025 * _MIB, 4, 1280 * _MIB),
        (1500, 4, 1536),
    ],
)
def test_sizes_are_rounded(size: int, divisions: int, wanted: int) -> None:
    assert rounded(size, divisions) == wanted


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * _MIB),
        (_MIB, 2 * _MIB),
        (_MIB + 1, 20 * _MIB),
        (10 * _MIB - 512, 20 * _MIB),
        (10 * _MIB, 10 * _MIB),
        (11 * _MIB, 12 * _MIB),
        (25 * _MIB, 26 * _MIB),
    ],
)
def test_a_segment_is_taken_if_nothing_is_cached(size: int, segment: int) -> None:
    allocator = CachingAllocator(1 << 30)
    allocator.allocate(size)
    assert allocator.counters.reserved == segment and allocator.counters.device_allocs == 1


def test_small_blocks_fill_a_segment_completely() -> None:
    allocator = CachingAllocator(1 << 30)
    for _ in range(4096):
        allocator.allocate(512)
    assert allocator.counters.device_allocs == 1
    allocator.allocate(512)
    assert allocator.counters.device_allocs == 2


def test_a_large_block_is_split_only_if_more_than_a_megabyte_remains() -> None:
    allocator = CachingAllocator(1 << 30)
    whole = allocator.allocate(20 * _MIB)
    allocator.free(whole)
    kept = allocator.allocate(19 * _MIB)
    assert kept.size == 20 * _MIB and not kept.is_split
    allocator.free(kept)
    split = allocator.allocate(19 * _MIB - 512)
    assert split.size == 19 * _MIB - 512 and allocator.free_bytes() == (_MIB + 512, _MIB + 512)
    assert allocator.stuck_bytes() == _MIB + 512


def test_the_smallest_fitting_block_is_taken() -> None:
    allocator = CachingAllocator(1 << 30)
    blocks = [allocator.allocate(size * _MIB) for size in (30, 50, 40)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(38 * _MIB).size == 38 * _MIB
    assert sorted(_free_sizes(allocator)) == [2 * _MIB, 30 * _MIB, 50 * _MIB]
    assert allocator.counters.device_allocs == 3


def test_a_freed_block_joins_both_neighbors() -> None:
    allocator = CachingAllocator(1 << 30)
    parts = [allocator.allocate(6 * _MIB) for _ in range(3)]
    assert len({_segment_of(part) for part in parts}) == 1
    allocator.free(parts[0])
    allocator.free(parts[2])
    assert allocator.stuck_bytes() == 14 * _MIB
    allocator.free(parts[1])
    assert _free_sizes(allocator) == [20 * _MIB] and allocator.stuck_bytes() == 0


def test_pools_are_separate_by_size_and_stream() -> None:
    allocator = CachingAllocator(1 << 30)
    allocator.free(allocator.allocate(20 * _MIB))
    allocator.allocate(512)
    assert allocator.counters.device_allocs == 2, "a small request does not use a large block"
    allocator.allocate(20 * _MIB, stream=7)
    assert allocator.counters.device_allocs == 3, "nor does another stream"


def test_a_full_device_gets_whole_segments_back() -> None:
    allocator = CachingAllocator(100 * _MIB)
    allocator.free(allocator.allocate(60 * _MIB))
    allocator.allocate(80 * _MIB)
    counters = allocator.counters
    assert (counters.retries, counters.device_frees, counters.reserved) == (1, 1, 80 * _MIB)


def test_a_split_segment_cannot_be_given_back() -> None:
    """Of 80 free MiB, 40 are in a segment that is partly in use."""
    allocator = CachingAllocator(100 * _MIB)
    whole = allocator.allocate(60 * _MIB)
    allocator.free(whole)
    allocator.allocate(20 * _MIB)
    with pytest.raises(OutOfMemory):
        allocator.allocate(60 * _MIB)
    assert allocator.counters.retries == 1
    assert allocator.free_bytes() == (40 * _MIB, 40 * _MIB)


def test_an_expandable_segment_gives_its_free_pages_back() -> None:
    allocator = ExpandableAllocator(100 * _MIB, Settings(expandable=True), name="")
    whole = allocator.allocate(60 * _MIB)
    allocator.free(whole)
    allocator.allocate(20 * _MIB)
    # The 40 free MiB grow in place by three pages: nothing has to be given back.
    assert allocator.allocate(80 * _MIB).size == 80 * _MIB
    assert allocator.counters.reserved == 100 * _MIB and allocator.counters.retries == 0


def test_pages_between_used_blocks_are_unmapped() -> None:
    allocator = ExpandableAllocator(100 * _MIB, Settings(expandable=True), name="")
    first, gap, last = (allocator.allocate(size * _MIB) for size in (20, 60, 20))
    allocator.free(gap)
    small = allocator.allocate(512)
    counters = allocator.counters
    assert counters.retries == 1 and counters.reserved == 42 * _MIB, "a page of 2 MiB for the small pool"
    allocator.free(small)
    assert allocator.allocate(60 * _MIB).start == first.size, "the gap is reused"
    assert last.start == 80 * _MIB


def test_a_partly_used_page_stays_mapped() -> None:
    allocator = ExpandableAllocator(100 * _MIB, Settings(expandable=True), name="")
    blocks = [allocator.allocate(10 * _MIB) for _ in range(10)]
    for block in blocks[1::2]:
        allocator.free(block)
    assert allocator.stuck_bytes() == 50 * _MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(20 * _MIB)


def test_best_fit_counts_an_expandable_block_with_its_potential_size() -> None:
    allocator = ExpandableAllocator(1 << 30, Settings(expandable=True), name="")
    blocks = [allocator.allocate(size * _MIB) for size in (30, 10, 20)]
    allocator.free(blocks[2])  # at the end: it can grow
    allocator.free(blocks[0])  # between others: it cannot
    assert allocator.allocate(20 * _MIB).start == 0, "although the block that can grow is smaller"


def test_oversize_blocks_are_not_split() -> None:
    allocator = CachingAllocator(1 << 30, Settings(max_split_size=100 * _MIB))
    allocator.free(allocator.allocate(200 * _MIB))
    allocator.allocate(50 * _MIB)
    assert allocator.counters.device_allocs == 2, "a request below the limit takes no block above it"
    assert allocator.allocate(190 * _MIB).size == 200 * _MIB
    assert allocator.counters.device_allocs == 2, "one above it takes a slightly larger block unsplit"


def test_oversize_blocks_are_given_back_first() -> None:
    allocator = CachingAllocator(400 * _MIB, Settings(max_split_size=100 * _MIB))
    for block in [allocator.allocate(size * _MIB) for size in (120, 150)]:
        allocator.free(block)
    allocator.allocate(200 * _MIB)
    assert allocator.counters.retries == 0, "without waiting for the device"
    assert allocator.counters.device_frees == 2


def test_the_threshold_collects_the_segments_unused_for_longest() -> None:
    allocator = CachingAllocator(1000 * _MIB, Settings(collect_above=0.5))
    allocator.free(allocator.allocate(300 * _MIB))
    for _ in range(20):
        allocator.free(allocator.allocate(350 * _MIB))
    assert allocator.counters.device_allocs == 2 and allocator.counters.device_frees == 0
    allocator.allocate(340 * _MIB)
    allocator.allocate(400 * _MIB)
    assert allocator.counters.device_frees == 1 and 300 * _MIB not in _free_sizes(allocator)
    assert allocator.counters.retries == 0


def test_settings_are_read_as_torch_does() -> None:
    settings = parse_settings("max_split_size_mb:128, expandable_segments:True,garbage_collection_threshold:0.8")
    assert settings == Settings(max_split_size=128 * _MIB, expandable=True, collect_above=0.8)
    assert parse_settings("") == Settings()
    assert parse_settings("roundup_power2_divisions:8").divisions == 8


def test_the_split_limit_may_be_the_segment_size() -> None:
    """torch accepts a limit of the size of its large segments: they then serve no smaller requests."""
    settings = parse_settings("max_split_size_mb:20")
    assert settings.max_split_size == 20 * _MIB
    allocator = CachingAllocator(1 << 30, settings)
    first = allocator.allocate(4 * _MIB)
    second = allocator.allocate(4 * _MIB)
    assert allocator.counters.device_allocs == 1, "a new segment is split"
    for block in (first, second):
        allocator.free(block)
    allocator.allocate(4 * _MIB)
    assert allocator.counters.device_allocs == 2, "an unsplit segment serves no smaller request"


@pytest.mark.parametrize(
    ("text", "limited", "known"),
    [
        ("max_split_size_mb:64,large_segment_size_mb:32", None, "max_split_size_mb:64"),
        ("pinned_num_register_threads:8, expandable_segments:True", None, "expandable_segments:True"),
        ("roundup_power2_divisions:[256:1,>:2],max_split_size_mb:64", None, "max_split_size_mb:64"),
        ("backend:cudaMallocAsync", None, ""),
        # Without a memory limit torch collects nothing.
        ("garbage_collection_threshold:0.8,max_split_size_mb:64", None, "max_split_size_mb:64"),
        ("garbage_collection_threshold:0.8", False, ""),
        ("garbage_collection_threshold:0.8", True, "garbage_collection_threshold:0.8"),
        (
            "per_process_memory_fraction:0.9,garbage_collection_threshold:0.8",
            None,
            "garbage_collection_threshold:0.8",
        ),
        ("per_process_memory_fraction:1,garbage_collection_threshold:0.8", None, ""),
        ("", None, ""),
    ],
)
def test_the_modelled_part_of_a_setting_is_kept(text: str, limited: bool | None, known: str) -> None:
    assert known_settings(text, limited=limited) == known


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:19",
        "max_split_size_mb:many",
        "expandable_segments:yes",
        "garbage_collection_threshold:1.5",
        "roundup_power2_divisions:3",
        "backend:cudaMallocAsync",
        "roundup_power2_divisions:[256:1,512:2]",
        "expandable_segments",
        "nothing",
    ],
)
def test_invalid_settings_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--policy: found"):
        parse_settings(text)


def test_a_buddy_joins_only_its_own_buddy() -> None:
    buddy = Buddy(8 * _MIB)
    one, two, three = (buddy.allocate(2 * _MIB) for _ in range(3))
    buddy.free(two)
    assert buddy.free_bytes() == (4 * _MIB, 2 * _MIB), "its upper neighbor is not its buddy"
    buddy.free(one)
    assert buddy.free_bytes() == (6 * _MIB, 4 * _MIB)
    buddy.free(three)
    assert buddy.free_bytes() == (8 * _MIB, 8 * _MIB)


def test_a_buddy_of_an_odd_capacity_uses_all_of_it() -> None:
    assert Buddy(64 * _MIB).allocate(17 * _MIB).size == 32 * _MIB, "up to half is unused"
    buddy = Buddy(7 * _MIB)
    assert buddy.free_bytes() == (7 * _MIB, 4 * _MIB)
    blocks = [buddy.allocate(size * _MIB) for size in (4, 2, 1)]
    assert buddy.free_bytes()[0] == 0
    for block in blocks:
        buddy.free(block)
    assert buddy.free_bytes() == (7 * _MIB, 4 * _MIB)


def test_size_classes_waste_at_most_a_fifth() -> None:
    for size in range(1 << 12, 1 << 16, 37):
        assert size <= class_of(size) < 1.25 * size


def test_a_size_class_serves_only_its_size() -> None:
    pool = SizeClasses(100 * _MIB)
    pool.free(pool.allocate(40 * _MIB))
    pool.allocate(30 * _MIB)
    assert pool.counters.device_allocs == 2
    pool.allocate(60 * _MIB)
    assert pool.counters.retries == 1 and pool.counters.reserved <= 100 * _MIB


@pytest.mark.parametrize("name", [*SETTINGS, *ARENAS])
@pytest.mark.parametrize("seed", range(3))
def test_no_two_blocks_overlap_and_nothing_is_lost(name: str, seed: int) -> None:
    rng = random.Random(seed)
    capacity = 300 * _MIB
    policy: Policy = policy_of(name, capacity)
    live: list[Block] = []
    served = 0
    for _ in range(1500):
        if live and rng.random() < 0.5:
            policy.free(live.pop(rng.randrange(len(live))))
            continue
        size = int(rng.choice((2e3, 3e5, 4e6, 2.5e7)) * rng.uniform(0.5, 1.5))
        try:
            block = policy.allocate(size)
        except OutOfMemory:
            continue
        served += 1
        assert block.size >= size
        live.append(block)
        counters = policy.counters
        assert counters.granted == sum(one.size for one in live) and counters.reserved <= capacity
        assert counters.granted + policy.free_bytes()[0] == counters.reserved
    if not isinstance(policy, SizeClasses):
        _apart(policy, live)
    for block in live:
        policy.free(block)
    counters = policy.counters
    assert served > 300 and counters.granted == counters.requested == 0
    if isinstance(policy, BestFit | Buddy):
        assert policy.free_bytes()[0] == counters.reserved
    else:
        assert policy.stuck_bytes() == 0


def _apart(policy: Policy, live: list[Block]) -> None:
    by_pool: dict[int, list[Block]] = {}
    for block in live:
        by_pool.setdefault(id(block.home), []).append(block)
    for blocks in by_pool.values():
        ordered = sorted(blocks, key=lambda block: block.start)
        for lower, upper in pairwise(ordered):
            assert lower.start + lower.size <= upper.start, policy.name


def _free_sizes(allocator: CachingAllocator) -> list[int]:
    return [block.size for pool in allocator._pools.values() for block in pool]


def _segment_of(block: Block) -> int:
    while block.before is not None:
        block = block.before
    return block.start
