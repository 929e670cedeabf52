"""The processes of this machine that accept a service's connections, from the kernel's tables of sockets."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path

#: The state of a listening socket.
_LISTENS = "0A"


def listening_processes(host: str, port: int, root: Path = Path("/")) -> tuple[int, ...]:
    """Numbers of the processes with an open socket that listens there, as far as they can be seen.

    :param host: a numeric address; none is found at another machine's.
    """
    if not _is_local(host):
        return ()
    wanted = ipaddress.ip_address(host)
    sockets = {f"socket:[{inode}]" for place, inode in _listening(root, port) if place in (wanted, None)}
    holders = []
    for process in (root / "proc").iterdir() if sockets else ():
        if process.name.isdecimal() and not sockets.isdisjoint(_open_files(process)):
            holders.append(int(process.name))
    # The first process opens sockets for others, and is an ancestor of all.
    return tuple(sorted(set(holders) - {1}))


def descendants(pid: int, root: Path = Path("/")) -> dict[int, None]:
    """A process and its descendants, in order of their discovery."""
    result, pending = dict[int, None](), [pid]
    while pending:
        one = pending.pop()
        if one in result:
            continue
        result[one] = None
        with contextlib.suppress(OSError):
            for thread in (root / "proc" / str(one) / "task").iterdir():
                pending += [int(word) for word in (thread / "children").read_text().split()]
    return result


def accept_beside(pid: int, listening: Iterable[int], root: Path = Path("/")) -> tuple[int, ...] | None:
    """Processes that accept connections beside a process and its descendants: its parent, or others of a pool.

    :param listening: all that accept them.
    :returns: ``None`` if the process has nothing to do with these.
    """
    own, every = descendants(pid, root), tuple(listening)
    related = any(each in own or pid in descendants(each, root) for each in every)
    return tuple(each for each in every if each not in own) if related else None


def program(pid: int, root: Path = Path("/")) -> str:
    """The name of a process's program, such as ``node``; of its thread, if the program is hidden; else empty."""
    process = root / "proc" / str(pid)
    with contextlib.suppress(OSError):
        return (process / "exe").readlink().name
    with contextlib.suppress(OSError):
        return (process / "comm").read_text(errors="replace").strip()
    return ""


def _is_local(host: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind((host, 0))
    except OSError:
        return False
    return True


def _listening(root: Path, port: int) -> Iterable[tuple[object, str]]:
    """Address, ``None`` for all of the machine's, and inode of each socket that listens on a port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (root / "proc/net" / table).read_text().splitlines()[1:]:
                _, local, _, state, *fields = line.split()
                place, _, number = local.partition(":")
                if state == _LISTENS and int(number, 16) == port:
                    words = bytes.fromhex(place)
                    packed = b"".join(words[k : k + 4][::-1] for k in range(0, len(words), 4))
                    found = ipaddress.ip_address(packed)
                    found = getattr(found, "ipv4_mapped", None) or found
                    yield None if int(found) == 0 else found, fields[5]


def _open_files(process: Path) -> set[str]:
    """What the descriptors of a process refer to; those that another user may see."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(descriptor.readlink()))
    return found
