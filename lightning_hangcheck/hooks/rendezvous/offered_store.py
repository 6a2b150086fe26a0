"""A store that is served here for a job's other nodes, where its launcher serves none.

torch would have it listen on every interface. So the socket is ours: it listens where the other
nodes will come, and nowhere else if that can be told.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from datetime import timedelta

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.rendezvous.places import StorePlace

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
