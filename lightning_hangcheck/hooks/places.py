"""Places where ranks and nodes leave messages: torch's stores, kept apart by start of the job.

Run as a program, it talks to a store for a sidecar, which never loads torch itself. Its arguments
say whether to serve or to connect, and give host, port and prefix. It answers requests on its
standard input until that is closed. Its parent ends it if an answer is late, and may start another.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, SupportsFloat

import msgspec

from lightning_hangcheck.errors import BadUsage, MeetingFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed import Store

    from lightning_hangcheck.nodes.meeting_place import DecidingPlace

NOTICE_AFTER = 5.0  # seconds; within the 10 s after which the sidecar names a suspect
STORE_TIMEOUT = 30.0  # seconds for one request; the agent's store answers in milliseconds
SLICE = 1.0  # seconds of one wait in a store: it holds the connection, and signals wait for its end
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds between two looks into a folder
EVERYWHERE = "0.0.0.0"  # noqa: S104 - only if the name that others use is no address of ours
NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
BACKLOG = 1_024  # nodes that connect at the same moment


def check_limit(name: str, seconds: float | None) -> None:
    """Refuse a limit that is no positive number of seconds, such as torch's `timedelta`."""
    if seconds is None or (
        isinstance(seconds, SupportsFloat) and 0 < float(seconds) < float("inf")
    ):
        return
    raise BadUsage(f"{name}={seconds!r} is no positive number", f"write seconds: {name}=60.0")


def notice_after(limit: float) -> float:
    """Return seconds after which a wait is reported: at most half the limit."""
    return min(NOTICE_AFTER, limit / 2)


class StorePlace:
    """A torch store under a prefix of ours: the store of torchrun's agent, or a process group's."""

    def __init__(self, store: Store, prefix: str, where: str) -> None:
        from torch.distributed import PrefixStore

        self._store = PrefixStore(prefix, store)
        self.where = where

    @classmethod
    def of_agent(
        cls, host: str, port: int, prefix: str, timeout: float = STORE_TIMEOUT
    ) -> StorePlace:
        """Connect to the store of torchrun's agent at MASTER_ADDR and MASTER_PORT."""
        from torch.distributed import TCPStore

        where, limit = f"torchrun's store at {host}:{port}", timedelta(seconds=timeout)
        with _answering(where):
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
        return cls(store, prefix, where)

    def post(self, key: str, value: bytes) -> None:
        """Set a key."""
        with _answering(self.where):
            self._store.set(key, value)

    def decide(self, key: str, value: bytes) -> bytes:
        """Set a key unless it is set; return its value."""
        with _answering(self.where):
            return bytes(self._store.compare_set(key, "", value))

    def look(self, key: str) -> bytes | None:
        """Read a key, if it is set."""
        return self.look_all([key])[0]

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read each key; in one request if all are set, as after all nodes have met."""
        store = self._store
        with _answering(self.where):
            if len(keys) > 1 and store.has_extended_api() and store.check(list(keys)):
                return [bytes(value) for value in store.multi_get(list(keys))]
            return [bytes(store.get(key)) if store.check([key]) else None for key in keys]

    def wait(self, key: str, seconds: float) -> bytes | None:
        """Wait in the store until a key is set; None after the time, at most `SLICE`."""
        with suppress(RuntimeError):  # too late, or the store is lost: the look tells which
            self._store.wait([key], timedelta(seconds=min(max(seconds, 0.01), SLICE)))
        return self.look(key)


@contextmanager
def _answering(where: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise MeetingFailed(
            f"the ranks cannot meet: {where} does not answer ({str(error).splitlines()[0]})",
            "see whether the process that serves it still runs there, and whether a firewall is in "
            "between",
        ) from error


class Start:
    """One start of a job, whose ranks meet at a place that may outlive it."""

    # torchrun gives its ranks no name of their round that is equal on all nodes. Each agent counts
    # only restarts that its own ranks caused (TORCHELASTIC_RESTART_COUNT; torch's api.py:
    # membership changes do not count), and its store may serve several rounds. So at their first
    # guard the ranks meet under a ``name`` that the first rank made up: see `RendezvousPoint.next`.
    # It is empty until then.

    def __init__(self, place: DecidingPlace) -> None:
        self.place, self.name = place, ""


def wait(place: DecidingPlace, key: str, seconds: float) -> bytes | None:
    """Return a key's value, or None after at most ``seconds``; this frame marks a guard's wait."""
    if isinstance(place, StorePlace):
        return place.wait(key, seconds)
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
    while True:
        value, left = place.look(key), deadline - time.monotonic()
        if value is not None or left <= 0:
            return value
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def offered_store(host: str, port: int, prefix: str, timeout: float) -> StorePlace:
    """Serve a store as long as this process lives, and use it."""
    from torch.distributed import TCPStore

    where = f"the first sidecar's store at {host}:{port}"
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
    """Listen at the address by which other nodes know this machine; else at all addresses."""
    # A machine's name may resolve to loopback only on itself (Debian's 127.0.1.1).

    def is_loopback(address: str) -> bool:
        with suppress(ValueError):
            return ipaddress.ip_address(address.partition("%")[0]).is_loopback
        return False

    named = host == "localhost" or is_loopback(host)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:  # the name does not resolve here
        found = []
    for family, *_, address in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
        if is_loopback(str(address[0])) and not named:
            continue
        try:
            return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
    return socket.create_server((EVERYWHERE, port), backlog=BACKLOG)


def main(arguments: Sequence[str]) -> int:
    """Answer requests until the input is closed."""
    from multiprocessing.connection import Connection

    from lightning_hangcheck.files import let_go_of_streams
    from lightning_hangcheck.nodes.meeting_place import CONNECTED_WITHIN_S, SERVE, Answer, Request

    def answer(request: Request) -> Answer:
        try:
            if request.value is None:
                return Answer(values=tuple(place.look_all(request.keys)))
            place.post(request.keys[0], request.value)
        except MeetingFailed as error:
            return Answer(trouble=str(error))
        return Answer()

    how, host, port, prefix = arguments
    reach = offered_store if how == SERVE else StorePlace.of_agent
    # torch may print on these streams too
    line = Connection(os.dup(0))
    let_go_of_streams()
    try:
        try:  # fails at once, and more clearly than torch after its time limit
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            raise MeetingFailed(
                f"MASTER_ADDR {host!r} does not resolve here ({error})",
                "give an address, or a name that every node knows: getent hosts NAME",
            ) from error
        place = reach(host, int(port), prefix, CONNECTED_WITHIN_S)
    except (MeetingFailed, ImportError) as error:
        line.send_bytes(msgspec.msgpack.encode(Answer(trouble=str(error))))
        return 1
    line.send_bytes(msgspec.msgpack.encode(Answer()))
    with suppress(EOFError):
        while True:
            request = msgspec.msgpack.decode(line.recv_bytes(), type=Request)
            line.send_bytes(msgspec.msgpack.encode(answer(request)))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # torch's threads may block the interpreter's exit
