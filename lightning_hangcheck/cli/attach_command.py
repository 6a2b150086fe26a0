"""`hangcheck attach`: diagnose a stuck job that was started without hangcheck."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from lightning_hangcheck.attach import job_search, several_nodes, visit
from lightning_hangcheck.attach.recorded_session import find_session, hang_stands, watch_over
from lightning_hangcheck.attach.visit import kept_output
from lightning_hangcheck.cli.exit_codes import HANG, exit_code_of
from lightning_hangcheck.cli.options import (
    FILES,
    GroupedCommand,
    Whole,
    many,
    option,
    positive,
    setting_options,
    settings_from,
)
from lightning_hangcheck.cli.showing import kept_in, say, show
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.judge import judge
from lightning_hangcheck.observe.discovery import patience_of
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.paragraphs import LONGEST_COMMAND, fit
from lightning_hangcheck.rundir import folder_of_node, name_run_folder, refuse_used
from lightning_hangcheck.session.session import place_of_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.attach.recorded_session import Watch
    from lightning_hangcheck.cli.options import Command
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict

MOST_CHARACTERS = 4 * 1024 * 1024
FOUND = "What to look at"
HOSTS = "On several hosts"
OF_HOSTS = {
    "--remote-command": (
        "CMD",
        "hangcheck",
        "What starts hangcheck there, such as /env/bin/hangcheck",
    ),
    "--ssh": ("CMD", "ssh", "How to get there, such as 'ssh -p 2222' [default: ssh]"),
    "--host-timeout": ("SECONDS", "60", "Time for one host [default: 60]"),
    "--at-once": ("N", 32, "Hosts at a time [default: 32]"),
}
"""Unit, default and help of each option; its environment variable has the option's name."""
EPILOG = """\b
Examples:
  hangcheck attach
  hangcheck attach --pid 4711
  hangcheck attach --hostfile hosts --remote-command /shared/env/bin/hangcheck
  srun --overlap --jobid=71 --ntasks-per-node=1 hangcheck attach --run-dir /shared/stuck-job
"""


def _host_options(command: Command) -> Command:
    for name, (unit, default, text) in reversed(OF_HOSTS.items()):
        kind: dict[str, Any] = {"type": Whole(1, 1024)} if unit == "N" else {}
        kind |= {"callback": positive} if unit == "SECONDS" else {}
        variable = f"HANGCHECK{name[1:].replace('-', '_').upper()}"
        command = option(name, unit, text, HOSTS, default=default, envvar=variable, **kind)(command)
    return command


@click.command("attach", cls=GroupedCommand, epilog=EPILOG)
@many(
    "--pid pids", "PID", "A rank, its worker, or the launcher; repeatable", FOUND, type=Whole(min=1)
)
@option("--locals", None, "Also read local variables of the ranks; secrets are hidden", FOUND)
@setting_options("patience")
@option("--run-dir", "DIR", "Run folder [default: a new one below hangcheck_runs]", FILES)
@option("--json-case", None, "Print the evidence as a line of JSON; judge and keep nothing", FILES)
@option("--hostfile", "FILE", "Look on these hosts by ssh, one a line; - for stdin", HOSTS)
@_host_options
@click.argument("more", nargs=-1, type=Whole(min=1), metavar="[PID...]")
def attach(
    pids: tuple[int, ...],
    more: tuple[int, ...],
    run_dir: str | None,
    locals: bool,
    json_case: bool,
    hostfile: str | None,
    remote_command: str,
    ssh: str,
    host_timeout: float,
    at_once: int,
    **options: object,
) -> int:
    """Say which rank of a running job hangs, where, why, and what to do.

    The job needs no preparation and is not disturbed. Exit code 0: no hang was found, or only a
    suspicion: look again. 3: it hangs. 4: there is no job, or it may not be read.
    """
    settings = settings_from(options)
    asked, pids = locals or settings.locals, (*pids, *more)
    for one, other, both in (
        ("--json-case", "--hostfile", json_case and hostfile),
        ("--json-case", "--run-dir", json_case and run_dir),
        ("--hostfile", "--pid", hostfile and pids),
    ):
        if both:
            raise BadUsage(f"{one} and {other} cannot be given together", f"leave out {other}")
    if hostfile is not None:
        names = several_nodes.read_hosts(_hostfile_text(hostfile), hostfile)
        way = several_nodes.Way(
            ssh=several_nodes.read_ssh(ssh),
            remote_command=remote_command,
            limit_s=host_timeout,
            local_values=asked,
        )
    folder = None
    if not json_case:
        # several steps of a SLURM job, one per node, may share one folder
        wanted, place = run_dir or settings.run_dir, place_of_task(os.environ)
        if wanted is not None and place is not None and place.number:
            folder = folder_of_node(wanted, str(place.number))
        else:
            folder = name_run_folder(wanted)
        refuse_used(folder)
    if hostfile is not None and folder is not None:
        joined, messages = several_nodes.attach_everywhere(names, way, folder, at_once)
        show(verdict_text.render(joined.case, joined.verdict, kept_in(joined.kept)))
        for silent in joined.left_out:
            say(f"{silent.what}: {silent.reason}")
        for host, message in messages.items():
            for sentence in message.said:
                say(f"host {host}: {sentence}")
        stands = any(message.hang_stands for message in messages.values())
        return HANG if stands else exit_code_of(joined.verdict)

    job = _the_job(pids)
    session, unrecorded = find_session(job.pids)
    limits = patience_of(settings)
    run_id = "" if folder is None else folder.run_id
    case, ranks = visit.look(job, limits, run_id, (session, unrecorded), local_values=asked)
    verdict = judge(case)
    if folder is not None:  # else another host asked, which judges the cases of all hosts
        kept = save_run(case, verdict, ranks, folder)
        show(verdict_text.render(case, verdict, kept_in(kept)))
    watch = watch_over(session) if session is not None else None
    said = tuple(_asides(case, verdict, watch))
    stands = watch is not None and watch.notes is not None and hang_stands(watch.notes, case)
    if folder is None:
        message = several_nodes.HostMessage(case=case, ranks=ranks, said=said, hang_stands=stands)
        click.echo(several_nodes.encode_message(message))
        return 0
    for sentence in said:
        say(sentence)
    return HANG if stands else exit_code_of(verdict)


def _hostfile_text(name: str) -> str:
    """Read the host file, which may be a pipe: ``--hostfile <(scontrol show hostnames)``."""
    remedy = "name a file with one host a line"
    try:
        with click.open_file(name, encoding="utf-8") as file:
            text: str = file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadUsage(f"--hostfile {name} cannot be read ({why})", remedy) from error
    if len(text) > MOST_CHARACTERS:
        raise BadUsage(f"--hostfile {name} has more than 4 MiB", remedy)
    return text


def _the_job(pids: Sequence[int]) -> job_search.FoundJob:
    """Find the job of these processes, or the only job on this machine.

    Raises:
        NoJobFound: There is no job, or it may not be read.
        BadUsage: There are several jobs; they are listed on stderr, one per line.
    """
    machine = job_search.look_around()
    jobs = () if pids else job_search.jobs_of_step(machine, os.environ)
    jobs = jobs or job_search.find_jobs(machine, pids)
    if len(jobs) == 1:
        return jobs[0]
    for job in jobs:
        shown = fit(job_search.command_of(job.ranks[0].pid), LONGEST_COMMAND)
        click.echo(f"pid {job.ranks[0].pid}  world size {job.world_size}  {shown}", err=True)
    raise BadUsage(
        f"{len(jobs)} jobs run here", f"name one: hangcheck attach --pid {jobs[0].ranks[0].pid}"
    )


def _asides(case: Case, verdict: Verdict, watch: Watch | None) -> Iterator[str]:
    """Say what is kept back of the job's output, and who watches it, what that found and when."""
    if (kept := kept_output(case, verdict)) is not None:
        yield kept
    if watch is None:
        return
    newest = watch.notes.newest if watch.notes is not None else None
    said = "no verdict yet" if watch.notes is not None else watch.gaps[0].reason
    if newest is not None:
        said = f"{verdict_text.render_line(newest)}; reported at {newest.detected_at}"
    state = "is watched" if watch.alive else "was watched, but its watcher is gone"
    yield f"this job {state}, see {watch.run_folder}: {said}"
