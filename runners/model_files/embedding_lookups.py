"""Which embedding tables the inputs of an ONNX file index. ONNX Runtime does not report it."""

from __future__ import annotations

import mmap
from pathlib import Path

from latfix.files.protobuf_wire import Field, WireError, fields

#: Field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_INT = 3
_TENSOR_DIMS, _TENSOR_NAME = 1, 8
_PASS_THROUGH = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze")


def looked_up_rows(file: Path) -> dict[str, int]:
    """Rows of the embedding table that an input's values index, by input; empty if the file cannot be parsed."""
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as message,
    ):
        tables: dict[str, int] = {}
        lookups: list[tuple[str, str]] = []
        passed: dict[str, str] = {}
        try:
            for graph in _messages(message, _MODEL_GRAPH):
                with graph:
                    _read_graph(graph, tables, lookups, passed)
        except (WireError, UnicodeDecodeError):
            return {}
    rows: dict[str, int] = {}
    for indices, table in lookups:
        if table not in tables:
            continue
        name = indices
        for _ in passed:  # an upper bound of the steps, as the graph has no loop
            name = passed.get(name, name)
        rows[name] = min(tables[table], rows.get(name, tables[table]))
    return rows


def _messages(message: memoryview, number: int) -> list[memoryview]:
    kept = []
    for field in fields(message):
        if field.number == number:
            kept.append(field.data)
        else:
            field.data.release()
    return kept


def _read_graph(
    graph: memoryview, tables: dict[str, int], lookups: list[tuple[str, str]], passed: dict[str, str]
) -> None:
    for field in fields(graph):
        with field.data:
            if field.number == _GRAPH_INITIALIZER:
                name, dims = _tensor(field.data)
                if dims and dims[0]:  # packed dims are not read
                    tables[name] = dims[0]
            elif field.number == _GRAPH_NODE:
                operator, inputs, outputs, number = _node(field.data)
                if operator == "Gather" and len(inputs) == 2 and not number:  # number is the axis: 0 indexes rows
                    lookups.append((inputs[1], inputs[0]))
                elif operator in _PASS_THROUGH and inputs and outputs:
                    passed[outputs[0]] = inputs[0]


def _tensor(message: memoryview) -> tuple[str, list[int]]:
    name, dims = "", list[int]()
    for field in fields(message):
        with field.data:
            if field.number == _TENSOR_DIMS:
                dims.append(field.value)
            elif field.number == _TENSOR_NAME:
                name = _text(field)
    return name, dims


def _node(message: memoryview) -> tuple[str, list[str], list[str], int]:
    """Operator, inputs, outputs, and the integer attribute (the relevant operators have at most one)."""
    operator, inputs, outputs, number = "", list[str](), list[str](), 0
    for field in fields(message):
        with field.data:
            if field.number == _NODE_INPUT:
                inputs.append(_text(field))
            elif field.number == _NODE_OUTPUT:
                outputs.append(_text(field))
            elif field.number == _NODE_OPERATOR:
                operator = _text(field)
            elif field.number == _NODE_ATTRIBUTE:
                number = sum(each.value for each in fields(field.data) if each.number == _ATTRIBUTE_INT)
    return operator, inputs, outputs, number


def _text(field: Field) -> str:
    return bytes(field.data).decode("utf-8")
