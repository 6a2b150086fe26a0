"""What the ranks' connections show of other machines: do they still answer?

No right is needed, nothing is sent, and no other machine is asked: the kernel has seen it all.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import psutil

from lightning_hangcheck.model.evidence import AddressReach
from lightning_hangcheck.probes.waits.connections.tcp_connections import tcp_connections
from lightning_hangcheck.probes.waits.descriptors import Descriptors

if TYPE_CHECKING:
    from collections.abc import Collection

    from lightning_hangcheck.probes.waits.connections.tcp_connections import TcpConnection

MOST_ADDRESSES = 8
"""Of one machine: one for each network that its ranks may talk over."""


def own_addresses() -> tuple[str, ...]:
    """Return the addresses by which other machines may know this one, as `shown_end` has them."""
    found = []
    for every in psutil.net_if_addrs().values():
        for one in every:
            try:
                address = ipaddress.ip_address(one.address.partition("%")[0])
            except ValueError:  # of the hardware
                continue
            if not (address.is_loopback or address.is_link_local):
                found.append(f"[{address}]" if address.version == 6 else str(address))
    return tuple(found[:MOST_ADDRESSES])


def reach_of(addresses: Collection[str], pids: Collection[int]) -> tuple[AddressReach, ...]:
    """Tell of addresses what connections to them show; about 4 microseconds a socket.

    Args:
        addresses: As `own_addresses` of the other machine has them.
        pids: Processes whose connections count.

    Returns:
        Of each address to which any of them leads.
    """
    every = tcp_connections() or {}
    opened = Descriptors(pids)
    inodes = {inode for pid in pids for inode in opened.sockets(pid)}
    by_address: dict[str, list[TcpConnection]] = {}
    for inode in inodes & every.keys():
        by_address.setdefault(every[inode].remote.rpartition(":")[0], []).append(every[inode])
    found = ((address, by_address.get(address, [])) for address in addresses)
    return tuple(_reach(address, there) for address, there in found if there)


def _reach(address: str, connections: list[TcpConnection]) -> AddressReach:
    unanswered = [one.heard_s for one in connections if one.repeats]
    heard_s = min(one.heard_s for one in connections)
    return AddressReach(address, heard_s, len(unanswered), max(unanswered, default=0.0))
