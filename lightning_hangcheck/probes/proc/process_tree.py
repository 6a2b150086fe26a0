"""Which processes belong to the job, and what their command line and environment say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from msgspec import Struct

from lightning_hangcheck.machine.process_stat import TICKS_PER_SECOND
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.probes.proc.files import GONE, read_proc, read_stat
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator

# Part of the kernel only with CONFIG_PROC_CHILDREN, which the common distributions set.
CHILDREN_SHOWN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


class ProcessRef(Struct, frozen=True):
    """A process, for ever: a pid alone may be given to another one later."""

    pid: int
    parent_pid: int
    started_ticks: int


def process_ref(pid: int) -> ProcessRef | None:
    """Name one process, None where it is gone or hidden."""
    try:
        line = read_stat(pid)
    except OSError:
        return None
    return ProcessRef(pid, line.parent_pid, line.started_ticks)


def born_ns(pid: int) -> int:
    """Return when a process started, on the monotonic clock, to a hundredth of a second.

    The kernel counts from the boot and through suspensions (proc(5)). A process that is gone
    started now, as far as anyone can tell.
    """
    ref = process_ref(pid)
    now_ns = time.monotonic_ns()
    if ref is None:
        return now_ns
    since_boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    started_ns = ref.started_ticks * (NANOSECONDS // TICKS_PER_SECOND)
    return now_ns - max(0, since_boot_ns - started_ns)


def began_s(pid: int) -> float:
    """Return when a process started, by the wall clock as it is now; seconds since 1970."""
    return time.time() - (time.monotonic_ns() - born_ns(pid)) / NANOSECONDS


def descendants(root_pid: int) -> tuple[ProcessRef, ...]:
    """Find all processes below one, without itself, parents before their children.

    A process whose parent ends meanwhile goes to another parent and may be missed this time.
    Zombies are included.
    """
    pids = below_by_children(root_pid) if CHILDREN_SHOWN else below_by_parents(root_pid)
    return tuple(filter(None, map(process_ref, pids)))


def below_by_children(root_pid: int) -> list[int]:
    """Walk down the tree; costs about 10 microseconds for each thread in it.

    A child hangs on the thread that forked it, so every thread is asked.
    """
    found = [root_pid]
    for pid in found:
        found.extend(child for child in _children(pid) if child not in found)
    return found[1:]


def below_by_parents(root_pid: int) -> list[int]:
    """Ask every process of the machine for its parent: slower, but needs nothing of the kernel."""
    try:
        return [child.pid for child in psutil.Process(root_pid).children(recursive=True)]
    except psutil.Error:
        return []


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - twice as fast, a hot path
    except OSError:
        return
    for tid in threads:
        try:
            children = read_proc(f"/proc/{pid}/task/{tid}/children")
        except OSError:
            continue
        yield from map(int, children.split())


def read_environment(pid: int, time_limit_s: float = 1.0) -> dict[str, str] | Gap:
    """Read the environment that a process was started with; later changes do not show.

    Args:
        pid: The process.
        time_limit_s: Seconds to wait, as reading may block (see `proc_file`).
    """
    text = _read_memory_file(pid, "environ", f"environment of pid {pid}", time_limit_s)
    if isinstance(text, Gap):
        return text
    pairs = (entry.partition("=") for entry in text)
    return {name: value for name, equals, value in pairs if equals}


def command_line(pid: int, time_limit_s: float = 1.0) -> list[str] | Gap:
    """Read the command line of a process.

    Args:
        pid: The process.
        time_limit_s: Seconds to wait, as reading may block (see `proc_file`).
    """
    return _read_memory_file(pid, "cmdline", f"command line of pid {pid}", time_limit_s)


def _read_memory_file(pid: int, name: str, what: str, time_limit_s: float) -> list[str] | Gap:
    """Read a list of NUL-terminated texts; a zombie and a kernel thread have none."""
    try:
        data = within(time_limit_s, lambda: read_proc(f"/proc/{pid}/{name}"))
    except GONE:
        return _gap(what, "the process has ended")
    except PermissionError:
        return _gap(what, "it belongs to another user", "run as that user, or as root")
    except NoAnswer as error:
        return _gap(what, f"{error}: the process is stuck in the kernel with its memory locked")
    except OSError as error:
        return _gap(what, f"/proc/{pid}/{name} cannot be read ({error.strerror})")
    if not data:
        return _gap(what, "it shows none: the process is ending, or was started without any")
    return data.removesuffix(b"\0").decode(errors="replace").split("\0")


def _gap(what: str, why: str, remedy: str = "") -> Gap:
    return Gap(what, None, why, "process_memory", remedy)
