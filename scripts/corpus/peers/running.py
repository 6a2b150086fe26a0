"""Runs a case under a peer, with a time for every line, and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING

from corpus.peers.transcript import Line, Transcript
from hangbench.bench import CASES, clock_time, environment_of, truth_of
from processes import MARK, end, end_by_pid, marked_processes

if TYPE_CHECKING:
    from pathlib import Path

    from corpus.peers.peer import Peer

HEALTHY_LIMIT_S = 120.0
"""As long as a healthy case gets in the normal run."""
START_S = 30.0
"""Added where a program has not noted its onset yet: a busy machine imports that long."""
LOOK_EVERY_S = 0.05
LAST_WORDS_S = 5.0
"""For the rest of the output after the end; a process that kept the pipe open has been ended."""


def run_under(peer: Peer, name: str, folder: Path, limit_s: float) -> Transcript:
    """Run a case under a peer.

    Args:
        peer: Installed.
        name: Of the case.
        folder: Empty, for what the run writes.
        limit_s: Seconds that the peer has from the onset. A healthy case may take 120 s in all.

    Returns:
        What was printed until the end or the limit.
    """
    truth, script, onset = truth_of(name), CASES / f"{name}.py", folder / "onset"
    mark = f"{os.environ.get(MARK, 'hangbench')}-{peer.name}-{name}"
    environment = {**environment_of(folder), **peer.environment(script, folder), MARK: mark}
    process = subprocess.Popen(
        [*peer.launcher(truth), str(script)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: list[Line] = []
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        ended_s = _wait(process, onset, HEALTHY_LIMIT_S if truth.healthy else limit_s)
        exit_code = process.poll()
        if exit_code is not None:
            end_by_pid(marked_processes(mark))
            reader.join(LAST_WORDS_S)
        return Transcript(
            lines=[line for line in lines if exit_code is not None or line.at_s <= ended_s],
            exit_code=exit_code,
            ended_s=ended_s,
            onset_s=clock_time(onset),
            stacks=_newest(folder, peer.stack_files),
        )
    finally:
        end_by_pid(marked_processes(mark))
        reader.join(LAST_WORDS_S)
        end(process)


def _read(stream: IO[str] | None, lines: list[Line]) -> None:
    assert stream is not None
    lines.extend(Line(time.time(), text.rstrip("\n")) for text in stream)


def _wait(process: subprocess.Popen[str], onset: Path, limit_s: float) -> float:
    """Wait for the end or the limit, and return its clock time."""
    started_s = time.time()
    while process.poll() is None:
        onset_s = clock_time(onset)
        deadline_s = started_s + START_S if onset_s is None else onset_s
        if time.time() > deadline_s + limit_s:
            break
        time.sleep(LOOK_EVERY_S)
    return time.time()


def _newest(folder: Path, pattern: str) -> str:
    files = sorted(folder.glob(pattern)) if pattern else []
    return files[-1].read_text(encoding="utf-8", errors="replace") if files else ""
