"""Would a hang be seen here: may stacks be read, is there room to record, is the clock right?"""

from __future__ import annotations

import mmap
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Finding, Subject, check, failed, nearest, ok, warning
from lightning_hangcheck.doctor.environment_checks import debug_settings
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.safe import NEW_FILE, PRIVATE_FILE, temporary_name
from lightning_hangcheck.isolation.command import interpreter, own_environment
from lightning_hangcheck.look.proc import why_filtered, why_refused
from lightning_hangcheck.look.stacks import find_py_spy, python_stacks
from lightning_hangcheck.machine import OF_NETWORK
from lightning_hangcheck.session.session import SHARED_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# It blocks in reading its input, which ends with us, and so does the program.
WAITING_PROGRAM = "import os; os.write(1, b'here'); os.read(0, 1)"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)  # py-spy 0.4.2 and later, by its own list
DISK_LIMIT_S = 2.0
# Before a run, together below 1.5 s in the worst case; about 0.06 s where all is well.
QUICK_STACKS_S, QUICK_DISK_S = 1.2, 1.0
# Journals of 8 ranks with a line a second are about 100 MB a day.
LEAST_FREE_BYTES = 200 * 2**20
PAGES_BYTES = 4 * 2**20  # heartbeats of 1000 ranks on one node
CONTAINER_DEFAULT_BYTES = 64 * 2**20  # docker run without --shm-size
LARGER = "docker run --shm-size=8g"
ELSEWHERE = "name a folder on a local disk: --run-dir or HANGCHECK_RUN_DIR"
OF_MEMORY = ("tmpfs", "ramfs")
MOST_SKEW_S = 2.0
"""More than a file system's own grain, 2 s on FAT; an hour of NTP's drift stays far below."""
FIRST_RELEASE = 1_790_000_000.0
"""Autumn 2026, in seconds since 1970: a clock before that was never set."""


@check("seeing", "without stacks a verdict cannot name the line at which a rank is")
def stacks_readable(_: Subject, time_limit_s: float = 3.0) -> Finding:
    """A small Python process, started for this and read by py-spy as ranks will be."""
    deadline = time.monotonic() + time_limit_s
    try:
        child = subprocess.Popen(
            [interpreter(), "-I", "-S", "-c", WAITING_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=own_environment(),
        )
    except OSError as error:
        return warning(f"{interpreter()} cannot be started ({error.strerror})", "ulimit -u")
    try:
        left = max(0.0, deadline - time.monotonic())
        if not select.select(list(filter(None, [child.stdout])), [], [], left)[0]:
            sentence = "a first Python process took too long to start, so this could not be tried"
            return warning(sentence, advice="try again while the machine is less busy")
        stack, gaps = python_stacks(child.pid, None, max(0.1, deadline - time.monotonic()))
        if stack is not None and any(thread.frames for thread in stack.threads):
            return ok("py-spy reads the stack of another process")
        if find_py_spy() is None:
            return failed("py-spy is not installed", "pip install py-spy")
        refusal = why_refused(child.pid) or why_filtered()
        if refusal is not None:
            return failed(f"no stack can be read: {refusal.why}", advice=refusal.remedy)
        why = gaps[0].reason if gaps else "py-spy shows no Python frame"
        return failed(f"no stack can be read: {why}", "pip install -U py-spy")
    finally:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=1.0)


@check("seeing", "a reader that does not know this Python shows no stack, or a wrong one")
def python_version(_: Subject, version: tuple[int, int] | None = None) -> Finding:
    """The version of this Python, against those that py-spy reads."""
    found = version or sys.version_info[:2]
    text = f"Python {found[0]}.{found[1]}"
    if found < OLDEST_PYTHON:
        return failed(f"{text} is too old", advice="use Python 3.10 or newer")
    if found > NEWEST_PYTHON:
        sentence = f"{text} is newer than what py-spy is known to read (up to 3.14)"
        return warning(sentence, "pip install -U py-spy")
    return ok(text)


@check("seeing", "heartbeats go through it, and DataLoader workers that fill it die of a bus error")
def shared_memory_usable(_: Subject, folder: Path = SHARED_MEMORY) -> Finding:
    """Shared memory: a page is mapped there, and its free space."""
    try:
        room = shutil.disk_usage(folder)
        if room.free < PAGES_BYTES:
            return failed(f"{folder} is full, of what ended jobs left there", f"ls -l {folder}")
        with _trial_file(folder) as (descriptor, _path):
            os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
            with mmap.mmap(descriptor, mmap.PAGESIZE) as page:
                page[0] = 1
    except OSError as error:
        fallback = f"heartbeats go through files in {tempfile.gettempdir()}"
        return warning(f"{folder} cannot be used ({error.strerror}); {fallback}", LARGER)
    if room.total <= CONTAINER_DEFAULT_BYTES:
        sentence = f"{folder} has {room.total / 2**20:.0f} MB: DataLoader workers may die of SIGBUS"
        return warning(sentence, LARGER)
    return ok(f"{folder} can be used, {room.free / 2**30:.1f} GB free")


@check("seeing", "without it verdict and evidence go to a temporary folder, or nowhere")
def run_folder_writable(subject: Subject, time_limit_s: float = DISK_LIMIT_S) -> Finding:
    """A small file, written and flushed where the run will be recorded."""
    folder = _absolute(subject.run_dir)

    def free_after_writing() -> int:
        there = nearest(folder)
        with _trial_file(there) as (descriptor, _):
            os.write(descriptor, b"may this be written?\n")
            os.fsync(descriptor)
        return shutil.disk_usage(there).free

    try:
        free_bytes = apart(time_limit_s, free_after_writing)
    except (OSError, NoAnswerFromStorage) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return failed(f"{folder} cannot be written ({why})", advice=ELSEWHERE)
    if free_bytes < LEAST_FREE_BYTES:
        left = f"{free_bytes / 2**20:.0f} MB are left on the disk of {folder}"
        return warning(left, advice=f"free some space, or {ELSEWHERE}")
    return ok(f"{folder} can be written, {free_bytes / 2**30:.0f} GB free")


@check(
    "seeing",
    "a network file system that stalls takes the evidence of its own hang with it",
    name="run folder's disk",
)
def run_folders_disk(subject: Subject) -> Finding:
    """The kind of file system that the run folder is on."""
    import psutil  # what every run asks at its start needs it not

    folder = _absolute(subject.run_dir)
    try:
        there = apart(DISK_LIMIT_S, lambda: nearest(folder).resolve())
    except (OSError, NoAnswerFromStorage) as error:
        return failed(f"{folder} cannot be looked at: {error}", advice=ELSEWHERE)
    mounts = {
        partition.mountpoint: partition.fstype for partition in psutil.disk_partitions(all=True)
    }
    above = map(str, (there, *there.parents))
    kind = next((mounts[one] for one in above if one in mounts), "unknown")
    found = f"{folder} is on {kind}"
    if kind.startswith(OF_NETWORK):
        sentence = f"{found}: evidence comes late or not at all while that stalls"
        return warning(sentence, advice=ELSEWHERE)
    if kind in OF_MEMORY:
        sentence = f"{found}: it takes main memory and is gone after a restart"
        return warning(sentence, advice=ELSEWHERE)
    return ok(found)


@check(
    "seeing",
    "times of several nodes are compared: a clock that is off makes the order of events wrong",
)
def clock(subject: Subject) -> Finding:
    """This machine's time beside the one that the file system gave to a new file."""
    folder, remedy = _absolute(subject.run_dir), "timedatectl set-ntp true"

    def skew() -> float:
        before = time.time()
        with _trial_file(nearest(folder).resolve()) as (_, path):
            # half of the time that making it took is the best guess of when it was made
            return (before + time.time()) / 2 - path.stat().st_mtime

    if time.time() < FIRST_RELEASE:
        return failed(f"the clock shows {time.strftime('%Y-%m-%d')}: it was never set", remedy)
    try:
        ahead = apart(DISK_LIMIT_S, skew)
    except (OSError, NoAnswerFromStorage):
        sentence = "the clock could not be compared: the run folder cannot be written"
        return warning(sentence, advice=ELSEWHERE)
    if abs(ahead) > MOST_SKEW_S:
        sentence = f"the clock is {ahead:+.1f} s from that of the run folder's file system"
        return warning(sentence, remedy)
    return ok("the clock agrees with the run folder's file system")


def checks_before_run(run_dir: Path, environment: Mapping[str, str]) -> tuple[Finding, ...]:
    """Make the checks that `hangcheck run` makes while it starts, all at once, within 1.5 s."""
    subject = Subject(environment=environment, run_dir=run_dir)
    checks: tuple[Callable[[], tuple[Finding, ...]], ...] = (
        lambda: stacks_readable(subject, time_limit_s=QUICK_STACKS_S),
        lambda: run_folder_writable(subject, time_limit_s=QUICK_DISK_S),
        lambda: shared_memory_usable(subject),
        lambda: python_version(subject),
        lambda: debug_settings(subject),
    )
    with ThreadPoolExecutor(len(checks), thread_name_prefix="hangcheck-check") as pool:
        return tuple(one for some in pool.map(lambda check: check(), checks) for one in some)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolving links would touch the disk


@contextmanager
def _trial_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """A new file, opened, that is gone afterwards."""
    trial = temporary_name(folder / "hangcheck-doctor")
    descriptor = os.open(trial, os.O_RDWR | NEW_FILE, PRIVATE_FILE)
    try:
        yield descriptor, trial
    finally:
        os.close(descriptor)
        trial.unlink(missing_ok=True)
