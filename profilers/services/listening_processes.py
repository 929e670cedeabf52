"""The processes of this machine that accept or hold a service's connections, from the kernel's tables of sockets."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_ROOT = Path("/")
#: The states of a listening socket, and of one whose own end is open.
_LISTENS, _OPEN = "0A", ("01", "08")


def listening_processes(host: str, port: int) -> tuple[int, ...]:
    """Numbers of the processes with an open socket that listens there, as far as they can be seen.

    :param host: a numeric address; none is found at another machine's.
    """
    if not _is_local(host):
        return ()
    wanted = ipaddress.ip_address(host)
    sockets = {
        inode
        for inode, state, place, _, _ in _sockets(port)
        if state == _LISTENS and (place == wanted or int(place) == 0)
    }
    holders = []
    for process in (_ROOT / "proc").iterdir() if sockets else ():
        if process.name.isdecimal() and not sockets.isdisjoint(_open_files(process)):
            holders.append(int(process.name))
    # The first process opens sockets for others, and is an ancestor of all.
    return tuple(sorted(set(holders) - {1}))


def descendants(pid: int, root: Path = _ROOT) -> dict[int, None]:
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


def accept_beside(pid: int, listening: Iterable[int]) -> tuple[int, ...] | None:
    """Processes that accept connections beside a process and its descendants: its parent, or others of a pool.

    :param listening: all that accept them.
    :returns: ``None`` if the process has nothing to do with these.
    """
    own, every = descendants(pid), tuple(listening)
    related = any(each in own or pid in descendants(each) for each in every)
    return tuple(each for each in every if each not in own) if related else None


def innermost(processes: Iterable[int]) -> tuple[int, ...]:
    """Those of which no other is a descendant: workers, without the parents that opened sockets for them."""
    every = set(processes)
    return tuple(pid for pid in sorted(every) if not every & (descendants(pid).keys() - {pid}))


def program(pid: int) -> str:
    """The name of a process's program, such as ``node``; of its thread, if the program is hidden; else empty."""
    process = _ROOT / "proc" / str(pid)
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


class Connections:
    """Which processes hold a service's ends of connections from this machine.

    The table of all sockets is read only when processes have sockets that they did not have before.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._held: dict[str, list[int]] = {}
        self._known: dict[int, tuple[str, int]] = {}

    def new_holders(self, processes: Iterable[int]) -> dict[int, int]:
        """By the client's port, the process that holds a connection, if that is new, and no other holds it.

        With a proxy, a container or a client elsewhere in between, a connection has other ends: none is found.
        """
        held: dict[str, list[int]] = {}
        for pid in processes:
            for name in _open_files(_ROOT / "proc" / str(pid)):
                if name.startswith("socket:"):
                    held.setdefault(name, []).append(pid)
        if held == self._held:
            return {}
        self._held, found = held, dict[int, int]()
        for inode, state, place, peer, client in _sockets(self._port):
            holders, own = held.get(inode, []), place == peer or (place.is_loopback and peer.is_loopback)
            if state in _OPEN and own and len(holders) == 1 and self._known.get(client) != (inode, holders[0]):
                self._known[client], found[client] = (inode, holders[0]), holders[0]
        return found


def _sockets(port: int) -> Iterable[tuple[str, str, Address, Address, int]]:
    """Name, state, address, and the other end's address and port, of each socket of this machine at a port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_ROOT / "proc/net" / table).read_text().splitlines()[1:]:
                _, local, remote, state, *fields = line.split()
                (place, number), (peer, peer_number) = _place(local), _place(remote)
                if number == port:
                    yield f"socket:[{fields[5]}]", state, place, peer, peer_number


def _place(text: str) -> tuple[Address, int]:
    """Address and port of one end of a socket."""
    place, _, number = text.partition(":")
    words = bytes.fromhex(place)
    found = ipaddress.ip_address(b"".join(words[k : k + 4][::-1] for k in range(0, len(words), 4)))
    return getattr(found, "ipv4_mapped", None) or found, int(number, 16)


def _open_files(process: Path) -> set[str]:
    """What the descriptors of a process refer to; those that another user may see."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(descriptor.readlink()))
    return found
