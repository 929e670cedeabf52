"""Typed results of commands, which reports render, by the name of their document."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from latfix.errors import InputError
from latfix.files.json_documents import Document, read_document

#: Module and type of each document, imported on use; ``latfix schema`` lists the names.
DOCUMENTS: Mapping[str, tuple[str, str]] = {
    "run": ("latfix.run_record.run_meta", "RunMeta"),
    "diagnosis": ("latfix.results.diagnosis", "Diagnosis"),
    "explanation": ("latfix.results.request_explanation", "Story"),
    "comparison": ("latfix.results.comparison", "Comparison"),
    "trial": ("latfix.results.comparison", "Trial"),
    "optimization": ("latfix.results.optimization", "Optimization"),
    "sweep": ("latfix.results.sweep", "Sweep"),
    "selftest": ("latfix.results.selftest_scoreboard", "Scoreboard"),
    "doctor": ("latfix.results.doctor_finding", "Doctor"),
    "history": ("latfix.results.history", "HistoryTrends"),
    "backends": ("latfix.results.answer_check", "BackendsTable"),
    "fragmentation": ("latfix.results.fragmentation", "Fragmentation"),
}


def document_type(name: str) -> type[Document]:
    """The type of a document.

    :raises KeyError: there is no document of that name.
    """
    module, cls = DOCUMENTS[name]
    found: type[Document] = getattr(importlib.import_module(module), cls)
    return found


def read_result(path: str | Path) -> Document:
    """Read the result in a JSON file, by the schema that it names.

    :raises InputError: it is not a document of latfix, or is damaged.
    """
    document = read_document(Path(path))
    schema = document.get("schema")
    name = schema.removeprefix("latfix.").partition("/")[0] if isinstance(schema, str) else ""
    if name not in DOCUMENTS:
        known = ", ".join(f"latfix.{each}/1" for each in DOCUMENTS if each != "explanation")
        raise InputError(f"{path}: found schema {schema!r}; expected one of {known}")
    try:
        return document_type(name).from_json(document)
    except InputError as error:
        raise InputError(f"{path}: {error.message}") from error
