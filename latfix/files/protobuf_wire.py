"""A message in protocol buffers' wire format: walked without its schema and without copying it, and written.

https://protobuf.dev/programming-guides/encoding/ describes the format: a message is a row of fields, each a key
(its number and how it is laid out) and a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_LONGEST_VARINT = 10


class WireError(Exception):
    """The bytes are no message, or its end is missing."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    :param number: its number in the schema.
    :param value: of a whole number, of eight or of four bytes as they are; 0 for any other.
    :param data: of a text, bytes or a message within; empty for any other.
    """

    number: int
    value: int
    data: memoryview


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message in the order in which they are written.

    :raises WireError: at the first one that is none.
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
    """The whole numbers of a repeated field that is written as one.

    :raises WireError: they are none.
    """
    found, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        found.append(value)
    return found


def number_field(number: int, value: int, *, always: bool = False) -> bytes:
    """A field that is a whole number of 64 bits; nothing where it is 0, as proto3 has it.

    :param always: write a 0 too.
    """
    return _written(number << 3) + _written(value & (1 << 64) - 1) if value or always else b""


def text_field(number: int, text: str | bytes, *, always: bool = False) -> bytes:
    """A field that is a text, bytes or a message within; nothing where it is empty.

    :param always: write an empty one too.
    """
    data = text.encode() if isinstance(text, str) else text
    return _written(number << 3 | 2) + _written(len(data)) + data if data or always else b""


def _written(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


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
