"""Where what takes long to make is kept between processes: compiled kernels and converted models."""

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

#: Converted models that are kept; the ones that were used longest ago go first.
_KEPT = 24


def cache_folder(kind: str) -> Path:
    """A writable folder for ``kind`` under the user's cache folder; under the temporary one where there is none."""
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
    except RuntimeError:  # a user without a home
        return []


def model_digest(model: torch.nn.Module, sources: Path, *more: str) -> str:
    """A key of a model's weights, of the Python files that built it, and of whatever else ``more`` says.

    Code outside of ``sources`` is not in it: what was kept under a key is checked before it is used.
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
    """Move a finished folder to its place in the cache, and make room; returns where it is.

    Another process may have been faster: then its folder stays.
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
    """Note that a folder of the cache is in use, so that others go before it."""
    with contextlib.suppress(OSError):  # another process made room just now; whoever opens it will see
        os.utime(place)


def make_room(folder: Path, most: int | None = None) -> None:
    """Remove what was used longest ago, where a folder of the cache holds more than ``most`` entries."""
    most = _KEPT if most is None else most
    kept = []
    for entry in folder.iterdir():
        try:
            kept.append((entry.stat().st_mtime, entry))
        except OSError:  # another process made room at the same time
            continue
    for _, entry in sorted(kept, reverse=True)[most:]:
        shutil.rmtree(entry, ignore_errors=True)
