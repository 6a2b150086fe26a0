"""Who made a file whose mere existence is a lock, and whether that process is still there.

Such a file outlives its maker: killed, it leaves a lock that nobody will ever take away. Two things
tell: the process id that most makers write into it, and the open file of those that keep it open.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lightning_hangcheck.model.evidence import Holder
from lightning_hangcheck.probes.proc.files import GONE, read_proc, read_table
from lightning_hangcheck.probes.proc.process_tree import began_s
from lightning_hangcheck.probes.proc.vitals import has_ended, vitals
from lightning_hangcheck.time_limit import NoAnswer, within

READ_LIMIT_S = 0.5
"""Some 50 ms on a machine with 10,000 open files."""
LONGEST_RECORD = 1024
WRITTEN_PID = re.compile(r"\A\s*(\d{1,10})\s*(?:\Z|\n)|\bpid\b\W{0,4}(\d{1,10})\b", re.IGNORECASE)
"""A first line that is a number, or a number behind the word: ``{"pid": 4711}``."""
WORDS = re.compile(r"[A-Za-z][\w.-]*")
NAMES = re.compile(r"[\w.-]+")
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"})
"""File systems (proc(5), mounts) that one machine has to itself: no process elsewhere made a file
there. Any other may be shared with hosts whose processes nobody here sees."""
OWN = frozenset({"tmpfs", "overlay"})
"""What a container has to itself: other file systems that it sees may be mounted in others, too,
whose processes it does not see."""
FIRST_SPACE = f"pid:[{0xEFFFFFFC}]"
"""The kernel's own pid namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h): whoever is in that
sees all processes."""
INIT = 1
"""Starts all others, and trains nothing itself where it may not be read."""
LATER_S = 2.0
"""A process that began so much after a file was written cannot have made it: its number was given
away again. Clocks of files are coarse, and ticks are hundredths of a second."""


class Maker(NamedTuple):
    """Who made a file.

    Attributes:
        holders: The process, where it is known and alive.
        gone: Whether it is known to be gone.
    """

    holders: tuple[Holder, ...] = ()
    gone: bool = False


UNKNOWN = Maker()


def maker_of(path: str, pid: int, *, kept_open: bool) -> Maker:
    """Tell who made a file for whose end a process waits.

    Args:
        path: As that process knows it.
        pid: The process.
        kept_open: Whether whoever makes such a file keeps it open as long as it should be there.
    """
    try:
        return within(READ_LIMIT_S, lambda: _maker(path, pid, kept_open))
    except (NoAnswer, OSError):
        return UNKNOWN


def is_there(path: str, pid: int) -> bool:
    """Whether a file is there, as a process sees it; no if its file system does not answer."""
    try:
        return within(READ_LIMIT_S, _seen_by(path, pid).exists)
    except (NoAnswer, OSError):
        return False


def _seen_by(path: str, pid: int) -> Path:
    return Path(f"/proc/{pid}/root{path}")


def _maker(path: str, pid: int, kept_open: bool) -> Maker:
    seen = _seen_by(path, pid)
    facts = seen.stat()
    text = _read(seen) if seen.is_file() else ""
    found, local = WRITTEN_PID.search(text), _is_local(path)
    if not _in_our_container(pid) or not (local or _names_this_host(text)):
        return UNKNOWN
    if found is not None:
        number = int(found[1] or found[2])
        if not _of_here(text) or _numbered_elsewhere(number):
            return UNKNOWN
        maker = _written(number, facts.st_mtime)
        # a host of this name, or a container that has it, may be another one: nobody is gone there
        return maker if local or maker.holders else UNKNOWN
    return _that_has_open(path, facts) if kept_open and local and not text.strip() else UNKNOWN


def _in_our_container(pid: int) -> bool:
    """Whether a process numbers processes, and names files, as we do."""
    return all(
        os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")  # noqa: PTH115 - no file
        for kind in ("pid", "mnt")
    )


def _of_here(text: str) -> bool:
    """Whether what is written names this host, or none."""
    return _names_this_host(text) or {word.lower() for word in WORDS.findall(text)} <= {"pid"}


def _numbered_elsewhere(number: int) -> bool:
    """Whether a container that is seen from here gives one of its own processes this number."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - names alone are wanted
        with suppress(OSError):
            status = read_proc(f"/proc/{pid}/status")
            line = next((one for one in status.splitlines() if one.startswith(b"NSpid:")), b"")
            inner = line.split()[2:]
            if inner and int(inner[-1]) == number:
                return True
    return False


def _names_this_host(text: str) -> bool:
    return socket.gethostname() in NAMES.findall(text)


def _written(pid: int, changed_s: float) -> Maker:
    seen = vitals(pid)
    if seen is None or has_ended(pid) or began_s(pid) > changed_s + LATER_S:
        return Maker(gone=True)
    return Maker(holders=(Holder(pid=pid, cpu_s=seen.cpu_s),))


def _that_has_open(path: str, facts: os.stat_result) -> Maker:
    """Look through all processes of the file's owner; one that cannot be read may have it open."""
    name, holders = os.path.realpath(path), []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):  # noqa: PTH208 - names alone are wanted
        try:
            theirs = Path(f"/proc/{pid}").stat().st_uid == facts.st_uid
            opened = theirs and name in _open_files(pid)
        except GONE:
            continue
        except PermissionError:
            if pid == INIT:
                continue
            return UNKNOWN
        seen = vitals(pid) if opened else None
        if seen is not None:
            holders.append(Holder(pid=pid, cpu_s=seen.cpu_s))
    return Maker(holders=tuple(holders), gone=not holders)


def _open_files(pid: int) -> set[str]:
    """Names of what a process has open; no file system is asked."""
    folder, found = f"/proc/{pid}/fd", set()
    for number in os.listdir(folder):  # noqa: PTH208 - names alone are wanted
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"{folder}/{number}"))  # noqa: PTH115 - twice as fast
    return found


def _is_local(path: str) -> bool:
    """Whether whoever made a file is among the processes that are seen here.

    So it is where the innermost mount that the file is in is of this machine, or container, alone.
    """
    real = os.path.realpath(path)
    mounts = [words for words in read_table("/proc/self/mounts") if len(words) > 2]
    above = [(len(words[1]), words[2]) for words in mounts if _is_below(real, words[1])]
    sees_all = os.readlink("/proc/self/ns/pid") == FIRST_SPACE  # noqa: PTH115 - no file
    return max(above, default=(0, ""))[1] in (LOCAL if sees_all else OWN)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LONGEST_RECORD).decode(errors="replace")
