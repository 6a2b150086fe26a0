"""Real programs that record, and what they left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from processes import end
from recorded_run import beat_on, carrier_of, job_session

from lightning_hangcheck.files import encode_plain
from lightning_hangcheck.report.journals import read_journal
from lightning_hangcheck.session.session import SESSION_VARIABLE, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lightning_hangcheck.model.beat import Beat

LIMIT_S = 240
_INHERITED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")
PREFIX = re.compile(
    r"\[\d\d:\d\d:\d\d\.\d{3}\]\[\+\d+\.\d{3}s\]\[R(\?/\?|[\d?]+/\d+)\]\[LR[\d?]+\]\[PID:\d+\] "
)


class Program:
    """A running or ended training program, with its session."""

    def __init__(self, process: subprocess.Popen[str], session: Session) -> None:
        self.process = process
        self.session = session
        self.out = ""
        self.err = ""

    def tell(self, line: str) -> None:
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next line of its output."""
        return self.process.stdout.readline().removesuffix("\n")

    def finish(self, last_line: str | None = None) -> Program:
        out, err = self.process.communicate(last_line, timeout=LIMIT_S)
        self.out, self.err = out, err or ""
        return self

    @property
    def said(self) -> list[str]:
        """Console lines of the contract, without their prefix."""
        lines = self.err.splitlines()
        return [PREFIX.sub("", line) for line in lines if PREFIX.match(line)]

    @property
    def troubles(self) -> list[str]:
        """Sentences about troubles of our own."""
        return [line for line in self.err.splitlines() if line.startswith("[hangcheck]")]

    def page(self, pid: int | None = None) -> Beat:
        return beat_on(self.session.pages / f"{pid or self.process.pid}.page")

    def pages(self) -> set[int]:
        return {int(path.stem) for path in self.session.pages.iterdir()}

    def journal(self, name: str = "rank-0") -> list[dict[str, Any]]:
        carrier_of(self.session).carry()
        path = self.session.run_folder.journals / f"{name}.jsonl"
        entries, gaps = read_journal(path)
        assert not gaps
        return entries


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session and run folder of this test alone, whose pages stay to be read afterwards."""
    return job_session(tmp_path)


@pytest.fixture
def unwatched(session: Session) -> Session:
    """The session once nobody is there, or will come, to carry a rank's journal to the disk."""
    facts = session.facts._replace(launched=False)
    (session.path / "session.json").write_bytes(encode_plain(facts))
    session.sidecar_file.touch()  # it names nobody; ranks leave their pages all the same
    return Session(session.path, facts)


@pytest.fixture
def start(tmp_path: Path, session: Session) -> Iterator[Callable[..., Program]]:
    """Start a program as rank 0 of 2, or as the given environment says (None unsets)."""
    started: list[subprocess.Popen[str]] = []

    def start(
        code: str,
        *,
        script: str = "train.py",
        stderr: int = subprocess.PIPE,
        **environment: str | None,
    ) -> Program:
        path = tmp_path / script
        path.write_text(code)
        plain = {
            name: value
            for name, value in os.environ.items()
            if name not in _INHERITED and not name.startswith(("HANGCHECK_", "SLURM_", "TORCHEL"))
        }
        rank = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        wanted = plain | rank | {SESSION_VARIABLE: str(session.path)} | environment
        process = subprocess.Popen(
            [sys.executable, str(path)],
            env={name: value for name, value in wanted.items() if value is not None},
            cwd=tmp_path,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        started.append(process)
        return Program(process, session)

    yield start
    for process in started:
        end(process)


@pytest.fixture
def run(start: Callable[..., Program]) -> Callable[..., Program]:
    """Run a program to its end."""
    return lambda code, **environment: start(code, **environment).finish()
