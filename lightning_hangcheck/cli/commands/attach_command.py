"""`hangcheck attach`: diagnose a job that is already stuck and never heard of this package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli.showing import HANG, as_typed, exit_code_of, say, show
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.report import terminal
from lightning_hangcheck.rundir.layout import name_run_folder, refuse_used
from lightning_hangcheck.settings import from_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.attach.job_grouping import FoundJob
    from lightning_hangcheck.attach.recorded_session import Watch

LONGEST_COMMAND = 240
EPILOG = """\b
Examples:
  hangcheck attach
  hangcheck attach --pid 4711
  hangcheck attach --pid 4711 --run-dir stuck-job
"""


@click.command("attach", epilog=EPILOG)
@click.option(
    "--pid",
    "pids",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="PID",
    help="A process of the job: a rank, its worker, or the launcher. May be given several times.",
)
@click.option(
    "--run-dir",
    metavar="DIR",
    default=None,
    help="Run folder [default: a new one below hangcheck_runs]. (HANGCHECK_RUN_DIR)",
)
@click.option(
    "--locals",
    "local_values",
    is_flag=True,
    help="Read local variables of the ranks too; secrets are hidden. (HANGCHECK_LOCALS=1)",
)
@click.argument("more", nargs=-1, type=click.IntRange(min=1), metavar="[PID...]")
def attach(
    pids: tuple[int, ...], run_dir: str | None, local_values: bool, more: tuple[int, ...]
) -> int:
    """Say which rank of a running job hangs, where, why, and what to do.

    The job needs no preparation and is not disturbed. Without --pid there must be one job of which
    we may read the processes. Exit code 0 if no hang was found (a suspicion is none: look again in
    half a minute), 3 if it hangs, 4 if there is no job or it may not be read.
    """
    settings = from_environment(os.environ)
    folder = name_run_folder(run_dir or settings.run_dir)
    refuse_used(folder)
    # imported here so that the other commands need no part of the sidecar
    from lightning_hangcheck.attach.attach import attach as attach_job
    from lightning_hangcheck.attach.job_search import find_jobs, look_around
    from lightning_hangcheck.attach.kept_output import kept_output
    from lightning_hangcheck.attach.recorded_session import find_session, watch_over
    from lightning_hangcheck.attach.watched_history import hang_stands
    from lightning_hangcheck.observe.patience import patience_of

    jobs = find_jobs(look_around(), (*pids, *more))
    if len(jobs) > 1:
        _ask_which(jobs)
    recorded = find_session(jobs[0].pids)
    asked = local_values or settings.locals
    case, verdict = attach_job(jobs[0], patience_of(settings), folder, recorded, local_values=asked)
    show(terminal.render(case, verdict, run_dir or as_typed(folder.path)))
    if (kept := kept_output(case, verdict)) is not None:
        say(kept)
    watch = watch_over(recorded.session) if recorded.session is not None else None
    if watch is not None:
        _say_who_watches(watch)
        if watch.notes is not None and hang_stands(watch.notes, case):
            return HANG
    return exit_code_of(verdict)


def _say_who_watches(watch: Watch) -> None:
    """Say in one line who watches the job, what it found and when."""
    newest = watch.notes.newest if watch.notes is not None else None
    said = "no verdict yet" if watch.notes is not None else watch.gaps[0].reason
    if newest is not None:
        said = f"{terminal.render_line(newest)}; told at {newest.detected_at}"
    state = "is watched" if watch.alive else "was watched, but its watcher is gone"
    say(f"this job {state}, see {watch.run_folder}: {said}")


def _ask_which(jobs: Sequence[FoundJob]) -> None:
    """List the jobs, one line each.

    Raises:
        BadUsage: Always.
    """
    from lightning_hangcheck.attach.job_search import command_of

    for job in jobs:
        command = command_of(job)
        shown = command if len(command) <= LONGEST_COMMAND else f"{command[:LONGEST_COMMAND]}..."
        click.echo(f"pid {job.ranks[0].pid}  world size {job.world_size}  {shown}", err=True)
    raise BadUsage(
        f"{len(jobs)} jobs run here", f"name one: hangcheck attach --pid {jobs[0].ranks[0].pid}"
    )
