"""The installed package matches the folders."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import latfix

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {"latfix": "latfix", **{f"latfix.{name}": name for name in ("cli", "profilers", "reports", "runners")}}
FOLDERS["latfix.sample_workloads"] = "sample_workloads"


def _packages() -> set[str]:
    """Every folder of the code that Python takes for a package, by the name that it is imported by."""
    found = set()
    for package, folder in FOLDERS.items():
        for file in (ROOT / folder).rglob("__init__.py"):
            inside = file.parent.relative_to(ROOT / folder)
            if not any(part.is_symlink() for part in (file.parent, *file.parent.parents)):
                found.add(".".join([package, *inside.parts]))
    samples = (folder for folder in (ROOT / "sample_workloads").iterdir() if (folder / "workload.toml").is_file())
    return found | {f"latfix.sample_workloads.{folder.name}" for folder in samples}


def test_every_package_is_installed() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == _packages()


def test_every_folder_is_mapped() -> None:
    assert PROJECT["tool"]["setuptools"]["package-dir"] == FOLDERS
    for folder in FOLDERS.values():
        assert (ROOT / folder).is_dir()


def test_links_for_tools_point_to_the_folders() -> None:
    links = {path.name for path in (ROOT / "latfix").iterdir() if path.is_symlink()}
    assert links == {name for name in FOLDERS.values() if name != "latfix"}
    for name in links:
        assert (ROOT / "latfix" / name).resolve() == ROOT / name


def test_the_version_is_one() -> None:
    assert PROJECT["project"]["version"] == latfix.__version__


def test_the_command_exists() -> None:
    module, _, function = PROJECT["project"]["scripts"]["latfix"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    told = subprocess.run([sys.executable, "-m", "latfix", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"latfix {latfix.__version__}\n"


@pytest.mark.parametrize("package", sorted(_packages()))
def test_every_module_imports(package: str) -> None:
    importlib.import_module(package)


def test_every_python_folder_has_an_init_file() -> None:
    for folder in FOLDERS.values():
        if folder == "sample_workloads":  # its folders are data, like a user's own
            continue
        for file in (ROOT / folder).rglob("*.py"):
            if not any(part.is_symlink() for part in file.parents):
                assert (file.parent / "__init__.py").exists(), file


def test_imported_packages_are_required() -> None:
    required = {line.partition(">")[0] for line in PROJECT["project"]["dependencies"]}
    assert {"torch", "numpy", "pandas", "pyarrow", "matplotlib", "typer", "rich"} <= required
    for name in required:
        assert importlib.metadata.version(name)
