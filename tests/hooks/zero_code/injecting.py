"""Running scripts as processes of a job that is watched, without a sidecar."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hooks.launching import job_session, python
from processes import PROGRAMS

from lightning_hangcheck.hooks.zero_code.start import injected
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.recorder.page import PageReader
from lightning_hangcheck.rundir import prepare_run_folder
from lightning_hangcheck.session.run_folders import Carrier
from lightning_hangcheck.session.session import SESSION_VARIABLE, read_session

PACKAGE = str(Path(__file__).parents[3])


def run_script(script: Path, environment: dict[str, str], python_path: str) -> tuple[int, str, str]:
    """Run it in its own folder; exit code, output and errors."""
    ours = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
    words = ("-W", "ignore", script.name)
    ended = python(*words, folder=script.parent, environment={**ours, **environment}, limit_s=480)
    return ended.returncode, ended.stdout, ended.stderr


def run_program(
    name: str, tmp_path: Path, environment: dict[str, str], python_path: str
) -> tuple[int, str, str]:
    """The same with a copy of one of tests/programs."""
    shutil.copy(PROGRAMS / name, tmp_path)
    return run_script(tmp_path / name, environment, python_path)


def page_of(tmp_path: Path) -> Beat:
    """What the only rank of `as_script`'s session left on its page."""
    (page,) = (tmp_path / "session" / "pages").iterdir()
    beat = PageReader(page).read()
    assert isinstance(beat, Beat)
    return beat


def as_script(tmp_path: Path) -> tuple[dict[str, str], str]:
    """Environment and PYTHONPATH of a process of a job that is watched."""
    return {SESSION_VARIABLE: str(job_session(tmp_path).path)}, injected(PACKAGE)


def as_rank(tmp_path: Path) -> tuple[dict[str, str], str]:
    """The same, of the only rank of that job."""
    watched, python_path = as_script(tmp_path)
    return {**watched, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, python_path


def carried_journals(tmp_path: Path) -> list[Path]:
    """Carry the journals of what ran in `as_script`'s session, as its sidecar would."""
    session = read_session(tmp_path / "session")
    Carrier(session.journals, lambda: prepare_run_folder(session.run_folder)).carry()
    return sorted((tmp_path / "run" / "ranks").iterdir())
