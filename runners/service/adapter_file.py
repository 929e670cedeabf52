"""Loading the adapter of a workload: the user's class, or latfix's own for a model file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from latfix.adapter_api import Workload
from latfix.config.model_file_kind import is_model_file
from latfix.errors import InputError, RunnerError
from latfix.runners.calls.model_call import USER_ERRORS, describe


def load_adapter(folder: Path, entry: str) -> Workload:
    """An instance of the adapter ``entry`` (``file:Class``) in ``folder``, or of latfix's own for a model file.

    :raises InputError: the file or class is missing or is not a :class:`latfix.Workload`; or the model file is
        invalid.
    :raises RunnerError: importing the file or constructing the class failed. A model file is not run here.
    """
    if is_model_file(entry):
        from latfix.runners.model_files.file_workload import load_file_workload

        return load_file_workload(folder, entry)
    module_name, _, class_name = entry.partition(":")
    path = folder / f"{module_name}.py"
    if not path.is_file():
        raise InputError(
            f"{folder / 'workload.toml'}: found entry = {entry!r}, but there is no file {path}; expected "
            'entry = "FILE:CLASS" without .py, where FILE.py lies next to workload.toml'
        )
    module = _imported(path)
    kind = getattr(module, class_name, None)
    if kind is None:
        own = [(key, value) for key, value in vars(module).items() if isinstance(value, type)]
        known = [key for key, value in own if value.__module__ == module.__name__]
        raise InputError(
            f"{path}: found no class {class_name!r}, which entry = {entry!r} names; expected one of "
            f"{', '.join(known) or 'its classes, but it has none'}"
        )
    if not (isinstance(kind, type) and issubclass(kind, Workload)):
        raise InputError(
            f"{path}: found {class_name}, which is not a subclass of latfix.Workload; expected "
            f"class {class_name}(latfix.Workload)"
        )
    for method in ("load", "prepare", "collate", "finish", "evaluate"):
        written = getattr(kind, method)
        if inspect.iscoroutinefunction(written) or inspect.isgeneratorfunction(written):
            found = f"{class_name}.{method}, which is async or yields"
            raise InputError(f"{path}: found {found}; expected a plain function that returns its value")
    try:
        adapter: Workload = kind()
    except USER_ERRORS as error:
        raise RunnerError(f"{raised_at(path, error)}: {class_name}() raised {describe(error)}") from error
    adapter.folder = folder
    return adapter


def _imported(path: Path) -> ModuleType:
    """The file as a module, by the name under which processes that the adapter starts import it, too.

    If another module has that name, such as a second workload's file, it gets one that no other file has.
    """
    file = path.resolve()
    name = f"latfix_workload_{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}_{path.stem}"
    for known in (path.stem, name):
        if Path(getattr(sys.modules.get(known), "__file__", None) or "").resolve() == file:
            return sys.modules[known]
    if path.stem not in sys.modules and "." not in path.stem:
        name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: Python cannot load this file as a module; expected a plain .py file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:  # so that an adapter can import its neighbors
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except USER_ERRORS as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        todo = _import_advice(path, error) if isinstance(error, ImportError) else ""
        raise RunnerError(f"{raised_at(path, error)}: importing it raised {describe(error)}{todo}") from error
    return module


def _import_advice(path: Path, error: ImportError) -> str:
    """What to do about an import that failed, in the form of a further clause."""
    if "relative import" in str(error):
        return f"; {path.name} is in no package: import its neighbors by their names, without the dot"
    name = (error.name or "").partition(".")[0]
    neighbor = path.parent / f"{name}.py"
    if neighbor.is_file():
        loaded = getattr(sys.modules.get(name), "__file__", None)
        another = loaded not in (None, str(neighbor))
        return f"; Python has another module {name!r}: rename {neighbor.name}" if another else ""
    return f"; install it, or put it next to {path.name}" if isinstance(error, ModuleNotFoundError) else ""


def raised_at(path: Path, error: BaseException) -> str:
    """The file, and its line from which an error came."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path.absolute())]
    if isinstance(error, SyntaxError) and error.filename == str(path.absolute()):  # no frame has run
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines else str(path)
