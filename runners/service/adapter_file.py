"""Loading the adapter of a workload from its file, or over a model file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from pathlib import Path

from latfix.adapter_api import Workload
from latfix.config.model_file_kind import is_model_file
from latfix.errors import InputError, RunnerError
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.traffic.schedule import Traffic


def load_adapter(folder: Path, entry: str) -> Workload:
    """An instance of the adapter that ``entry`` (``file:Class``) names in ``folder``, or of latfix's own over a model
    file.

    :raises InputError: the file or class is missing, or it is no :class:`latfix.Workload`; a model file is wrong.
    :raises RunnerError: the file does not import, or the class does not construct; nothing here runs a model file.
    """
    if is_model_file(entry):
        from latfix.runners.model_files.file_workload import load_file_workload

        return load_file_workload(folder, entry)
    module_name, _, class_name = entry.partition(":")
    path = folder / f"{module_name}.py"
    if not path.is_file():
        raise InputError(f"{folder / 'workload.toml'}: found entry = {entry!r}, but there is no file {path}")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"latfix_workload_{digest}_{module_name}"
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise InputError(f"{path}: found a file that Python cannot load as a module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        if str(folder) not in sys.path:  # so that an adapter can import its neighbors
            sys.path.insert(0, str(folder))
        try:
            spec.loader.exec_module(module)
        except USER_ERRORS as error:
            sys.modules.pop(name, None)
            raise RunnerError(f"{path}: importing it raised {describe(error)}") from error
    kind = getattr(module, class_name, None)
    if kind is None:
        raise InputError(f"{path}: found no class {class_name!r}; expected what entry = {entry!r} names")
    if not (isinstance(kind, type) and issubclass(kind, Workload)):
        raise InputError(f"{path}: found {class_name}, which is not a subclass of latfix.Workload")
    for method in ("load", "prepare", "collate", "finish", "evaluate"):
        written = getattr(kind, method)
        if inspect.iscoroutinefunction(written) or inspect.isgeneratorfunction(written):
            found = f"{class_name}.{method}, which is async or yields"
            raise InputError(f"{path}: found {found}; expected a plain function that returns its value")
    try:
        adapter: Workload = kind()
    except USER_ERRORS as error:
        raise RunnerError(f"{path}: {class_name}() raised {describe(error)}") from error
    adapter.folder = folder
    return adapter


def check_batch_size(adapter: Workload, max_batch_size: int) -> None:
    """See that a model file takes batches as large as the settings allow; an adapter of the user's own knows itself.

    :raises InputError: its batch dimension is fixed at less.
    """
    from latfix.runners.model_files.file_workload import FileWorkload

    if isinstance(adapter, FileWorkload):
        adapter.check_batch(max_batch_size)


def check_inputs(adapter: Workload, traffic: Traffic) -> None:
    """See that the traffic gives a model file every size that it needs, before anything is replayed.

    :raises InputError: it does not; with the lines to write.
    """
    from latfix.runners.model_files.file_workload import FileWorkload

    if isinstance(adapter, FileWorkload):
        adapter.check_traffic(traffic)
