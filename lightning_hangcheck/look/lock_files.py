"""Locks that libraries poll for: the kernel sees only sleep, a variable of the stack names one.

Which loops these are is known of the libraries in `LIBRARIES`. Who made a file whose mere existence
is the lock, the process id tells that most makers write into it, or the open file of those that
keep it open. Such a file outlives its maker: killed, it leaves a lock that nobody takes away.
"""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.look.open_files import open_of
from lightning_hangcheck.look.proc import (
    GONE,
    began_s,
    numbers_of,
    shares_namespace,
    vitals,
)
from lightning_hangcheck.look.py_spy import LONGEST_READ
from lightning_hangcheck.machine import (
    FIRST_PID_NAMESPACE,
    mounted_types,
    pid_namespace,
    process_ids,
    read_proc,
    type_at,
)
from lightning_hangcheck.model.evidence import Holder, WaitTarget
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.look.py_spy import DumpedFrame, Variables
    from lightning_hangcheck.model.evidence import ProcessStack


class Library(NamedTuple):
    """One that polls for a lock file."""

    name: str  # for the target's call
    polls: str  # end of the path of the file in which it polls
    caller: str  # the same of the one that has the lock's path in a variable
    variable: str  # the name of that
    below: str = ""  # what is appended to it
    limit: str = ""  # variable, where it polls, with a time limit: negative, or third, if none
    marker: str = ""  # in the name of the lock's class where a file's mere existence is the lock


FILELOCK = "/filelock/_api.py"
FILELOCK_SINCE_4_3 = "/filelock/_core/_acquire.py"
LIBRARIES = (
    Library("filelock", FILELOCK, FILELOCK, "lock_filename", "", "timeout", "Soft"),
    Library(
        "filelock", FILELOCK_SINCE_4_3, FILELOCK_SINCE_4_3, "lock_filename", "", "wait", "Soft"
    ),
    Library(
        "baton.wait",  # torch's lock on the build of an extension, of 1.0 to 2.13
        "/torch/utils/file_baton.py",
        "/torch/utils/cpp_extension.py",
        "build_directory",
        "/lock",
    ),
)
"""They keep a file whose existence is the lock open for as long as they hold it."""
NO_LIMIT = re.compile(r"(?:\([^,]*, [^,]*, )?-")
GOES_ON = "/huggingface_hub/utils/_fixes.py"
"""Its ``WeakFileLock`` asks filelock anew after 10 s, for ever unless it has a limit too."""
READ_LIMIT_S = 0.5  # Some 50 ms on a machine with 10,000 open files


def polled_locks(stack: ProcessStack, variables: Variables) -> dict[int, WaitTarget]:
    """Tell by thread which locks a process polls for, named and with holder where known."""
    found = {}
    for thread in stack.threads:
        for library in LIBRARIES:
            polls = any(frame.file.endswith(library.polls) for frame in thread.frames)
            if polls and thread.tid is not None and thread.tid not in found:
                found[thread.tid] = _target(library, variables.of(thread.tid), stack.pid)
    return found


def _target(library: Library, frames: Sequence[DumpedFrame], pid: int) -> WaitTarget:
    def variable(file: str, name: str) -> str:
        """What is shown of a variable of the innermost call of a file that has it."""
        shown = (frame.shown(name) for frame in frames if frame.filename.endswith(file))
        return next(filter(None, shown), "")

    quoted, path = variable(library.caller, library.variable), ""
    if len(quoted) < LONGEST_READ:  # of a text that py-spy cut nothing is known
        with suppress(ValueError):
            path = f"{json.loads(quoted)}{library.below}"
    maker = UNKNOWN
    if path and library.marker in variable(library.polls, "self"):
        with suppress(NoAnswer, OSError):
            maker = within(READ_LIMIT_S, lambda: maker_of(path, pid), of=pid)
    if any(frame.filename.endswith(GOES_ON) for frame in frames):
        for_ever = variable(GOES_ON, "timeout") == "None"
    else:
        limit = variable(library.polls, library.limit) if library.limit else "-"
        for_ever = NO_LIMIT.match(limit) is not None
    return WaitTarget(
        call=library.name,
        kind="lock",
        name=path,
        holders=maker.holders,
        abandoned=maker.gone and for_ever,
    )


# Who made a file


class Maker(NamedTuple):
    """Who made a file: the process, where it is known and alive, or that it is known to be gone."""

    holders: tuple[Holder, ...] = ()
    gone: bool = False


UNKNOWN = Maker()
LONGEST_RECORD = 1024
WRITTEN_PID = re.compile(r"\A\s*(\d{1,10})\s*(?:\Z|\n)|\bpid\b\W{0,4}(\d{1,10})\b", re.IGNORECASE)
"""A first line that is a number, or a number behind the word: ``{"pid": 4711}``."""
WORDS = re.compile(r"[A-Za-z][\w.-]*")
NAMES = re.compile(r"[\w.-]+")
OWN = ("tmpfs", "overlay")
"""File systems that a container has to itself: others that it sees may be mounted in others, too,
whose processes it does not see."""
LOCAL = (*OWN, "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")
"""Those that one machine has to itself: no process elsewhere made a file there. Any other may be
shared with hosts whose processes nobody here sees."""
INIT = 1  # Starts all others, and trains nothing itself where it may not be read
LATER_S = 2.0
"""A process that began so much after a file was written cannot have made it: its number was given
away again. Clocks of files are coarse, and ticks are hundredths of a second."""


def maker_of(path: str, pid: int) -> Maker:
    """Tell who made a file, for whose end a process waits, by a path as that process knows it.

    Nobody is gone unless whoever made it must be among the processes that are seen here.
    """
    seen = Path(f"/proc/{pid}/root{path}")
    facts = seen.stat()
    text = ""
    if seen.is_file():
        with seen.open("rb") as file:
            text = file.read(LONGEST_RECORD).decode(errors="replace")
    mounts = mounted_types(read_proc("/proc/self/mountinfo").decode(errors="replace"))
    sees_all = pid_namespace() == FIRST_PID_NAMESPACE
    local = type_at(os.path.realpath(path), mounts) in (LOCAL if sees_all else OWN)
    of_here = socket.gethostname() in NAMES.findall(text)
    ours = shares_namespace(pid, "pid") and shares_namespace(pid, "mnt")
    if not ours or not (local or of_here):
        return UNKNOWN
    found = WRITTEN_PID.search(text)
    if found is None:
        return _that_has_open(path, facts) if local and not text.strip() else UNKNOWN
    number = int(found[1] or found[2])
    nameless = {word.lower() for word in WORDS.findall(text)} <= {"pid"}
    # a container that is seen from here may give one of its own processes this number
    if not (of_here or nameless) or any(
        numbers_of(one)[1:][-1:] == [number] for one in process_ids()
    ):
        return UNKNOWN
    alive = vitals(number)
    began_before = began_s(number) <= facts.st_mtime + LATER_S
    if alive is not None and not alive.has_ended and began_before:
        return Maker(holders=(Holder(pid=number, cpu_s=alive.cpu_s),))
    # a host of this name, or a container that has it, may be another one: nobody is gone there
    return Maker(gone=True) if local else UNKNOWN


def _that_has_open(path: str, facts: os.stat_result) -> Maker:
    """Look through all processes of the file's owner; one that cannot be read may have it open."""
    name, holders = os.path.realpath(path), []
    for pid in process_ids():
        try:
            if Path(f"/proc/{pid}").stat().st_uid != facts.st_uid:
                continue
            os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - names alone are wanted
        except GONE:
            continue
        except OSError:
            if pid == INIT:
                continue
            return UNKNOWN
        alive = vitals(pid) if any(opened.name == name for opened in open_of(pid)) else None
        if alive is not None:
            holders.append(Holder(pid=pid, cpu_s=alive.cpu_s))
    return Maker(holders=tuple(holders), gone=not holders)
