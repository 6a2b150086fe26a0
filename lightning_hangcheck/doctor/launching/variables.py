"""Do the variables of torchrun, SLURM and Lightning agree with each other and with the command?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.identity import SLURM_SHELLS, identify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.doctor.subject import Subject

NAME = "launch variables"
TASKS = "SLURM tasks"
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def variables_agree(subject: Subject) -> tuple[Check, ...]:
    """Look at what a shell hands on to the ranks: numbers that contradict each other, leftovers.

    Args:
        subject: The run.
    """
    problems = list(_problems(subject.environment))
    if not problems and subject.launch.launcher in ("python", "none"):
        problems = list(_left_over(subject.environment))
    remedy = f"unset {' '.join(RANKS)}"
    return tuple(Check(NAME, "failed", problem, remedy) for problem in problems) or (
        Check(NAME, "ok", _as_found(subject.environment)),
    )


def slurm_agrees(subject: Subject) -> tuple[Check, ...]:
    """Compare SLURM's tasks with how the command starts ranks and with ``--devices``.

    Lightning believes SLURM_NTASKS also where nobody started that many processes, and waits.

    Args:
        subject: The run.
    """
    environment, launch = subject.environment, subject.launch
    if "SLURM_NTASKS" not in environment or environment.get("SLURM_JOB_NAME") in SLURM_SHELLS:
        return ()
    tasks = environment["SLURM_NTASKS"]
    in_step = "SLURM_STEP_ID" in environment
    if launch.launcher == "python" and tasks not in ("", "1") and not in_step:
        found = f"SLURM_NTASKS={tasks}, but the command starts one process: it waits for the others"
        return (Check(TASKS, "failed", found, "srun " + " ".join(subject.command)),)
    per_node = launch.options.get("--ntasks-per-node", environment.get("SLURM_NTASKS_PER_NODE"))
    if launch.launcher == "slurm" and per_node is None and tasks not in ("", "1"):
        found = f"SLURM_NTASKS={tasks} without SLURM_NTASKS_PER_NODE: Lightning refuses that"
        return (Check(TASKS, "failed", found, f"#SBATCH --ntasks-per-node={launch.local_ranks}"),)
    devices = launch.argument("--devices") or launch.argument("--trainer.devices")
    if launch.launcher == "slurm" and devices and devices.isdecimal() and per_node != devices:
        found = f"SLURM_NTASKS_PER_NODE={per_node}, but the program is given {devices} devices"
        return (Check(TASKS, "failed", found, f"#SBATCH --ntasks-per-node={devices}"),)
    return (Check(TASKS, "ok", f"SLURM starts {tasks} tasks, as the command expects"),)


def _problems(environment: Mapping[str, str]) -> Iterator[str]:
    """Numbers that are none, or that cannot be true together."""
    who = identify({name: value for name, value in environment.items() if name in RANKS})
    yield from (problem.partition(";")[0] for problem in who.problems)
    pairs = (
        ("RANK", who.rank, "WORLD_SIZE", who.world_size),
        ("LOCAL_RANK", who.local_rank, "LOCAL_WORLD_SIZE", who.local_world_size),
    )
    for name, rank, of, size in pairs:
        if rank is not None and size is not None and rank >= size:
            yield f"{name}={rank} cannot be with {of}={size}: ranks count from 0"
    if who.world_size and who.local_world_size and who.local_world_size > who.world_size:
        yield f"LOCAL_WORLD_SIZE={who.local_world_size} is more than WORLD_SIZE={who.world_size}"


def _left_over(environment: Mapping[str, str]) -> Iterator[str]:
    """A process that is started plainly, but finds a rank in its environment, waits for the rest.

    In a shell that is itself a rank (a step of srun, or under torchrun) they are no leftovers.
    """
    if "TORCHELASTIC_RUN_ID" in environment or "SLURM_STEP_ID" in environment:
        return
    named = [f"{name}={environment[name]}" for name in OF_TORCHRUN if name in environment]
    if named and environment.get("WORLD_SIZE", "2") != "1":
        yield f"{', '.join(named)} in this shell: a process started from it waits for other ranks"


def _as_found(environment: Mapping[str, str]) -> str:
    named = [f"{name}={environment[name]}" for name in RANKS if name in environment]
    return ", ".join(named) or "no variable of a launcher is set here"
