"""Who could end the waits of a job's processes: facts that no process shows by itself."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.machine.network_storage import is_of_network, mounts_of_network
from lightning_hangcheck.model.evidence import Connection, Holder
from lightning_hangcheck.probes.proc.files import read_proc
from lightning_hangcheck.probes.proc.vitals import io_bytes, vitals
from lightning_hangcheck.probes.waits.connections.sockets import Socket, sockets_seen_by
from lightning_hangcheck.probes.waits.connections.tcp_connections import (
    TcpConnection,
    tcp_connections,
)
from lightning_hangcheck.probes.waits.descriptors import EVENT, SOCKET, Descriptors
from lightning_hangcheck.probes.waits.locks.file_locks import (
    FileLock,
    file_locks,
    holders_of,
    holders_that_block,
)
from lightning_hangcheck.probes.waits.locks.tried_locks import polled_file
from lightning_hangcheck.probes.waits.shared_memory import SharedMemory
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.evidence import ProcessState, ThreadState, WaitTarget

STAT_LIMIT_S = 0.2
MOST_CONNECTIONS = 64
"""Of one process to other machines: a ring or tree of ranks needs a few, all to all has as many as
there are ranks."""


def with_holders(states: Sequence[ProcessState]) -> list[ProcessState]:
    """Complete the states of a job's processes: who could end each wait, and bytes received.

    About 30 ms for 8 ranks on 2 busy cores.

    Args:
        states: Of the processes that were looked at; only among them the other ends of pipes and
            sockets are looked for, and among them and those that started them who shares memory.
            Locks are found whoever holds them.

    Returns:
        The states in their order.
    """
    found = tcp_connections()
    seen = _Seen([state.pid for state in states], found or {})
    complete = []
    for state in states:
        own = seen.connections(state.pid)
        out = (Connection(one.own, one.remote) for one in own if one.leads_out)
        complete.append(
            replace(
                state,
                network_bytes=None if found is None else sum(one.carried_bytes for one in own),
                connections=tuple(islice(out, MOST_CONNECTIONS)),
                threads=tuple(_completed(thread, state.pid, seen) for thread in state.threads),
            )
        )
    return complete


class _Seen:
    """Tables that are read at most once a look."""

    def __init__(self, pids: Sequence[int], tcp: Mapping[int, TcpConnection]) -> None:
        self.descriptors = Descriptors(pids)
        self.tcp = tcp
        self.locks = file_locks()
        self.memory = SharedMemory(pids)
        self._mounts: dict[int, dict[str, bool]] = {}
        self._sockets: dict[int, Socket] | None = None
        self._connected: dict[tuple[str, str], int] = {}
        self._listening: dict[str, int] = {}
        self._lock_holders: dict[str, tuple[int, ...]] = {}

    def holders_by_path(self, path: str, pid: int) -> tuple[int, ...]:
        """Processes that hold a lock on a file, whose file system is asked once a look."""
        if path not in self._lock_holders:
            self._lock_holders[path] = _holders_by_path(path, pid, self.locks)
        return self._lock_holders[path]

    def connections(self, pid: int) -> list[TcpConnection]:
        """TCP connections of a process."""
        return [self.tcp[one] for one in self.descriptors.sockets(pid) if one in self.tcp]

    def on_network(self, path: str, pid: int) -> bool:
        """Whether a process has a path on storage that other hosts may have, too."""
        if pid not in self._mounts:
            self._mounts[pid] = _mounts(pid)
        return is_of_network(path, self._mounts[pid])

    def socket(self, inode: int, pid: int) -> Socket | None:
        """Both ends of a socket; all processes of a job share one network namespace."""
        return self._read_sockets(pid).get(inode)

    def owners_of_other_end(self, own: Socket, pid: int) -> tuple[int, ...]:
        """Processes of the job that a connection leads to, also one that has not accepted it."""
        self._read_sockets(pid)
        address, _, port = own.remote.rpartition(":")
        inode = self._connected.get((own.remote, own.local))
        if inode is None and address == own.local.rpartition(":")[0]:
            inode = self._listening.get(port)
        return () if inode is None else self.descriptors.owners(f"socket:[{inode}]")

    def _read_sockets(self, pid: int) -> dict[int, Socket]:
        if self._sockets is None:
            self._sockets = sockets_seen_by(pid)
            for inode, one in self._sockets.items():
                self._connected[one.local, one.remote] = inode
                if not one.remote:
                    self._listening[one.local.rpartition(":")[2]] = inode
        return self._sockets


def _completed(thread: ThreadState, pid: int, seen: _Seen) -> ThreadState:
    if all(target.kind == "time" for target in thread.waits_for):
        return _with_polled_file(thread, pid, seen)
    found = (_with_holders(target, pid, seen) for target in thread.waits_for)
    return replace(thread, waits_for=tuple(one for one in found if one is not None))


def _with_polled_file(thread: ThreadState, pid: int, seen: _Seen) -> ThreadState:
    found = polled_file(thread, pid, seen.descriptors, seen.locks)
    if found is None:
        return thread
    target, holders = found
    return replace(
        thread, waits_for=(replace(target, holders=_holders(holders)), *thread.waits_for)
    )


def _with_holders(target: WaitTarget, pid: int, seen: _Seen) -> WaitTarget | None:
    if target.kind in ("file", "lock") and target.name:
        target = replace(target, shared_storage=seen.on_network(target.name, pid))
    if target.kind == "lock":
        return replace(target, holders=_holders(_lock_holders(target, pid, seen)) or target.holders)
    if target.kind in ("pipe", "fifo"):
        ends = seen.descriptors.at_other_end(target.name, pid)
        return replace(target, holders=_holders(ends))
    if target.kind == "process":
        return replace(target, holders=_holders((int(target.name),)))
    if target.kind == "shared":
        return _with_who_shares(target, pid, seen)
    if target.kind == "socket":
        return _with_remote_end(target, pid, seen)
    if target.name.startswith(EVENT):
        return _with_who_signals(target, pid, seen)
    return target


def _with_who_signals(target: WaitTarget, pid: int, seen: _Seen) -> WaitTarget:
    """An eventfd that other processes have, too, is one end of a pipe to them; all have both."""
    owners = seen.descriptors.owners_of_event(target.name)
    if not set(owners) - {pid}:
        return target
    return replace(target, kind="pipe", holders=_holders(owners))


def _mounts(pid: int) -> dict[str, bool]:
    try:
        data = within(STAT_LIMIT_S, lambda: read_proc(f"/proc/{pid}/mountinfo"))
    except (NoAnswer, OSError):
        return {}
    return mounts_of_network(data.decode(errors="replace"))


def _with_who_shares(target: WaitTarget, pid: int, seen: _Seen) -> WaitTarget | None:
    """Who joins a thread waits in its own memory, but by a call for shared memory: that is none."""
    file = seen.memory.file_at(pid, int(target.name, 16))
    if not file:
        return None
    others = seen.memory.others_that_map(file, pid)
    return replace(target, name=f"memory:[{file}]", holders=_holders(others))


def _lock_holders(target: WaitTarget, pid: int, seen: _Seen) -> tuple[int, ...]:
    """The kernel knows who blocks a waiter; one that polls is told by the file alone.

    Its table names who asked first, also once that one has closed the file, and a child that
    inherited the descriptor keeps the lock.
    """
    blocking = holders_that_block(pid, seen.locks)
    if not blocking and target.name:
        blocking = seen.holders_by_path(target.name, pid)
    alive = tuple(one for one in blocking if vitals(one) is not None)
    keeping = tuple(one for one in seen.descriptors.lockers(target.name) if one != pid)
    return keeping if keeping and set(keeping).isdisjoint(alive) else alive or keeping


def _holders_by_path(path: str, pid: int, locks: tuple[FileLock, ...]) -> tuple[int, ...]:
    try:
        file = within(STAT_LIMIT_S, lambda: Path(f"/proc/{pid}/root{path}").stat())
    except (NoAnswer, OSError):
        return ()
    return holders_of(file, locks)


def _with_remote_end(target: WaitTarget, pid: int, seen: _Seen) -> WaitTarget:
    found = SOCKET.fullmatch(target.name)
    inode = int(found[1]) if found is not None else 0
    ends = seen.socket(inode, pid)
    if ends is None:
        return replace(target, name="")
    if not ends.remote:
        return replace(target, name=ends.local if target.call.startswith("accept") else "")
    owners = tuple(one for one in seen.owners_of_other_end(ends, pid) if one != pid)
    return replace(
        target,
        name=ends.remote,
        own_end=ends.local,
        holders=_holders(owners),
        connection=inode,
        carried_bytes=seen.tcp[inode].carried_bytes if inode in seen.tcp else None,
    )


def _holders(pids: Sequence[int]) -> tuple[Holder, ...]:
    return tuple(_holder(pid) for pid in pids)


def _holder(pid: int) -> Holder:
    alive = vitals(pid)
    return Holder(
        pid=pid,
        program=_program(pid),
        cpu_s=alive.cpu_s if alive is not None else 0.0,
        moved_bytes=sum(io_bytes(pid) or ()),
    )


def _program(pid: int) -> str:
    try:
        return read_proc(f"/proc/{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return ""
