"""`hangcheck attach` and `merge`: diagnose a job that is stuck, on one node or several."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightning_hangcheck.attach import job_search, several_nodes, visit
from lightning_hangcheck.attach.recorded_session import find_session, hang_stands, watch_over
from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.cli.showing import HANG, exit_code_of, kept_in, say, show
from lightning_hangcheck.errors import BadUsage, NoJobFound, UnreadableRun
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
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.run import RankRecord
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.settings import Settings

MOST_CHARACTERS = 4 * 1024 * 1024
FOUND = "What to look at"
HOSTS = "On several hosts"
PID = "A rank, its worker, or the launcher; repeatable"
LOCALS = "Also read local variables of the ranks; secrets are hidden"
RUN_DIR = "Run folder [default: a new one below hangcheck_runs]"
JSON_CASE = "Print the evidence as a line of JSON; judge and keep nothing"
HOSTFILE = "Look on these hosts by ssh, one a line; - for stdin"
REMOTE = "What starts hangcheck there, such as /env/bin/hangcheck"
SSH = "How to get there, such as 'ssh -p 2222' [default: ssh]"
TIMEOUT, AT_ONCE = "Time for one host [default: 60]", "Hosts at a time [default: 32]"


def _of_hosts(name: str, unit: str, text: str, **facts: Any) -> cli.Decorator:  # noqa: ANN401 - click's own
    variable = f"HANGCHECK{name[1:].replace('-', '_').upper()}"
    return cli.option(name, unit, text, HOSTS, envvar=variable, **facts)


@cli.command(
    "attach",
    "hangcheck attach",
    "hangcheck attach --pid 4711",
    "hangcheck attach --hostfile hosts --remote-command /shared/env/bin/hangcheck",
    "srun --overlap --jobid=71 --ntasks-per-node=1 hangcheck attach --run-dir /shared/stuck-job",
    cls=cli.GroupedCommand,
)
@cli.many("--pid pids", "PID", PID, FOUND, type=cli.Whole(min=1))
@cli.option("--locals", None, LOCALS, FOUND)
@cli.setting_options("patience")
@cli.option("--run-dir", "DIR", RUN_DIR, cli.FILES)
@cli.option("--json-case", None, JSON_CASE, cli.FILES)
@cli.option("--hostfile", "FILE", HOSTFILE, HOSTS)
@_of_hosts("--remote-command", "CMD", REMOTE, default="hangcheck")
@_of_hosts("--ssh", "CMD", SSH, default="ssh")
@_of_hosts("--host-timeout", "SECONDS", TIMEOUT, default="60", callback=cli.positive)
@_of_hosts("--at-once", "N", AT_ONCE, default=32, type=cli.Whole(1, 1024))
@click.argument("more", nargs=-1, type=cli.Whole(min=1), metavar="[PID...]")
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
    settings, pids = cli.settings_from(options), (*pids, *more)
    local_values = locals or settings.locals
    for one, other, both in (
        ("--json-case", "--hostfile", json_case and hostfile),
        ("--json-case", "--run-dir", json_case and run_dir),
        ("--hostfile", "--pid", hostfile and pids),
    ):
        if both:
            raise BadUsage(f"{one} and {other} cannot be given together", f"leave out {other}")
    if json_case:  # another host asked, which judges the cases of all hosts
        case, ranks, watch = _look(pids, settings, "", local_values=local_values)
        verdict = judge(case)
        message = several_nodes.HostMessage(
            case=case,
            ranks=ranks,
            said=tuple(_asides(case, verdict, watch)),
            hang_stands=_stands(watch, case),
        )
        click.echo(several_nodes.encode_message(message))
        return 0
    # several steps of a SLURM job, one per node, may share one folder
    wanted, place = run_dir or settings.run_dir, place_of_task(os.environ)
    if wanted is not None and place is not None and place.number:
        folder = folder_of_node(wanted, str(place.number))
    else:
        folder = name_run_folder(wanted)
    if hostfile is None:
        refuse_used(folder)
        case, ranks, watch = _look(pids, settings, folder.run_id, local_values=local_values)
        verdict = judge(case)
        kept = save_run(case, verdict, ranks, folder)
        show(verdict_text.render(case, verdict, kept_in(kept)))
        for sentence in _asides(case, verdict, watch):
            say(sentence)
        return HANG if _stands(watch, case) else exit_code_of(verdict)
    names = several_nodes.read_hosts(_hostfile_text(hostfile), hostfile)
    way = several_nodes.Way(
        ssh=several_nodes.read_ssh(ssh),
        remote_command=remote_command,
        limit_s=host_timeout,
        local_values=local_values,
    )
    refuse_used(folder)
    joined, messages = several_nodes.attach_everywhere(names, way, folder, at_once)
    show(verdict_text.render(joined.case, joined.verdict, kept_in(joined.kept)))
    for silent in joined.left_out:
        say(f"{silent.what}: {silent.reason}")
    for host, message in messages.items():
        for sentence in message.said:
            say(f"host {host}: {sentence}")
    stands = any(message.hang_stands for message in messages.values())
    return HANG if stands else exit_code_of(joined.verdict)


def _look(
    pids: Sequence[int], settings: Settings, run_id: str, *, local_values: bool
) -> tuple[Case, tuple[RankRecord, ...], Watch | None]:
    """Look at the job of these processes, or at the only job on this machine.

    Raises:
        NoJobFound: There is no job, or it may not be read.
        BadUsage: There are several jobs; they are listed on stderr, one per line.
    """
    machine = job_search.look_around()
    jobs = () if pids else job_search.jobs_of_step(machine, os.environ)
    jobs = jobs or job_search.find_jobs(machine, pids)
    if len(jobs) > 1:
        for job in jobs:
            shown = fit(job_search.command_of(job.ranks[0].pid), LONGEST_COMMAND)
            click.echo(f"pid {job.ranks[0].pid}  world size {job.world_size}  {shown}", err=True)
        way_out = f"name one: hangcheck attach --pid {jobs[0].ranks[0].pid}"
        raise BadUsage(f"{len(jobs)} jobs run here", way_out)
    session, unrecorded = find_session(jobs[0].pids)
    limits, known = patience_of(settings), (session, unrecorded)
    case, ranks = visit.look(jobs[0], limits, run_id, known, local_values=local_values)
    return case, ranks, None if session is None else watch_over(session)


def _stands(watch: Watch | None, case: Case) -> bool:
    return watch is not None and watch.notes is not None and hang_stands(watch.notes, case)


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


def _asides(case: Case, verdict: Verdict, watch: Watch | None) -> Iterator[str]:
    """Say what is kept back of the job's output, and who watches it, what that found and when."""
    if (kept := visit.kept_output(case, verdict)) is not None:
        yield kept
    if watch is None:
        return
    newest = watch.notes.newest if watch.notes is not None else None
    said = "no verdict yet" if watch.notes is not None else watch.gaps[0].reason
    if newest is not None:
        said = f"{verdict_text.render_line(newest)}; reported at {newest.detected_at}"
    state = "is watched" if watch.alive else "was watched, but its watcher is gone"
    yield f"this job {state}, see {watch.run_folder}: {said}"


@cli.command(
    "merge",
    "hangcheck merge node0-run node1-run",
    "hangcheck merge node*-run --run-dir whole-job",
)
@click.argument("folders", nargs=-1, metavar="DIR...")
@cli.run_dir_option("OUT")
def merge(folders: tuple[str, ...], run_dir: str | None) -> int:
    """Join what attach or run wrote on several nodes into one verdict.

    Exit code 0 if no hang was found, 3 if the job hangs, 4 if no folder holds a job, 2 if one is
    not there. Folders without a job are named and left out, and so are files.
    """
    files = [name for name in folders if Path(name).is_file()]
    for name in files:
        say(f"left out: {name} is a file, not a run folder")
    folders = tuple(name for name in folders if name not in files)
    example = "for example: hangcheck merge node0-run node1-run"
    cli.refuse_empty("merge", folders, "the run folders of the nodes", example)
    folder = name_run_folder(run_dir)
    refuse_used(folder)
    try:
        merged = several_nodes.merge_runs(folders, folder)
    except UnreadableRun as error:
        if all(Path(name).is_dir() for name in folders):
            raise NoJobFound(str(error.args[0]), error.remedy) from error
        raise
    show(verdict_text.render(merged.case, merged.verdict, kept_in(merged.kept)))
    for gap in merged.left_out:
        say(f"left out: {gap.reason}")
    return exit_code_of(merged.verdict)
