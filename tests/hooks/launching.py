"""Starting the jobs that the tests of this room look at, and reading what their ranks say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from processes import PROGRAMS, ending, run_python
from recorded_run import beat_on, carrier_of, job_session

from lightning_hangcheck.hooks.being_watched import injected
from lightning_hangcheck.session.session import SESSION_VARIABLE, read_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lightning_hangcheck.model.beat import Beat


PACKAGE = str(Path(__file__).parents[2])
LIMIT_S = 480.0
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "OMP_NUM_THREADS": "1",
}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2")


class Ended(NamedTuple):
    """A job that has ended, and what its ranks printed as JSON, in the order of printing."""

    code: int
    said: list[dict[str, Any]]
    errors: str

    def of(self, event: str) -> dict[int, Any]:
        """What each rank said of an event; a rank that said it twice is a bug of the test."""
        found = [line for line in self.said if line.get("event") == event]
        by_rank = {line["rank"]: line for line in found}
        assert len(by_rank) == len(found), found
        return by_rank


def run_job(
    folder: Path,
    *words: str,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] = OFFLINE,
) -> Ended:
    """Run a program of tests/programs in a folder of its own until it ends."""
    process = start_job(folder, *words, launcher=launcher, environment=environment)
    with ending(process):
        output, errors = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, list(json_lines(output)), errors)


def start_job(
    folder: Path,
    *words: str,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] = OFFLINE,
) -> subprocess.Popen[str]:
    """Start it, without what an outer launcher may have left in our environment."""
    clean = {key: value for key, value in os.environ.items() if key not in LAUNCHER_VARIABLES}
    return subprocess.Popen(
        [sys.executable, *launcher, str(PROGRAMS / words[0]), *words[1:]],
        cwd=folder,
        env={**clean, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def json_lines(output: str) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects, among whatever else a job prints."""
    for line in output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def run_script(script: Path, environment: dict[str, str], python_path: str) -> tuple[int, str, str]:
    """Run it in its own folder; exit code, output and errors."""
    ours = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
    words = ("-W", "ignore", script.name)
    ended = run_python(
        *words, folder=script.parent, environment={**ours, **environment}, limit_s=LIMIT_S
    )
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
    return beat_on(page)


def as_script(tmp_path: Path) -> tuple[dict[str, str], str]:
    """Environment and PYTHONPATH of a process of a job that is watched."""
    return {SESSION_VARIABLE: str(job_session(tmp_path).path)}, injected(PACKAGE)


def as_rank(tmp_path: Path) -> tuple[dict[str, str], str]:
    """The same, of the only rank of that job."""
    watched, python_path = as_script(tmp_path)
    return {**watched, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, python_path


def carried_journals(tmp_path: Path) -> list[Path]:
    """Carry the journals of what ran in `as_script`'s session, as its sidecar would."""
    carrier_of(read_session(tmp_path / "session")).carry()
    return sorted((tmp_path / "run" / "ranks").iterdir())
