"""Scripts that never heard of us: what the injected sitecustomize does to ranks and to others."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hooks.launching import PACKAGE, as_script
from processes import run_python, until

from lightning_hangcheck.hooks.being_watched import INJECT_FOLDER, injected
from lightning_hangcheck.look.flight_record import flight_record
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.flight import MessageCounts
from lightning_hangcheck.recorder.page_reader import PageReader
from lightning_hangcheck.session.collective_notes import noted
from lightning_hangcheck.session.session import SESSION_VARIABLE, read_session

if TYPE_CHECKING:
    import subprocess

    from processes import StartProgram

    from lightning_hangcheck.session.session import Session

SHOWN = """
import json, os, sys
print(json.dumps({
    "ours": sorted(name for name in sys.modules if name.startswith("lightning_hangcheck")),
    "path": sys.path,
    "pages": len(os.listdir(os.environ["SHOWN_PAGES"])),
    "hook": sys.excepthook is not sys.__excepthook__,
}))
"""
RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "HANGCHECK_CONSOLE": "off"}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return read_session(Path(as_script(tmp_path)[0][SESSION_VARIABLE]))


def _watched(session: Session) -> dict[str, str]:
    """What makes a program a rank of this session."""
    python_path = injected(os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": python_path, SESSION_VARIABLE: str(session.path), **RANK}


def _python(
    session: Session, *arguments: str, search: str = "", package: str = PACKAGE, **environment: str
) -> subprocess.CompletedProcess[str]:
    ours = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": injected(os.pathsep.join(filter(None, (search, package)))),
        SESSION_VARIABLE: str(session.path),
        "SHOWN_PAGES": str(session.pages),
    }
    return run_python(*arguments, folder=session.path, environment={**ours, **environment})


def _shown(session: Session, **environment: str) -> dict[str, object]:
    ended = _python(session, "-c", SHOWN, **environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    shown: dict[str, object] = json.loads(ended.stdout)
    return shown


def test_a_rank_records_and_its_path_is_as_it_was(session: Session) -> None:
    shown = _shown(session, **RANK)
    assert shown["pages"] == 1
    assert shown["hook"]
    assert str(INJECT_FOLDER) not in shown["path"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "environment",
    [{}, {**RANK, "HANGCHECK_DISABLE": "1"}, {**RANK, "HANGCHECK_RANK_PROCESS": "1:1/1/"}],
    ids=["no rank", "disabled", "helper of a rank"],
)
def test_no_other_process_imports_or_leaves_anything(
    session: Session, environment: dict[str, str]
) -> None:
    shown = _shown(session, **environment)
    assert (shown["ours"], shown["pages"], shown["hook"]) == ([], 0, False)


@pytest.fixture
def framework(tmp_path: Path) -> str:
    """A folder with a package that is called as one that training scripts import."""
    (tmp_path / "datasets.py").write_text("")
    return str(tmp_path)


def test_a_script_that_was_started_plainly_records_once_it_imports_a_framework(
    session: Session, framework: str
) -> None:
    ended = _python(session, "-c", f"import datasets\n{SHOWN}", search=framework)
    shown = json.loads(ended.stdout)
    assert (shown["pages"], shown["hook"]) == (1, True)


@pytest.mark.parametrize("imports", ["import lightning_hangcheck as hc", "import mine as hc"])
def test_a_script_that_says_its_own_checkpoints_gets_no_number_twice(
    imports: str, session: Session, framework: str
) -> None:
    """Also where a module of the script's says them, which nobody can know at its start."""
    (Path(framework) / "mine.py").write_text("from lightning_hangcheck import checkpoint\n")
    script = Path(framework) / "train.py"
    script.write_text(
        f"import datasets\n{imports}\n"
        "hc.checkpoint('Script started')\nhc.checkpoint('Model created', number=5)\n"
    )
    speaking = {**RANK, "HANGCHECK_CONSOLE": "all"}
    said = _python(session, str(script), search=framework, **speaking).stderr
    numbers = re.findall(r"CHECKPOINT (\d+)", said)
    assert numbers == (["1", "5"] if "mine" not in imports else ["1", "2", "5"])


def test_what_such_a_script_starts_is_a_helper(session: Session, framework: str) -> None:
    inner = f"import datasets\n{SHOWN}"
    program = (
        "import datasets, subprocess, sys; "
        f"sys.exit(subprocess.call([sys.executable, '-c', {inner!r}]))"
    )
    shown = json.loads(_python(session, "-c", program, search=framework).stdout)
    assert (shown["ours"], shown["pages"]) == ([], 1)


def test_a_launcher_is_left_alone_whatever_its_flags(session: Session, framework: str) -> None:
    launcher = Path(framework) / "torchrun"
    launcher.write_text(f"import datasets\n{SHOWN}")
    flags = ("-u", "-W", "ignore", "-X", "utf8")
    for numbered in ({}, RANK):  # srun numbers a torchrun that it starts
        ended = _python(session, *flags, str(launcher), search=framework, **numbered)
        shown = json.loads(ended.stdout)
        assert (shown["pages"], shown["hook"]) == (0, False)
        assert "lightning_hangcheck.recorder" not in shown["ours"]


def test_the_users_own_sitecustomize_still_runs(session: Session, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.MARK = __file__\n")
    ended = _python(session, "-c", "print(MARK)", search=str(tmp_path), **RANK)
    assert ended.stdout.strip() == str(tmp_path / "sitecustomize.py")


def test_python_without_this_package_runs_as_ever(session: Session) -> None:
    imports = "import sitecustomize; print('fine')"
    ended = _python(session, "-S", "-c", imports, package="", **RANK)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


@pytest.mark.real
def test_the_pulse_starts_torchs_server_and_ends_the_startup(
    session: Session, program: StartProgram, tmp_path: Path
) -> None:
    running = program("flight_recorded.py", str(tmp_path / "other"), "3", **_watched(session))
    reader = PageReader(session.pages / f"{running.pid}.page")

    def joined() -> bool:
        beat = reader.read()
        return isinstance(beat, Beat) and (beat.rank, beat.phase) == (1, None)

    until(joined, "the page to leave the phase startup")
    reader.close()
    socket = session.torch_servers / str(running.pid)
    record = until(lambda: flight_record(socket, 1, 5.0)[0], "the server's answer")
    assert record.groups[0].last_enqueued == 3


@pytest.mark.real
def test_groups_messages_and_collectives_are_noted(session: Session, program: StartProgram) -> None:
    """Also those that torch makes itself, and that it compares with its own functions.

    A collective with where it was called, root and reduction; a place that is called from again is
    noted once.
    """
    first = {**_watched(session), "RANK": "0", "LOCAL_RANK": "0"}
    running = program("calling_collectives.py", **first)
    server = session.torch_servers / str(running.pid)
    notes = noted(server)
    assert notes.groups == {"0": (0, 1), "1": (0, 1)}
    received, sent = -2, 2  # each rank plus one
    order = ((received, sent) * 4,)
    assert notes.messages == MessageCounts(sent={1: 4}, received={1: 4}, newest=order)
    called = [notes.sites[call.site].called for call in notes.calls]
    told = [(one.frames[-1].function, one.root, one.reduction) for one in called]
    assert told == [
        ("step", "", "SUM"),
        ("step", "", "SUM"),
        ("finish", "root 1", ""),
        ("finish", "root 1", "MAX"),
        ("finish", "", ""),
    ]
    assert len(notes.sites) == 4
    assert [frame.function for frame in called[0].frames] == ["<module>", "step"]
