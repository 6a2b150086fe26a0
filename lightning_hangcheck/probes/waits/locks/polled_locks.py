"""Locks that are polled for: the kernel sees only sleep.

Python code that polls has no file open, but a variable of its stack names it. Which loops these are
is known of two libraries, and of all other code it is read from the source.
"""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lightning_hangcheck.model.evidence import WaitTarget
from lightning_hangcheck.model.naming.code_owner import is_ours, is_standard
from lightning_hangcheck.probes.proc.process_tree import began_s
from lightning_hangcheck.probes.source_code.code_notes import source_tree
from lightning_hangcheck.probes.source_code.marker_loops import (
    function_around,
    loop_around,
    marker_loop,
)
from lightning_hangcheck.probes.source_code.path_text import path_text
from lightning_hangcheck.probes.stacks.py_spy import (
    LONG_VALUES,
    PySpyFailed,
    PySpyLate,
    find_py_spy,
)
from lightning_hangcheck.probes.stacks.unpaused import read_threads
from lightning_hangcheck.probes.waits.locks.marker_files import UNKNOWN, is_there, maker_of
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Collection

    from lightning_hangcheck.model.evidence import Frame, ProcessStack, ThreadStack
    from lightning_hangcheck.probes.source_code.marker_loops import MarkerLoop
    from lightning_hangcheck.probes.stacks.unpaused import DumpedFrame, DumpedThread


FILELOCK = "/filelock/_api.py"
SOURCE_LIMIT_S = 1.0
DEEPEST = 3
"""Calls outwards from a thread's innermost one in which its loop is looked for: a helper that
sleeps is called from the loop."""


class Library(NamedTuple):
    """One that polls for a lock file.

    Attributes:
        name: For the target's call.
        polls: End of the path of the file in which it polls.
        caller: The same of the one that has the lock's path in a variable.
        variable: Its name.
        below: What is appended to it.
        limit: Variable with a time limit, in the file in which it polls; negative if there is none.
        marker: Part of the name of the lock's class where its lock is a file's mere existence;
            empty where it always is.
    """

    name: str
    polls: str
    caller: str
    variable: str
    below: str = ""
    limit: str = ""
    marker: str = ""


LIBRARIES = (
    Library(  # 3.0 to 4.2
        "filelock", FILELOCK, FILELOCK, "lock_filename", limit="timeout", marker="Soft"
    ),
    Library(
        "baton.wait",  # torch's lock on the build of an extension, of 1.0 to 2.13
        "/torch/utils/file_baton.py",
        "/torch/utils/cpp_extension.py",
        "build_directory",
        "/lock",
    ),
)
"""Both keep a file whose existence is the lock open for as long as they hold it."""
GOES_ON = "/huggingface_hub/utils/_fixes.py"
"""Its ``WeakFileLock`` asks filelock anew after 10 s, for ever unless it has a limit too."""
MARKER = "exists"


PATH_OBJECT = "<PosixPath "


class _Marker(NamedTuple):
    """A loop that waits for a file to go, the call that it is in, and that call's file."""

    loop: MarkerLoop
    frame: Frame
    tree: ast.Module


class _Polling(NamedTuple):
    """A thread that polls for a lock file: by a library, or by a loop of whoever's code."""

    tid: int
    library: Library | None = None
    marker: _Marker | None = None


def polled_locks(
    stack: ProcessStack, asleep: Collection[int], time_limit_s: float
) -> dict[int, WaitTarget]:
    """Tell which locks the threads of a process poll for.

    Only where the stack shows that one stands in one of `LIBRARIES`, or sleeps in a loop that asks
    whether a file is gone, does this ask py-spy for variables, and of these it keeps paths alone.

    Args:
        stack: Just taken.
        asleep: Threads that wait for nothing but a time, by the kernel.
        time_limit_s: Seconds.

    Returns:
        By thread; a target without a name where the path is not to be had. Its holder only where
        the lock file itself tells one that is alive.
    """
    polling = _all_polling(stack, asleep, time_limit_s)
    if not polling:
        return {}
    threads = {one.os_thread_id: one.frames for one in _dumped(stack.pid, time_limit_s)}
    targets = ((one.tid, _target(one, threads.get(one.tid, []), stack.pid)) for one in polling)
    return {tid: target for tid, target in targets if target is not None}


def _all_polling(
    stack: ProcessStack, asleep: Collection[int], time_limit_s: float
) -> list[_Polling]:
    found = [_in_library(one) for one in stack.threads]
    known = {one.tid for one in found if one is not None}
    others = [one for one in stack.threads if one.tid in asleep and one.tid not in known]
    since_s = began_s(stack.pid)
    if others:
        with suppress(NoAnswer):
            limit_s = min(time_limit_s, SOURCE_LIMIT_S)
            found += within(limit_s, lambda: [_in_loop(one, since_s) for one in others])
    return [one for one in found if one is not None]


def _in_library(thread: ThreadStack) -> _Polling | None:
    for library in LIBRARIES:
        if thread.tid is not None and any(f.file.endswith(library.polls) for f in thread.frames):
            return _Polling(thread.tid, library)
    return None


def _in_loop(thread: ThreadStack, unchanged_since_s: float) -> _Polling | None:
    """Find the innermost loop that a thread is in, and whether that waits for a file to go."""
    if thread.tid is None:
        return None
    foreign = [one for one in thread.frames if not (is_ours(one.file) or is_standard(one.file))]
    for frame in reversed(foreign[-DEEPEST:]):
        tree = source_tree(frame.file, unchanged_since_s)
        if tree is None:
            return None
        loop = marker_loop(tree, frame.line)
        if loop is not None:
            return _Polling(thread.tid, marker=_Marker(loop, frame, tree))
        if loop_around(tree, frame.line) is not None:
            return None
    return None


def _dumped(pid: int, time_limit_s: float) -> list[DumpedThread]:
    program = find_py_spy()
    if program is None or time_limit_s <= 0:
        return []
    try:
        return read_threads(program, pid, time_limit_s, LONG_VALUES)
    except (PySpyFailed, PySpyLate, msgspec.MsgspecError):
        return []


def _target(polling: _Polling, frames: list[DumpedFrame], pid: int) -> WaitTarget | None:
    if polling.library is not None:
        return _of_library(polling.library, frames, pid)
    if polling.marker is None:
        return None
    loop, path, of_path = _of_loop(polling.marker, frames)
    if not (is_there(path, pid) if path else of_path):
        return None
    maker = maker_of(path, pid, kept_open=False) if path else UNKNOWN
    return WaitTarget(
        call=MARKER,
        kind="lock",
        name=path,
        holders=tuple(one for one in maker.holders if one.pid != pid),
        abandoned=maker.gone and loop.endless,
    )


def _of_loop(marker: _Marker, frames: list[DumpedFrame]) -> tuple[MarkerLoop, str, bool]:
    """Work out for which path a loop waits, in the call that it is in.

    Returns:
        The loop; the path, empty where it is not known or relative; and whether it is one at all.
    """
    loop, frame = marker.loop, marker.frame
    same = (one for one in frames if (one.filename, one.line) == (frame.file, frame.line))
    shown = {one.name: one.repr or "" for one in next((one.locals or [] for one in same), [])}
    texts = {name: _unquoted(value) for name, value in shown.items()}
    path = path_text(loop.path, texts, function_around(marker.tree, frame.line))
    named = shown.get(loop.path.id, "") if isinstance(loop.path, ast.Name) else ""
    of_path = loop.of_path or named.startswith(PATH_OBJECT)
    return loop, path if path.startswith("/") else "", of_path


def _of_library(library: Library, frames: list[DumpedFrame], pid: int) -> WaitTarget:
    path = _unquoted(_variable(frames, library.caller, library.variable))
    path = path and path + library.below
    is_marker = library.marker in _variable(frames, library.polls, "self")
    maker = maker_of(path, pid, kept_open=True) if path and is_marker else UNKNOWN
    return WaitTarget(
        call=library.name,
        kind="lock",
        name=path,
        holders=maker.holders,
        abandoned=maker.gone and _without_limit(library, frames),
    )


def _without_limit(library: Library, frames: list[DumpedFrame]) -> bool:
    """Whether a library asks for ever, by the time limits that its callers gave."""
    if any(frame.filename.endswith(GOES_ON) for frame in frames):
        return _variable(frames, GOES_ON, "timeout") == "None"
    if not library.limit:
        return True
    return _variable(frames, library.polls, library.limit).startswith("-")


def _variable(frames: list[DumpedFrame], file: str, name: str) -> str:
    """Return a variable of the innermost call of a file that has it; empty if none has."""
    shown = (
        local.repr
        for frame in frames
        if frame.filename.endswith(file)
        for local in frame.locals or ()
        if local.name == name and local.repr is not None
    )
    return next(shown, "")


def _unquoted(text: str) -> str:
    """Read a text as py-spy shows it: in double quotes; cut short, it has none at its end."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
