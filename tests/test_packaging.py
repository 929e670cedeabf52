"""The installed package matches the folders."""

from __future__ import annotations

import importlib
import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import latfix

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {"latfix": "latfix", **{f"latfix.{name}": name for name in ("cli", "profilers", "reports", "runners")}}
FOLDERS["latfix.sample_workloads"] = "sample_workloads"


#: Folders of files that a package reads.
DATA = {"latfix.reports.html.templates", "latfix.reports.html.vendor"}


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
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == _packages() | DATA


@pytest.mark.slow
def test_a_wheel_is_built_without_warnings_and_holds_the_data(tmp_path: Path) -> None:
    """Setuptools warns of folders with data that are no listed package."""
    setuptools = pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path / "tree"
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in FOLDERS.values():
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=skipped)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tree)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = (done.stdout + done.stderr).splitlines()
    warned = [line for line in told if "warning" in line.lower() and "byte-compiling is disabled" not in line]
    assert warned == [], setuptools.__version__
    inside = set(zipfile.ZipFile(tree / done.stdout.split()[-1]).namelist())
    for package in DATA:
        files = (ROOT / package.removeprefix("latfix.").replace(".", "/")).iterdir()
        assert {f"{package.replace('.', '/')}/{file.name}" for file in files if file.is_file()} <= inside


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
