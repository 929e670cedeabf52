"""The cache of compiled kernels and converted models, shared between processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Number of converted models in the cache; the least recently used are removed first.
_KEPT = 24


def cache_folder(kind: str) -> Path:
    """A writable folder for ``kind`` in the user's cache folder, or else in the temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME") or ""
    roots = [Path(home)] if Path(home).is_absolute() else []
    for root in (*roots, *_home_cache(), Path(tempfile.gettempdir()) / f"latfix-{os.getuid()}"):
        folder = root / "latfix" / kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix=f"latfix-{kind}-"))


def _home_cache() -> list[Path]:
    try:
        return [Path.home() / ".cache"]
    except RuntimeError:  # the user has no home
        return []


def model_digest(model: torch.nn.Module, sources: Path, *more: str) -> str:
    """A key from a model's weights, the Python files that built it, and ``more``.

    Code outside ``sources`` is not part of the key, so cached files are checked before they are used.
    """
    import torch

    digest = hashlib.sha256("\0".join((torch.__version__, *more)).encode())
    for file in sorted(sources.glob("*.py")):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def keep(made: Path, place: Path) -> Path:
    """Move a finished folder to its place in the cache and evict old entries; returns where the folder is.

    If another process was faster, its folder stays.
    """
    try:
        made.rename(place)
    except OSError:
        if not place.is_dir():
            return made
        shutil.rmtree(made, ignore_errors=True)
    make_room(place.parent)
    return place


def used(place: Path) -> None:
    """Mark a folder of the cache as recently used."""
    with contextlib.suppress(OSError):  # another process removed it; opening it will fail
        os.utime(place)


def make_room(folder: Path, most: int | None = None) -> None:
    """Remove the least recently used entries, down to ``most``."""
    most = _KEPT if most is None else most
    kept = []
    for entry in folder.iterdir():
        try:
            kept.append((entry.stat().st_mtime, entry))
        except OSError:  # another process removed it at the same time
            continue
    for _, entry in sorted(kept, reverse=True)[most:]:
        shutil.rmtree(entry, ignore_errors=True)
