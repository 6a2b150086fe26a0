"""`hangcheck attach`: diagnose a job that is already stuck and never heard of this package."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from lightning_hangcheck.cli.options import (
    FILES,
    GroupedCommand,
    Option,
    patience_options,
    positive,
    settings_from,
)
from lightning_hangcheck.cli.showing import HANG, as_typed, exit_code_of, say, show
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.rundir import folder_of_node, name_run_folder, refuse_used
from lightning_hangcheck.session.whose import place_of_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lightning_hangcheck.attach.hosts import Way
    from lightning_hangcheck.attach.job_search import FoundJob
    from lightning_hangcheck.attach.recorded_session import RecordedSession, Watch
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir import RunFolder
    from lightning_hangcheck.settings import Settings

LONGEST_COMMAND = 240
MOST_CHARACTERS = 4 * 1024 * 1024
FOUND = "What to look at"
HOSTS = "On several hosts"
EPILOG = """\b
Examples:
  hangcheck attach
  hangcheck attach --pid 4711
  hangcheck attach --hostfile hosts --remote-command /shared/env/bin/hangcheck
  srun --overlap --jobid=71 --ntasks-per-node=1 hangcheck attach --run-dir /shared/stuck-job
"""


class Hosts(NamedTuple):
    """On which hosts to look, how to get there, and on how many at a time."""

    names: tuple[str, ...]
    way: Way
    at_once: int


@click.command("attach", cls=GroupedCommand, epilog=EPILOG)
@click.option(
    "--pid",
    "pids",
    cls=Option,
    group=FOUND,
    type=click.IntRange(min=1),
    multiple=True,
    metavar="PID",
    help="A rank, its worker, or the launcher; repeatable",
)
@click.option(
    "--locals",
    "local_values",
    cls=Option,
    group=FOUND,
    is_flag=True,
    help="Also read local variables of the ranks; secrets are hidden",
)
@patience_options
@click.option(
    "--run-dir",
    cls=Option,
    group=FILES,
    metavar="DIR",
    help="Run folder [default: a new one below hangcheck_runs]",
)
@click.option(
    "--json-case",
    cls=Option,
    group=FILES,
    is_flag=True,
    help="Print the evidence as a line of JSON; judge and keep nothing",
)
@click.option(
    "--hostfile",
    cls=Option,
    group=HOSTS,
    metavar="FILE",
    help="Look on these hosts by ssh, one a line; - for stdin",
)
@click.option(
    "--remote-command",
    cls=Option,
    group=HOSTS,
    metavar="CMD",
    envvar="HANGCHECK_REMOTE_COMMAND",
    default="hangcheck",
    help="What hangcheck is there, such as /env/bin/hangcheck",
)
@click.option(
    "--ssh",
    cls=Option,
    group=HOSTS,
    metavar="CMD",
    envvar="HANGCHECK_SSH",
    default="ssh",
    help="How to get there, such as 'ssh -p 2222' [default: ssh]",
)
@click.option(
    "--host-timeout",
    cls=Option,
    group=HOSTS,
    metavar="SECONDS",
    callback=positive,
    envvar="HANGCHECK_HOST_TIMEOUT",
    default="60",
    help="Time for one host [default: 60]",
)
@click.option(
    "--at-once",
    cls=Option,
    group=HOSTS,
    metavar="N",
    type=click.IntRange(1, 1024),
    envvar="HANGCHECK_AT_ONCE",
    default=32,
    help="Hosts at a time [default: 32]",
)
@click.argument("more", nargs=-1, type=click.IntRange(min=1), metavar="[PID...]")
def attach(
    pids: tuple[int, ...],
    run_dir: str | None,
    local_values: bool,
    json_case: bool,
    hostfile: str | None,
    remote_command: str,
    ssh: str,
    host_timeout: float,
    at_once: int,
    more: tuple[int, ...],
    **options: object,
) -> int:
    """Say which rank of a running job hangs, where, why, and what to do.

    The job needs no preparation and is not disturbed. Exit code 0: no hang was found; a suspicion
    is none, look again. 3: it hangs. 4: there is no job, or it may not be read.
    """
    settings = settings_from(options)
    asked = local_values or settings.locals
    hosts = None
    if hostfile is not None:
        # imported here so that a look at this host needs no part of it
        from lightning_hangcheck.attach.hosts import Way, read_hosts, read_ssh

        way = Way(
            ssh=read_ssh(ssh),
            remote_command=remote_command,
            limit_s=host_timeout,
            local_values=asked,
        )
        hosts = Hosts(read_hosts(_hostfile_text(hostfile), hostfile), way, at_once)
    if json_case:
        _refuse_together("--json-case", {"--hostfile": hosts, "--run-dir": run_dir})
        return _print_case((*pids, *more), settings, local_values=asked)
    folder = _run_folder(run_dir or settings.run_dir)
    refuse_used(folder)
    if hosts is not None:
        _refuse_together("--hostfile", {"--pid": pids or more})
        return _attach_everywhere(hosts, folder, run_dir)
    # imported here so that the other commands need no part of the sidecar
    from lightning_hangcheck.attach.recorded_session import find_session
    from lightning_hangcheck.attach.visit import attach as attach_job
    from lightning_hangcheck.observe.discovery import patience_of

    job = _the_job((*pids, *more))
    recorded = find_session(job.pids)
    case, verdict = attach_job(job, patience_of(settings), folder, recorded, local_values=asked)
    show(verdict_text.render(case, verdict, run_dir or as_typed(folder.path)))
    watch = _watch(recorded)
    for sentence in _beside_it(case, verdict, watch):
        say(sentence)
    return HANG if _hang_stands(watch, case) else exit_code_of(verdict)


def _print_case(pids: Sequence[int], settings: Settings, *, local_values: bool) -> int:
    """What another host asks for: evidence alone, as that host judges it with the others'."""
    from lightning_hangcheck.attach.hosts import HostMessage, encode_message
    from lightning_hangcheck.attach.recorded_session import find_session
    from lightning_hangcheck.attach.visit import look
    from lightning_hangcheck.judge import judge
    from lightning_hangcheck.observe.discovery import patience_of

    job = _the_job(pids)
    recorded = find_session(job.pids)
    limits = patience_of(settings)
    case, ranks = look(job, limits, "", recorded, local_values=local_values)
    watch = _watch(recorded)
    message = HostMessage(
        case=case,
        ranks=ranks,
        said=tuple(_beside_it(case, judge(case), watch)),
        hang_stands=_hang_stands(watch, case),
    )
    click.echo(encode_message(message))
    return 0


def _attach_everywhere(hosts: Hosts, folder: RunFolder, run_dir: str | None) -> int:
    from lightning_hangcheck.attach.hosts import attach_everywhere

    joined = attach_everywhere(hosts.names, hosts.way, folder, hosts.at_once)
    show(verdict_text.render(joined.case, joined.verdict, run_dir or as_typed(folder.path)))
    for silent in joined.silent:
        say(f"{silent.what}: {silent.reason}")
    for host, sentence in joined.said:
        say(f"host {host}: {sentence}")
    return HANG if joined.hang_stands else exit_code_of(joined.verdict)


def _hostfile_text(name: str) -> str:
    """Read the file; it may be a pipe: ``--hostfile <(scontrol show hostnames)``."""
    try:
        if name == "-":
            text = sys.stdin.read(MOST_CHARACTERS + 1)
        else:
            with open(name, encoding="utf-8") as file:  # noqa: PTH123 - no path where it is a pipe
                text = file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadUsage(
            f"--hostfile {name} cannot be read ({why})", "name a file with one host a line"
        ) from error
    if len(text) > MOST_CHARACTERS:
        raise BadUsage(f"--hostfile {name} has more than 4 MiB", "name a file with one host a line")
    return text


def _refuse_together(option: str, others: Mapping[str, object]) -> None:
    """Refuse options that contradict each other.

    Raises:
        BadUsage: One of the others was given, too.
    """
    for other, given in others.items():
        if given:
            raise BadUsage(f"{option} and {other} cannot be given together", f"leave out {other}")


def _run_folder(wanted: str | None) -> RunFolder:
    """The steps that look at the nodes of a SLURM job may all be given one folder."""
    place = place_of_task(os.environ)
    if place is None or wanted is None or not place.number:
        return name_run_folder(wanted)
    return folder_of_node(wanted, str(place.number))


def _the_job(pids: Sequence[int]) -> FoundJob:
    """Find the job to which these processes belong, or the only one that is here.

    Raises:
        NoJobFound: There is none, or it may not be read.
        BadUsage: There are several; they are listed.
    """
    from lightning_hangcheck.attach.job_search import find_jobs, jobs_of_step, look_around

    machine = look_around()
    jobs = () if pids else jobs_of_step(machine, os.environ)
    jobs = jobs or find_jobs(machine, pids)
    if len(jobs) > 1:
        _ask_which(jobs)
    return jobs[0]


def _watch(recorded: RecordedSession) -> Watch | None:
    from lightning_hangcheck.attach.recorded_session import watch_over

    return watch_over(recorded.session) if recorded.session is not None else None


def _hang_stands(watch: Watch | None, case: Case) -> bool:
    from lightning_hangcheck.attach.recorded_session import hang_stands

    return watch is not None and watch.notes is not None and hang_stands(watch.notes, case)


def _beside_it(case: Case, verdict: Verdict, watch: Watch | None) -> Iterator[str]:
    """Say what is kept back of the job's output, and who watches it."""
    from lightning_hangcheck.attach.kept_output import kept_output

    if (kept := kept_output(case, verdict)) is not None:
        yield kept
    if watch is not None:
        yield _who_watches(watch)


def _who_watches(watch: Watch) -> str:
    """Say in one line who watches the job, what it found and when."""
    newest = watch.notes.newest if watch.notes is not None else None
    said = "no verdict yet" if watch.notes is not None else watch.gaps[0].reason
    if newest is not None:
        said = f"{verdict_text.render_line(newest)}; told at {newest.detected_at}"
    state = "is watched" if watch.alive else "was watched, but its watcher is gone"
    return f"this job {state}, see {watch.run_folder}: {said}"


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
