"""The packages of TensorRT: missing, broken, or noisy."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from latfix.config import tensorrt_requirements as nvidia
from latfix.errors import InputError, RunnerError
from latfix.runners.backends.requirements import backend_missing, tensorrt, torch_tensorrt

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a package that precedes all others on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


@pytest.mark.parametrize(
    ("raises", "message"),
    [
        ("OSError('libcuda.so.1: cannot open shared object file')", r"OSError: libcuda\.so\.1: cannot open"),
        ("RuntimeError('CUDA driver version is insufficient')", "RuntimeError: CUDA driver version"),
        ("Exception('import error when try to import _TensorRTProxyModule')", "Exception: import error"),
        ("FileNotFoundError('Could not find libnvinfer.so.11')", "FileNotFoundError: Could not find"),
        ("KeyError('getpwuid(): uid not found: 1234')", "KeyError: .*uid not found"),
        ("ImportError('undefined symbol: _ZN5torch')", "ImportError: undefined symbol"),
        ("SystemExit(1)", "SystemExit: 1"),
    ],
)
def test_an_import_that_fails_is_one_line(write: Write, raises: str, message: str) -> None:
    write("torch_tensorrt", f"print('make sure tensorrt lib is in the path')\nraise {raises}\n")
    with pytest.raises(
        RunnerError, match=rf"torch_tensorrt does not import \({message}.*check the NVIDIA driver"
    ) as caught:
        torch_tensorrt()
    assert "\n" not in caught.value.message and "pip install" in caught.value.message


def test_nothing_is_printed_and_warnings_stay_warnings(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "torch_tensorrt",
        "import logging\nprint('you are using …')\nlogging.captureWarnings(True)\n__version__ = '1'\n",
    )
    shown = warnings.showwarning
    assert torch_tensorrt().__version__ == "1"
    assert warnings.showwarning is shown and capsys.readouterr() == ("", "")
    logging.captureWarnings(False)


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cu130")
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    with pytest.raises(
        InputError, match=r'torch_tensorrt, which is not installed; pip install "torch-tensorrt==2\.13\.\*"'
    ):
        torch_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(InputError, match=r"package tensorrt, which is not installed; pip install tensorrt$"):
        tensorrt()
    write("torch_tensorrt", "import dllist_that_is_not_there\n")
    with pytest.raises(InputError, match="torch_tensorrt needs dllist_that_is_not_there, which is not installed"):
        torch_tensorrt()


def test_needs_of_the_backend_are_checked_without_loading_it(
    monkeypatch: pytest.MonkeyPatch, write: Write, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    missing = backend_missing("tensorrt")
    assert missing.startswith(
        "needs torch_tensorrt and tensorrt, not installed here (it may compute in 0.7 of the time"
    )
    assert "); pip install " in missing
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("torch_tensorrt", "tensorrt"):
        write(name, "raise OSError('it was loaded')\n")
    assert backend_missing("tensorrt") == ""


def test_the_driver_is_found_and_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", gone)
    monkeypatch.setattr(nvidia, "installed", lambda _: True)
    assert "no NVIDIA driver (libcuda.so.1)" in nvidia.engine_obstacle()
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert nvidia.engine_obstacle() == ""
    monkeypatch.setattr(nvidia, "installed", lambda _: False)
    assert "pip install tensorrt" in nvidia.engine_obstacle()
