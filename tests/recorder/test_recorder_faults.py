"""Whatever fails of ours is said once, and training goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.look.flight_record import flight_record
from lightning_hangcheck.session.session import MOST_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Program

    from lightning_hangcheck.session.session import Session

TRAIN = """
import lightning_hangcheck as hc
for number in range(100):
    hc.checkpoint("step")
    hc.beat()
with hc.section("save"):
    pass
print("trained")
"""


def assert_trained(program: Program, trouble: str | None) -> None:
    assert program.out == "trained\n"
    assert program.process.returncode == 0
    assert len(program.said) == 102
    assert len(program.troubles) == (trouble is not None), program.troubles
    assert trouble is None or trouble in program.troubles[0]


@pytest.mark.usefixtures("unwatched")
def test_a_run_folder_that_cannot_be_made(run: Callable[..., Program], tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the run folder should be")
    program = run(TRAIN)
    assert_trained(program, "is kept in")
    assert "--run-dir" in program.troubles[0]
    assert program.page().beats == 100


FULL = """
import resource
import lightning_hangcheck
lightning_hangcheck.beat()
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
"""


@pytest.mark.usefixtures("unwatched")
def test_a_full_disk(run: Callable[..., Program]) -> None:
    """A limit on the size of files takes a part of a write and refuses the rest, as one does."""
    program = run(FULL + TRAIN)
    assert_trained(program, "the journal cannot be written, training goes on without it")
    assert program.page().ending == "finished"


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("planted", ["link", "pipe"])
def test_a_journal_that_somebody_planted(
    planted: str, run: Callable[..., Program], tmp_path: Path
) -> None:
    journal = tmp_path / "run" / "ranks" / "rank-0.jsonl"
    journal.parent.mkdir(parents=True)
    private = tmp_path / "private"
    private.write_text("mine\n")
    if planted == "link":
        journal.symlink_to(private)
    else:
        os.mkfifo(journal)
    assert_trained(run(TRAIN), "the journal cannot be written, training goes on without it")
    assert private.read_text() == "mine\n"


STALLED = """
import os, threading
make = os.mkdir
def mkdir(path, *more, **named):
    threading.Event().wait() if "/ranks" in str(path) else make(path, *more, **named)
os.mkdir = mkdir
"""


@pytest.mark.usefixtures("unwatched")
def test_a_disk_that_stalls_for_ever(run: Callable[..., Program]) -> None:
    program = run(STALLED + TRAIN.replace("100", "20000"), HANGCHECK_CONSOLE="off")
    assert program.out == "trained\n"
    assert program.page().beats == 20000


@pytest.mark.usefixtures("unwatched")
def test_a_journal_whose_last_line_was_torn_goes_on_on_a_line_of_its_own(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    journals = tmp_path / "run" / "ranks"
    journals.mkdir(parents=True)
    journal = journals / "rank-0.jsonl"
    journal.write_bytes(b'{"kind":"start"}\n{"kind":"chec')
    assert_trained(run(TRAIN), None)
    lines = journal.read_bytes().split(b"\n")
    assert lines[:2] == [b'{"kind":"start"}', b'{"kind":"chec']
    assert lines[2].startswith(b'{"at":')


BAD_ARGUMENTS = """
import lightning_hangcheck as hc

class Bad:
    def __str__(self):
        raise ValueError("not that one")

    __int__ = __index__ = __len__ = __str__

assert list(hc.track([1, 2], name=Bad())) == [1, 2]
for total in (-1, 2**70, "many", float("inf"), Bad()):
    assert list(hc.track([1, 2], total=total)) == [1, 2]
with hc.step(Bad()), hc.step("say", say=True, value=Bad()), hc.section(Bad()):
    hc.checkpoint(Bad())
for number in (2**70, -1, 2.5, "many", Bad()):
    hc.checkpoint("next", number=number)
hc.checkpoint("given", number=40)
hc.checkpoint("last")
print("trained")
"""


def test_a_bad_argument_is_refused_alone(run: Callable[..., Program]) -> None:
    program = run(BAD_ARGUMENTS)
    assert program.out == "trained\n", program.err
    passed = [line for line in program.said if line.startswith("CHECKPOINT")]
    assert passed[0] == "CHECKPOINT 1: (cannot be shown)"
    assert passed[1:6] == [f"CHECKPOINT {number}: next" for number in (2, 3, 4, 5, 6)]
    assert passed[6:] == ["CHECKPOINT 40: given", "CHECKPOINT 41: last"]
    assert len(program.troubles) == 2, "one for each argument, however often"
    assert "checkpoint(number=...) is ignored" in program.troubles[1]


def test_an_option_that_cannot_be_used(run: Callable[..., Program]) -> None:
    program = run(TRAIN, HANGCHECK_STALL_TIMEOUT="soon", HANGCHECK_SESSION=None)
    assert_trained(program, "HANGCHECK_STALL_TIMEOUT='soon' cannot be used")
    assert "write for example HANGCHECK_STALL_TIMEOUT=300;" in program.troubles[0]


def test_a_session_that_is_gone(run: Callable[..., Program], session: Session) -> None:
    session.remove()
    assert_trained(run(TRAIN), "is gone")


def test_a_session_whose_pages_cannot_be_written(
    run: Callable[..., Program], session: Session
) -> None:
    session.pages.rmdir()
    session.pages.write_text("no folder")
    program = run(TRAIN)
    assert_trained(program, "no page in shared memory, so no sidecar sees this rank")
    assert len(program.journal()) == 104


NO_SHARED_MEMORY = """
from pathlib import Path
import lightning_hangcheck.session.session as session
session.SHARED_MEMORY = Path("/dev/null/shm")
"""


def test_without_shared_memory_the_temporary_folder_serves(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    program = run(
        NO_SHARED_MEMORY + TRAIN,
        HANGCHECK_SESSION=None,
        HANGCHECK_RUN_DIR=str(tmp_path / "run"),
        TMPDIR=str(tmp_path),
    )
    assert_trained(program, None)
    assert (tmp_path / f"hangcheck-{os.getuid()}").is_dir()
    assert len(list((tmp_path / "run" / "ranks").iterdir())) == 1


def test_without_any_memory_there_is_the_console(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    first = tmp_path / f"hangcheck-{os.getuid()}"
    for name in (first, *(Path(f"{first}-{number}") for number in range(1, MOST_NAMES))):
        name.write_text("no folder")
    program = run(NO_SHARED_MEMORY + TRAIN, HANGCHECK_SESSION=None, TMPDIR=str(tmp_path))
    assert_trained(program, "this rank is seen on the console only")


def test_a_failure_of_our_own_ends_recording_and_is_judged_from_outside(
    run: Callable[..., Program],
) -> None:
    """Such as a number that no page can hold."""
    program = run("""
import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current
hc.beat()
current().checkpoint("no number", number=1j)
current().learn_identity(0, 2, 0)
hc.checkpoint("after")
hc.beat()
print("trained")
""")
    assert program.out == "trained\n"
    assert len(program.troubles) == 1
    assert "recording stops, training goes on" in program.troubles[0]
    page = program.page()
    assert (page.rank, page.beats, page.ending) == (0, 0, "running")
    assert program.said == []


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_disabled_leaves_no_trace(
    run: Callable[..., Program], tmp_path: Path, session: Session, value: str
) -> None:
    program = run(
        """
import os, sys, threading
before = (dict(os.environ), sys.excepthook)
import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current
hc.checkpoint("Script started", number=-1)
hc.beat()
with hc.section("Trainer"):
    current().page.enter_phase("backward")
current().learn_identity(0, 2, 0)
current().note("nothing")
print(before == (dict(os.environ), sys.excepthook), threading.active_count())
raise ValueError("as ever")
""",
        HANGCHECK_DISABLE=value,
        HANGCHECK_SESSION=None,
        HANGCHECK_RUN_DIR=str(tmp_path / "run"),
    )
    assert program.out == "True 1\n"
    assert program.err.startswith("Traceback")
    assert list(session.pages.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["session", "train.py"]


SANDBOX = """
import os, pathlib
HIDDEN = ("/proc/loadavg", "/proc/sys/kernel", "/proc/self/ns", "/proc/self/uid_map")
def hiding(look):
    def hidden(path, *more, **named):
        if str(path).startswith(HIDDEN):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return look(path, *more, **named)
    return hidden
for name in ("read_bytes", "read_text"):
    setattr(pathlib.Path, name, hiding(getattr(pathlib.Path, name)))
os.readlink = hiding(os.readlink)
"""


def test_files_that_a_sandbox_does_not_show_cost_no_recording(run: Callable[..., Program]) -> None:
    """As gVisor shows only some of /proc."""
    program = run(SANDBOX + TRAIN)
    assert_trained(program, None)
    page = program.page()
    assert (page.beats, page.ending) == (100, "finished")
    assert page.pulse_ns > 0
    assert len(program.journal()) == 104


def test_a_rank_near_a_limit_starts_no_thread(run: Callable[..., Program]) -> None:
    """No journal and no pulse, whose absence must not look like a kept interpreter lock."""
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))\n"
    count = "import threading\nassert threading.active_count() == 1\n"
    program = run(limited + TRAIN + count)
    assert_trained(program, "this rank starts no further threads of ours")
    assert "(ulimit -n) is 90" in program.troubles[0]
    page = program.page()
    assert (page.beats, page.pulse_ns, page.ending) == (100, 0, "finished")
    socket = program.session.torch_servers / str(program.process.pid)
    record, gaps = flight_record(socket, 0, 5.0)
    assert record is None
    assert "(ulimit -n) is 90" in gaps[0].why
