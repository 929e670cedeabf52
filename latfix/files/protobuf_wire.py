"""Protocol buffers' wire format: reads messages without schema or copies, and writes fields.

The format (https://protobuf.dev/programming-guides/encoding/): a message is a sequence of fields, each a key
(number and wire type) and a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_LONGEST_VARINT = 10


class WireError(Exception):
    """The bytes are not a message, or its end is missing."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    :param number: its number in the schema.
    :param value: a varint, or raw eight or four bytes; 0 for other wire types.
    :param data: text, bytes or an embedded message; empty for other wire types.
    """

    number: int
    value: int
    data: memoryview


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message, in order.

    :raises WireError: at the first invalid one.
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if not number:
            raise WireError("a field without a number")
        value, length = 0, 0
        match kind:
            case 0:
                value, position = _varint(message, position)
            case 1:
                value, position = int.from_bytes(message[position : position + 8], "little"), position + 8
            case 2:
                length, position = _varint(message, position)
            case 5:
                value, position = int.from_bytes(message[position : position + 4], "little"), position + 4
            case _:
                raise WireError(f"a field of unknown kind {kind}")
        if position + length > len(message):
            raise WireError("the end is missing")
        yield Field(number, value, message[position : position + length])
        position += length


def packed_numbers(data: memoryview) -> list[int]:
    """The whole numbers of a packed repeated field.

    :raises WireError: they are invalid.
    """
    found, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        found.append(value)
    return found


def number_field(number: int, value: int, *, always: bool = False) -> bytes:
    """A field with a 64-bit whole number; empty if it is 0, as in proto3.

    :param always: write a 0, too.
    """
    return _written(number << 3) + _written(value & (1 << 64) - 1) if value or always else b""


def text_field(number: int, text: str | bytes, *, always: bool = False) -> bytes:
    """A field with text, bytes or an embedded message; empty if the value is empty.

    :param always: write an empty value, too.
    """
    data = text.encode() if isinstance(text, str) else text
    return _written(number << 3 | 2) + _written(len(data)) + data if data or always else b""


def _written(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for count in range(_LONGEST_VARINT):
        if position >= len(message):
            raise WireError("the end is missing")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position
    raise WireError("a number that does not end")
