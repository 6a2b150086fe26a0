"""The session: what the ranks of one job on one node share in memory while it runs.

    <shared memory>/hangcheck-<uid>/<key>/
        session.json     path of the run folder, and more; created once, by the first process
        pages/<pid>.page one page per recording process
        sidecar.json     the process id of this node's sidecar
        place.json       which of the job's nodes this is; see `whose`
        run-folder       run folder that the processes agreed on; see `run_folders`
        watch.json       what the sidecar now knows of the ranks; see `observe.run_record`
        sidecar.lock     locked by the sidecar, so that there is only one
        meet/<name>/     meeting points of the guards
        torch/<pid>      socket of torch's worker server in that rank
        torch/<pid>.withheld   why that rank has none
        journals/        lines waiting for the run folder; see `run_folders`
        stacks/<pid>.*   how that rank can be made to write its stacks
        ends/<pid>       exit code of that rank, from the parent that reaped it

`hangcheck run` names the session in HANGCHECK_SESSION. Without it, ranks of a launcher derive a key
from what the launcher tells all of them. A plainly started process opens its own session and
exports it, for the ranks that Lightning later starts from there.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.safe import (
    create_once,
    decode,
    make_private_folder,
    read_fact,
    read_owned,
    write_atomically,
)
from lightning_hangcheck.machine import pid_namespace, which_machine
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.rundir import Part, RunFolder, folder_of_node, name_run_folder
from lightning_hangcheck.session.whose import agent_pid, job_key, node_key
from lightning_hangcheck.text.shown import show_command, utc_now

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from lightning_hangcheck.identity import Identity

SESSION_VARIABLE = "HANGCHECK_SESSION"
NAMESPACE_FILE = "namespace"
SESSION_FILE, SIDECAR_FILE = "session.json", "sidecar.json"
LEFT_BEHIND_AFTER_S = 3600.0  # in a session that is being made, the next write comes within moments
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own below it, mode 0700

MOST_NAMES = 10
"""Names to try for the folder of sessions; somebody took all earlier names on purpose."""


class SessionFacts(Struct, frozen=True, kw_only=True):
    """session.json.

    Attributes:
        root_pid: Process whose descendants are this node's job: the launched command, or the
            process that all ranks come from.
        launched: Opened by `hangcheck run`, which starts the sidecar itself.
        job: The job of the run, equal for its ranks on all nodes; empty if `hangcheck run` started
            it and has claimed the run folder already.
        numbered: A launcher gave each rank its number, so no process is guessed to be a rank: the
            root may be a daemon, with processes of other jobs below it.
        restarts: While it lives, the root restarts ranks that fail: torchrun's agent.
        node: Which of several nodes this is, as the launcher's command says; None if there is one
            node, or its ranks must say it: `whose.place_of` asks both.
        store: Host and port of the store where the launchers of all nodes meet, as the command
            says; the host is empty if it does not.
    """

    schema_version: int = 1
    run_dir: str
    command: str
    started_at: str
    root_pid: int
    launched: bool = False
    job: str = ""
    numbered: bool = False
    restarts: bool = False
    node: NodePlace | None = None
    store: tuple[str, int] = ("", 0)


class SidecarFacts(Struct, frozen=True, kw_only=True):
    """sidecar.json: which process is this node's sidecar. The sidecar removes it on leaving."""

    schema_version: int = 1
    pid: int
    started_ticks: int


class StackOffer(Struct, frozen=True, kw_only=True):
    """How a rank can be made to write its stacks to ``answers``, if no debugger may read it."""

    pid: int
    started_ticks: int
    signal: int
    main_thread: int
    answers: str


class Session(Struct, frozen=True):
    """A session's folder and facts; the module docstring lists its files."""

    path: Path
    facts: SessionFacts

    @property
    def run_folder(self) -> RunFolder:
        """The run folder that the session's processes agreed on, else the named folder."""
        try:
            return RunFolder(Path(os.fsdecode(read_owned(self.run_folder_file))))
        except OSError:
            return RunFolder(Path(self.facts.run_dir))

    run_folder_file = Part("run-folder")
    pages = Part("pages")
    sidecar_file = Part(SIDECAR_FILE)
    place_file = Part("place.json")
    watch_file = Part("watch.json")
    watch_lock = Part("sidecar.lock")
    journals = Part("journals")
    meetings = Part("meet")
    torch_servers = Part("torch")

    def note_end(self, pid: int, exit_code: int) -> None:
        """Keep the exit code of a child that has a page: only its parent learns it."""
        if (self.pages / f"{pid}.page").exists():
            write_atomically(self.path / "ends" / str(pid), str(exit_code).encode())

    def end_of(self, pid: int) -> int | None:
        """Return the exit code that a parent has kept; None if there is none."""
        try:
            return int(read_owned(self.path / "ends" / str(pid)))
        except (OSError, ValueError):
            return None

    def leave(self, pid: int) -> None:
        """Remove a process's page; the last process of a job without sidecar frees the session.

        With a sidecar nothing is removed: the sidecar reads the pages of ended ranks, and frees the
        session itself. What ranks left at a meeting stays for late ranks, until
        `remove_left_behind` finds the job gone.
        """
        if self.facts.launched or self.sidecar_file.exists():
            return
        try:
            (self.pages / f"{pid}.page").unlink(missing_ok=True)
            if not any(self.pages.iterdir()) and not any(self.meetings.iterdir()):
                self.remove()
        except OSError:
            return

    def remove(self) -> None:
        """Free the shared memory. A session that is gone already is no error."""
        _remove(self.path)


def _remove(folder: Path) -> None:
    import shutil  # 2 ms that a rank does not pay at its start

    shutil.rmtree(folder, ignore_errors=True)


def join_session(
    environment: MutableMapping[str, str], identity: Identity, run_dir: str | None
) -> Session:
    """Join the job's session, or open it, with ``run_dir`` if the user named a run folder.

    A later round joins the session of the round before, and so its run folder. A process without a
    launcher opens a new session and exports it in ``environment``, for the ranks that Lightning
    starts later. OSError if shared memory cannot be used; UnreadableRun if the named session is
    gone or unreadable.
    """
    named = environment.get(SESSION_VARIABLE)
    if named:
        # `hangcheck run` in front of srun named a session of another machine
        if identity.launcher == "slurm" and not Path(named).exists():
            raise UnreadableRun(
                f"{named} is not on this machine, where hangcheck run was not started",
                "put it behind srun: srun hangcheck run -- python train.py",
            )
        return read_session(Path(named))
    alone = identity.launcher in ("none", "lightning")
    # containers may share this memory, and have equal ids of processes and SLURM steps
    key = new_key() if alone else f"{node_key(environment, identity)}-{which_machine()}"
    folder = name_run_folder(run_dir)
    if identity.node_rank and run_dir is not None:
        # all nodes of a job get the same folder; all but the first use a subfolder
        folder = folder_of_node(run_dir, str(identity.node_rank))
    root_pid = os.getpid() if alone else os.getppid()
    facts = SessionFacts(
        run_dir=str(folder.path),
        command=show_command(sys.orig_argv),
        started_at=utc_now("microseconds"),
        job=job_key(environment, identity),
        root_pid=agent_pid(environment) if identity.launcher == "torchrun" else root_pid,
        numbered=not alone,
        restarts=identity.launcher == "torchrun",
    )
    session = open_session(session_folder(key), facts)
    if alone:
        environment[SESSION_VARIABLE] = str(session.path)
    return session


def open_session(folder: Path, facts: SessionFacts) -> Session:
    """Create the session, or join the session that another rank has just created.

    OSError if shared memory cannot be used; UnreadableRun if session.json is unreadable.
    """
    make_private_folder(folder.parent)
    if not folder.exists():  # once per session, not by each of its ranks
        remove_left_behind(folder.parent)
    make_private_folder(folder)
    for part in ("pages", "meet", "journals", "ends"):
        make_private_folder(folder / part)
    write_atomically(folder / NAMESPACE_FILE, pid_namespace().encode())
    data = create_once(folder / SESSION_FILE, encode(facts))
    return Session(folder, decode(data, SessionFacts, str(folder / SESSION_FILE)))


def read_session(folder: Path) -> Session:
    """Join a session that must exist; `UnreadableRun` if it is gone or unreadable."""
    file = folder / SESSION_FILE
    try:
        data = read_owned(file)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        state = "is gone" if gone else f"cannot be read ({error.strerror})"
        raise UnreadableRun(f"{file} {state}", "start the run again") from error
    return Session(folder, decode(data, SessionFacts, str(file)))


def read_sidecar(file: Path) -> SidecarFacts | None:
    """Read sidecar.json; None if no sidecar has announced itself, or it has left."""
    return read_fact(file, SidecarFacts)


def offer_file(session: Path, pid: int) -> Path:
    """Return where a process of a session writes its offer."""
    return session / "stacks" / f"{pid}.json"


def find_offer(pid: int) -> StackOffer | None:
    """Return the offer of a process of this user, or of an earlier process with that id."""
    files = sessions_folder().glob(f"*/stacks/{pid}.json")
    return next(filter(None, (read_fact(file, StackOffer) for file in files)), None)


def withhold(socket: Path, why: str) -> None:
    """Leave for the sidecar why a rank has no such socket; does nothing without shared memory."""
    with suppress(OSError):
        make_private_folder(socket.parent)
        write_atomically(socket.with_name(f"{socket.name}.withheld"), why.encode(errors="replace"))


def why_withheld(socket: Path) -> str | None:
    """Return the reason that a rank left, None if it left none."""
    try:
        return socket.with_name(f"{socket.name}.withheld").read_text(errors="replace")
    except OSError:
        return None


def remove_left_behind(sessions: Path) -> None:
    """Remove old sessions whose processes are all gone: killed jobs leave them.

    Ranks may come hours after the command that starts them, and a session looks old at once if the
    clock jumps by hours. So a session stays while that command, or the sidecar, lives. A session of
    another pid namespace (a container that shares this memory) stays: its processes are invisible.
    """
    for folder in sessions.iterdir() if sessions.is_dir() else ():
        pages = folder / "pages"
        with suppress(OSError):
            if not folder.is_dir() or not of_this_namespace(folder):
                continue
            newest = max(path.stat().st_mtime for path in (folder, pages, *pages.iterdir()))
            if time.time() - newest <= LEFT_BEHIND_AFTER_S:
                continue
            pids = {page.stem for page in pages.glob("*.page")}
            with suppress(UnreadableRun):
                pids.add(str(read_session(folder).facts.root_pid))
            if (sidecar := read_sidecar(folder / SIDECAR_FILE)) is not None:
                pids.add(str(sidecar.pid))
            if not any(Path(f"/proc/{pid}").exists() for pid in pids):
                _remove(folder)


def of_this_namespace(session: Path) -> bool:
    """Whether a session's processes are visible from here; OSError if unknown."""
    return read_owned(session / NAMESPACE_FILE) == pid_namespace().encode()


def sessions_folder(user_id: int | None = None) -> Path:
    """Return where a user's sessions are, ours by default: in shared memory if there is any.

    Anybody may make a folder there, even under our name. Then the next name is used, which all
    processes of the user find in the same way.
    """
    owner = os.getuid() if user_id is None else user_id
    top = SHARED_MEMORY
    if not os.access(SHARED_MEMORY, os.W_OK):
        import tempfile  # 2 ms, and hardly ever needed

        top = Path(tempfile.gettempdir())
    numbers = ("", *(f"-{number}" for number in range(1, MOST_NAMES)))
    names, free = [top / f"hangcheck-{owner}{number}" for number in numbers], None
    for folder in names:
        try:
            found = folder.lstat()
        except FileNotFoundError:
            free = free or folder
        else:
            if stat.S_ISDIR(found.st_mode) and found.st_uid == owner:
                return folder
    return free or names[0]


def session_folder(key: str) -> Path:
    """Return the folder of a session key."""
    return sessions_folder() / key


def new_key() -> str:
    """Return a key that no other session has."""
    return os.urandom(6).hex()
