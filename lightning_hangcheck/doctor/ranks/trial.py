"""Ranks under a launcher, started for a trial, listened to, and ended whatever they do."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec import Struct

from lightning_hangcheck.doctor.launching.launch import Launch, read_launch
from lightning_hangcheck.look.proc import descendants, process_ref

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = Path(__file__).with_name("trial_rank.py")
MARK = b"hangcheck-trial: "
START_LIMIT_S = 60.0
"""Until the first rank is there: importing torch from a cold network disk takes that long."""
STEP_LIMIT_S = 15.0
"""Without news: the first NCCL collective of a node takes a few seconds, all else far less."""
WHOLE_LIMIT_S = 180.0
GRACE_S = 3.0
MOST_WORDS = 64 * 1024
PR_SET_PDEATHSIG = 1
NO_SCRIPT = ("--no-python", "--no_python", "--run-path", "--run_path")


class Note(Struct, frozen=True):
    """What one rank said.

    Attributes:
        did: ``start``, ``begin`` and ``done`` of a step, ``no device``, ``end``.
        restarts: How often the launcher had started all ranks again before.
        sums: Least and largest number that all_reduce gave.
    """

    did: str
    rank: int
    step: str = ""
    backend: str = ""
    restarts: int = 0
    world_size: int = 0
    host: str = ""
    sums: tuple[float, float] | None = None
    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0


class Limits(NamedTuple):
    """Seconds without news until a trial is given up: of the first rank, and of any."""

    start_s: float = START_LIMIT_S
    step_s: float = STEP_LIMIT_S


class Trial(Struct, frozen=True, kw_only=True):
    """What came of a trial.

    Attributes:
        notes: In the order in which they were heard.
        ended: By itself, or by us because nothing was heard for too long.
        waited_s: Without any news, at the end.
        exit_code: Of the launcher, None where it was still there at the end.
        last_words: What the launcher and the ranks complained of until then.
    """

    notes: tuple[Note, ...]
    ended: Literal["by itself", "silent"] = "by itself"
    waited_s: float = 0.0
    exit_code: int | None = 0
    last_words: str = ""


def trial_command(launch: Launch) -> tuple[str, ...] | None:
    """Put the program of the trial where the user's program stood; None without a launcher."""
    if launch.launcher in ("torchrun", "accelerate"):
        kept = (word for word in launch.prefix if word not in NO_SCRIPT)
        return (*kept, str(PROGRAM))
    if launch.launcher in ("slurm", "mpi"):
        inner = read_launch(launch.program, {})
        python = launch.program[0] if inner.launcher == "python" else sys.executable
        return (*launch.prefix, *(trial_command(inner) or (python, str(PROGRAM))))
    return None


def try_ranks(
    command: tuple[str, ...], environment: Mapping[str, str], limits: Limits | None = None
) -> Trial:
    """Start ranks, listen until they end or nothing more is heard, and end what is left.

    Args:
        command: As `trial_command` makes it.
        environment: That the ranks will have.
        limits: Usual ones where None.

    Raises:
        OSError: The launcher cannot be started.
    """
    with tempfile.TemporaryFile() as complaints:
        launcher = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=partial(_end_with_parent, os.getpid()),
        )
        try:
            trial = _listen(launcher, limits or Limits())
            if trial.ended == "by itself" and not _all_through(trial.notes):
                with suppress(subprocess.TimeoutExpired):
                    launcher.wait(GRACE_S)
            exit_code = launcher.poll()
            # before they are ended, of which they complain too; pread, because the place in the
            # file is that of the writers
            words = os.pread(complaints.fileno(), MOST_WORDS, 0).decode(errors="replace")
        finally:
            _end(launcher)
    return msgspec.structs.replace(trial, exit_code=exit_code, last_words=words)


def _listen(launcher: subprocess.Popen[bytes], limits: Limits) -> Trial:
    """Hear notes until the output ends, or until there is no news for too long."""
    notes: list[Note] = []
    unread = b""
    began = news = time.monotonic()
    output = launcher.stdout.fileno() if launcher.stdout is not None else -1
    while not _all_through(notes):
        limit = limits.step_s if notes else limits.start_s
        deadline = min(news + limit, began + WHOLE_LIMIT_S)
        ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return Trial(notes=tuple(notes), ended="silent", waited_s=time.monotonic() - news)
        data = os.read(output, 65536)
        if not data:
            break
        *lines, unread = (unread + data).split(b"\n")
        # what comes after a failure and a restart is no news of the failure
        heard = [note for line in lines if (note := read_note(line)) and not note.restarts]
        notes += heard
        news = time.monotonic() if heard else news
    return Trial(notes=tuple(notes))


def _all_through(notes: Sequence[Note]) -> bool:
    """Whether every rank has said its last; launchers take seconds more to notice that."""
    expected = max((note.world_size for note in notes), default=0)
    return 0 < expected <= sum(note.did == "end" for note in notes)


def read_note(line: bytes) -> Note | None:
    """Read a line of output, whatever the launcher put in front; None where it is no note."""
    try:
        return msgspec.json.decode(line.partition(MARK)[2], type=Note)
    except msgspec.DecodeError:
        return None


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """First those below it are found: once the launcher is gone, nothing leads to them."""
    below = descendants(launcher.pid)
    if launcher.poll() is None:
        launcher.send_signal(signal.SIGTERM)
        for one in below:  # a stopped rank hears its end only then
            if process_ref(one.pid) == one:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(GRACE_S)
    if launcher.poll() is None:
        launcher.kill()
    for one in below:
        seen = process_ref(one.pid)
        if seen is not None and seen.started_ticks == one.started_ticks:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        launcher.wait(GRACE_S)
    if launcher.stdout is not None:
        launcher.stdout.close()


def _end_with_parent(parent_pid: int) -> None:
    """Whatever ends us, even SIGKILL, asks the launcher to end its ranks."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:  # it was gone before that: nobody would ask
        os._exit(1)
