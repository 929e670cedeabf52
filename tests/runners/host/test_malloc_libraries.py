"""Allocators to preload: where they are found, and which one is in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from latfix.runners.host.malloc_libraries import JEMALLOC, TCMALLOC, loaded_allocator, preload_name

ELF = b"\x7fELF\x02rest"


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")


def library(folder: Path, name: str, head: bytes = ELF) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(head)
    return folder / name


def test_a_library_known_to_the_loader_is_named_without_a_path(tmp_path: Path) -> None:
    """So the plan works on a machine with the library in another folder."""
    file = library(tmp_path / "lib", "libjemalloc.so.2")
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1\0libjemalloc.so.2\0" + str(file).encode() + b"\0")
    assert preload_name(JEMALLOC, [], cache) == "libjemalloc.so.2"
    file.unlink()
    assert preload_name(JEMALLOC, [tmp_path], cache) == "", "the loader's cache names a deleted file"


def test_elsewhere_its_path_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = library(tmp_path / "lib", "libtcmalloc.so.4")
    assert preload_name(TCMALLOC, [tmp_path / "none", tmp_path / "lib"], tmp_path / "no-cache") == str(file)
    assert preload_name(JEMALLOC, [tmp_path / "lib"], tmp_path / "no-cache") == ""
    monkeypatch.setattr("sys.platform", "darwin")
    assert preload_name(TCMALLOC, [tmp_path / "lib"], tmp_path / "no-cache") == "", "nothing is preloaded there"


@pytest.mark.parametrize("head", [b"", b"INPUT(libjemalloc.so.2)", b"\x7fELF\x01"])
def test_a_file_that_is_no_library_of_this_machine_is_skipped(tmp_path: Path, head: bytes) -> None:
    library(tmp_path / "lib", "libjemalloc.so.2", head)
    assert preload_name(JEMALLOC, [tmp_path / "lib"], tmp_path / "no-cache") == ""


@pytest.mark.parametrize(
    ("malloc", "name"),
    [(0x7F00, "jemalloc"), (0x7F15, "tcmalloc"), (0x7F2F, "libc"), (0x9000, "libc"), (0x8000, "libc")],
)
def test_the_allocator_is_found_by_mallocs_address(malloc: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other allocators' libraries are mapped too, but only for the package that needs them."""
    monkeypatch.setattr("platform.libc_ver", lambda: ("libc", "1"))
    line = "{} r-xp 00000000 fe:00 12  /usr/lib/x86_64-linux-gnu/{}"
    maps = [
        line.format("7f00-7f10", "libjemalloc.so.2"),
        line.format("7f10-7f20", "libtcmalloc_minimal.so.4.5.9"),
        line.format("7f20-7f30", "libc.so.6"),
        "8000-8001 rw-p 00000000 00:00 0",
    ]
    assert loaded_allocator(maps, malloc) == name
    if Path("/proc/self/maps").exists():
        assert loaded_allocator() == "libc", "this process runs on its C library"
