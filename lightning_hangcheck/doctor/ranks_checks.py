"""Checks whether ranks reach each other, by starting a trial job with the run's launcher.

Each rank runs `trial_rank.py`, which imports torch but nothing of this package. This module starts
the job, reads its output, always ends it, and judges it by that output.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from lightning_hangcheck.doctor.check import Finding, check, failed, ok, warning
from lightning_hangcheck.doctor.launch_command import NO_SCRIPT, Launch, read_launch
from lightning_hangcheck.look.programs import end_with_children
from lightning_hangcheck.text.shown import format_ranks, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lightning_hangcheck.doctor.check import Subject

START = "ranks start"
PROGRAM = Path(__file__).with_name("trial_rank.py")
MARK = b"hangcheck-trial: "
FIRST_LIMIT_S, STEP_LIMIT_S = 60.0, 15.0
"""Maximum time without a message: until the first one, and later. Importing torch from a cold
network disk takes long, a node's first NCCL collective a few seconds, all else far less."""
GRACE_S = 3.0
COMPLAINT = re.compile(r"(?m)^(?:\[\S+\]:\s*)*((?:\w+\.)*\w*(?:Error|Exception|error): .+)$")
"""The last line of a traceback; torch may put ``[rank0]:`` before it."""
LOOK_CLOSER = {
    "rendezvous": ("hangcheck doctor --only launch -- CMD",),
    "gloo": ("ip -br link", "export GLOO_SOCKET_IFNAME=NAME"),
    "nccl": ("export NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=NAME", "export NCCL_P2P_DISABLE=1"),
}


class Note(Struct, frozen=True):
    """A message of one rank.

    Attributes:
        did: ``start``, ``begin`` and ``done`` of a step, ``no device``, ``end``.
        restarts: How often the launcher had restarted all ranks before.
        sums: Smallest and largest number that all_reduce returned.
    """

    did: str
    rank: int
    step: str = ""
    backend: str = ""
    restarts: int = 0
    world_size: int = 0
    host: str = ""
    sums: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """The step with its backend."""
        return f"{self.step} ({self.backend})"


class Trial(Struct, kw_only=True):
    """The result of a trial: messages received, and how it ended.

    Attributes:
        silent_s: Seconds without a message before we ended the trial; None if it ended by itself.
        exit_code: The launcher's exit code; None if it still ran at the end.
        last_words: Standard error of launcher and ranks until then.
    """

    notes: list[Note]
    silent_s: float | None = None
    exit_code: int | None = 0
    last_words: str = ""

    @property
    def is_through(self) -> bool:
        """Whether every rank sent ``end``; launchers take seconds longer to exit."""
        expected = max((note.world_size for note in self.notes), default=0)
        return 0 < expected <= sum(note.did == "end" for note in self.notes)

    @property
    def ending(self) -> str:
        """How the trial ended, or the first error message."""
        complaint = COMPLAINT.search(self.last_words)
        if complaint:
            return f": {complaint[1]}"
        if self.silent_s is not None:
            return f" (given up after {self.silent_s:.0f} s without news)"
        return f" (the launcher ended with exit code {self.exit_code})"


@check(
    "ranks",
    "ranks that cannot reach each other hang in their first collective, most often silently",
    alone=True,
)
def ranks_start(subject: Subject) -> Iterable[Finding]:
    """A small program of ours in place of yours, started by the same launcher.

    Rendezvous, a barrier, the sum of all_reduce, and every pair of ranks, on gloo and on NCCL.
    """
    command = trial_command(subject.launch)
    if command is None:
        return ()
    try:
        return judge_trial(try_ranks(command, subject.environment))
    except OSError as error:
        sentence = f"{command[0]} cannot be started ({error.strerror})"
        return (failed(sentence, "pip install torch", advice="correct the command, or"),)


def trial_command(launch: Launch) -> tuple[str, ...] | None:
    """Replace the user's program in the command by the trial's; None without a launcher."""
    if launch.launcher in ("torchrun", "accelerate"):
        words = (word for word in launch.prefix if word.replace("_", "-") not in NO_SCRIPT)
        return (*words, str(PROGRAM))
    if launch.launcher in ("slurm", "mpi"):
        inner = read_launch(launch.program, {})
        python = launch.program[0] if inner.launcher == "python" else sys.executable
        return (*launch.prefix, *(trial_command(inner) or (python, str(PROGRAM))))
    return None


def try_ranks(
    command: tuple[str, ...],
    environment: Mapping[str, str],
    first_s: float = FIRST_LIMIT_S,
    step_s: float = STEP_LIMIT_S,
) -> Trial:
    """Start the trial, read until it ends or falls silent, and end remaining processes.

    Raises:
        OSError: The launcher cannot be started.
    """
    parent = os.getpid()

    def end_with_parent() -> None:
        """Have the kernel send SIGTERM to the launcher when our process dies, even by SIGKILL."""
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # our process is already dead: no signal would come
            os._exit(1)

    trial = Trial(notes=[])
    output, writer = os.pipe()
    with os.fdopen(output, "rb", 0) as listened, tempfile.TemporaryFile() as complaints:
        with os.fdopen(writer, "wb") as printed:
            launcher = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=complaints,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        try:
            unread, began = b"", time.monotonic()
            news = began
            while not trial.is_through:
                limit = step_s if trial.notes else first_s
                left = min(news + limit, began + 180.0) - time.monotonic()
                if not select.select([listened], [], [], max(0.0, left))[0]:
                    trial.silent_s = time.monotonic() - news
                    break
                data = listened.read(65536)
                if not data:
                    with suppress(subprocess.TimeoutExpired):
                        launcher.wait(GRACE_S)
                    break
                *lines, unread = (unread + data).split(b"\n")
                # messages after a restart say nothing about the failure
                for line in lines:
                    with suppress(msgspec.DecodeError):  # lines of others
                        # the launcher may have put a prefix before it
                        note = msgspec.json.decode(line.partition(MARK)[2], type=Note)
                        if not note.restarts:
                            trial.notes.append(note)
                            news = time.monotonic()
            trial.exit_code = launcher.poll()
            # read before the ranks are ended, which causes errors too; pread, as the file position
            # is the writers'
            words = os.pread(complaints.fileno(), 64 * 1024, 0)
            trial.last_words = words.decode(errors="replace")
        finally:
            end_with_children(launcher, GRACE_S)
    return trial


def judge_trial(trial: Trial) -> Iterator[Finding]:
    """Yield a finding for each step that all ranks completed, and for the first that failed."""
    notes, closer = trial.notes, LOOK_CLOSER["rendezvous"]
    starts = [note for note in notes if note.did == "start"]
    if not starts:
        found = f"no rank reported{trial.ending}"
        if trial.silent_s is None and trial.exit_code == 0:
            leave_out = "leave out options that send output elsewhere: --log-dir, --redirects"
            yield warning(found, advice=f"{leave_out}, srun -o", check=START)
        else:
            yield failed(found, *closer, check=START)
        return
    times = Counter(note.rank for note in starts)
    expected = max(note.world_size for note in starts)
    found = f"{several(len(times), 'rank')} of {expected} on "
    found += several(len({note.host for note in starts}), "host")
    missing = set(range(expected)) - set(times)
    if twice := [rank for rank in times if times[rank] > 1]:
        found = f"rank {format_ranks(twice)} was started more than once, of {expected} ranks"
        yield failed(found, "unset RANK WORLD_SIZE LOCAL_RANK", check=START)
        return
    if missing:
        found = f"rank {format_ranks(missing)} never started; {found}{trial.ending}"
        yield failed(found, *closer, check=START)
        return
    yield ok(found, START)
    begun = [note for note in notes if note.did == "begin"]
    for name, step in dict.fromkeys((note.name, note.step) for note in begun):
        done = {note.rank: note for note in notes if note.did == "done" and note.name == name}
        pair = step.removeprefix("pair ").split("-") if step.startswith("pair ") else ()
        needed = set(map(int, pair)) or set(times)
        if needed - set(done):  # ranks that have not reached the step keep the others waiting in it
            inside = {note.rank for note in begun if note.name == name}
            waiting, absent = inside - set(done), needed - inside
            hangs = trial.silent_s is not None and not COMPLAINT.search(trial.last_words)
            who = f"rank {format_ranks(waiting)}" if waiting else "nobody"
            found = f"{who} {'hangs' if hangs else 'failed'} in {name}"
            found += f", rank {format_ranks(absent)} has not come there" if absent else ""
            found += f", rank {format_ranks(done)} is through" if done else ""
            kind = "rendezvous" if step == "rendezvous" else name.split()[-1][1:-1]
            yield failed(found + trial.ending, *LOOK_CLOSER[kind], check=name)
            return
        if step == "all_reduce":
            right = float(len(times) * (len(times) + 1) // 2)
            wrong = [note for note in done.values() if note.sums != (right, right)]
            if wrong:
                who = f"rank {format_ranks(note.rank for note in wrong)}"
                test = "have that host's memory and GPUs tested"
                got = f"{who} got {wrong[0].sums}, not {right:g}"
                yield failed(got, "dcgmi diag -r 3", advice=test, check=name)
            else:
                yield ok(f"every rank got the sum {right:g}", name)
        elif step in ("rendezvous", "barrier"):
            yield ok(f"ranks {format_ranks(done)} came through", name)
    pairs = {(note.backend, note.step) for note in notes if note.step.startswith("pair ")}
    for backend, count in sorted(Counter(backend for backend, _ in pairs).items()):
        yield ok(f"{several(count, 'pair')} exchanged data both ways", f"pairs ({backend})")
    if any(note.did == "no device" for note in notes):
        found = "not tried: there are fewer GPUs than ranks on a host"
        yield warning(found, "torchrun --nproc_per_node=gpu", check="nccl")
