"""Whether two services fit on one device, by what one of them held there alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from latfix.run_record.run_meta import RunMeta
from latfix.run_record.schema import BATCH_DTYPE
from latfix.runners.optimize.co_residency import MARGIN_BYTES, DeviceRoom, no_room
from tests.records import zeros

_GIB = 1 << 30


def _record(device: str = "cuda:0", **known: Any) -> Any:
    memory = {"total_bytes": 80 * _GIB, "left_bytes": 50 * _GIB, "reserved_end_bytes": 28 * _GIB}
    memory |= {"reserved_peak_bytes": 28 * _GIB, "retries": 0, "allocs": 0, "frees": 0, **known}
    return SimpleNamespace(meta=RunMeta(device=device, device_memory=memory), batches=zeros(BATCH_DTYPE, 0))


def test_memory_outside_torchs_allocator_counts() -> None:
    """Of thirty the allocator took twenty-eight; the rest is CUDA's, another backend's, a neighbor's."""
    least = 2 * 30 * _GIB + MARGIN_BYTES
    assert no_room(_record(total_bytes=least, left_bytes=least - 30 * _GIB)) == ""
    assert "30,720 MiB of" in no_room(_record(total_bytes=least - 1, left_bytes=least - 1 - 30 * _GIB))


def test_the_peak_counts_not_the_end() -> None:
    assert no_room(_record()) == ""
    assert "one holds 40,960 MiB of 81,920 MiB" in no_room(_record(reserved_peak_bytes=38 * _GIB))


def test_a_service_that_grew_counts() -> None:
    """Its own figures of the device are of two services that shared it."""
    larger = _record(reserved_peak_bytes=40 * _GIB, left_bytes=10 * _GIB)
    assert "one holds 43,008 MiB" in no_room(_record(), larger)
    assert no_room(_record(), _record(reserved_peak_bytes=20 * _GIB, left_bytes=1)) == ""


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (_record(device="cpu", left_bytes=0), ""),
        (_record(retries=1), "one service alone ran out"),
        (SimpleNamespace(meta=RunMeta(device="cuda:0")), "is not known"),
    ],
)
def test_cases_without_figures(record: Any, why: str) -> None:
    assert (why in no_room(record)) if why else not no_room(record)


def _arm(*fixes: str, latest: Any = None) -> Any:
    arm = SimpleNamespace(fixes=fixes, alone="", loaded=True, latest=latest)
    arm.close = lambda: setattr(arm, "loaded", False)
    return arm


def _fix(name: str, alone: bool = False) -> Any:
    return SimpleNamespace(id=name, alone=alone)


def test_one_crowding_fix_is_isolated_and_two_end_the_sharing() -> None:
    room = DeviceRoom()
    room.begin(_record())
    room.adopt(_arm("kept"))
    room.crowd(_arm("kept", "large"), "why")
    assert not room.alone_with([_fix("other")]) and not room.alone
    assert room.alone_with([_fix("other"), _fix("large")]) == "why"
    room.crowd(_arm("kept", "large"), "why")
    assert not room.alone
    room.crowd(_arm("kept", "other"), "no")
    assert [room.alone_with([_fix("third")]), room.alone] == ["no", "no"]


def test_a_smaller_service_without_room_ends_the_sharing() -> None:
    """Its fixes are among those that stand: there is none to learn from."""
    room = DeviceRoom()
    room.begin(_record())
    room.adopt(_arm("kept", "other"))
    room.crowd(_arm("kept"), "why")
    assert room.alone == "why"


def test_a_second_device_may_be_the_one_without_room() -> None:
    roomy = _record().meta.device_memory
    full = {**roomy, "reserved_peak_bytes": 60 * _GIB}
    assert no_room(_record(others={"cuda:1": roomy})) == ""
    assert "both services do not fit on cuda:1 (one holds 63,488 MiB" in no_room(_record(others={"cuda:1": full}))
    later = _record(others={"cuda:1": full})
    assert "cuda:1" in no_room(_record(others={"cuda:1": roomy}), later)


def test_only_services_that_may_not_share_are_closed() -> None:
    room = DeviceRoom()
    one, other, alone = _arm(), _arm(), _arm()
    room.close_others(one, [one, other])
    assert one.loaded and other.loaded
    alone.alone = "why"
    room.close_others(one, [one, other, alone])
    assert (one.loaded, other.loaded, alone.loaded) == (True, True, False)
    alone.loaded = True
    room.close_others(alone, [one, other, alone])
    assert (one.loaded, other.loaded, alone.loaded) == (False, False, True)


def test_on_the_host_no_service_is_alone() -> None:
    room = DeviceRoom()
    room.begin(_record(device="cpu"))
    assert not room.alone_with([_fix("memory.pool", alone=True)]) and not room.alone_uncompared()
    room.adopt(_arm("large", latest=_record(device="cpu", retries=3)))
    assert not room.alone
