"""Which network interface will gloo and NCCL take, and is it one that others can reach?"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

import psutil

from lightning_hangcheck.doctor.check import Check

if TYPE_CHECKING:
    from collections.abc import Collection

    from lightning_hangcheck.doctor.subject import Subject

NAME = "network interface"
LOOPBACK = "lo"
NOT_OUTWARD = (LOOPBACK, "docker", "veth", "virbr", "br-")
"""Beginnings of names of interfaces that only this machine sees, as NCCL's own list has them."""


def interface_chosen(subject: Subject) -> tuple[Check, ...]:
    """Check the interfaces that variables name, and on several nodes the one taken by default.

    Args:
        subject: The run.
    """
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        chosen = subject.environment.get(variable)
        if chosen and not _matches(variable, chosen, up):
            sentence = f"{variable}={chosen} names no interface that is up here"
            return (Check(NAME, "failed", sentence, _remedy(variable, up)),)
        if subject.launch.nodes > 1 and (chosen or "").lstrip("=") == LOOPBACK:
            sentence = f"{variable}={chosen} is loopback, where no other node can be reached"
            return (Check(NAME, "failed", sentence, _remedy(variable, up)),)
    named = subject.environment.get("GLOO_SOCKET_IFNAME")
    if subject.launch.nodes > 1 and not named and _own_name_is_loopback():
        sentence = (
            f"{socket.gethostname()} resolves to a loopback address, and gloo takes the interface "
            "that the host's own name resolves to: other nodes cannot reach it"
        )
        return (Check(NAME, "failed", sentence, _remedy("GLOO_SOCKET_IFNAME", up)),)
    return (
        Check(NAME, "ok", f"{named or 'no variable chooses one'}; up: {', '.join(sorted(up))}"),
    )


def _matches(variable: str, chosen: str, up: Collection[str]) -> bool:
    """NCCL takes beginnings of names; ``=`` goes before exact ones, ``^`` before those left out."""
    if variable == "GLOO_SOCKET_IFNAME":
        return all(name in up for name in chosen.split(","))
    names = tuple(chosen.lstrip("^=").split(","))
    if chosen.startswith("^"):
        exact = chosen.startswith("^=")
        return any(one not in names if exact else not one.startswith(names) for one in up)
    if chosen.startswith("="):
        return any(one in names for one in up)
    return any(one.startswith(names) for one in up)


def _own_name_is_loopback() -> bool:
    try:
        known = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return False
    return all(ipaddress.ip_address(one[4][0]).is_loopback for one in known)


def _remedy(variable: str, up: Collection[str]) -> str:
    outward = [name for name in sorted(up) if not name.startswith(NOT_OUTWARD)]
    return f"export {variable}={outward[0] if outward else 'NAME, see: ip -br link'}"
