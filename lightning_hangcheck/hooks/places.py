"""Places where ranks and nodes leave word: torch's stores, and what of them is of one start.

Run as a program it talks with a store for a sidecar, which never loads torch itself: it gets as
arguments whether to serve the store or to connect to it, its host and port and a prefix, and does
what it reads on its standard input until that is closed. Whoever started it ends it when an answer
is late, and may start another.
"""

from __future__ import annotations

import atexit
import errno
import ipaddress
import os
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, MeetingFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed import Store

    from lightning_hangcheck.nodes.meeting_place import DecidingPlace

NOTICE_AFTER = 5.0  # seconds; within the 10 s after which the sidecar names a suspect
STORE_TIMEOUT = 30.0  # seconds for one request; the agent's store answers in milliseconds
SLICE = 1.0
"""Seconds of one wait in a store: it holds the connection, and signals wait for its end."""
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds between two looks into a folder
EVERYWHERE = "0.0.0.0"  # noqa: S104 - only where no address of ours is what the others were told
NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
BACKLOG = 1_024
"""Nodes that connect at the same moment."""


def check_limit(name: str, seconds: float | None) -> None:
    """Refuse a limit that is none."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise BadUsage(f"{name}={seconds!r} is no positive number", f"write seconds: {name}=60.0")


def notice_after(limit: float) -> float:
    """Seconds after which a wait is worth a line: half of a limit that is short itself."""
    return min(NOTICE_AFTER, limit / 2)


class StorePlace:
    """A store of torch under a prefix of ours: torchrun's agent's, or a process group's."""

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
        try:
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
        except RuntimeError as error:
            raise _lost(where, error) from error
        return cls(store, prefix, where)

    def post(self, key: str, value: bytes) -> None:
        """Set a key."""
        with self._answering():
            self._store.set(key, value)

    def decide(self, key: str, value: bytes) -> bytes:
        """Set a key unless it is set; return its value."""
        with self._answering():
            return bytes(self._store.compare_set(key, "", value))

    def look(self, key: str) -> bytes | None:
        """Read a key, if it is set."""
        return self.look_all([key])[0]

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read each key that is set: all at once where all are, as of nodes that have met."""
        store = self._store
        with self._answering():
            if len(keys) > 1 and store.has_extended_api() and store.check(list(keys)):
                return [bytes(value) for value in store.multi_get(list(keys))]
            return [bytes(store.get(key)) if store.check([key]) else None for key in keys]

    def wait(self, key: str, seconds: float) -> bytes | None:
        """Wait in the store until a key is set; None after so many seconds, at most `SLICE`."""
        with suppress(RuntimeError):  # too late, or the store is lost: the look tells
            self._store.wait([key], timedelta(seconds=min(max(seconds, 0.01), SLICE)))
        return self.look(key)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise _lost(self.where, error) from error


def _lost(where: str, error: RuntimeError) -> MeetingFailed:
    return MeetingFailed(
        f"the ranks cannot meet: {where} does not answer ({str(error).splitlines()[0]})",
        "see whether the process that serves it still runs there, and whether a firewall is in "
        "between",
    )


class PlaceOfStart:
    """A place of several starts of a job as the ranks of one see it: nothing of others is there.

    torchrun tells its ranks nothing that names their round on all nodes alike: each agent counts
    only the restarts that ranks of its own asked for (TORCHELASTIC_RESTART_COUNT; torch's api.py:
    membership changes do not count), and its store may serve several rounds. So the first rank
    names the start, by a word that nobody had before, and each other one believes it only once it
    was answered. What another rank leaves before that is passed on then.

        leader             what the first rank calls this start; of an earlier one until it has come
        hello-<n>          rank n's own word, another one in each process
        <start>/known-<n>  the first rank's answer: that word. Only one that lives can know it
        <start>/agreed-<n> rank n needs no more answers
        <start>/...        all that the guards leave, which no other start ever reads

    The ``name`` of the start is empty until the first rank has come and answered.
    """

    ANSWER_PAUSES = (0.01, 0.2)  # seconds between two rounds of answers, the first and the longest
    END_LIMIT_S = 1.0

    def __init__(self, place: DecidingPlace, index: int, size: int) -> None:
        self._place, self._index, self.where = place, index, place.where
        self._own = os.urandom(8).hex()
        self.name = self._own if index == 0 else ""
        self._kept: dict[str, bytes] = {}
        self._said_hello = False
        self._expected_until = 0.0
        self._closing = threading.Event()
        if index == 0:
            place.post("leader", self._own.encode())
            self._answering = threading.Thread(
                target=self._answer, args=(size,), name="hangcheck-start", daemon=True
            )
            self._answering.start()
            atexit.register(self.leave)

    def post(self, key: str, value: bytes) -> None:
        """Leave a value, for the ranks of this start."""
        self._kept[key] = value
        self._pass_on()

    def decide(self, key: str, value: bytes) -> bytes:
        """Hold to the first word of this start; to one's own where the first rank has not come."""
        if self._pass_on():
            return self._place.decide(f"{self.name}/{key}", value)
        return self._kept.setdefault(key, value)

    def look(self, key: str) -> bytes | None:
        """Return what ranks of this start left."""
        if not self._pass_on():
            return self._kept.get(key)
        return self._place.look(f"{self.name}/{key}")

    def wait(self, key: str, seconds: float) -> bytes | None:
        """Wait for what ranks of this start leave; for the first rank's answer before."""
        deadline = time.monotonic() + seconds
        for pause in _pauses(self.ANSWER_PAUSES, deadline):
            if self._pass_on():
                break
            time.sleep(pause)
        left = deadline - time.monotonic()
        if left <= 0 or not self.name:
            return self.look(key)
        return wait(self._place, f"{self.name}/{key}", left)

    def _pass_on(self) -> bool:
        """Whether this rank is known; leave what was kept: at a meeting each key has one word."""
        if not self.name:
            if not self._said_hello:
                self._place.post(f"hello-{self._index}", self._own.encode())
                self._said_hello = True
            leader = (self._place.look("leader") or b"").decode(errors="replace")
            key = f"{leader}/known-{self._index}"
            known = self._place.look(key) if leader.isalnum() else None
            if known != self._own.encode():
                return False
            self._place.post(f"{leader}/agreed-{self._index}", b"1")
            self.name = leader
        while self._kept:
            key, value = self._kept.popitem()
            self._place.decide(f"{self.name}/{key}", value)
        return True

    def expect(self, limit_s: float) -> None:
        """Take down that the others are waited for, by whatever guard, for so long from now on."""
        self._expected_until = max(self._expected_until, time.monotonic() + limit_s)

    def leave(self) -> None:
        """At the first rank's end, wait for those that nobody else could answer, as guards do.

        Not where the rank fails: its launcher will end them all.
        """
        limit_s = max(0.0, self._expected_until - time.monotonic())
        if getattr(sys, "last_value", None) is None and limit_s:
            silent_s = notice_after(limit_s)
            self._answering.join(silent_s)
            if self._answering.is_alive():
                log.once(
                    "late-ranks",
                    "rank 0 is done, and waits for ranks that have not come to their first guard, "
                    f"for {limit_s - silent_s:.0f} s at most",
                )
                self._answering.join(limit_s - silent_s)
        self.close()

    def close(self) -> None:
        """Answer nobody any more: no thread of ours may be in torch when the interpreter ends."""
        self._closing.set()
        self._answering.join(self.END_LIMIT_S)

    def _answer(self, size: int) -> None:
        """Give each rank its word back, also one of an earlier start: nobody listens there."""
        place, told = self._place, dict[int, bytes]()
        pause, longest = self.ANSWER_PAUSES
        left = set(range(1, size))
        try:
            while left and not self._closing.wait(pause):
                began = time.monotonic()
                for index in sorted(left):
                    hello = place.look(f"hello-{index}")
                    if hello is not None and hello != told.get(index):
                        place.post(f"{self.name}/known-{index}", hello)
                        told[index] = hello
                left -= {n for n in told if place.look(f"{self.name}/agreed-{n}") is not None}
                pause = min(2 * pause, longest) + time.monotonic() - began
        except MeetingFailed as error:
            log.once("same-start", f"ranks that come later to a guard wait in vain: {error}")


def wait(place: DecidingPlace, key: str, seconds: float) -> bytes | None:
    """Wait until a key is posted; None after so many seconds, or earlier in a store.

    The diagnosis knows a rank in a guard by this frame.
    """
    if isinstance(place, (StorePlace, PlaceOfStart)):
        return place.wait(key, seconds)
    deadline = time.monotonic() + seconds
    for pause in _pauses((FIRST_PAUSE, LONGEST_PAUSE), deadline):
        value = place.look(key)
        if value is not None:
            return value
        time.sleep(pause)
    return place.look(key)


def _pauses(bounds: tuple[float, float], deadline: float) -> Iterator[float]:
    """Pauses between two looks, ever longer ones, until the deadline."""
    pause, longest = bounds
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(2 * pause, longest)


def offered_store(host: str, port: int, prefix: str, timeout: float) -> StorePlace:
    """Serve a store, as long as this process lives, and use it."""
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
    """
    named = host == "localhost" or _is_loopback(host)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:  # the name means nothing here
        found = []
    for family, *_, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        if _is_loopback(str(address[0])) and not named:
            continue
        try:
            return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
    return socket.create_server((EVERYWHERE, port), backlog=BACKLOG)


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


def main(arguments: Sequence[str]) -> int:
    """Answer requests until nobody asks any more."""
    from multiprocessing.connection import Connection

    from lightning_hangcheck.files.apart import let_go_of_streams
    from lightning_hangcheck.nodes.store_place import (
        CONNECTED_WITHIN_S,
        SERVE,
        Answer,
        Request,
    )

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
    # torch prints what it likes, on these streams, too
    line = Connection(os.dup(0))
    let_go_of_streams()
    try:
        try:  # says at once what torch would say after its time limit, and less plainly
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
    os._exit(code)  # threads of torch's may hold the interpreter's end up
