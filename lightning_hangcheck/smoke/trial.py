"""Which runs a smoke test is made of: the same command with other numbers of ranks and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICES, WORKERS = "{devices}", "{workers}"
SEQUENCE = ((2, 0), (2, 1), (1, 0))
"""Ranks and DataLoader workers: the least that has communication, then with workers, then alone."""


class Trial(Struct, frozen=True, kw_only=True):
    """One run of a smoke test.

    Attributes:
        devices: Ranks, None where the command does not let us choose.
        workers: DataLoader workers of each rank, likewise.
        command: To run.
    """

    devices: int | None
    workers: int | None
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """For people: ``2 ranks, 1 worker``, ``1 process``, ``as given``."""
        if self.devices == 1 and not self.workers:
            return "1 process"
        ranks = [] if self.devices is None else [several(self.devices, "rank")]
        workers = [] if self.workers is None else [several(self.workers, "worker")]
        return ", ".join(ranks + workers) or "as given"

    @property
    def slug(self) -> str:
        """The name as a part of a file's name."""
        return self.name.replace(",", "").replace(" ", "-")


Result = Literal["passed", "hang", "late", "failed"]


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of one run.

    Attributes:
        result: ``hang``: a verdict says so; ``late``: it was ended at the limit, and nothing proves
            a hang; ``failed``: it ended by itself with an exit code that is not 0.
        seconds: Until it ended, or was ended.
        where: In one sentence; empty for a run that passed.
        verdict: What was known when it ended, or was about to be ended at the limit.
        run_folder: As a reader should type it.
    """

    trial: Trial
    result: Result
    seconds: float
    where: str = ""
    verdict: Verdict | None = None
    run_folder: str = ""

    @property
    def output_file(self) -> str:
        """What the run printed: beside its folder, which `hangcheck run` makes for itself."""
        return output_name(self.run_folder)


def output_name(run_folder: str) -> str:
    """Name the file for what a run prints."""
    return f"{run_folder}.log"


def plan_trials(command: Sequence[str]) -> tuple[Trial, ...]:
    """Put the numbers of the sequence in place of ``{devices}`` and ``{workers}``.

    Args:
        command: Of the user. What it lets nobody choose is left as it is, and runs that would be
            equal are made once.
    """
    trials: dict[tuple[str, ...], Trial] = {}
    for devices, workers in SEQUENCE:
        trial = Trial(
            devices=devices if _names(command, DEVICES) else None,
            workers=workers if _names(command, WORKERS) else None,
            command=tuple(
                word.replace(DEVICES, str(devices)).replace(WORKERS, str(workers))
                for word in command
            ),
        )
        trials.setdefault(trial.command, trial)
    return tuple(trials.values())


def _names(command: Sequence[str], placeholder: str) -> bool:
    return any(placeholder in word for word in command)
