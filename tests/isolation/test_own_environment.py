"""What runs of ours see of the environment of a job, and of code that lies around."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import PATIENCE_S, PROGRAMS, command_of, until
from watch.launched import run, verdict_of

from lightning_hangcheck.files import decode
from lightning_hangcheck.isolation.command import folder_of, own_environment, searched_folders
from lightning_hangcheck.look import gpu
from lightning_hangcheck.look.gpu import gpus_of
from lightning_hangcheck.look.stacks import dump, find_py_spy
from lightning_hangcheck.session.session import SidecarFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from processes import StartProgram

TOKENS = {
    "AWS_SECRET_ACCESS_KEY": "hidden-one",
    "HF_TOKEN": "hidden-two",
    "MY_DATABASE": "postgres://me:hidden-three@db/x",
    "WANDB_API_KEY": "hidden-four",
}
CODE = {"LD_PRELOAD": "", "PYTHONSTARTUP": "/x.py", "PYTHONPATH": "/x", "PYTHONPYCACHEPREFIX": "/x"}


def environment_of(pid: int) -> dict[str, str]:
    environment: dict[str, str] = psutil.Process(pid).environ()
    return environment


def assert_harmless(environment: dict[str, str]) -> None:
    assert "HANGCHECK_TEST_SESSION" in environment, "this is no process of this test"
    assert not {*TOKENS, *CODE} & environment.keys()
    assert not [value for value in environment.values() if "hidden-" in value]


@pytest.mark.real
def test_a_sidecar_gets_no_token(program: StartProgram, tmp_path: Path) -> None:
    job = program(
        "hooks_sidecar.py", HANGCHECK_RUN_DIR=str(tmp_path / "run"), HANGCHECK_LOCALS="1", **TOKENS
    )
    file = Path(job.first_words, "sidecar.json")
    until(file.exists, "the sidecar, which says there who it is")
    environment = environment_of(decode(file.read_bytes(), SidecarFacts, str(file)).pid)
    assert_harmless(environment)
    assert environment["HANGCHECK_LOCALS"] == "1"
    assert TOKENS.items() <= environment_of(job.pid).items(), "the job keeps its own"


@pytest.mark.real
def test_py_spy_gets_no_token(
    program: StartProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    as_py_spy: Callable[[str], None],
) -> None:
    job = program("sleeping.py")
    for name, value in {**TOKENS, **CODE}.items():
        monkeypatch.setenv(name, value)
    as_py_spy(f'#!/bin/sh\nenv -0 > {tmp_path}/told\nexec {find_py_spy()} "$@"\n')
    assert b"sleeping.py" in dump(job.pid, PATIENCE_S, "--nonblocking")
    lines = (tmp_path / "told").read_text().split("\0")
    assert_harmless(dict(line.split("=", 1) for line in lines if line))


def test_the_reader_of_gpus_gets_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS / "nvml_driver"))
    for name, value in {**TOKENS, **CODE, "HANGCHECK_TEST_NVML": "hangs"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpu, "DRIVER", tmp_path)
    look = threading.Thread(target=gpus_of, args=([os.getpid()], 3.0))
    look.start()

    def reader() -> psutil.Process | None:
        mine = psutil.Process().children()
        return next(
            (one for one in mine if any(word.endswith("look.gpu") for word in command_of(one))),
            None,
        )

    found = until(reader, "the reader")
    assert_harmless(environment_of(found.pid))
    look.join(20.0)
    assert not look.is_alive()


def test_what_a_search_path_means_by_the_working_folder_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".::bin:{tmp_path}/:/usr/bin:/bin:")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/cuda;{tmp_path};lib:")
    assert searched_folders("PATH") == "/usr/bin:/bin"
    environment = own_environment()
    assert environment["PATH"] == "/usr/bin:/bin"
    assert environment["LD_LIBRARY_PATH"] == "/opt/cuda"
    monkeypatch.setenv("LD_LIBRARY_PATH", ":")
    assert "LD_LIBRARY_PATH" not in own_environment(), "an empty one is the working folder"


def test_a_py_spy_in_the_working_folder_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".:{tmp_path}:/usr/bin")
    trap = tmp_path / "py-spy"
    trap.write_text("#!/bin/sh\n")
    trap.chmod(0o755)
    assert shutil.which("py-spy") is not None
    assert find_py_spy() is None or not Path(str(find_py_spy())).resolve().is_relative_to(tmp_path)


def test_an_optional_library_in_the_working_folder_is_not_taken_for_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tomli.py").touch()
    (tmp_path / "pynvml").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), ""])
    monkeypatch.delitem(sys.modules, "tomli", raising=False)
    assert folder_of("tomli") is None
    assert folder_of("pynvml") is None


NAMES = (
    *("json", "msgspec", "networkx", "psutil", "pynvml", "queue", "runpy", "sitecustomize"),
    *("tomli", "usercustomize"),
)
STOPS = "import queue, os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
HASTE = {"HANGCHECK_PROVEN_AFTER": "3", "HANGCHECK_ABORT_GRACE": "1"}
OURS = ("lightning_hangcheck.watch.sidecar", "lightning_hangcheck.look.gpu")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A working folder in which somebody else left modules of many names."""
    folder = tmp_path / "shared-by-all"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(PROGRAMS / "foreign_module.py", folder / f"{name}.py")
    return folder


def importers(foreign: Path) -> list[str]:
    """Who imported what; somebody must have, or this test shows nothing."""
    said = (foreign / "imported-by").read_text().splitlines()
    assert said, "the foreign modules tell of nothing"
    return said


def of_our_own(said: list[str]) -> list[str]:
    return [line for line in said if any(name in line for name in OURS)]


@pytest.mark.real
def test_a_run_in_a_foreign_folder_is_watched_and_runs_none_of_its_code(foreign: Path) -> None:
    """The working folder, and PYTHONPATH names it too."""
    (foreign / "train.py").write_text(STOPS)
    path = {"PYTHONPATH": str(foreign)}
    ended = run(foreign, [sys.executable, "train.py"], "--on-hang", "abort", **HASTE, **path)
    assert ended.returncode == 75, ended.stderr
    assert verdict_of(foreign / "run").cause == "process_stopped"
    said = importers(foreign)
    assert any("train.py" in line for line in said), "the script's own imports are its own affair"
    assert not of_our_own(said)
