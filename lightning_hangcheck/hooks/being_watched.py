"""Makes a rank observable: offers its flight record and stacks, and starts a sidecar.

If `hangcheck run` did not start a sidecar, the first process of each node does. Below `hangcheck
run`, Python imports the ``sitecustomize`` of `INJECT_FOLDER` in every process, which calls `start`
in a rank. torch's worker server, a private API, answers the probes. It is reached through
``sys.modules``, so nothing here imports torch. A torch without it only means that the rank has no
flight record.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without slow enumerations
import atexit
import faulthandler
import os
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from lightning_hangcheck import log, machine
from lightning_hangcheck.files import (
    encode_plain,
    make_private_folder,
    open_for_append,
    write_atomically,
)
from lightning_hangcheck.identity import NodePlace, identify
from lightning_hangcheck.model.words import STARTING_SERVER
from lightning_hangcheck.recorder.lifecycle import Recorder, Section, current
from lightning_hangcheck.recorder.process import say_withheld
from lightning_hangcheck.session.session import (
    Session,
    StackOffer,
    job_key,
    offer_file,
    place_of,
    read_sidecar,
    spawned_as,
    tell_place,
)

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeAlias

    Number: TypeAlias = Literal[1, 4, 5, 7, 8, 9, 11, 12]

INJECT_FOLDER = Path(__file__).parent / "zero_code" / "inject"
REHEARSAL = "HANGCHECK_REHEARSAL"
"""Environment variable with a `rehearsal.Part` as JSON: its presence makes a run a rehearsal."""
LARGEST_SCRIPT = 1_000_000  # bytes that are read
CHECKPOINTS: dict[Number, str] = {
    1: "Script started",
    4: "Tokenizer loaded",
    5: "Model created",
    7: "DataModule ready",
    8: "Accelerator configured",
    9: "WandbLogger ready (prime suspect)",
    11: "Trainer ready (prime suspect)",
    12: "Training finished",
}
"""Checkpoints of the reference script that a watched call proves."""
MOST_STARTS = 4  # the first, and three after losses; more would not help
BINDINGS, PACKAGES = "torch._C._distributed_c10d", ("torch", "torch.distributed")
LONGEST_PATH = 107
"""Bytes in sockaddr_un.sun_path without its zero (unix(7)); torch aborts on longer paths."""
THREADS = 1 + max(8, (os.cpu_count() or 1) - 1)
"""One listens, the rest answer (cpp-httplib, CPPHTTPLIB_THREAD_POOL_COUNT), whatever the affinity.
If the kernel refuses a thread, the process aborts, and nothing can catch that."""
SETTLES_FOR_S = 5.0
"""Wait after torch's import if no process group is made: a rank may wait for a store by itself."""


def injected(python_path: str | None) -> str:
    """Return the PYTHONPATH of a job that records without a change to its code."""
    return os.pathsep.join(filter(None, (str(INJECT_FOLDER), python_path)))


def start() -> None:
    """Record this process from here on: its page, pulse, records, last words and exit."""
    be_watched(current())
    # at exit, Python calls functions registered here, then waits for non-daemon threads, then calls
    # exit handlers; private, because nothing else is called that early (3.10 to 3.13)
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(current().begin_shutdown)
    passed(1)


@cache
def passed(number: Number) -> None:
    """Report once that a checkpoint was passed, unless the script uses this package itself."""
    if not _script_names_us():
        current().checkpoint(CHECKPOINTS[number], number, ours=True)


def passing(number: Number) -> Callable[[object], None]:
    """Make a function that reports this checkpoint, whatever call it is given."""
    return lambda _: passed(number)


@cache
def _script_names_us() -> bool:
    try:
        with open(sys.argv[0], "rb") as file:  # noqa: PTH123 - no script has an empty path
            return b"lightning_hangcheck" in file.read(LARGEST_SCRIPT)
    except (OSError, IndexError):  # python -c, python -m
        return False


def be_watched(recorder: Recorder) -> None:
    """Offer this rank's records and stacks, and have it watched; again once its number is known."""
    if spawned_as() is not None:
        recorder.be_rank_of_environment()
    recorder.begin_training()
    if recorder.session is not None:
        keep_sidecar(recorder)
        offer_flight_record(recorder, recorder.session)
        offer_stacks(recorder.session)
    # otherwise NCCL's threads look like those of a library that may call back into user code
    os.environ.setdefault("NCCL_SET_THREAD_NAME", "1")


def keep_sidecar(recorder: Recorder) -> None:
    """Start this node's sidecar if that is this process's job; replace a lost sidecar."""
    # It is the job of the node's first rank, or of the process that starts Lightning's other ranks.
    session = recorder.session
    if session is None or session.facts.launched or recorder.on_sidecar_lost is not None:
        return
    identity = identify(os.environ)
    if identity.launcher in ("none", "lightning") and spawned_as() is not None:
        # children of ddp_spawn have no rank yet, and their parent has a sidecar. A child without
        # such a parent is watched only if it trains alone, because it could not find other ranks
        size = recorder.identity.world_size
        if session.facts.root_pid != os.getpid() or size is None:
            return
        if size > 1:
            log.once(
                "child",
                "this rank is not watched: nothing tells a child of multiprocessing where its "
                "ranks meet; start the script with hangcheck run, or make HangCheck() before them",
            )
            return
    elif identity.rank if identity.local_rank is None else identity.local_rank:
        return
    starts_left = MOST_STARTS

    def start_one() -> None:
        """Start the sidecar; log a failure once and train unwatched. Never raises."""
        nonlocal starts_left
        if not starts_left or recorder.session is None:
            return
        starts_left -= 1
        # imported here: takes 20 ms, which only a process that starts a sidecar pays
        from lightning_hangcheck.watch.link import start_sidecar

        try:
            start_sidecar(recorder.session, recorder.settings)
        except OSError as error:
            log.once("sidecar", f"the sidecar cannot be started ({error}); training goes unwatched")
        else:
            if starts_left < MOST_STARTS - 1:
                log.once("sidecar-again", "a new sidecar was started")

    recorder.on_sidecar_lost = start_one
    sidecar = read_sidecar(session.sidecar_file)
    if sidecar is None or not machine.is_alive(sidecar.pid, sidecar.started_ticks):
        start_one()


def tell_of_nodes(recorder: Recorder, nnodes: int, number: int) -> None:
    """Tell this node's sidecar its node number and the node count, if no launcher variable does."""
    session, who = recorder.session, recorder.identity
    if session is None or nnodes < 2 or who.local_rank or place_of(session) is not None:
        return
    launched = identify(os.environ)
    ranks, job = (who.world_size or 0) // nnodes, job_key(os.environ, launched)
    first = launched.store_host or ""
    tell_place(session, NodePlace(number, nnodes, ranks=ranks, job=job, first=first))


def offer_flight_record(recorder: Recorder, session: Session) -> None:
    """Start torch's worker server in this rank shortly before it meets other ranks."""
    # The pulse thread starts it, within 0.5 s of `init_process_group` or some seconds after torch's
    # import; training waits for nothing. It starts late because some programs close all descriptors
    # early: closing the server's ends the process (torch 2.13 throws in a thread). Once the process
    # group exists, the page says that the rank has left startup.
    if recorder.on_pulse is not None:
        return
    path = session.torch_servers / str(os.getpid())
    start_at: float | None = None

    def start_server() -> None:
        nonlocal start_at
        if not bindings_are_there():
            return
        start_at = start_at or time.monotonic() + SETTLES_FOR_S
        if not recorder.meets_ranks and time.monotonic() < start_at:
            return
        recorder.on_pulse = leave_startup
        with Section(recorder, STARTING_SERVER, spoken=False):
            try:
                machine.require_room(THREADS, recorder.identity.ranks_here)
            except machine.NoRoom as refusal:
                why = "this rank offers no flight record, training may need its threads"
                say_withheld(session, f"{why}: {refusal}")
            else:
                start_worker_server(path)
        leave_startup()

    def leave_startup() -> None:
        if sys.modules["torch.distributed"].is_initialized():
            recorder.on_pulse = lambda: None  # nothing is left to do
            recorder.leave_startup()

    recorder.on_pulse = start_server


def bindings_are_there() -> bool:
    """Whether the imports of torch and torch.distributed are complete."""
    specs = (getattr(sys.modules.get(package), "__spec__", None) for package in PACKAGES)
    whole = (spec is not None and not getattr(spec, "_initializing", False) for spec in specs)
    return BINDINGS in sys.modules and all(whole)


def start_worker_server(path: Path) -> bool:
    """Start the server on a unix socket for the process's lifetime; return whether it runs."""
    # In torch 2.13 neither ``shutdown`` nor the destructor returns, so the server is never freed.
    import ctypes

    server_class = getattr(sys.modules.get(BINDINGS), "_WorkerServer", None)
    if server_class is None or len(os.fsencode(path)) > LONGEST_PATH or path.exists():
        return False
    library = Path(str(sys.modules["torch"].__file__)).parent / "lib" / "libc10.so"
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # another build of torch: one line is announced
        level = ctypes.c_int()
    # 3, c10's FATAL, for 0.3 ms: at WARNING the server announces itself in the program's output
    before, level.value = level.value, 3
    try:
        make_private_folder(path.parent)
        server = server_class(str(path))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        log.once("worker-server", f"no flight record of this rank can be read: {error!r}")
        return False
    finally:
        level.value = before
    # leak a reference, so that no destructor runs, not even at exit
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    return True


def offer_stacks(session: Session) -> None:
    """Have a free real-time signal make this process write its stacks; takes 0.3 ms, once."""
    # No handled, ignored or blocked signal is taken. Without this, only py-spy can read the stacks.
    pid, main = os.getpid(), threading.main_thread()
    own, file = machine.read_process_stat(pid), offer_file(session.path, pid)
    if own is None or file.exists() or threading.current_thread() is not main:
        return
    answers = file.with_suffix(".txt")
    try:
        status, taken = machine.read_status("self"), 0
        for name in ("SigBlk", "SigIgn", "SigCgt"):
            taken |= int(status.get(name, "0"), 16)
        # profilers take the first few, and some runtimes the last
        usable = range(signal.SIGRTMIN + 9, signal.SIGRTMAX - 3)
        number = next((n for n in usable if not taken >> (n - 1) & 1), None)
        if number is None:
            return
        make_private_folder(file.parent)
        # never closed: the handler writes to it until the process ends
        descriptor = open_for_append(answers)
        # faulthandler restores this at exit; by default the signal would kill the process
        signal.signal(number, signal.SIG_IGN)
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
        offer = StackOffer(pid, own.started_ticks, number, main.ident or 0, str(answers))
        write_atomically(file, encode_plain(offer))
    except (OSError, ValueError, RuntimeError) as error:
        log.once("stack-offer", f"only py-spy can read the stacks of this rank: {error!r}")
        return

    def withdraw() -> None:
        """Remove the offer at exit, but not that of a forked child's parent."""
        if os.getpid() == pid:
            with suppress(OSError):
                file.unlink(missing_ok=True)
                answers.unlink(missing_ok=True)

    atexit.register(withdraw)
