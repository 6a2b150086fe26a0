"""The session: what the ranks of one job on one node share in memory while it runs.

    <shared memory>/hangcheck-<uid>/<key>/
        session.json     path of the run folder, and more; created once, by the first process
        pages/<pid>.page one page per recording process
        sidecar.json     the process id of this node's sidecar
        place.json       which of the job's nodes this is
        run-folder       run folder that the processes agreed on; see `run_folders`
        watch.json       what the sidecar now knows of the ranks; see `observe.run_record`
        state            one byte: the newest verdict as a number, see `alerts.STATES`
        sidecar.lock     locked by the sidecar, so that there is only one
        meet/<name>/     meeting points of the guards
        torch/<pid>      socket of torch's worker server in that rank
        torch/<pid>.withheld   why that rank has none
        journals/        lines waiting for the run folder; see `journal_carrier`
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

from lightning_hangcheck import files, log
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.identity import Identity, NodePlace, identify
from lightning_hangcheck.machine import (
    is_alive,
    pid_namespace,
    read_process_stat,
    which_machine,
)
from lightning_hangcheck.rundir import Part, RunFolder, folder_of_node, name_run_folder
from lightning_hangcheck.text.shown import show_command, utc_now

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from typing import NamedTuple
else:
    from lightning_hangcheck.plain import NamedTuple


SESSION_VARIABLE = "HANGCHECK_SESSION"
NAMESPACE_FILE = "namespace"
SESSION_FILE, SIDECAR_FILE = "session.json", "sidecar.json"
LEFT_BEHIND_AFTER_S = 3600.0  # in a session that is being made, the next write comes within moments
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own below it, mode 0700

MOST_NAMES = 10
"""Names to try for the folder of sessions; somebody took all earlier names on purpose."""


class SessionFacts(NamedTuple):
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
            node, or its ranks must say it: `place_of` asks both.
        store: Host and port of the store where the launchers of all nodes meet, as the command
            says; the host is empty if it does not.
    """

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


class SidecarFacts(NamedTuple):
    """sidecar.json: which process is this node's sidecar. The sidecar removes it on leaving."""

    pid: int
    started_ticks: int


class StackOffer(NamedTuple):
    """How a rank can be made to write its stacks to ``answers``, if no debugger may read it."""

    pid: int
    started_ticks: int
    signal: int
    main_thread: int
    answers: str


class _PathAndFacts(NamedTuple):
    path: Path
    facts: SessionFacts


class Session(_PathAndFacts):
    """A session's folder and facts; the module docstring lists its files."""

    @property
    def run_folder(self) -> RunFolder:
        """The run folder that the session's processes agreed on, else the named folder."""
        try:
            return RunFolder(Path(os.fsdecode(files.read_owned(self.run_folder_file))))
        except OSError:
            return RunFolder(Path(self.facts.run_dir))

    run_folder_file = Part("run-folder")
    pages = Part("pages")
    sidecar_file = Part(SIDECAR_FILE)
    place_file = Part("place.json")
    watch_file = Part("watch.json")
    state_file = Part("state")
    watch_lock = Part("sidecar.lock")
    journals = Part("journals")
    meetings = Part("meet")
    torch_servers = Part("torch")

    def note_end(self, pid: int, exit_code: int) -> None:
        """Keep the exit code of a child that has a page: only its parent learns it."""
        if (self.pages / f"{pid}.page").exists():
            files.write_atomically(self.path / "ends" / str(pid), str(exit_code).encode())

    def end_of(self, pid: int) -> int | None:
        """Return the exit code that a parent has kept; None if there is none."""
        try:
            return int(files.read_owned(self.path / "ends" / str(pid)))
        except (OSError, ValueError):
            return None

    def leave(self, pid: int) -> None:
        """Remove a process's page; the last process of a job without sidecar frees the session."""
        # With a sidecar nothing is removed: the sidecar reads the pages of ended ranks, and frees
        # the session itself. What ranks left at a meeting stays for late ranks, until
        # `remove_left_behind` finds the job gone.
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
    """Join the job's session, or open it, with ``run_dir`` if the user named a run folder."""
    # A later round joins the session of the round before, and so its run folder. A process without
    # a launcher opens a new session and exports it in ``environment``, for the ranks that Lightning
    # starts later. OSError if shared memory cannot be used; UnreadableRun if the named session is
    # gone or unreadable.
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
        started_at=utc_now(6),
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
    """Create or join the session; OSError without shared memory, UnreadableRun if it is torn."""
    files.make_private_folder(folder.parent)
    if not folder.exists():  # once per session, not by each of its ranks
        remove_left_behind(folder.parent)
    files.make_private_folder(folder)
    for part in ("pages", "meet", "journals", "ends"):
        files.make_private_folder(folder / part)
    files.write_atomically(folder / NAMESPACE_FILE, pid_namespace().encode())
    data = files.create_once(folder / SESSION_FILE, files.encode_plain(facts))
    return _decoded(folder, data)


def read_session(folder: Path) -> Session:
    """Join a session that must exist; `UnreadableRun` if it is gone or unreadable."""
    file = folder / SESSION_FILE
    try:
        data = files.read_owned(file)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        state = "is gone" if gone else f"cannot be read ({error.strerror})"
        raise UnreadableRun(f"{file} {state}", "start the run again") from error
    return _decoded(folder, data)


def _decoded(folder: Path, data: bytes) -> Session:
    facts = files.decode(data, SessionFacts, str(folder / SESSION_FILE))
    node, (host, port) = facts.node, facts.store  # JSON knows lists only
    node = None if node is None else NodePlace(*node)
    return Session(folder, facts._replace(node=node, store=(host, port)))


def read_sidecar(file: Path) -> SidecarFacts | None:
    """Read sidecar.json; None if no sidecar has announced itself, or it has left."""
    return files.read_fact(file, SidecarFacts)


def offer_file(session: Path, pid: int) -> Path:
    """Return where a process of a session writes its offer."""
    return session / "stacks" / f"{pid}.json"


def find_offer(pid: int) -> StackOffer | None:
    """Return the offer of a process of this user, never of an earlier one with that id."""
    found = sessions_folder().glob(f"*/stacks/{pid}.json")
    offers = filter(None, (files.read_fact(file, StackOffer) for file in found))
    return next((offer for offer in offers if is_alive(pid, offer.started_ticks)), None)


def withhold(socket: Path, why: str) -> None:
    """Leave for the sidecar why a rank has no such socket; does nothing without shared memory."""
    with suppress(OSError):
        files.make_private_folder(socket.parent)
        files.write_atomically(
            socket.with_name(f"{socket.name}.withheld"), why.encode(errors="replace")
        )


def why_withheld(socket: Path) -> str | None:
    """Return the reason that a rank left, None if it left none."""
    try:
        return socket.with_name(f"{socket.name}.withheld").read_text(errors="replace")
    except OSError:
        return None


def remove_left_behind(sessions: Path) -> None:
    """Remove old sessions whose processes are all gone: killed jobs leave them."""
    # Ranks may come hours after the command that starts them, and a session looks old at once if
    # the clock jumps by hours. So a session stays while that command, or the sidecar, lives. A
    # session of another pid namespace (a container that shares this memory) stays: its processes
    # are invisible.
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
    return files.read_owned(session / NAMESPACE_FILE) == pid_namespace().encode()


def sessions_folder(user_id: int | None = None) -> Path:
    """Return where a user's sessions are, ours by default: in shared memory if there is any."""
    # Anybody may make a folder there, even under our name. Then the next name is used, which all
    # processes of the user find in the same way.
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


# Which job, start of the job and node a process is of, by its launcher's variables

UNNAMED_RUN = "none"  # torchrun's --rdzv-id if nobody sets it
MOST_WRAPPERS = 8  # shells between torchrun and a rank that are looked through


def job_key(environment: Mapping[str, str], identity: Identity) -> str:
    """Return a key that all ranks of the job share, whatever their node and round."""
    # Successive jobs on several nodes with the same rendezvous address and no --rdzv-id share the
    # key: nothing that torchrun tells all nodes differs between them.
    started_by_hand = identity.launcher in ("none", "lightning")
    spread = "NODE_RANK" in environment and "MASTER_ADDR" in environment
    alone = identity.nodes == 1 and not (started_by_hand and spread)
    if alone or identity.launcher == "slurm":
        return node_key(environment, identity)
    run = environment.get("TORCHELASTIC_RUN_ID", UNNAMED_RUN)
    if run != UNNAMED_RUN:
        return f"torchrun-{run}"
    launcher = "plain" if started_by_hand else identity.launcher
    return f"{launcher}-{identity.store_host or 0}-{identity.store_port or 0}"


def node_key(environment: Mapping[str, str], identity: Identity) -> str:
    """Return a key that only this job's ranks share on this node, in all its rounds."""
    if identity.launcher == "torchrun":
        return f"torchrun-{_named_for_ever(agent_pid(environment))}"
    if identity.launcher == "slurm":
        return f"slurm-{environment.get('SLURM_JOB_ID')}-{environment.get('SLURM_STEP_ID')}"
    if identity.launcher == "environment":
        named = f"port-{environment.get('MASTER_PORT', '0')}-session-{os.getsid(0)}"
        # two node daemons may run on one machine, started from one terminal
        node = "" if identity.node_rank is None else f"-node-{identity.node_rank}"
        return f"{named}{node}-{which_machine()}"
    # the process from which Lightning starts, or will start, the other ranks
    child = identity.launcher == "lightning" and bool(identity.local_rank)
    starter = os.getppid() if child or spawned_as() is not None else os.getpid()
    return f"pid-{_named_for_ever(starter)}"


def start_key(environment: Mapping[str, str], identity: Identity) -> str:
    """Return a key that only the ranks of this start of the job share on this node."""
    # One session can have several starts: a launcher restarts failed ranks, or a script trains
    # twice.
    if identity.launcher == "torchrun":
        count = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return "-".join((key_of_nodes(environment, identity), count, *_attempt(environment)))
    started = node_key(environment, identity)
    spawned = spawned_as()
    if identity.launcher in ("none", "lightning") and spawned is not None:
        # children of ddp_spawn are numbered in order of their start (SpawnProcess-3): the number of
        # the first that was spawned with us tells one `fit` from the next
        number = spawned.rpartition("-")[2]
        first = int(number) - (identity.local_rank or 0) if number.isdecimal() else 0
        return f"{started}-spawn-{first}"
    return started if identity.round is None else f"{started}-{identity.round}"


def _attempt(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs between two starts on this node if all torchrun variables are equal."""
    # torchrun makes <its temporary folder>/<run id>_<random>/attempt_<n>/<local rank>/error.json
    # anew for each start. If nodes came or went, <n> is the same, but the creation time differs.
    error_file = Path(environment.get("TORCHELASTIC_ERROR_FILE", ""))
    try:
        made = error_file.parents[1].stat()
    except (IndexError, OSError):
        return error_file.parts[-4:-2]
    return (*error_file.parts[-4:-2], f"{made.st_ino:x}", f"{made.st_mtime_ns:x}")


def key_of_nodes(environment: Mapping[str, str], identity: Identity) -> str:
    """Return a key that all ranks of the job share on all nodes; other starts may share it."""
    # TORCHELASTIC_RESTART_COUNT is left out: it differs between nodes within one round.
    if identity.launcher == "slurm":
        return start_key(environment, identity)
    parts = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "WORLD_SIZE")
    return "-".join((identity.launcher, *(environment.get(part, "0") for part in parts)))


def agent_pid(environment: Mapping[str, str]) -> int:
    """Return torchrun's process on this node: the first ancestor without the run id variable."""
    # It is our parent, unless a shell script is between (``torchrun --no-python wrapper.sh``).
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    pid = os.getppid()
    for _ in range(MOST_WRAPPERS):
        stat = read_process_stat(pid)
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return pid
        if stat is None or f"TORCHELASTIC_RUN_ID={run}".encode() not in variables:
            return pid
        pid = stat.parent_pid
    return os.getppid()


def spawned_as() -> str | None:
    """Return our name in multiprocessing; None if multiprocessing did not start us."""
    # such a child has imported it already; importing it costs other processes 10 ms
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return None
    return str(process.current_process().name)


def _named_for_ever(pid: int) -> str:
    stat = read_process_stat(pid)
    return f"{pid}-{stat.started_ticks if stat else 0}"


def place_in(environment: Mapping[str, str]) -> NodePlace | None:
    """Read which node a rank is on; None if the node's number or the node count is unknown."""
    who = identify(environment)
    number, nnodes, served = who.node_rank, who.nodes, who.agent_store
    by_launcher = who.launcher in ("torchrun", "slurm") or nnodes > 1
    if not by_launcher or number is None or number >= nnodes:
        return None
    return NodePlace(
        number=number,
        nnodes=nnodes,
        host=who.store_host or "" if served else "",
        port=who.store_port or 0 if served else 0,
        ranks=who.local_world_size or 0,
        job=job_key(environment, who),
        first=who.first_host,
    )


def place_of_task(environment: Mapping[str, str]) -> NodePlace | None:
    """Read the place of a SLURM task that is a `hangcheck run`: it watches only its own ranks.

    If a step has several tasks per node, each counts as a node. None unless it is one of several.
    """
    who = identify(environment)
    tasks, nodes = who.world_size or 1, who.nodes
    if who.launcher != "slurm" or who.rank is None or tasks == 1:
        return None
    if tasks <= nodes:
        return place_in(environment)
    job, first = job_key(environment, who), who.first_host
    return NodePlace(number=who.rank, nnodes=tasks, ranks=1, job=job, machines=nodes, first=first)


def place_of(session: Session) -> NodePlace | None:
    """Return this node's place: the newest from a rank, else from the launcher's command."""
    # Only the command says where nodes meet. They must agree before any rank runs, and keep the
    # place in later rounds, in which a rank's own store may be another store.
    facts, first = session.facts, session.facts.node
    place = files.read_fact(session.place_file, NodePlace)
    if place is None:
        return first
    if first is None and facts.store[0]:
        host, port = facts.store
        return place._replace(host=host, port=port, job=facts.job or place.job)
    if first is None or first.machines:
        return first or place
    return first._replace(number=place.number, nnodes=place.nnodes, ranks=place.ranks)


def tell_place(session: Session, place: NodePlace) -> None:
    """Tell this node's sidecar which node it is on; a failure is logged once."""
    try:
        files.write_atomically(session.place_file, files.encode_plain(place))
    except OSError as error:
        log.once("place", f"this node's sidecar is not told which node it is on: {error}")
