"""Which packages the parts need, checked before the first begins: one line for each that is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that has to be there.

    :param module: that tells; one within the package tells an old version, too.
    :param parts: that need it; all where empty.
    :param of: the package that needs it in turn; it is not needed where that one does not ask for it.
    """

    name: str
    module: str
    parts: tuple[str, ...] = ()
    of: str = ""


_WITH_SAMPLES = ("ceilings", "stages", "probes", "samples")
PACKAGES = (
    Package(name="torch", module="torch"),
    Package(name="numpy", module="numpy"),
    Package(name="pandas", module="pandas"),
    Package(name="pyarrow", module="pyarrow"),
    Package(name="rich", module="rich"),
    Package(name="typer", module="typer._click"),
    Package(name="pydantic", module="pydantic", of="typer"),
    Package(name="safetensors", module="safetensors", parts=_WITH_SAMPLES),
    Package(name="nvidia-ml-py", module="pynvml", parts=("tests", "faults")),
    Package(name="pytest", module="pytest", parts=("tests",)),
)


def missing(
    parts: Sequence[str], there: Callable[[str], bool] | None = None, packages: Sequence[Package] = PACKAGES
) -> dict[str, list[str]]:
    """What is missing for some parts: by line, the parts that cannot be run for it.

    :param parts: their kinds, such as ``samples``.
    :param there: whether a module can be found.
    """
    found: dict[str, list[str]] = {}
    for package in packages:
        wanted = [part for part in parts if not package.parts or part in package.parts]
        if not wanted or (package.of and not _asks(package.of, package.name)):
            continue
        if not (there or _is_there)(package.module):
            found[_said(package)] = wanted
    return found


def _said(package: Package) -> str:
    version = _version(package.name)
    if version and "." in package.module:
        return f"{package.name} {version} has no {package.module}; pip install --upgrade {package.name}"
    return f"{package.name} is not installed; pip install {package.name}"


def _asks(package: str, other: str) -> bool:
    try:
        return any(line.lower().startswith(other) for line in metadata.requires(package) or ())
    except metadata.PackageNotFoundError:
        return False


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the package around it is not there, or lacks something in turn
        return False
