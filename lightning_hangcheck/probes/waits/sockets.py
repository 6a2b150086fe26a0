"""Sockets of a network namespace by inode: both ends, and the bytes that TCP connections carried.

The kernel counts bytes for everybody and tells them over netlink (sock_diag(7)), without any right:
/proc shows nothing of the kind, and ``recv`` does not count in /proc/PID/io.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.probes.proc.files import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator


LISTENING = "0A"
NOT_ACCEPTED = "0"  # the inode of a connection that no process has accepted, or has closed


class Socket(NamedTuple):
    """Where a socket's ends are: ``ADDR:PORT``; of a unix socket its path, if it has one."""

    local: str
    remote: str


def sockets_seen_by(pid: int) -> dict[int, Socket]:
    """Read the tables of TCP and unix sockets; about 2 microseconds a socket.

    Returns:
        By inode; empty where the tables cannot be read.
    """
    found: dict[int, Socket] = {}
    for name in ("tcp", "tcp6"):
        for fields in _lines(pid, name):
            if len(fields) > 9 and fields[9] != NOT_ACCEPTED:
                remote = "" if fields[3] == LISTENING else _end(fields[2])
                found[int(fields[9])] = Socket(_end(fields[1]), remote)
    for fields in _lines(pid, "unix"):
        if len(fields) > 6:
            found[int(fields[6])] = Socket(fields[7] if len(fields) > 7 else "", "")
    return found


def _lines(pid: int, name: str) -> list[list[str]]:
    try:
        return read_table(f"/proc/{pid}/net/{name}")[1:]
    except OSError:
        return []


def _end(field: str) -> str:
    """Write ``0100007F:1F90`` as ``127.0.0.1:8080``: words of 32 bits in the machine's order."""
    address, _, port = field.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    where = ipaddress.ip_address(packed)
    if isinstance(where, ipaddress.IPv6Address) and where.ipv4_mapped is not None:
        where = where.ipv4_mapped
    shown = f"[{where}]" if where.version == 6 else str(where)
    return f"{shown}:{int(port, 16)}"


TIME_LIMIT_S = 0.2
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
ERROR, DONE = 2, 3
INET_DIAG_INFO = 2
ALL_STATES = 0xFFFFFFFF
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
REQUEST = struct.Struct("=BBBxI48x")  # struct inet_diag_req_v2, its socket id left empty
ATTRIBUTE = struct.Struct("=HH")
MESSAGE_BYTES, INODE_AT = 72, 68  # struct inet_diag_msg: its size, and idiag_inode in it
CARRIED_AT, CARRIED = 120, struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received


def bytes_by_inode() -> dict[int, int] | None:
    """Ask for all TCP sockets of our own network namespace; about 2 microseconds for each.

    Returns:
        Bytes received and bytes whose receipt the other end acknowledged, together. None where the
        kernel does not answer.
    """
    found: dict[int, int] = {}
    try:
        with closing(
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
        ) as kernel:
            kernel.settimeout(TIME_LIMIT_S)
            for family in (socket.AF_INET, socket.AF_INET6):
                found.update(_ask(kernel, family))
    except (OSError, struct.error):
        return None
    return found


def _ask(kernel: socket.socket, family: int) -> Iterator[tuple[int, int]]:
    request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ALL_STATES)
    length = HEADER.size + len(request)
    kernel.send(HEADER.pack(length, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + request)
    while True:
        for kind, body in _messages(kernel.recv(1 << 16)):
            if kind in (DONE, ERROR):
                return
            (inode,) = struct.unpack_from("=I", body, INODE_AT)
            carried = _carried(body[MESSAGE_BYTES:])
            if inode and carried is not None:
                yield inode, carried


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= HEADER.size:
        length, kind, *_ = HEADER.unpack_from(data)
        if length < HEADER.size:
            return
        yield kind, data[HEADER.size : length]
        data = data[_aligned(length) :]


def _carried(attributes: bytes) -> int | None:
    while len(attributes) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(attributes)
        if length < ATTRIBUTE.size:
            return None
        value = attributes[ATTRIBUTE.size : length]
        if kind == INET_DIAG_INFO and len(value) >= CARRIED_AT + CARRIED.size:
            acknowledged, received = CARRIED.unpack_from(value, CARRIED_AT)
            return int(acknowledged) + int(received)
        attributes = attributes[_aligned(length) :]
    return None


def _aligned(length: int) -> int:
    """Netlink pads everything to 4 bytes."""
    return (length + 3) & ~3
