"""Parses and formats ``PYTORCH_ALLOC_CONF``, the settings of torch's allocator on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

#: The environment variable of the allocator's settings, and the one before torch 2.9. torch still reads the older one
#: if the newer is not set, and prefers it for CUDA-only settings.
ALLOC_CONF, OLDER_CONF = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
#: CUDA-only settings.
_OF_CUDA = frozenset(
    {
        "backend",
        "graph_capture_record_stream_reuse",
        "per_process_memory_fraction",
        "pinned_free_catch_all",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc",
        "throw_on_cudamalloc_oom",
    }
)


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


def allocator_conf(environment: Mapping[str, str]) -> str:
    """The effective settings of torch's allocator in an environment, from both variables; empty for its defaults."""
    now, older = environment.get(ALLOC_CONF), environment.get(OLDER_CONF)
    if now is None or older is None or now == older:
        return (older if now is None else now) or ""
    shared = {name: value for name, value in read_conf(now).items() if name not in _OF_CUDA}
    return conf_text(shared | {name: value for name, value in read_conf(older).items() if name in _OF_CUDA})


def conf_environment(conf: str) -> dict[str, str]:
    """The environment for settings of torch's allocator: both variables, as versions of torch read either."""
    return {ALLOC_CONF: conf, OLDER_CONF: conf}


def _parts(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
