"""A program that talks with a store of torch's for a sidecar, which never loads torch itself.

It gets as arguments whether to serve the store or to connect to it, its host and port and a prefix,
and does what it reads on its standard
input until that is closed. Whoever started it ends it when an answer is late, and may start
another.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.files.apart import let_go_of_streams
from lightning_hangcheck.hooks.rendezvous import StorePlace
from lightning_hangcheck.nodes.store_place import (
    CONNECTED_WITHIN_S,
    SERVE,
    Answer,
    Request,
    read_message,
    write_message,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


EVERYWHERE = "0.0.0.0"  # noqa: S104 - only where no address of ours is what the others were told
NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
BACKLOG = 1_024
"""Nodes that connect at the same moment."""


def offered_store(host: str, port: int, prefix: str, timeout: float) -> StorePlace:
    """Serve a store, as long as this process lives, and use it.

    Args:
        host: What the other nodes call this one.
        port: Where it listens.
        prefix: As for `StorePlace`.
        timeout: Seconds for each request.

    Raises:
        MeetingFailed: It cannot listen there.
    """
    from torch.distributed import TCPStore

    where = f"the store that this node offers at {host}:{port}"
    try:
        listening = listen(host, port)
        address = listening.getsockname()[0]
        store = TCPStore(
            "127.0.0.1" if address == EVERYWHERE else address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout),
            master_listen_fd=listening.detach(),
        )
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise MeetingFailed(
            f"{where} cannot be served ({why})", "name a port that is free there: --nodes-port"
        ) from error
    return StorePlace(store, prefix, where)


def listen(host: str, port: int) -> socket.socket:
    """Listen at the address by which others know this machine; everywhere if it is none of ours.

    A machine's name may lead itself to a loopback address (Debian's 127.0.1.1), and others not.

    Raises:
        OSError: The port is taken.
    """
    named = host == "localhost" or _is_loopback(host)
    for family, address in _addresses(host, port):
        if _is_loopback(address[0]) and not named:
            continue
        try:
            return socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
    return socket.create_server((EVERYWHERE, port), backlog=BACKLOG)


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    """What the name means, IPv4 first; nothing where it means nothing here."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    ordered = sorted(found, key=lambda one: one[0] != socket.AF_INET)
    return [(family, (str(address[0]), port)) for family, *_, address in ordered]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def main(arguments: Sequence[str]) -> int:
    """Answer requests until nobody asks any more."""
    how, host, port, prefix = arguments
    reach = offered_store if how == SERVE else StorePlace.of_agent
    # torch prints what it likes, on these streams, too
    asked, answers = os.dup(0), os.dup(1)
    let_go_of_streams()
    try:
        _resolve(host)
        place = reach(host, int(port), prefix, CONNECTED_WITHIN_S)
    except (MeetingFailed, ImportError) as error:
        write_message(answers, msgspec.msgpack.encode(Answer(trouble=str(error))))
        return 1
    write_message(answers, msgspec.msgpack.encode(Answer()))
    while (data := read_message(asked, None)) is not None:
        request = msgspec.msgpack.decode(data, type=Request)
        write_message(answers, msgspec.msgpack.encode(_answer(place, request)))
    return 0


def _resolve(host: str) -> None:
    """Say at once what torch would say after its time limit, and less plainly.

    Raises:
        MeetingFailed: Nobody here knows the host's address.
    """
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        raise MeetingFailed(
            f"MASTER_ADDR {host!r} does not resolve here ({error})",
            "give an address, or a name that every node knows: getent hosts NAME",
        ) from error


def _answer(place: StorePlace, request: Request) -> Answer:
    try:
        if request.value is None:
            return Answer(values=tuple(place.look_all(request.keys)))
        place.post(request.keys[0], request.value)
    except MeetingFailed as error:
        return Answer(trouble=str(error))
    return Answer()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # threads of torch's may hold the interpreter's end up
