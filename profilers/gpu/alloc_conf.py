"""Parses and formats ``PYTORCH_ALLOC_CONF``, the settings of torch's allocator on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def read_conf(text: str) -> dict[str, str]:
    """``name:value,name:value`` as a mapping; a value may be a list in brackets."""
    return {name: value for name, value in pairs(text) if value}


def pairs(text: str) -> list[tuple[str, str]]:
    """Names with their values, which may be empty."""
    parts = (part.partition(":") for part in _parts(text) if part.strip())
    return [(name.strip(), value.strip()) for name, _, value in parts]


def conf_text(conf: Mapping[str, str]) -> str:
    """A mapping as ``name:value,name:value``."""
    return ",".join(f"{name}:{value}" for name, value in conf.items())


def merged_conf(standing: str, more: str) -> str:
    """Settings with more added, which override."""
    return conf_text({**read_conf(standing), **read_conf(more)})


def _parts(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
