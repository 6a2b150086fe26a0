"""The session of a run: made, found and joined, also where memory is full."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import encode_plain
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.machine import pid_namespace
from lightning_hangcheck.session import session as session_module
from lightning_hangcheck.session.session import (
    LEFT_BEHIND_AFTER_S,
    NAMESPACE_FILE,
    SESSION_VARIABLE,
    SessionFacts,
    SidecarFacts,
    join_session,
    open_session,
    read_session,
    remove_left_behind,
)

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
