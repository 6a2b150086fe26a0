"""Checks whether a hang would be visible here, and whether settings cause or hide one.

Every run makes some of these checks at its start; the others import what only they need.
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

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
from lightning_hangcheck.look.programs import VARIABLE, is_unbuffered, kept_back_in
from lightning_hangcheck.look.stacks import find_py_spy, python_stacks
from lightning_hangcheck.session.session import SHARED_MEMORY
from lightning_hangcheck.settings import from_environment

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


# The environment

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
STDERR = 2  # doctor's own: its stdout may go to a pipe where that of the run does not
RENAMED = ("ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "DESYNC_DEBUG", "ENABLE_TIMING")
"""After NCCL_; torch 2.2 prefixed TORCH_, and reads the old names with a warning."""
DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT"
ANSWER_LIMIT_S = 3.0
OFFLINE = "export WANDB_MODE=offline"
LATER = "write to the disk, and send it later with: wandb sync wandb/offline-run-*"
CACHE_LIMIT_S = 3.0
ANOTHER_CACHE = "export HF_HOME=/a/folder/that/can/be/written"


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


@check(
    "environment",
    "the last line in the log is not the last that was printed: a job that works looks stuck",
)
def output_buffering(subject: Subject, descriptor: int = STDERR) -> Finding:
    """PYTHONUNBUFFERED, -u, and where the output goes."""
    launch = subject.launch
    if is_unbuffered(subject.environment, ()):
        return ok(f"{VARIABLE} is set")
    words = (*launch.prefix, *launch.program)
    if launch.launcher in ("python", "slurm", "mpi") and is_unbuffered({}, words):
        return ok("Python is started with -u")
    if "SLURM_JOB_ID" in subject.environment or launch.launcher == "slurm":
        where = "SLURM's log"
    elif os.isatty(descriptor):
        return ok("output goes to a terminal, a line at a time")
    else:
        try:
            where = kept_back_in(os.fstat(descriptor).st_mode) or "a file"
        except OSError:
            where = "nowhere"
    sentence = f"output goes to {where}, and {VARIABLE} is not set: lines come 8 kB late"
    return warning(sentence, f"export {VARIABLE}=1")


@check(
    "environment",
    "a fork copies one thread of many, and locks that the others held stay locked in it",
    name="tokenizers' threads",
)
def tokenizers_threads(subject: Subject) -> Finding:
    """TOKENIZERS_PARALLELISM."""
    # if unset, the library turns its threads off in a fork after their first use
    value = subject.environment.get("TOKENIZERS_PARALLELISM", "")
    if value.lower() not in ("true", "on", "yes", "y", "1", "t"):
        return ok(f"TOKENIZERS_PARALLELISM is {value or 'not set'}")
    sentence = (
        f"TOKENIZERS_PARALLELISM={value}: a DataLoader worker forked after the tokenizer was "
        "used may wait for threads that only its parent has"
    )
    return warning(sentence, "export TOKENIZERS_PARALLELISM=false")


@check(
    "environment",
    "ranks that take processors from each other are slow together and look stuck in turn",
)
def computing_threads(subject: Subject, processors: int | None = None) -> Finding:
    """OMP_NUM_THREADS times the ranks of a node, beside its processors."""
    there = processors or len(os.sched_getaffinity(0))
    text = subject.environment.get("OMP_NUM_THREADS", "")
    ranks = subject.launch.local_ranks or 1
    if text.isdecimal():
        own, source = int(text), f"OMP_NUM_THREADS={text}"
    else:
        # torchrun sets 1 for several ranks (torch/distributed/run.py); else torch uses them all
        own = 1 if subject.launch.launcher == "torchrun" and ranks > 1 else there
        source = "by default"
    sentence = f"{ranks} x {own} threads ({source}) on {there} processors"
    # up to twice as many take turns, and none waits long: a core has two hyper-threads
    if ranks > 1 and ranks * own > 2 * there:
        return warning(sentence, f"export OMP_NUM_THREADS={max(1, there // ranks)}")
    return ok(sentence)


@check(
    "environment",
    "a setting that is no longer read does nothing, and nobody says so",
    name="NCCL variables",
    well="no variable has an outdated name",
)
def nccl_variables(subject: Subject) -> Iterator[Finding]:
    """Variables of NCCL under the names that torch had for them before 2.2."""
    for old in (f"NCCL_{name}" for name in RENAMED):
        if old in subject.environment:
            sentence = (
                f"{old} is the name before torch 2.2: newer ones warn of it, and will drop it"
            )
            yield warning(sentence, f"unset {old}; export TORCH_{old}={subject.environment[old]}")


@check(
    "environment",
    "without it nobody can tell in which collective the ranks parted",
    well="nothing keeps it from being written",
)
def flight_recorder(subject: Subject) -> Iterator[Finding]:
    """Its size, whether it is written on a time-out, and where: what a post-mortem has to read."""
    environment = subject.environment
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):  # before torch 2.7
        if environment.get(name) == "0":
            yield warning(f"{name}=0 switches the flight recorder off", f"unset {name}")
    if (value := environment.get(DUMPS, "")).lower() in ("0", "f", "false", "n", "no"):
        sentence = f"{DUMPS}={value}: a time-out leaves no flight record behind"
        yield warning(sentence, f"export {DUMPS}=1")
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")  # before torch 2.9
    file = next((environment[name] for name in names if environment.get(name)), "")
    if not file:
        return
    folder, there = Path(file).parent, False
    with suppress(OSError, NoAnswerFromStorage):
        there = apart(CACHE_LIMIT_S, folder.is_dir)
    if not there:
        sentence = f"{folder} is not there: torch makes no folder for its flight records"
        yield warning(sentence, f"mkdir -p {quote(str(folder))}")


ARM = (
    "on ARM a lost compare-and-swap leaves NCCL's proxy without places: collectives hang silently "
    "(https://github.com/marin-community/marin/pull/8038)"
)
OLD_KERNEL = (
    "processes that train may hang on kernels before 5.5 "
    "(accelerate/utils/other.py, check_os_kernel)"
)
ABORT = "ncclCommAbort may never return (https://github.com/pytorch/pytorch/pull/149546)"
NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
KNOWN_HANGS = (
    ("linux", (0,), (5, 5), "", OLD_KERNEL, "boot a kernel of 5.5 or newer"),
    *(
        (name, (2,), (2, 29, 3), "aarch64", ARM, f"pip install -U '{name}>=2.29.3'")
        for name in NCCL
    ),
    (NCCL[0], (2, 26), (2, 26, 2), "", ABORT, "pip install -U torch"),
)
"""What hangs, first affected version, first fixed version, affected machine, source and remedy."""


@check("environment", "what hangs inside a library cannot be mended in the script")
def known_versions(
    _: Subject, installed: Mapping[str, str] | None = None, machine: str | None = None
) -> Iterator[Finding]:
    """The kernel and NCCL, against versions that are known to hang."""
    from importlib.metadata import PackageNotFoundError, version

    if installed is None:
        installed = {"linux": platform.release()}
        for name in NCCL:
            with suppress(PackageNotFoundError):
                installed[name] = version(name)
    hangs = False
    for what, first, before, only_on, sentence, remedy in KNOWN_HANGS:
        # 5.15.0-91-generic is 5, 15, 0
        head = re.match(r"\d+(?:\.\d+)*", installed.get(what, ""))
        found = tuple(map(int, head[0].split("."))) if head else ()
        if first <= found < before and only_on in ("", machine or platform.machine()):
            hangs = True
            commands = [remedy] if remedy.startswith("pip") else []
            advice = "" if commands else remedy
            yield warning(f"{what} {installed[what]}: {sentence}", *commands, advice=advice)
    if not hangs:
        shown = ", ".join(f"{name} {text}" for name, text in installed.items())
        yield ok(f"no version here is known to hang: {shown}")


@check(
    "environment",
    "rank 0 waits for the server while it creates the logger, and the others for rank 0",
    limit_s=8.0,
)
def wandb(subject: Subject) -> Finding | None:
    """WANDB_MODE, whether there is a key (never its value), and the server's answer."""
    environment = subject.environment
    if find_spec("wandb") is None or not subject.uses("wandb"):
        return None
    import netrc
    import urllib.error
    import urllib.request

    mode = environment.get("WANDB_MODE", "online")
    disabled = environment.get("WANDB_DISABLED", "").lower() in ("true", "1")
    if mode in ("disabled", "offline", "dryrun") or disabled:
        return ok(f"WANDB_MODE is {mode}: no server is asked")
    url = environment.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    host = urlsplit(url).hostname or ""
    netrc_file = Path(environment.get("NETRC") or f"{environment.get('HOME', '~')}/.netrc")
    has_key = bool(environment.get("WANDB_API_KEY"))
    with suppress(OSError, NoAnswerFromStorage, netrc.NetrcParseError):
        # `default` of a netrc matches every host: no key for wandb; no key is kept or shown
        has_key = has_key or apart(1.0, lambda: host in netrc.netrc(netrc_file.expanduser()).hosts)
    if not has_key:
        sentence = f"there is no key for {host}: wandb asks at a terminal, or fails"
        return warning(sentence, "wandb login", advice=f"log in, or {OFFLINE}")
    asked = urllib.request.Request(url, method="HEAD")  # noqa: S310 - wandb requests it, too
    try:
        urllib.request.urlopen(asked, timeout=ANSWER_LIMIT_S).close()  # noqa: S310 - likewise
    except urllib.error.HTTPError:
        pass  # an answer, too
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        refusal = getattr(why, "strerror", None) or why
        if isinstance(why, TimeoutError):
            refusal = f"nothing within {ANSWER_LIMIT_S:g} s"
        sentence = f"{host} does not answer ({refusal}): creating the logger waits for it"
        return failed(sentence, OFFLINE, advice=LATER)
    return ok(f"mode {mode}, a key is there, {host} answers")


@check(
    "environment",
    "ranks that cannot keep what they fetch fetch it again, or fail one by one; from_pretrained "
    "waits without a limit for a lock that another process holds",
    name="Hugging Face cache",
)
def hugging_face_cache(subject: Subject) -> Iterator[Finding]:
    """HF_HUB_OFFLINE, the cache folder by HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME, and its locks.

    The kernel's table says who holds them.
    """
    import psutil

    from lightning_hangcheck.look.open_files import file_locks, holders_of

    cache, locks = cache_folder(subject.environment), file_locks()
    offline = subject.environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")

    def look() -> tuple[bool, bool, list[tuple[Path, int]]]:
        held = []
        for path in islice((cache / ".locks").rglob("*.lock"), 5_000):
            with suppress(OSError):
                held += [(path, pid) for pid in holders_of(path.stat(), locks)]
        return cache.is_dir(), os.access(nearest(cache), os.W_OK | os.X_OK), held

    try:
        there, writable, held = apart(CACHE_LIMIT_S, look)
    except (OSError, NoAnswerFromStorage) as error:
        yield failed(f"{cache}: {error}", ANOTHER_CACHE)
        return
    if offline and not there:
        sentence = f"HF_HUB_OFFLINE is set, and there is no {cache}: nothing can be loaded by name"
        yield warning(sentence, "unset HF_HUB_OFFLINE", advice="name a local folder, or")
    elif not offline and not writable:
        sentence = f"{cache} cannot be written: every rank fails or fetches again"
        yield warning(sentence, ANOTHER_CACHE)
    else:
        yield ok(f"{cache} {'is read only offline' if offline else 'can be written'}")
    for path, pid in held:
        holder = "of another user, or gone"
        with suppress(psutil.Error):
            holder = psutil.Process(pid).name()
        sentence = f"{path} is held by pid {pid} ({holder})"
        yield warning(sentence, f"ps -fp {pid}", check="Hugging Face locks")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that huggingface_hub uses (its constants.py)."""
    caches = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '~')}/.cache"
    hub_home = environment.get("HF_HOME") or f"{caches}/huggingface"
    chosen = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return Path(chosen or f"{hub_home}/hub").expanduser()
