"""Sessions: who opens and joins one, under which key, and what is noted in it."""

from __future__ import annotations

import inspect
import json
import os
import stat
import subprocess
import sys
import time
from _thread import start_new_thread
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

import lightning_hangcheck
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import encode_plain
from lightning_hangcheck.identity import Identity, NodePlace, identify
from lightning_hangcheck.machine import pid_namespace
from lightning_hangcheck.model.flight import MessageCounts
from lightning_hangcheck.rundir import RunFolder
from lightning_hangcheck.session import session as session_module
from lightning_hangcheck.session.collective_notes import (
    CALLS_KEPT,
    DEEPEST,
    MOST_SITES,
    CallNoter,
    note_group,
    noted,
    notes_file,
)
from lightning_hangcheck.session.run_folders import settle_run_folder
from lightning_hangcheck.session.session import (
    LEFT_BEHIND_AFTER_S,
    NAMESPACE_FILE,
    SESSION_VARIABLE,
    Session,
    SessionFacts,
    SidecarFacts,
    job_key,
    join_session,
    key_of_nodes,
    node_key,
    open_session,
    place_in,
    read_session,
    remove_left_behind,
    start_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TORCHRUN = Identity(rank=0, world_size=2, local_rank=0, launcher="torchrun")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of shared memory."""
    monkeypatch.setattr(session_module, "SHARED_MEMORY", tmp_path)
    return tmp_path


def facts(command: str) -> SessionFacts:
    return SessionFacts(run_dir="/runs/one", command=command, started_at="", root_pid=1)


def test_the_first_opens_and_the_others_join(tmp_path: Path) -> None:
    first = open_session(tmp_path / "hangcheck" / "key", facts("first"))
    second = open_session(tmp_path / "hangcheck" / "key", facts("second"))
    assert second.facts.command == "first"
    assert read_session(first.path) == first == second
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700
    assert first.pages.is_dir()
    assert first.meetings.is_dir()


def test_a_removed_session_cannot_be_joined_and_may_be_removed_again(tmp_path: Path) -> None:
    session = open_session(tmp_path / "key", facts("first"))
    session.remove()
    session.remove()
    with pytest.raises(UnreadableRun, match="is gone"):
        read_session(session.path)
    (tmp_path / "session.json").write_text("{")
    with pytest.raises(UnreadableRun, match="cannot be read"):
        read_session(tmp_path)


@pytest.mark.usefixtures("memory")
def test_a_round_that_torchrun_starts_again_joins_the_session_and_its_run_folder() -> None:
    first = join_session({"TORCHELASTIC_RESTART_COUNT": "0"}, TORCHRUN, None)
    second = join_session({"TORCHELASTIC_RESTART_COUNT": "1"}, TORCHRUN, None)
    assert second == first
    assert first.facts.restarts


@pytest.mark.usefixtures("memory")
def test_a_plain_process_opens_its_own_and_exports_it() -> None:
    environment: dict[str, str] = {}
    session = join_session(environment, Identity(), "/runs/one")
    assert environment == {SESSION_VARIABLE: str(session.path)}
    assert session.facts.root_pid == os.getpid()
    assert join_session({}, Identity(), None).path != session.path


def test_a_sidecar_keeps_the_pages_of_those_who_left(tmp_path: Path) -> None:
    session = open_session(tmp_path / "key", facts("train"))
    session.sidecar_file.touch()
    (session.pages / "1.page").touch()
    session.leave(1)
    assert (session.pages / "1.page").exists()


STEP = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
JOIN = """
import os
from lightning_hangcheck.identity import identify
from lightning_hangcheck.session.session import join_session
print(join_session(os.environ, identify(os.environ), None).path)
"""


@pytest.mark.parametrize(
    "prefix", [(), ("unshare", "--pid", "--fork")], ids=["process", "container"]
)
def test_tasks_of_a_step_share_a_session_where_they_see_each_others_processes(
    prefix: tuple[str, ...], memory: Path
) -> None:
    """Containers may share their host's memory (docker --ipc=host): 17 is another process there."""
    code = (
        "from pathlib import Path; import lightning_hangcheck.session.session as s\n"
        f"s.SHARED_MEMORY = Path({str(memory)!r})\n"
    )
    command = [*prefix, sys.executable, "-c", code + JOIN]
    environment = {**os.environ, **STEP}
    environment.pop(SESSION_VARIABLE, None)  # of another test of this process
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if prefix and "unshare" in done.stderr:
        pytest.skip(f"no pid namespace can be made here: {done.stderr.strip()}")
    ours = join_session(dict(STEP), identify(STEP), None)
    assert (Path(done.stdout.strip()) == ours.path) is not bool(prefix), done.stderr


@pytest.mark.parametrize("there", ["", "page", "command", "sidecar", "moments ago", "elsewhere"])
def test_an_old_session_goes_once_its_processes_are_gone(tmp_path: Path, there: str) -> None:
    """Ranks may come hours later; a clock that is set by hours makes all sessions old at once."""
    gone = subprocess.Popen(["true"])
    gone.wait()

    def pid_of(what: str) -> int:
        return os.getpid() if what == there else gone.pid

    session = tmp_path / "key"
    (session / "pages").mkdir(parents=True)
    (session / "pages" / f"{pid_of('page')}.page").touch()
    facts = SessionFacts(run_dir="", command="", started_at="", root_pid=pid_of("command"))
    (session / "session.json").write_bytes(encode_plain(facts))
    sidecar = SidecarFacts(pid=pid_of("sidecar"), started_ticks=0)
    (session / "sidecar.json").write_bytes(encode_plain(sidecar))
    namespace = "pid:[1]" if there == "elsewhere" else pid_namespace()
    (session / NAMESPACE_FILE).write_text(namespace)
    then = time.time() - (60 if there == "moments ago" else LEFT_BEHIND_AFTER_S + 60)
    for path in (*session.glob("pages/*"), session / "pages", session):
        os.utime(path, (then, then))
    remove_left_behind(tmp_path)
    assert session.exists() is bool(there)


SMALL = 'mount -t tmpfs -o size=256k none "$1" && shift && exec "$@"'
FILL = """
import sys
from pathlib import Path
room = Path(sys.argv[1])
def fill():
    with (room / "full").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
"""

NOTE_WHEN_FULL = f"""{FILL}
from lightning_hangcheck.session.collective_notes import CALLS_KEPT, MOST_SITES, CallNoter
calls = CallNoter(room / "torch" / "7")
fill()
for _ in range(CALLS_KEPT):
    calls.note(sys._getframe())
for peer in range(MOST_SITES + 1):
    calls.note(None, message=peer + 1)
"""

BEGIN_WHEN_FULL = f"""{FILL}
from lightning_hangcheck.session.collective_notes import CallNoter, note_group, noted
server = room / "torch" / "7"
note_group(server, "0", [0, 1])
fill()
try:
    CallNoter(server)
except OSError:
    assert noted(server).messages is None
else:
    raise SystemExit("it found room where there is none")
"""


@pytest.mark.parametrize("code", [NOTE_WHEN_FULL, BEGIN_WHEN_FULL], ids=["later", "from the start"])
def test_memory_that_fills_up_ends_no_rank(tmp_path: Path, code: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    unshared = ["unshare", "--mount", "sh", "-c", SMALL, "sh", str(room)]
    if os.geteuid() != 0 or subprocess.run([*unshared, "true"], check=False).returncode != 0:
        pytest.skip("only root, and not in every container, can mount a small tmpfs")
    noting = [*unshared, sys.executable, "-c", code, str(room)]
    ended = subprocess.run(noting, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


# Which place and which job the variables of a process name.

TORCHRUNS = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}

SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}

RAY = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "40001",
}

OF_TORCHRUN = NodePlace(
    number=1, nnodes=2, host="n0", port=29400, ranks=2, job="torchrun-job7", first="n0"
)
OF_SLURM = NodePlace(number=1, nnodes=2, ranks=1, job="slurm-7-0")
OF_RAY = NodePlace(number=1, nnodes=2, ranks=2, job="environment-10.0.0.1-40001", first="10.0.0.1")


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (TORCHRUNS, OF_TORCHRUN),
        (TORCHRUNS | {"TORCHELASTIC_USE_AGENT_STORE": "0"}, OF_TORCHRUN._replace(host="", port=0)),
        (SLURM, OF_SLURM),
        (SLURM | {"SLURM_JOB_NODELIST": "n[07-09],m1"}, OF_SLURM._replace(first="n07")),
        (RAY, OF_RAY),
        (RAY | {"LOCAL_WORLD_SIZE": "4"}, None),
        ({}, None),
    ],
)
def test_the_launchers_variables_say_which_node_this_is(
    environment: dict[str, str], place: NodePlace | None
) -> None:
    assert place_in(environment) == place


ONE_NODE = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
TWO_NODES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


def torchrun(rank: int = 0, attempt: int = 0, run: str = "none", **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        **ONE_NODE,
        **more,
    }


def keys(environment: dict[str, str]) -> tuple[str, str, str]:
    identity = identify(environment)
    return (
        job_key(environment, identity),
        node_key(environment, identity),
        start_key(environment, identity),
    )


def test_all_rounds_and_ranks_share_the_job_and_each_round_is_a_start_of_its_own() -> None:
    job, node, start = keys(torchrun(0))
    assert keys(torchrun(1)) == (job, node, start)
    assert keys(torchrun(0, attempt=1))[:2] == (job, node)
    assert keys(torchrun(0, attempt=1))[2] != start


def test_nodes_meet_under_one_key_though_their_agents_count_differently() -> None:
    """An agent counts the failures of its own ranks, and no change of nodes (torch's api.py)."""
    ours = torchrun(0, attempt=1, **TWO_NODES)
    theirs = torchrun(2, attempt=0, **TWO_NODES, TORCHELASTIC_ERROR_FILE="/elsewhere/error.json")
    assert key_of_nodes(ours, identify(ours)) == key_of_nodes(theirs, identify(theirs))
    fewer = {**ours, "WORLD_SIZE": "2"}
    assert key_of_nodes(fewer, identify(fewer)) != key_of_nodes(ours, identify(ours))


def test_nodes_of_one_job_agree_and_another_run_id_is_another_job() -> None:
    """Nothing of it may be of this node: another node's launcher has another process id."""
    ours = keys(torchrun(0, run="demo", **TWO_NODES))[0]
    assert ours == "torchrun-demo"
    assert keys(torchrun(3, run="demo", attempt=1, **TWO_NODES))[0] == ours
    assert keys(torchrun(0, **TWO_NODES))[0] == "torchrun-node0-29500"


SLURM_TASK = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (torchrun(attempt=2), (2, 3)),
        ({**SLURM_TASK, "SLURM_RESTART_COUNT": "1"}, (1, None)),
        (SLURM_TASK, (None, None)),
        ({"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_the_round_is_what_the_launcher_counts(
    environment: dict[str, str], expected: tuple[int | None, int | None]
) -> None:
    identity = identify(environment)
    assert (identity.round, identity.most_restarts) == expected


# One folder, one job: of two jobs that name the same, the second keeps its run beside it.


@pytest.fixture
def node(tmp_path: Path) -> Callable[[str, str], Session]:
    """Open the session of a job on a node; all name the same run folder."""

    def open_one(host: str, job: str) -> Session:
        facts = SessionFacts(
            run_dir=str(tmp_path / "run"), command="train", started_at="", root_pid=1, job=job
        )
        return open_session(tmp_path / host / job, facts)

    return open_one


def test_a_second_job_is_kept_beside_the_first_and_says_so_once(
    node: Callable[[str, str], Session], tmp_path: Path
) -> None:
    first, second = node("host", "one"), node("host", "two")
    assert settle_run_folder(first) == (RunFolder(tmp_path / "run"), "")
    folder, trouble = settle_run_folder(second)
    assert folder.path.parent == tmp_path
    assert folder.path.name.startswith("run-")
    assert "already holds a run" in trouble
    assert str(folder.path) in trouble
    assert settle_run_folder(second) == (folder, "")
    assert second.run_folder == folder
    assert json.loads((tmp_path / "run" / "run.json").read_text())["job"] == "one"


def test_all_nodes_of_a_job_share_its_folder_also_beside_another(
    node: Callable[[str, str], Session], tmp_path: Path
) -> None:
    assert settle_run_folder(node("a", "one")).folder.path == tmp_path / "run"
    assert settle_run_folder(node("b", "one")).folder.path == tmp_path / "run"
    beside = {settle_run_folder(node(host, "two")).folder.path for host in "ab"}
    assert len(beside) == 1


def test_where_not_even_beside_is_room_a_temporary_folder_serves(
    node: Callable[[str, str], Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "host"))
    session = node("host", "one")
    session = session._replace(facts=session.facts._replace(run_dir="/proc/self/run"))
    folder, trouble = settle_run_folder(session)
    assert folder.path.parent == tmp_path / "host"
    assert folder.path.name.startswith("hangcheck-run-")
    assert "run folder /proc/self/run cannot be made" in trouble


# What a rank notes of its groups and messages, read by another process.


def test_members_of_groups_come_back(tmp_path: Path) -> None:
    server = tmp_path / "torch" / "4711"
    note_group(server, "0", range(3))
    note_group(server, "1", [0, 2])
    with notes_file(server, "groups").open("ab") as file:
        file.write(b'{"group":"2","ra')  # just being written
    assert noted(server).groups == {"0": (0, 1, 2), "1": (0, 2)}
    assert noted(server).messages == MessageCounts(), "who notes groups would note messages, too"
    assert notes_file(server, "groups").stat().st_mode & 0o777 == 0o600


def test_a_call_from_another_package_of_the_same_environment_keeps_its_place(
    tmp_path: Path,
) -> None:
    """A user's package is installed beside this one; only frames of this one are left out."""
    here: dict[str, object] = {"note": CallNoter(tmp_path).note, "sys": sys}
    package = Path(lightning_hangcheck.__file__).parent
    for folder, name in ((package, "ours"), (package.parent / "users", "step")):
        source = f"def {name}(): note(sys._getframe())" if name == "ours" else "def step(): ours()"
        exec(compile(source, f"{folder}/code.py", "exec"), here)  # noqa: S102 - a stand-in for a file
    here["step"]()  # type: ignore[operator]
    (site,) = (one.called for one in noted(tmp_path).sites.values())
    assert (site.frames[-1].function, "ours" in str(site.frames)) == ("step", False)


def test_each_way_to_a_call_is_a_site_of_its_own(tmp_path: Path) -> None:
    """In any order: of equal code in two files, in branches, in a thread, however deep."""
    noter, ended = CallNoter(tmp_path / "7"), Event()

    def call() -> None:
        noter.note(inspect.currentframe())

    def deep(frames: int) -> None:
        if frames:
            deep(frames - 1)
        else:
            call()
            ended.set()

    ways: dict[str, Callable[[bool], None]] = {}
    for name in ("train", "check"):
        source = f"def {name}(first):\n    if first: call()\n    else: call()"
        exec(compile(source, f"{name}.py", "exec"), {"call": call}, ways)  # type: ignore[arg-type] # noqa: S102
    order = [("train", 2), ("train", 3), ("train", 2), ("train", 2), ("check", 2), ("train", 2)]
    # the thread's frames are also the innermost of what follows the next time
    then = [lambda: start_new_thread(deep, (2,)), lambda: deep(2), lambda: deep(DEEPEST)]
    for (name, line), follows in zip(
        [*order, *order[-1:] * 3], [*[None] * 5, *then, lambda: deep(DEEPEST + 5)], strict=True
    ):
        ways[name](line == 2)
        if follows is not None:
            ended.clear()
            follows()
            assert ended.wait(60)
    notes = noted(tmp_path / "7")
    called = [notes.sites[call.site].called.frames for call in notes.calls]
    assert [(frames[-2].function, frames[-2].line) for frames in called[:6]] == order
    assert len(called[6]) == 4 < len(called[8])
    assert [call.site for call in notes.calls[6::2]] == [4, 5, 6, 6]


def test_messages_count_for_good_and_apart_from_collectives(tmp_path: Path) -> None:
    """Also those that the ring has no more; the order is that of each thread."""
    noter, here = CallNoter(tmp_path / "7"), inspect.currentframe()
    for _ in range(CALLS_KEPT):
        noter.note(None, message=2)
    noter.note(here)
    for message in (-3, 2):
        noter.note(None, message=message)
    notes = noted(tmp_path / "7")
    assert (notes.messages.sent, notes.messages.received) == ({1: CALLS_KEPT + 1}, {2: 1})
    (order,) = notes.messages.newest
    assert (len(order), order[-3:]) == (CALLS_KEPT - 1, (2, -3, 2))
    assert [len(notes.calls), len(notes.sites)] == [1, 1]


def test_where_not_all_messages_could_be_counted_none_are(tmp_path: Path) -> None:
    noter = CallNoter(tmp_path / "7")
    for peer in range(MOST_SITES + 1):
        noter.note(None, message=peer + 1)
    assert noted(tmp_path / "7").messages is None
