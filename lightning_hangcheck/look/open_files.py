"""Reads what processes have open, by the kernel's tables, to find who could end others' waits.

Files, locks, pipes and connections show who is at the other end. TCP facts come from netlink
(sock_diag(7)), which anybody may ask: /proc shows neither bytes nor when the other end last sent
anything, and ``recv`` does not count in /proc/PID/io. Nothing is sent, and no other machine is
asked. A file system is asked only for a file whose lock is waited for, within a time limit.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import socket
import struct
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
from msgspec.structs import replace

from lightning_hangcheck import machine
from lightning_hangcheck.look import kernel, proc
from lightning_hangcheck.model.evidence import (
    AddressReach,
    Connection,
    Gap,
    Holder,
    ProcessState,
    ThreadState,
    WaitTarget,
)
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


SOCKET = re.compile(r"socket:\[(\d+)\]")
READS, WRITES = 0o400, 0o200
SERVING_US = ("pt_workerserver", "hangcheck")
"""How the kernel's names of threads begin that a launcher has for us: torch's worker server, and
our own."""
MASTERS = ("/dev/ptmx", "/dev/pts/ptmx")
"""Names of a pseudo-terminal's master end, which a program holds (pts(4))."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where glibc keeps semaphores and shared memory
DELETED = " (deleted)"


class Opened(NamedTuple):
    """What a process has open, by the kernel's name, and for what: the link's mode (proc(5))."""

    name: str
    pid: int
    number: int
    reads: bool
    writes: bool


def open_of(pid: int) -> Iterator[Opened]:
    """Yield what a process has open, 3 microseconds each, by its links; nothing if unreadable."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in os.listdir(folder):  # noqa: PTH208 - twice as fast, a hot path
            path = f"{folder}/{number}"
            with suppress(OSError):
                name, mode = os.readlink(path), os.lstat(path).st_mode  # noqa: PTH115 - as above
                yield Opened(name, pid, int(number), bool(mode & READS), bool(mode & WRITES))


def _sockets(opened: Iterable[Opened]) -> list[int]:
    return [int(found[1]) for file in opened if (found := SOCKET.fullmatch(file.name))]


class FileLock(NamedTuple):
    """A line of /proc/locks (proc(5)); a waiter has the number of the lock that it waits for.

    ``pid`` is -1 for a lock of an open file description, 0 for one of another pid namespace.
    """

    number: str
    waiting: bool
    exclusive: bool
    pid: int
    device: tuple[int, int]
    inode: int


def file_locks(table: str = "/proc/locks") -> tuple[FileLock, ...]:
    """Read the table of locks; empty if it is unreadable. Lines of another shape are left out.

    A line is ``1: -> FLOCK  ADVISORY  WRITE 8815 fe:00:2146453 0 EOF``.
    """
    found = []
    with suppress(OSError):
        for fields in proc.read_table(table):
            words = [field for field in fields if field != "->"]
            with suppress(IndexError, ValueError):
                major, minor, inode = words[5].split(":")
                device, waiting = (int(major, 16), int(minor, 16)), fields[1] == "->"
                exclusive, pid = words[3] == "WRITE", int(words[4])
                found.append(FileLock(words[0], waiting, exclusive, pid, device, int(inode)))
    return tuple(found)


def holders_of(file: os.stat_result, locks: tuple[FileLock, ...]) -> tuple[int, ...]:
    """Return the processes that hold a lock on a file."""
    place = (file.st_ino, (os.major(file.st_dev), os.minor(file.st_dev)))
    held = (lock for lock in locks if not lock.waiting and (lock.inode, lock.device) == place)
    return tuple(lock.pid for lock in held if lock.pid > 0)


# Sockets of a network namespace

LISTENING = "0A"
NOT_ACCEPTED = "0"  # inode of a connection that no process has accepted yet, or that was closed


class Socket(NamedTuple):
    """The ends of a socket, ``ADDR:PORT``; of a unix socket its path, if it has one.

    ``carried_bytes``: what TCP received, plus what it sent and has acknowledged; None if unknown.
    ``heard_s``: seconds since the other end sent anything. ``repeats``: sent data is being
    repeated, as no acknowledgement comes. ``datagrams``: it is a UDP socket.
    """

    local: str
    remote: str
    carried_bytes: int | None = None
    heard_s: float = 0.0
    repeats: bool = False
    datagrams: bool = False


def sockets_seen_by(pid: int) -> dict[int, Socket]:
    """Read the tables of TCP, UDP and unix sockets, by inode; about 2 microseconds a socket."""

    def rows(*names: str) -> Iterator[list[str]]:
        for name in names:
            with suppress(OSError):
                yield from proc.read_table(f"/proc/{pid}/net/{name}")[1:]

    def end(field: str) -> str:
        """Show ``0100007F:1F90``: words of 32 bits in the machine's byte order, then the port."""
        address, _, port = field.partition(":")
        words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
        return shown_end(struct.pack(f"={len(words)}I", *words), int(port, 16))

    found: dict[int, Socket] = {}
    for fields in rows("tcp", "tcp6"):
        if len(fields) > 9 and fields[9] != NOT_ACCEPTED:
            remote = "" if fields[3] == LISTENING else end(fields[2])
            found[int(fields[9])] = Socket(end(fields[1]), remote)
    for fields in rows("udp", "udp6"):
        if len(fields) > 9:
            remote = "" if fields[2].endswith(":0000") else end(fields[2])
            found[int(fields[9])] = Socket(end(fields[1]), remote, datagrams=True)
    for fields in rows("unix"):
        if len(fields) > 6:
            found[int(fields[6])] = Socket(fields[7] if len(fields) > 7 else "", "")
    return found


def shown_end(address: bytes, port: int) -> str:
    """Return the end of a connection as ``ADDR:PORT``, with an IPv6 address in brackets.

    An address has 4 or 16 bytes; an IPv4 address mapped into IPv6 is shown as IPv4.
    """
    where = ipaddress.ip_address(address)
    if isinstance(where, ipaddress.IPv6Address) and where.ipv4_mapped is not None:
        where = where.ipv4_mapped
    return f"[{where}]:{port}" if where.version == 6 else f"{where}:{port}"


def _address(end: str) -> str:
    return end.rpartition(":")[0]


# Connections of our own network namespace, by the kernel (linux/sock_diag.h and others)

NETLINK_LIMIT_S = 0.2
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
ERROR, DONE = 2, 3
ALL_STATES = 0xFFFFFFFF
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
ATTRIBUTE = struct.Struct("=HH")
INET_REQUEST = struct.Struct("=BBBxI48x")  # struct inet_diag_req_v2; its socket id is empty
INET_MESSAGE = struct.Struct("=B3x4s16s16s28xI")  # inet_diag_msg: family, ports, ends, inode
INET_DIAG_INFO = 2
PORTS = struct.Struct("!HH")
ADDRESS_BYTES: dict[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 16}
REPEATED_AT, UNACKNOWLEDGED_AT = 2, 24  # struct tcp_info: tcpi_retransmits, tcpi_unacked
HEARD_AT, HEARD = 52, struct.Struct("=II")  # tcpi_last_data_recv, tcpi_last_ack_recv, milliseconds
CARRIED_AT, CARRIED = 120, struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
UNIX_REQUEST = struct.Struct("=BBHIIIQ")  # struct unix_diag_req
UNIX_MESSAGE = struct.Struct("=4xI8x")  # struct unix_diag_msg: the inode
UNIX_DIAG_PEER, SHOW_PEER = 2, 4


def tcp_connections() -> dict[int, Socket] | None:
    """Return all TCP sockets of our network namespace by inode, 10 microseconds each, or None."""
    found: dict[int, Socket] = {}
    requests = [
        INET_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ALL_STATES)
        for family in ADDRESS_BYTES
    ]
    try:
        for body in _answers(requests):
            family, ports, own, remote, inode = INET_MESSAGE.unpack_from(body)
            facts = _attribute(body[INET_MESSAGE.size :], INET_DIAG_INFO)
            if inode and len(facts) >= CARRIED_AT + CARRIED.size:
                (unacknowledged,) = struct.unpack_from("=I", facts, UNACKNOWLEDGED_AT)
                used, (own_port, port) = ADDRESS_BYTES[family], PORTS.unpack(ports)
                found[inode] = Socket(
                    shown_end(own[:used], own_port),
                    shown_end(remote[:used], port) if port else "",
                    carried_bytes=sum(CARRIED.unpack_from(facts, CARRIED_AT)),
                    heard_s=min(HEARD.unpack_from(facts, HEARD_AT)) / 1000,
                    repeats=bool(facts[REPEATED_AT]) and unacknowledged > 0,
                )
    except (OSError, struct.error):
        return None
    return found


def unix_peers() -> dict[int, int]:
    """Return the inode of each connected unix socket's peer, by the socket's own inode.

    A `multiprocessing.Pipe` is such a socket, and so is a connection to a manager or a local
    service. Empty if the kernel does not answer.
    """
    request = UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, ALL_STATES, 0, SHOW_PEER, 0)
    found = {}
    with suppress(OSError, struct.error):
        for body in _answers([request]):
            (inode,) = UNIX_MESSAGE.unpack_from(body)
            peer = _attribute(body[UNIX_MESSAGE.size :], UNIX_DIAG_PEER)
            if peer:
                (found[inode],) = struct.unpack("=I", peer)
    return found


def _answers(requests: Iterable[bytes]) -> Iterator[bytes]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(NETLINK_LIMIT_S)
        for request in requests:
            length = HEADER.size + len(request)
            asked.send(HEADER.pack(length, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + request)
            goes_on = True
            while goes_on:
                for (_, kind, *_), body in _pieces(HEADER, asked.recv(1 << 16)):
                    if kind in (DONE, ERROR):
                        goes_on = False
                        break
                    yield body


def _attribute(data: bytes, wanted: int) -> bytes:
    return next((value for (_, kind), value in _pieces(ATTRIBUTE, data) if kind == wanted), b"")


def _pieces(header: struct.Struct, data: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Split messages or attributes: each begins with its length and is padded to 4 bytes."""
    while len(data) >= header.size:
        fields = header.unpack_from(data)
        if fields[0] < header.size:
            return
        yield fields, data[header.size : fields[0]]
        data = data[(fields[0] + 3) & ~3 :]


MOST_ADDRESSES = 8  # Of one machine: one for each network that its ranks may use


def own_addresses() -> tuple[str, ...]:
    """Return the addresses by which other machines may know this one, as in `shown_end`."""
    found = []
    for addr in (address for every in psutil.net_if_addrs().values() for address in every):
        with suppress(ValueError):  # a hardware address
            address = ipaddress.ip_address(addr.address.partition("%")[0])
            if not (address.is_loopback or address.is_link_local):
                found.append(f"[{address}]" if address.version == 6 else str(address))
    return tuple(found[:MOST_ADDRESSES])


def reach_of(addresses: Collection[str], pids: Collection[int]) -> tuple[AddressReach, ...]:
    """Return what connections of processes show of other machines, by their `own_addresses`."""
    every = tcp_connections() or {}
    by_address: dict[str, list[Socket]] = {}
    for inode in {inode for pid in pids for inode in _sockets(open_of(pid))} & every.keys():
        by_address.setdefault(_address(every[inode].remote), []).append(every[inode])
    found = []
    for address in (candidate for candidate in addresses if candidate in by_address):
        heard_s = min(endpoint.heard_s for endpoint in by_address[address])
        unanswered = [endpoint.heard_s for endpoint in by_address[address] if endpoint.repeats]
        found.append(AddressReach(address, heard_s, len(unanswered), max(unanswered, default=0.0)))
    return tuple(found)


STAT_LIMIT_S = 0.2
INODE = re.compile(rb"^ino:\s*(\d+)$", re.MULTILINE)
MOST_CONNECTIONS = 64
"""Of one process to other machines: a ring or tree needs a few, all-to-all one for each rank."""


class Holders:
    """Finds who could end each wait, and what was received; 30 ms for 8 ranks on 2 busy cores.

    Each table is read at most once. Other ends of pipes and sockets are looked for among the given
    processes, sharers of memory also among their ancestors, locks everywhere. A search of the whole
    machine ends at the deadline, in monotonic seconds.
    """

    def __init__(self, pids: Sequence[int], deadline: float = math.inf) -> None:
        self._deadline = deadline
        self._of_pid = {pid: list(open_of(pid)) for pid in pids}
        self._by_name: dict[str, list[Opened]] = {}
        for opened in chain.from_iterable(self._of_pid.values()):
            self._by_name.setdefault(opened.name, []).append(opened)
        self._elsewhere: dict[str, list[Opened]] | None = None
        self._cut_short = False
        self._tcp = tcp_connections()
        self._locks = file_locks()
        self._maps: dict[int, list[tuple[int, int, str, str]]] = {}
        self._mounts: dict[int, dict[str, str]] = {}
        self._lock_holders: dict[str, tuple[int, ...]] = {}
        self._outsiders: dict[int, Holder] = {}
        self._table: dict[int, Socket] | None = None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """A gap if the search of the whole machine was cut short."""
        why = "there are too many to look through in time: the other ends of pipes may be there"
        gap = Gap("what other processes have open", None, why, "kernel_state")
        return (gap,) if self._cut_short else ()

    def complete(self, state: ProcessState) -> ProcessState:
        """Complete the state of one of the processes, as `kernel_state` read it."""
        connections, inodes = self._tcp or {}, _sockets(self._of_pid[state.pid])
        tcp = [connections[inode] for inode in inodes if inode in connections]
        network_bytes = None
        if self._tcp is not None and proc.shares_namespace(state.pid, "net"):
            network_bytes = sum(endpoint.carried_bytes or 0 for endpoint in tcp)
        # a connection within one machine has the same address at both ends
        out = [
            endpoint
            for endpoint in tcp
            if endpoint.remote and _address(endpoint.local) != _address(endpoint.remote)
        ]
        threads = []
        for thread in state.threads:
            if all(target.kind == "time" for target in thread.waits_for):
                found = (*self._polled_file(thread, state.pid), *thread.waits_for)
            else:
                every = (self._completed(target, state.pid) for target in thread.waits_for)
                found = tuple(target for target in every if target is not None)
            threads.append(replace(thread, waits_for=found))
        return replace(
            state,
            network_bytes=network_bytes,
            connections=tuple(Connection(*endpoint[:2]) for endpoint in out[:MOST_CONNECTIONS]),
            threads=tuple(threads),
        )

    def _completed(self, target: WaitTarget, pid: int) -> WaitTarget | None:
        if target.kind in ("file", "lock") and target.name:
            if pid not in self._mounts:
                self._mounts[pid] = {}
                with suppress(NoAnswer, OSError):
                    table = within(
                        STAT_LIMIT_S, lambda: proc.read_table(f"/proc/{pid}/mounts"), of=pid
                    )
                    self._mounts[pid] = mounted_types(table)
            shared = type_at(target.name, self._mounts[pid]).startswith(OF_NETWORK)
            target = replace(target, shared_storage=shared)
        if target.kind == "lock":
            holders = tuple(map(self._outsider, _holders(self._of_lock(target, pid))))
            return replace(target, holders=holders or target.holders)
        if target.kind in ("pipe", "fifo"):
            own = [opened for opened in self._by_name.get(target.name, ()) if opened.pid == pid]
            reads, writes = (
                any(descriptor.reads for descriptor in own),
                any(descriptor.writes for descriptor in own),
            )
            if target.kind == "fifo" and reads and writes:
                return target  # open for whoever writes to its path; children have copies
            holders = _holders(self._others(target.name, pid, reads, writes))
            if target.kind == "pipe":
                holders = tuple(
                    replace(holder, awaits=self._awaited_by(holder.pid, target.name))
                    for holder in holders
                )
            return replace(target, holders=holders)
        if target.kind == "process":
            return replace(target, holders=_holders((int(target.name),)))
        if target.kind == "shared":
            return self._with_who_shares(target, pid)
        if target.kind == "socket":
            return self._with_remote_end(target, pid)
        if target.kind == "terminal":
            # a pseudo-terminal that a process of the job made is a pipe to that process
            number = f"tty-index:\t{target.name.rpartition('/')[2]}\n".encode()
            owners = [owner for name in MASTERS for owner in self._owners(name, number)]
            if target.name.startswith("/dev/pts/") and owners:
                return replace(target, kind="pipe", holders=_holders(owners))
        if target.name.startswith(kernel.EVENT):
            # an eventfd that several processes have is a pipe between them; each has both ends
            events = self._by_name.get(kernel.EVENTFD, ())
            owners = [
                event.pid
                for event in events
                if kernel.event_behind(event.pid, event.number) == target.name
            ]
            if set(owners) - {pid}:
                return replace(target, kind="pipe", holders=_holders(dict.fromkeys(owners)))
        return target

    def _owners(self, name: str, fact: bytes = b"") -> list[int]:
        having = (
            descriptor.pid
            for descriptor in self._by_name.get(name, ())
            if not fact or fact in kernel.descriptor_facts(descriptor.pid, descriptor.number)
        )
        return list(dict.fromkeys(having))

    def _others(self, name: str, pid: int, reads: bool = True, writes: bool = True) -> list[int]:
        """Return the processes at the other end of a pipe or socket that a process reads or writes.

        A process that has both ends waits for the others that have them, or for itself if nobody
        does. These are looked for on the whole machine: a daemon that was started with an end keeps
        it, but no longer descends from a rank. A process with one end needs no such search: data
        ends when the last holder of the other end is gone. If that is no process of the job, its
        launchers are asked. A search that was cut short returns nobody.
        """

        def among(opened: Mapping[str, Iterable[Opened]]) -> list[int]:
            every = opened.get(name, ())
            return [
                descriptor.pid
                for descriptor in every
                if (reads and descriptor.writes) or (writes and descriptor.reads)
            ]

        found = among(self._by_name)
        if not found:
            launchers = (each for each in machine.ancestors(pid) if each not in self._of_pid)
            theirs = [file for each in launchers for file in open_of(each) if file.name == name]
            return list(dict.fromkeys(among({name: theirs})))
        if pid in found:
            if self._elsewhere is None:
                self._elsewhere = {}
                for other in set(machine.process_ids()) - self._of_pid.keys():
                    for opened in open_of(other):
                        self._cut_short = self._cut_short or time.monotonic() > self._deadline
                        if self._cut_short:
                            break
                        if opened.name.startswith(("pipe:", "socket:")):
                            self._elsewhere.setdefault(opened.name, []).append(opened)
            if self._cut_short:
                return []
            found += among(self._elsewhere)
        return [owner for owner in dict.fromkeys(found) if owner != pid] or found[:1]

    def _of_lock(self, target: WaitTarget, pid: int) -> Sequence[int]:
        """Return who holds a lock: by the kernel for a blocked waiter, by the file for a poller.

        The kernel's table names who asked first, even after that process closed the file. A child
        that inherited the descriptor keeps the lock.
        """
        numbers = {lock.number for lock in self._locks if lock.waiting and lock.pid == pid}
        held = (lock for lock in self._locks if lock.number in numbers and not lock.waiting)
        blocking = tuple(lock.pid for lock in held if lock.pid > 0)
        path = target.name
        if not blocking and path:
            if path not in self._lock_holders:  # the file system is asked once a look
                self._lock_holders[path] = ()
                with suppress(NoAnswer, OSError):
                    file = within(STAT_LIMIT_S, Path(f"/proc/{pid}/root{path}").stat, of=pid)
                    self._lock_holders[path] = holders_of(file, self._locks)
            blocking = self._lock_holders[path]
        alive = tuple(waiter for waiter in blocking if proc.vitals(waiter) is not None)
        # by descriptors, including inherited ones
        keeping = tuple(owner for owner in self._owners(path, b"\nlock:") if owner != pid)
        closed = set(alive).isdisjoint(keeping) and keeping
        return closed or tuple(dict.fromkeys((*alive, *keeping)))

    def _outsider(self, holder: Holder) -> Holder:
        """Add to a process outside the job what its children do, and whether a socket may wake any.

        It has no stack and no samples of its own here. A shell that fetches a file under a lock
        waits for the program that fetches, and that program for the remote end.
        """
        pid = holder.pid
        if pid not in self._of_pid and pid not in self._outsiders:  # all ranks may wait for it
            children = [child.pid for child in proc.descendants(pid)]
            below = _holders(children)
            outside = (pid, *(child for child in children if child not in self._of_pid))
            self._outsiders[pid] = replace(
                holder,
                cpu_s=holder.cpu_s + sum(child.cpu_s for child in below),
                moved_bytes=holder.moved_bytes + sum(child.moved_bytes for child in below),
                listens=any(map(_waits_at_socket, outside)),
            )
        return self._outsiders.get(pid, holder)

    def _polled_file(self, thread: ThreadState, pid: int) -> tuple[WaitTarget, ...]:
        """Return the file that a sleeping thread may poll because another process keeps it locked.

        SQLite tries a lock, sleeps a moment and tries again, with the file open. The sleep alone
        proves nothing: it must be that library's, which some builds of Python contain, and a
        process of the job must have the same file open, and locked exclusively.
        """
        call = kernel.CALLS.get(thread.syscall) if thread.syscall is not None else None
        name = call.name if call is not None and "nanosleep" in thread.wchan else ""
        # native code sleeps for a duration, Python 3.11 and later until a time
        until = name == "clock_nanosleep" and thread.arguments[1] == kernel.ABSOLUTE
        if until or name not in ("nanosleep", "clock_nanosleep", kernel.RESTART):
            return ()
        owned = {
            lock.inode: lock.pid for lock in self._locks if lock.exclusive and not lock.waiting
        }
        for file, _, number, *_ in self._of_pid[pid] if owned else ():
            if not file.startswith("/") or file.startswith("/dev/"):
                continue
            inode = INODE.search(kernel.descriptor_facts(pid, number))  # since Linux 5.14
            holder = owned.get(int(inode[1])) if inode is not None else None
            if holder not in (None, pid) and holder in self._owners(file):
                found = WaitTarget(call="sleep", kind="lock", name=file, holders=_holders([holder]))
                library = proc.waiting_libraries(pid, [thread.tid]).get(thread.tid, "")
                return (found,) if "sqlite" in library or "python" in library else ()
        return ()

    def _with_who_shares(self, target: WaitTarget, pid: int) -> WaitTarget | None:
        """Add the processes that could change the word of shared memory that a thread waits on.

        A lock, semaphore, event or queue of multiprocessing is a word of a file that all its
        processes map (sem_overview(7)). Nothing records who took it. Only a process that maps the
        file can give it back, or one that opens the file, if its name is public. A join of a thread
        uses the same call on private memory: then None is returned.
        """

        def mapped(of: int) -> list[tuple[int, int, str, str]]:
            """Return a process's mappings (proc_pid_maps(5)), with file and path of shared ones."""
            if of not in self._maps:
                self._maps[of] = []
                for where, mode, _, device, inode, *path in proc.memory_map(of):
                    start, _, end = where.partition("-")
                    file = f"{device}:{inode}" if mode.endswith("s") else ""
                    self._maps[of].append((int(start, 16), int(end, 16), file, " ".join(path)))
            return self._maps[of]

        address = int(target.name, 16)
        around = (found for found in mapped(pid) if found[0] <= address < found[1])
        *_, file, path = next(around, ("", ""))
        if not file:
            return None

        def maps(of: int) -> bool:
            return any(name == file for _, _, name, _ in mapped(of))

        family = {
            process: None for each in self._of_pid for process in (each, *machine.ancestors(each))
        }
        sharing = [process for process in family if maps(process)]
        others = [
            process
            for process in sharing
            if process in self._of_pid or not self._awaited_by(process)
        ]
        # a launcher that made the memory may have given it to other processes than ranks
        for child in proc.descendants(
            *(process for process in sharing if process not in self._of_pid)
        ):
            if time.monotonic() > self._deadline:
                return replace(target, name="")
            others += [child.pid] if child.pid not in family and maps(child.pid) else []
        others = [process for process in others if process != pid]
        # a daemon of the job no longer descends from it
        for stranger in set(machine.process_ids()) - family.keys() if not others else ():
            if time.monotonic() > self._deadline:
                return replace(target, name="")
            others += [stranger] if maps(stranger) else []
        hidden = not path.startswith("/") or path.startswith(SHARED_MEMORY)
        public = "" if hidden or path.endswith(DELETED) else path
        name = _name_in_memory(pid, file) or public or f"memory:[{file}]"
        return replace(target, name=name, holders=_holders(others))

    def _joined_by(self, pid: int) -> list[WaitTarget]:
        """Return what a launcher waits for, if that is only the end of processes that it started.

        Empty for any other process.
        """
        state, _ = kernel.kernel_state(pid, None, STAT_LIMIT_S)
        if state is None or state.threads_left_out or state.catches_timers:
            return []
        threads = [thread for thread in state.threads if not thread.name.startswith(SERVING_US)]
        waits = [target for thread in threads for target in thread.waits_for]
        # its own threads end what has no time limit; at a time, a timer may do anything
        ends = [target for target in waits if target.kind not in ("futex", "shared")]
        # if a child has the other end of a pipe, the parent sees when the child is gone
        only_joins = all(thread.waits_for for thread in threads) and all(
            target.kind == "process" or (target.kind == "pipe" and target.name in self._by_name)
            for target in ends
        )
        return ends if only_joins else []

    def _awaited_by(self, holder: int, pipe: str = "") -> tuple[int, ...]:
        """Return the given processes for which alone another holder of a pipe or memory waits."""
        joined = self._joined_by(holder) if holder not in self._of_pid else []
        awaited: list[int] = []
        for target in joined:
            if target.kind == "process":
                awaited.append(int(target.name))
            else:  # a process beside the job may write into it, too
                beside = (self._elsewhere or {}).get(target.name, ())
                every = (*self._by_name[target.name], *beside)
                awaited += [opened.pid for opened in every if opened.pid != holder]
        known = pipe not in {target.name for target in joined} and self._of_pid.keys() >= {*awaited}
        return tuple(dict.fromkeys(awaited)) if known else ()

    def _with_remote_end(self, target: WaitTarget, pid: int) -> WaitTarget:
        """Name both ends of a connection, and who has the other one, even if not accepted yet."""
        if self._table is None:  # all processes of a job share one network namespace
            own_space = (self._tcp or {}) if proc.shares_namespace(pid, "net") else {}
            self._table, self._peers = sockets_seen_by(pid) | own_space, unix_peers()
            ends = self._table.items()
            self._connected = {(endpoint.local, endpoint.remote): inode for inode, endpoint in ends}
            listening = {
                endpoint.local: inode
                for inode, endpoint in ends
                if not (endpoint.remote or endpoint.datagrams)
            }
            self._listening = {end.rpartition(":")[2]: inode for end, inode in listening.items()}
        inode = int(target.name.strip("socket:[]"))
        own = self._table.get(inode)
        if own is None:
            return replace(target, name="")
        peer = self._peers.get(inode)
        both_ways = self._others(f"socket:[{peer}]", pid) if peer is not None else []
        if (
            peer is not None
            and both_ways
            and (target.call not in kernel.POLLING or pid not in both_ways)
        ):
            # a pipe in both directions; an event loop has both ends of its own wake-up pipe
            name = f"socket:{sorted((inode, peer))}"
            return replace(target, kind="pipe", name=name, holders=_holders(both_ways))
        if not own.remote:
            # connections that nobody has accepted yet have the inode 0
            other_end = self._table.get(peer) if peer is not None else None
            end = own if target.call.startswith("accept") else other_end
            own_end = own.local if own.datagrams else ""
            return replace(target, name=end.local if end is not None else "", own_end=own_end)
        other = self._connected.get((own.remote, own.local))
        if other is None and _address(own.remote) == _address(own.local):
            other = self._listening.get(own.remote.rpartition(":")[2])
        owners = [] if other is None else self._owners(f"socket:[{other}]")
        return replace(
            target,
            name=own.remote,
            own_end=own.local,
            holders=_holders([owner for owner in owners if owner != pid]),
            connection=inode,
            carried_bytes=own.carried_bytes,
        )


def _name_in_memory(pid: int, file: str) -> str:
    """Return a mapped file's public name; empty for files of multiprocessing.

    The first process to map a semaphore shows another name, which is gone (glibc, sem_open.c).
    """
    device, _, inode = file.rpartition(":")
    with suppress(OSError):
        facts = os.stat(f"/proc/{pid}/root{SHARED_MEMORY}")  # noqa: PTH116 - as `open_of`
        if device == f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}":
            with os.scandir(f"/proc/{pid}/root{SHARED_MEMORY}") as entries:
                for entry in entries:
                    if entry.inode() == int(inode) and not entry.name.startswith("sem.mp-"):
                        return f"{SHARED_MEMORY}/{entry.name}"
    return ""


def _waits_at_socket(pid: int) -> bool:
    state, _ = kernel.kernel_state(pid, None, STAT_LIMIT_S)
    main = state.threads[:1] if state is not None else ()
    return any(target.kind == "socket" for thread in main for target in thread.waits_for)


def _holders(pids: Iterable[int]) -> tuple[Holder, ...]:
    found = []
    for pid in pids:
        line, moved = proc.vitals(pid) or proc.UNREADABLE, sum(proc.io_bytes(pid) or ())
        found.append(Holder(pid=pid, program=line.name, cpu_s=line.cpu_s, moved_bytes=moved))
    return tuple(found)


# Mounts

OF_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "fuse.")
"""Beginnings of file system types whose answers come over a network (mount(8))."""
_ESCAPED = re.compile(r"\\(\d{3})")


def mounted_types(table: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the file system type of each mount point, from /proc/PID/mounts."""
    return {
        # proc(5): blanks are written in octal
        _ESCAPED.sub(lambda word: chr(int(word[1], 8)), row[1]): row[2]
        for row in table
        if len(row) > 2
    }


def type_at(path: str, mounts: Mapping[str, str]) -> str:
    """Return the type of the innermost mount that contains a path; empty if unknown."""
    folder = path
    while folder not in mounts and folder not in ("", "/"):
        folder = folder.rpartition("/")[0] or "/"
    return mounts.get(folder, "")
