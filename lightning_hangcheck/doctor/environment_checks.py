"""Checks whether settings, versions and services of the environment cause or hide a hang."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lightning_hangcheck.doctor.check import Finding, Subject, check, failed, nearest, ok, warning
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.look.programs import VARIABLE, is_unbuffered, kept_back_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
