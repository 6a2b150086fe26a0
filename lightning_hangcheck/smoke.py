"""`hangcheck smoke`: runs minimal variants of a job in turn, to see which one hangs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files import NEW_FILE, PRIVATE_FILE
from lightning_hangcheck.launch.run import unstartable
from lightning_hangcheck.look.programs import end_with_children
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.paragraphs import aligned, labelled, listed
from lightning_hangcheck.report.saved_run import SavedRun, read_saved_run
from lightning_hangcheck.rundir import refuse_used
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.rundir import RunFolder

Result = Literal["passed", "hang", "late", "failed"]
DEVICES, WORKERS = "{devices}", "{workers}"
SEQUENCE = ((2, 0), (2, 1), (1, 0))
"""Ranks and DataLoader workers: the minimum with communication; with workers; one process."""
_PACKAGE = Path(__file__).parent
PLACES = (_PACKAGE / "reference_script", _PACKAGE.parent / "scripts")
"""Folders of the reference script: in a wheel (by pyproject.toml), and in a checkout."""
SCRIPT = "train_reference.py"
BATCHES = 5  # Of training and of validation: enough to show whether ranks agree.
FOUND = ("hang", "dead")
REFUSED = 2
"""Exit code of `hangcheck run` if the command cannot be started; a job may return it, too."""
END_LIMIT_S = 20.0  # For `hangcheck run` to end the job: its own grace is 10 s.


class Trial(Struct, frozen=True, kw_only=True):
    """One run of a smoke test; a number that the command does not accept is None."""

    devices: int | None
    workers: int | None
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """For people: ``2 ranks, 1 worker``, ``1 process``, ``as given``."""
        if self.devices == 1 and not self.workers:
            return "1 process"
        numbers = ((self.devices, "rank"), (self.workers, "worker"))
        named = [several(number, noun) for number, noun in numbers if number is not None]
        return ", ".join(named) or "as given"

    @property
    def slug(self) -> str:
        """The name as part of a file name."""
        return self.name.replace(",", "").replace(" ", "-")


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of one run.

    Attributes:
        result: ``hang``: by its verdict. ``late``: ended at the limit without proof of a hang.
            ``failed``: ended by itself with an exit code other than 0.
        verdict: The newest verdict when the run ended or reached the limit.
    """

    trial: Trial
    result: Result
    seconds: float
    where: str = ""
    verdict: Verdict | None = None
    run_folder: str = ""

    @property
    def output_file(self) -> str:
        """The run's output, next to its folder, which `hangcheck run` creates itself."""
        return f"{self.run_folder}.log"


def plan_trials(command: Sequence[str]) -> tuple[Trial, ...]:
    """Fill in ``{devices}`` and ``{workers}`` by the sequence; equal runs are made once."""
    words = " ".join(command)
    trials: dict[tuple[str, ...], Trial] = {}
    for devices, workers in SEQUENCE:
        filled = tuple(
            word.replace(DEVICES, str(devices)).replace(WORKERS, str(workers)) for word in command
        )
        trial = Trial(
            devices=devices if DEVICES in words else None,
            workers=workers if WORKERS in words else None,
            command=filled,
        )
        trials.setdefault(filled, trial)
    return tuple(trials.values())


def reference_trials(output_dir: Path) -> tuple[Trial, ...]:
    """Plan the sequence for the reference script: with torchrun, and without a launcher.

    Raises:
        BadUsage: This installation has no reference script.
    """
    script = next((path / SCRIPT for path in PLACES if (path / SCRIPT).is_file()), None)
    if script is None:
        raise BadUsage(
            "this installation has no reference script",
            "name your own command: hangcheck smoke -- torchrun --nproc_per_node={devices} "
            "train.py --num_workers {workers}",
        )
    torchrun = own_torchrun(DEVICES)
    options = ("--fast_dev_run", str(BATCHES), "--batch_size", "4", "--num_workers", WORKERS)
    job = (str(script), *options, "--output_dir", str(output_dir))
    with_ranks = plan_trials((*torchrun, *job))[:2]
    alone = plan_trials((sys.executable, *job))[0]
    return (*with_ranks, Trial(devices=1, workers=0, command=alone.command))


def own_torchrun(ranks: int | str) -> tuple[str, ...]:
    """Return the start of a command line that starts ranks with this Python's torchrun.

    Raises:
        BadUsage: This Python has no torch.
    """
    if find_spec("torch") is None:
        raise BadUsage(
            f"{sys.executable} has no torch to start ranks with",
            "install lightning-hangcheck where the script's packages are",
        )
    # --standalone: a port of its own, so that other jobs on this machine are not met
    words = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}")
    return (sys.executable, *words)


def run_trial(
    trial: Trial, folder: RunFolder, limit_s: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a trial until it ends, hangs or reaches its limit; end all its processes.

    Raises:
        BadUsage: The output file cannot be created, or the command cannot be started.
        UsedRunFolder: The folder already holds a run, whose verdict would be mistaken for this
            one's.
    """
    refuse_used(folder)
    output = folder.path.with_name(f"{folder.run_id}.log")
    command = (
        *(sys.executable, "-m", "lightning_hangcheck", "run", "--on-hang", "abort"),
        *("--run-dir", str(folder.path), "--", *trial.command),
    )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        printed = os.open(output, os.O_WRONLY | NEW_FILE, PRIVATE_FILE)
    except OSError as error:
        raise unmade(output, error) from error
    began = time.monotonic()
    exit_code, saved = None, SavedRun()
    with os.fdopen(printed, "wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            exit_code = process.wait(limit_s)
        seconds = time.monotonic() - began
        # read now: ending the run changes the verdict
        with suppress(UnreadableRun):
            saved = read_saved_run(folder)
    finally:
        end_with_children(process, END_LIMIT_S)
    if exit_code == REFUSED and (saved.record is None or saved.record.exit_code is None):
        raise unstartable(trial.command[0], f"the reason is in {output}", "smoke")
    verdict, where = saved.verdict, ""
    hangs = verdict is not None and verdict.verdict in FOUND
    result: Result = "passed"  # the run ended well, whatever was suspected before
    if exit_code != 0:
        result = "hang" if hangs else "late" if exit_code is None else "failed"
        reached = [
            f"{end.name.replace('-', ' ')} passed checkpoint {end.checkpoint.number} "
            f"{end.checkpoint.name}"
            for end in saved.journals
            if end.checkpoint is not None
        ]
        said = verdict.summary if verdict is not None else ""
        known = said or ", ".join(reached) or "no rank said where it is"
        ending = f"still ran after {limit_s:g} s" if exit_code is None else f"exit code {exit_code}"
        where = said if hangs and said else f"{ending}: {known}"
    return Outcome(
        trial=trial,
        result=result,
        seconds=seconds,
        where=where,
        verdict=verdict,
        run_folder=str(folder.path),
    )


def unmade(path: Path, error: OSError) -> BadUsage:
    """Return the error for a file or folder next to a run's folder that cannot be made."""
    return BadUsage(
        f"{path} cannot be made ({error.strerror})",
        "name other folders with --run-dir, where you may write and no run is yet",
    )


SHOWN: dict[Result, tuple[str, str]] = {
    "passed": ("passed", "passed"),
    "hang": ("HANG", "hangs"),
    "late": ("LATE", "still ran at its limit"),
    "failed": ("FAILED", "failed"),
}
"""In the table, and in the headline."""


def interpret(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Say what it means which runs passed, then the remedies, the first step first."""
    passed = {
        (outcome.trial.devices, outcome.trial.workers): outcome.result == "passed"
        for outcome in outcomes
    }
    if (None, None) in passed:
        return (
            "nothing was compared: the command names neither {devices} nor {workers}, so it ran "
            "once",
            "write {devices} and {workers} in the command where it names these numbers",
        )
    if all(passed.values()):
        return ("the runs that usually show a hang at once all ended well",)
    if all(outcome.result == "late" and outcome.verdict is None for outcome in outcomes):
        return (
            "no run ended, and none is proven to hang: the limit may be too short for this job",
            "allow more time (--limit 900), or shorten the job: --fast_dev_run 5, --max_steps 5",
        )
    alone = next((well for (devices, _), well in passed.items() if devices == 1), None)
    without = next(
        (well for (devices, workers), well in passed.items() if devices != 1 and not workers), None
    )
    if alone is False and without:
        return (
            "only alone: the program needs what a launcher gives (a process group, RANK, "
            "WORLD_SIZE)",
            "start it with the launcher for one rank, too: torchrun --nproc_per_node=1",
        )
    if alone is False:
        return (
            "alone, too: the program itself, not communication and not the number of ranks",
            "fix the run with 1 process first: it is the quickest to repeat",
        )
    if alone is None and without is False:
        return (
            "without workers, too: not the DataLoader's workers",
            "let the number of ranks be chosen as well: write {devices} where the command names it",
        )
    if without:
        return (
            "only with workers: the DataLoader, or what its fork copies (threads, locks, open "
            "connections)",
            "go on with num_workers=0, and see in the verdict at which line each worker is",
            'start workers without fork: DataLoader(..., multiprocessing_context="spawn")',
            "export TOKENIZERS_PARALLELISM=false: a tokenizer's threads do not survive a fork",
        )
    return (
        "only with 2 ranks: communication between them, or a call that only some ranks make",
        "look for calls under a rank condition (if rank == 0, is_global_zero, rank_zero_only) that "
        "the other ranks wait for: logger, barrier, save, validation",
        'say strategy="ddp" in place of "auto"',
        "see what the connection does: NCCL_DEBUG=INFO with GPUs, TORCH_DISTRIBUTED_DEBUG=INFO "
        "without; and name the interface: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME",
    )


def name_picture(verdict: Verdict) -> str:
    """Describe which of three usual patterns the verdict shows; empty for none."""
    phases = {state.phase for state in verdict.ranks}
    who = "all ranks are" if len(verdict.ranks) > 1 else "the process is"
    if phases == {"logger_init"}:
        return f"at the logger: {who} creating the experiment logger, and none came out of it"
    if phases and phases <= {"trainer_init", "rendezvous"}:
        return f"at the Trainer: {who} in its constructor or in its first rendezvous"
    reached = []  # checkpoint and step of each rank
    for state in verdict.ranks:
        mark, step = state.last_checkpoint, state.step
        reached.append((mark.number if mark is not None else 0, -1 if step is None else step))
    if len(reached) < 2 or reached.count(max(reached)) > 1:
        return ""
    ahead = verdict.ranks[reached.index(max(reached))]
    mark = ahead.last_checkpoint
    places = [] if mark is None else [f"checkpoint {mark.number} {mark.name}"]
    places += [] if ahead.step is None else [f"step {ahead.step}"]
    there = ", ".join(places)
    return f"one rank ahead: rank {ahead.rank} has come to {there}, and no other rank has"


def render(outcomes: Sequence[Outcome]) -> str:
    """Write the result in at most 40 lines, ending in a newline."""
    meaning, *advice = interpret(outcomes)
    # the first run that hangs or is late, else the first that did not pass
    hung = (outcome for outcome in outcomes if outcome.result in ("hang", "late"))
    trouble = next(hung, next((each for each in outcomes if each.result != "passed"), None))
    runs = several(len(outcomes), "run")
    passed = sum(outcome.result == "passed" for outcome in outcomes)
    headline = f"SMOKE  {runs} passed"
    if trouble is not None:
        said = SHOWN[trouble.result][1]
        headline = f"SMOKE  {trouble.trial.name}: {said}; {passed} of {runs} passed"
    rows = []
    for outcome in outcomes:
        facts, verdict = "", outcome.verdict
        if verdict is not None and outcome.result in ("hang", "late"):
            phase = f"phase {verdict.phase}" if verdict.phase else ""
            facts = f"{verdict.cause or ''}  {phase}".strip()
        shown, took = SHOWN[outcome.result][0], f"{outcome.seconds:.1f} s"
        rows.append((outcome.trial.name, shown, took, facts))
    lines = [headline, "", *aligned(rows, (3,), -1), ""]
    known = trouble.verdict if trouble is not None else None
    if trouble is not None:
        lines += labelled("where", trouble.where, most=5)
    if known is not None and (picture := name_picture(known)):
        lines += labelled("pattern", picture, most=3)
    lines += labelled("means", meaning, most=3)
    # the verdict's remedy is more specific than the general ones
    texts = [*(remedy.text for remedy in (known.remedies[:1] if known else ())), *advice]
    remedies = [f"{number}. {text}" for number, text in enumerate(texts, start=1)]
    lines += listed("do", remedies, most=10) if remedies else []
    if trouble is not None:
        lines += labelled("more", f"hangcheck report {shlex.quote(trouble.run_folder)}", most=1)
        lines += labelled("", f"what it printed: {trouble.output_file}", most=1)
    return "\n".join(lines) + "\n"
