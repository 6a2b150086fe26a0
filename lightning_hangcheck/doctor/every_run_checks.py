"""Checks that every run makes at its start: whether a hang would be visible here.

`hangcheck doctor` makes them too, with more time.
"""

from __future__ import annotations

import mmap
import os
import platform
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
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.files import (
    NEW_FILE,
    PRIVATE_FILE,
    NoAnswerFromStorage,
    apart,
    temporary_name,
)
from lightning_hangcheck.isolation.command import interpreter, own_environment
from lightning_hangcheck.look.open_files import OF_NETWORK
from lightning_hangcheck.look.proc import why_filtered, why_refused
from lightning_hangcheck.look.stacks import find_py_spy, python_stacks
from lightning_hangcheck.session.session import SHARED_MEMORY
from lightning_hangcheck.settings import NAMES, PREFIX, from_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DISK_LIMIT_S = 2.0
# Before a run: below 1.5 s together in the worst case, about 0.06 s if all is well.
QUICK_STACKS_S, QUICK_DISK_S = 1.2, 1.0
LARGER = "docker run --shm-size=8g"
ELSEWHERE = "name a folder on a local disk: --run-dir or HANGCHECK_RUN_DIR"
DISK, CLOCK = "run folder's disk", "clock"
"""Not reported at each run: both are properties of the machine."""


@check("seeing", "without stacks a verdict cannot name the line at which a rank is")
def stacks_readable(_: Subject, time_limit_s: float = 3.0) -> Finding:
    """A small Python process, started for this and read by py-spy as ranks will be."""
    deadline = time.monotonic() + time_limit_s
    try:
        child = subprocess.Popen(
            # blocks reading its input, which ends with our process; then it ends too
            [interpreter(), "-I", "-S", "-c", "import os; os.write(1, b'here'); os.read(0, 1)"],
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
            if sys.version_info >= (3, 15):  # py-spy 0.4.2 reads all older ones, by its own list
                newer = f"Python {platform.python_version()} is newer than what py-spy is known"
                return warning(f"{newer} to read: stacks may be wrong", "pip install -U py-spy")
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


@check("seeing", "heartbeats go through it, and DataLoader workers that fill it die of a bus error")
def shared_memory_usable(_: Subject, folder: Path = SHARED_MEMORY) -> Finding:
    """Shared memory: a page is mapped there, and its free space."""
    try:
        room = shutil.disk_usage(folder)
        if room.free < 4 * 2**20:  # heartbeats of 1000 ranks on one node
            return failed(f"{folder} is full, of what ended jobs left there", f"ls -l {folder}")
        with _trial_file(folder) as (descriptor, _path):
            os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
            with mmap.mmap(descriptor, mmap.PAGESIZE) as page:
                page[0] = 1
    except OSError as error:
        fallback = f"heartbeats go through files in {tempfile.gettempdir()}"
        return warning(f"{folder} cannot be used ({error.strerror}); {fallback}", LARGER)
    if room.total <= 64 * 2**20:  # docker run without --shm-size
        sentence = f"{folder} has {room.total / 2**20:.0f} MB: DataLoader workers may die of SIGBUS"
        return warning(sentence, LARGER)
    return ok(f"{folder} can be used, {room.free / 2**30:.1f} GB free")


@check("seeing", "without it verdict and evidence are late, go elsewhere, or are out of order")
def run_folder(subject: Subject, time_limit_s: float = DISK_LIMIT_S) -> Iterator[Finding]:
    """A small file, written and flushed where the run will be recorded, and the time it was given.

    The kind of file system it is on: one that stalls takes the evidence of its own hang with it.
    """
    # resolving links would touch the disk
    folder = Path(os.path.abspath(subject.run_dir))  # noqa: PTH100 - as said
    remedy = "timedatectl set-ntp true"

    def look() -> tuple[int, float, str]:
        there, before = nearest(folder).resolve(), time.time()
        with _trial_file(there) as (descriptor, path):
            # half the time that creating it took is the best estimate of when it was created
            ahead = (before + time.time()) / 2 - path.stat().st_mtime
            os.write(descriptor, b"may this be written?\n")
            os.fsync(descriptor)
        return shutil.disk_usage(there).free, ahead, _file_system(there)

    if time.time() < 1_790_000_000.0:  # autumn 2026, the first release
        shown = time.strftime("%Y-%m-%d")
        yield failed(f"the clock shows {shown}: it was never set", remedy, check=CLOCK)
    try:
        free, ahead, kind = apart(time_limit_s, look)
    except (OSError, NoAnswerFromStorage) as error:
        why = error.strerror if isinstance(error, OSError) else error
        yield failed(f"{folder} cannot be written ({why})", advice=ELSEWHERE)
        return
    if free < 200 * 2**20:  # journals of 8 ranks with a line per second: 100 MB a day
        left = f"{free / 2**20:.0f} MB are left on the disk of {folder}"
        yield warning(left, advice=f"free some space, or {ELSEWHERE}")
    else:
        yield ok(f"{folder} can be written, {free / 2**30:.0f} GB free")
    if kind.startswith(OF_NETWORK):
        sentence = f"{folder} is on {kind}: evidence comes late or not at all while that stalls"
        yield warning(sentence, advice=ELSEWHERE, check=DISK)
    elif kind in ("tmpfs", "ramfs"):
        sentence = f"{folder} is on {kind}: it takes main memory and is gone after a restart"
        yield warning(sentence, advice=ELSEWHERE, check=DISK)
    if abs(ahead) > 2.0:  # the time resolution of FAT; NTP's drift in an hour is far below
        sentence = f"the clock is {ahead:+.1f} s from that of the run folder's file system"
        yield warning(sentence, remedy, check=CLOCK)


def _file_system(folder: Path) -> str:
    """Return the file system type from the kernel's mount table (proc_pid_mounts(5))."""
    lines = (line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines())
    mounts = {at.replace("\\040", " "): kind for _, at, kind, *_ in lines}
    places = map(str, (folder, *folder.parents))
    return next((mounts[place] for place in places if place in mounts), "")


def checks_before_run(run_dir: Path, environment: Mapping[str, str]) -> tuple[Finding, ...]:
    """Make the checks of `hangcheck run` at its start, in parallel, within 1.5 s."""
    subject = Subject(environment=environment, run_dir=run_dir)
    checks: tuple[Callable[[], tuple[Finding, ...]], ...] = (
        lambda: stacks_readable(subject, time_limit_s=QUICK_STACKS_S),
        lambda: run_folder(subject, time_limit_s=QUICK_DISK_S),
        lambda: shared_memory_usable(subject),
        lambda: debug_settings(subject),
    )
    with ThreadPoolExecutor(len(checks), thread_name_prefix="hangcheck-check") as pool:
        found = [finding for some in pool.map(lambda check: check(), checks) for finding in some]
    return tuple(finding for finding in found if finding.check not in (DISK, CLOCK))


@contextmanager
def _trial_file(folder: Path) -> Iterator[tuple[int, Path]]:
    trial = temporary_name(folder / "hangcheck-doctor")
    descriptor = os.open(trial, os.O_RDWR | NEW_FILE, PRIVATE_FILE)
    try:
        yield descriptor, trial
    finally:
        os.close(descriptor)
        trial.unlink(missing_ok=True)


# Sources: torch 2.13 (ProcessGroupNCCL.cpp, documentation of environment variables), and our runs
# (catalogue: DETAIL crashes every rank of DDP on gloo; all_reduce takes 4.4 times as long).
GIVEN_UP = "lets ranks wait without end for a collective that NCCL has given up"
QUESTIONABLE = {
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "crashes DDP on gloo (CPU) in torch 2.13 and makes each "
    "all_reduce 4.4 times as slow",
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"): GIVEN_UP,
    ("NCCL_ASYNC_ERROR_HANDLING", "0"): GIVEN_UP,
    ("TORCH_NCCL_BLOCKING_WAIT", "1"): "runs NCCL without its watchdog: a timeout is an exception "
    "in whichever rank waits first",
}
HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
"""After this time, NCCL's monitor ends a rank whose watchdog is silent; 480 s by default."""


@check(
    "environment",
    "a job that ends, slows down or waits because of a setting hides the hang behind it",
    well="no setting is in the way",
)
def debug_settings(subject: Subject) -> Iterator[Finding]:
    """Variables of torch, NCCL and ours that change how a hang looks."""
    environment = subject.environment
    for (variable, value), sentence in QUESTIONABLE.items():
        if environment.get(variable, "").upper() == value:
            yield warning(f"{variable}={value} {sentence}", f"unset {variable}")
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and name not in NAMES:
            from difflib import get_close_matches  # hardly ever needed, and run starts with this

            for near in get_close_matches(name, NAMES, n=1, cutoff=0.8):
                meant = f"did you mean {PREFIX}{near.upper()}?"
                yield warning(f"{variable} is no setting", advice=meant)
    try:
        settings = from_environment(environment)
    except BadUsage as error:
        yield warning(f"{error.args[0]}; the defaults apply", advice=error.remedy)
        return
    text = environment.get(HEARTBEAT, "")
    if settings.disable:
        sentence = "HANGCHECK_DISABLE=1 switches everything off: ranks record nothing"
        yield warning(sentence, "unset HANGCHECK_DISABLE")
    elif text.isdecimal() and int(text) < settings.stall_timeout:
        sentence = (
            f"{HEARTBEAT}={text} may end a stuck rank before the stall timeout of "
            f"{settings.stall_timeout:g} s: the hang then shows up as a dead rank"
        )
        yield warning(sentence, f"export HANGCHECK_STALL_TIMEOUT={max(1, int(text) // 2)}")
