"""TCP connections of our network namespace, as the kernel's own tables tell them.

The kernel tells them over netlink (sock_diag(7)), to everybody: /proc shows neither bytes nor when
the other end was heard, and ``recv`` does not count in /proc/PID/io.
"""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.probes.waits.connections.sockets import shown_end

if TYPE_CHECKING:
    from collections.abc import Iterator

TIME_LIMIT_S = 0.2
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
ERROR, DONE = 2, 3
INET_DIAG_INFO = 2
ALL_STATES = 0xFFFFFFFF
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
REQUEST = struct.Struct("=BBBxI48x")  # struct inet_diag_req_v2, its socket id left empty
ATTRIBUTE = struct.Struct("=HH")
MESSAGE = struct.Struct("=B3x4s16s16s28xI")  # struct inet_diag_msg: family, ports, ends, inode
PORTS = struct.Struct("!HH")
ADDRESS_BYTES: dict[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 16}
CARRIED_AT, CARRIED = 120, struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
REPEATED_AT, UNACKNOWLEDGED_AT = 2, 24  # tcpi_retransmits, tcpi_unacked
HEARD_AT, HEARD = 52, struct.Struct("=II")  # tcpi_last_data_recv, tcpi_last_ack_recv, milliseconds
MILLISECONDS = 1_000


class TcpConnection(NamedTuple):
    """One end of a connection.

    Attributes:
        ends: Addresses of this end and of the other one, then their ports, as the kernel has them:
            of thousands of connections few are ever written.
        carried_bytes: Received, and of those sent all whose receipt the other end acknowledged.
        heard_s: Seconds since data or an acknowledgement came.
        repeats: Sent data is being repeated, as no acknowledgement comes.
    """

    ends: tuple[bytes, bytes, bytes]
    carried_bytes: int
    heard_s: float
    repeats: bool

    @property
    def own(self) -> str:
        """``ADDR:PORT`` of this end."""
        return shown_end(self.ends[0], PORTS.unpack(self.ends[2])[0])

    @property
    def remote(self) -> str:
        """``ADDR:PORT`` of the other end."""
        return shown_end(self.ends[1], PORTS.unpack(self.ends[2])[1])

    @property
    def leads_out(self) -> bool:
        """Whether its other end has another address: a machine talks with itself by its own."""
        return self.ends[0] != self.ends[1]


def tcp_connections() -> dict[int, TcpConnection] | None:
    """Ask for all TCP sockets of our own network namespace; about 4 microseconds for each.

    Returns:
        By inode. None where the kernel does not answer.
    """
    found: dict[int, TcpConnection] = {}
    try:
        with closing(
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
        ) as kernel:
            kernel.settimeout(TIME_LIMIT_S)
            for family in ADDRESS_BYTES:
                found.update(_ask(kernel, family))
    except (OSError, struct.error):
        return None
    return found


def _ask(kernel: socket.socket, family: int) -> Iterator[tuple[int, TcpConnection]]:
    request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ALL_STATES)
    length = HEADER.size + len(request)
    kernel.send(HEADER.pack(length, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + request)
    while True:
        for kind, body in _messages(kernel.recv(1 << 16)):
            if kind in (DONE, ERROR):
                return
            family, ports, own, remote, inode = MESSAGE.unpack_from(body)
            information = _information(body[MESSAGE.size :])
            if not inode or information is None:
                continue
            used = ADDRESS_BYTES[family]
            yield inode, _connection((own[:used], remote[:used], ports), information)


def _connection(ends: tuple[bytes, bytes, bytes], information: bytes) -> TcpConnection:
    (unacknowledged,) = struct.unpack_from("=I", information, UNACKNOWLEDGED_AT)
    return TcpConnection(
        ends,
        carried_bytes=sum(CARRIED.unpack_from(information, CARRIED_AT)),
        heard_s=min(HEARD.unpack_from(information, HEARD_AT)) / MILLISECONDS,
        repeats=bool(information[REPEATED_AT]) and unacknowledged > 0,
    )


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= HEADER.size:
        length, kind, *_ = HEADER.unpack_from(data)
        if length < HEADER.size:
            return
        yield kind, data[HEADER.size : length]
        data = data[_aligned(length) :]


def _information(attributes: bytes) -> bytes | None:
    """Return the struct tcp_info of a message, where it is long enough to tell the bytes."""
    while len(attributes) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(attributes)
        if length < ATTRIBUTE.size:
            return None
        value = attributes[ATTRIBUTE.size : length]
        if kind == INET_DIAG_INFO and len(value) >= CARRIED_AT + CARRIED.size:
            return value
        attributes = attributes[_aligned(length) :]
    return None


def _aligned(length: int) -> int:
    """Netlink pads everything to 4 bytes."""
    return (length + 3) & ~3
