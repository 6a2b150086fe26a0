"""Bytes that a process moved between two samples: do they show that its wait makes way? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.waits.kernel_targets import targets_of
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessState, Sample

MANY_BYTES = 64 * 1024
TRANSFER_RATE = 4096
"""Bytes a second above which a read or write call makes way. Our own threads read and write about
700 bytes a second in the rank (a line of /proc twice a second, the journal)."""
TRANSFER_CALLS = frozenset({0, 1, 17, 18, 19, 20, 40, 63, 64, 65, 66, 67, 68, 71})
"""read, write, pread64, pwrite64, readv, writev, sendfile on x86-64, then on arm64. A number of the
one that means another call on the other (uname, semget, shmdt) is none that a thread stays in."""
DOWNLOAD_RATE = 1024
"""Bytes a second that count for a thread that waits at a connection: a gigabyte in 12 days. What
services in the process exchange meanwhile stays below."""
SHORTEST_FLOW_S = 1.0
"""Time over which bytes are counted at least: our own threads read 390 of them at once."""
Connections = dict[int | None, int | None]
"""By inode, None where that could not be read, the bytes that each carried so far."""


def make_way(earlier: Sample, later: Sample, flowed: int) -> bool:
    """Whether bytes flowed on which the main thread's wait rests, or many did.

    Args:
        earlier: Sample of a process.
        later: A later one.
        flowed: Bytes between them, as `bytes_moved` tells.
    """
    before, after = earlier.kernel, later.kernel
    if before is None or after is None:
        return False
    seconds = (later.taken_ns - earlier.taken_ns) / NANOSECONDS
    return (
        flowed > MANY_BYTES
        or _transfers(before, after, flowed, seconds)
        or _connection_carries(earlier, later)
    )


def bytes_moved(earlier: Sample, later: Sample, awaited: frozenset[int] | None) -> int:
    """Return what threads read, wrote and received that could end the main thread's wait.

    A thread that starts a program now and then excuses nobody: the process's count has what such a
    child read. It is all there is where threads are not counted, or one has ended meanwhile.

    Args:
        earlier: Sample of a process.
        later: A later one.
        awaited: Threads that could end the wait, None for any.

    Returns:
        Bytes; 0 where not permitted to know.
    """
    before, after = earlier.kernel, later.kernel
    if before is None or after is None:
        return 0
    of_threads = _moved_by_threads(earlier, later, awaited)
    pairs = [(before.network_bytes, after.network_bytes)]
    if of_threads is None:
        pairs += [
            (before.read_bytes, after.read_bytes),
            (before.written_bytes, after.written_bytes),
        ]
    moved = sum(max(0, new - old) for old, new in pairs if old is not None and new is not None)
    return moved + (of_threads or 0)


def _moved_by_threads(earlier: Sample, later: Sample, awaited: frozenset[int] | None) -> int | None:
    """Bytes of the threads that could end the wait: these, or all, and those that run no Python."""
    before, after = _bytes_by_thread(earlier.kernel), _bytes_by_thread(later.kernel)
    if before is None or after is None:
        return None
    if any(one.kind == "process" or one.holders for _, one in targets_of(later)):
        awaited = None  # another process, which may wait for what any of its threads gives it
    of_python = {one.tid for one in later.stack.threads} if later.stack is not None else set()
    counted = {
        tid
        for tid in {*before, *after}
        if awaited is None or tid in awaited or tid not in of_python
    }
    if not counted <= after.keys():
        return None
    return sum(max(0, after[tid] - before.get(tid, 0)) for tid in counted)


def _bytes_by_thread(kernel: ProcessState | None) -> dict[int, int] | None:
    if kernel is None or not kernel.threads or kernel.threads_left_out:
        return None
    found = {one.tid: one.moved_bytes for one in kernel.threads if one.moved_bytes is not None}
    return found if len(found) == len(kernel.threads) else None


def _transfers(before: ProcessState, after: ProcessState, flowed: int, seconds: float) -> bool:
    """Whether so much flows that the main thread's call makes way.

    At a connection only what connections carried counts, where the kernel tells that: what our own
    threads read meanwhile, late on a crowded machine, is more than a download may be. In a call
    that reads or writes only what the thread itself moved counts, where that is known.
    """
    main = after.threads[0] if after.threads else None
    if main is None:
        return False
    span_s = max(seconds, SHORTEST_FLOW_S)
    own = before.threads[0].moved_bytes if before.threads else None
    if main.moved_bytes is not None and own is not None:
        flowed = main.moved_bytes - own
    if any(target.kind == "socket" for target in main.waits_for):
        if before.network_bytes is not None and after.network_bytes is not None:
            flowed = after.network_bytes - before.network_bytes
        return flowed > DOWNLOAD_RATE * span_s
    return main.syscall in TRANSFER_CALLS and flowed > TRANSFER_RATE * span_s


def _connection_carries(earlier: Sample, later: Sample) -> bool:
    """Whether any byte came or went at a connection on which the main thread's wait rests.

    However slowly: these are that connection's own bytes, and not those of services beside it. A
    thread that is at other connections than before has had its answer from one.
    """
    before, after = _connections(earlier), _connections(later)
    return any(_carried(before[tid], after[tid]) for tid in before.keys() & after.keys())


def _carried(before: Connections, after: Connections) -> bool:
    """Compare what is known of both times: the kernel's list of sockets may leave out some."""
    known = None not in before and None not in after
    return (known and before.keys() != after.keys()) or any(
        None not in (before[one], after[one]) and before[one] != after[one]
        for one in before.keys() & after.keys()
    )


def _connections(sample: Sample) -> dict[int, Connections]:
    """Each waiting thread with its connections."""
    found: dict[int, Connections] = {}
    for tid, target in targets_of(sample):
        if target.kind == "socket":
            found.setdefault(tid, {})[target.connection] = target.carried_bytes
    return found
