"""What `hangcheck run` does: start the sidecar and the command, and stay out of the way.

Its run folder is as named, on each of a job's nodes, or a temporary one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.alerts import AT_THE_END_S, AlertsAskedFor
from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.safe import EVIDENCE_BYTES, read_fact
from lightning_hangcheck.identity import identify
from lightning_hangcheck.judge.wording import shell_code
from lightning_hangcheck.launch.job import (
    HELD,
    Job,
    Signals,
    become,
    end_ranks,
    refuse_unstartable,
)
from lightning_hangcheck.machine import NoRoom, require_room
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import NodePlace, RunRecord
from lightning_hangcheck.rundir import (
    RunFolder,
    claim_run_folder,
    folder_of_node,
    folder_of_start,
    name_run_folder,
    prepare_run_folder,
    starts_so_far,
)
from lightning_hangcheck.session.run_folders import Carrier, kept_instead, temporary_run_folder
from lightning_hangcheck.session.session import (
    SESSION_VARIABLE,
    SessionFacts,
    new_key,
    open_session,
    session_folder,
)
from lightning_hangcheck.settings import Settings, environment_with
from lightning_hangcheck.text.shown import show_command, utc_now
from lightning_hangcheck.watch.link import (
    TASKS,
    CommandEnded,
    EndAsked,
    HangProven,
    Inbox,
    Message,
    send,
    start_linked_sidecar,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.session.session import Session

NO_ALERTS = AlertsAskedFor()
ABORTED = 75
ASKED_BY_US = "hangcheck run ("
DISK_LIMIT_S = 1.0
"""The command waits for this; a second is what a user does not notice beside the start of torch."""
SCHEDULERS = (
    "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "PBS_JOBID", "LSB_JOBID", "AWS_BATCH_JOB_ID",
)  # fmt: skip
"""Set by those who start a job, and start it again with the same words, at night."""
POLL_S = 0.2
KILLED_WITHIN_S = 10.0
MOST_STARTS = 4
END_LIMIT_S = 0.5
"""For what takes milliseconds unless storage stalls."""
CONCLUSION_LIMIT_S = 15.0
"""Time for the last verdict: one look at all ranks and a disk that may be slow."""


def run_command(
    command: Sequence[str],
    settings: Settings,
    extra_environment: Mapping[str, str],
    alerts: AlertsAskedFor = NO_ALERTS,
    node: NodePlace | None = None,
    job: str = "",
    store: tuple[str, int] = ("", 0),
) -> int:
    """Run a launcher unchanged, watched from outside.

    Of a job of several nodes, ``node``, ``job`` (its name on all nodes) and ``store`` (host and
    port where the launchers meet) are what the command says. Returns its own exit code (128 plus
    the signal's number if it was killed by one), or 75 if it was ended because of a hang. BadUsage
    where it cannot be started, UsedRunFolder where the run folder is another run's and no scheduler
    started this one.
    """
    refuse_unstartable(command)
    if settings.disable:
        return shell_code(subprocess.call(list(command)))
    try:
        require_room(TASKS)
    except NoRoom as refusal:
        log.once("room", f"the command runs unwatched, it may need all that is left: {refusal}")
        become(command)
    # held, so that `Signals` can take them
    mask, session = set(signal.pthread_sigmask(signal.SIG_BLOCK, HELD)), None
    log.start_writer()
    try:
        shown, started_at = show_command(command), utc_now()
        record = RunRecord(run_id="", command=shown, started_at=started_at, job=job)
        # NODE_RANK numbers a node of a job that Lightning starts, which says no more of it so early
        number = identify(os.environ).node_rank if node is None else node.number
        scheduled = any(name in os.environ for name in SCHEDULERS)
        folder = take_run_folder(settings.run_dir, record, number or 0, scheduled=scheduled)
        facts = SessionFacts(
            run_dir=str(folder.path),
            command=shown,
            started_at=started_at,
            root_pid=os.getpid(),
            launched=True,
            job=job,
            node=node,
            store=store,
        )
        environment = environment_with(os.environ, settings)
        try:
            session = open_session(session_folder(new_key()), facts)
        except (OSError, UnreadableRun) as error:
            unusable = f"shared memory cannot be used ({error}); the command runs, but unwatched"
            log.once("session", unusable)
        else:
            environment |= {**extra_environment, SESSION_VARIABLE: str(session.path)}
            if not settings.quiet:
                log.once("start", f"watching {shown}; run folder {folder.path}")
        signals = Signals(HELD)
        run = _Run(Job(command, environment, mask), session, settings, alerts)
        return run.until_ended(signals)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if session is not None:
            session.remove()
        log.finish(log.LAST_WORDS_S)


class _Run:
    """The job, and one sidecar at a time, with the pipes to it; none where there is no session."""

    def __init__(
        self, job: Job, session: Session | None, settings: Settings, alerts: AlertsAskedFor
    ) -> None:
        self._job = job
        self._session = session
        self._settings = settings
        self._alerts = alerts
        self._starts = 0
        self._asked_to_end: EndAsked | None = None
        self._inbox: Inbox | None = None
        self._kill_at: float | None = None  # the end of a hung job: SIGTERM, then this
        self._start_sidecar()

    def until_ended(self, signals: Signals) -> int:
        while self._goes_on():
            taken = signals.next(POLL_S)
            if taken is not None and taken.number != signal.SIGCHLD:
                if taken.asks_for_end:
                    self._end_asked(taken.by)
                if taken.hangs_up:
                    self._job.hang_up()
                elif not taken.from_kernel:
                    self._job.pass_on(taken.number)
            self._job.reap()
            self._keep_sidecar_alive()
            proven = None
            while self._inbox is not None and (message := self._inbox.next()) is not None:
                proven = message if isinstance(message, HangProven) else proven
            if proven is not None and self._kill_at is None:
                self._act_on(proven)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                for pid in self._job.processes():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        self._job.reap()  # what ended since: pid 1 of a container may reap nobody
        exit_code = -signal.SIGKILL if self._job.exit_code is None else self._job.exit_code
        self._conclude(CommandEnded(self._job.pid, exit_code, tuple(self._job.processes())))
        return ABORTED if self._kill_at is not None else shell_code(exit_code)

    def _goes_on(self) -> bool:
        """A job that we end is over with its last process, or when not even SIGKILL ends it."""
        if self._kill_at is None:
            return self._job.exit_code is None
        if time.monotonic() >= self._kill_at + KILLED_WITHIN_S:
            log.once("hopeless", "parts of the job do not end on SIGKILL (state D?); leaving them")
            return False
        return self._job.exit_code is None or bool(self._job.processes())

    def _act_on(self, hang: HangProven) -> None:
        """Do what was asked for on a hang: torchrun counts how often it may still be restarted."""
        action = self._settings.on_hang
        if action == "report":
            return
        if action == "restart" and hang.restarts_left and self._asked_to_end is None:
            log.once(
                f"restart {hang.ranks}",
                "the ranks are ended because of the hang (--on-hang restart): SIGKILL now, and "
                f"torchrun starts them again (restarts left before this one: {hang.restarts_left})",
            )
            end_ranks(hang.ranks)
            return
        if action == "restart":
            why = "the job was asked to end"
            if hang.restarts_left is None:
                why = "no torchrun started them (torchrun --max-restarts=3 would do so three times)"
            elif not hang.restarts_left:
                why = "torchrun has no restart left (--max-restarts)"
            log.once("no restart", f"the ranks are not started again: {why}")
        grace_s, option = self._settings.abort_grace, f"--on-hang {action}"
        log.once(
            "abort",
            f"the job is ended because of the hang ({option}): SIGTERM now, SIGKILL to what "
            f"is left after {grace_s:g} s; exit code {ABORTED}",
        )
        # the sidecar is told first: what ranks do on SIGTERM is no recovery
        self._end_asked(f"{ASKED_BY_US}{option})")
        self._job.pass_on(signal.SIGTERM)
        self._kill_at = time.monotonic() + grace_s

    # The sidecar

    def _start_sidecar(self) -> None:
        if self._session is None:
            return
        self._starts += 1
        try:
            sidecar = self._job.sidecar = start_linked_sidecar(self._session, self._settings)
        except OSError as error:
            log.once("sidecar", f"no sidecar can be started ({error}); training goes on unwatched")
            return
        if sidecar.stdout is not None:
            self._inbox = Inbox(sidecar.stdout)
        if self._alerts.any:
            self._tell(self._alerts)
        if self._asked_to_end is not None:
            self._tell(self._asked_to_end)

    def _keep_sidecar_alive(self) -> None:
        """Start a new sidecar when the old one died, a few times, and say so each time."""
        sidecar = self._job.sidecar
        if sidecar is None or sidecar.poll() is None:
            return
        pid, self._job.sidecar = sidecar.pid, None
        if self._starts >= MOST_STARTS:
            log.once("sidecar given up", "the sidecar keeps dying; training goes on unwatched")
            return
        ended = f"the sidecar (pid {pid}) ended with code {sidecar.returncode}"
        log.once(f"sidecar {pid}", f"{ended}; training goes on, a new one starts")
        self._start_sidecar()

    def _end_asked(self, by: str) -> None:
        self._asked_to_end = self._asked_to_end or EndAsked(by)
        self._tell(EndAsked(by))

    def _conclude(self, ended: CommandEnded) -> None:
        """Tell the sidecar how the command ended, and wait for its last verdict, not for ever.

        Its own end may take longer: storage that stalls keeps a process that writes to it.
        """
        session, sidecar = self._session, self._job.sidecar
        if session is None:
            return
        if sidecar is None or self._inbox is None:
            # where the last sidecar is lost, what ranks left would be lost too
            into = partial(prepare_run_folder, session.run_folder)
            try:
                apart(END_LIMIT_S, Carrier(session.journals, into).carry)
            except (NoAnswerFromStorage, UnpreparedRunFolder, OSError) as error:
                log.once("journals", f"the last lines of the journals are lost: {error}")
            return
        self._tell(ended)
        limit_s = CONCLUSION_LIMIT_S + (AT_THE_END_S if self._alerts.any else 0.0)
        if not self._inbox.ended.wait(limit_s):
            log.once("conclusion", "the sidecar does not come to an end; its last verdict is lost")
            sidecar.kill()
        with suppress(subprocess.TimeoutExpired):
            sidecar.wait(END_LIMIT_S)

    def _tell(self, message: Message) -> None:
        sidecar = self._job.sidecar
        if sidecar is not None and sidecar.stdin is not None:
            send(sidecar.stdin, message)


# The run folder


def take_run_folder(
    wanted: str | None, record: RunRecord, number: int = 0, *, scheduled: bool = False
) -> RunFolder:
    """Make a folder this run's own. Training goes on without: an unusable one is replaced.

    All nodes of a job may be given one folder: the first node takes it, the others, by ``number``,
    one below. Where no node has a number yet, the first to come takes it. A scheduler that starts a
    job again gives it the same folder once more, and nobody is there to name another: it is kept
    below. UsedRunFolder where somebody can.
    """
    number = number if wanted is not None else 0
    top = name_run_folder(wanted)

    def take(start: RunFolder) -> RunFolder:
        folder = folder_of_node(str(start.path), str(number)) if number else start
        return _taken(folder, record, below=number > 0)

    def take_for_next_start() -> RunFolder:
        """Take the folder of the newest start in which this node has none yet, or of one more.

        So all nodes find the same one without a word between them. A start that is over takes
        nobody in: a node that was not there then belongs to the next one.
        """
        start = starts_so_far(top)
        held = read_fact(folder_of_start(top, start).run_file, RunRecord, EVIDENCE_BYTES)
        if start == 1 or (held is not None and held.ended_at is not None):
            start += 1
        while True:
            try:
                return take(folder_of_start(top, start))
            except UsedRunFolder:
                start += 1

    try:
        try:
            return apart(DISK_LIMIT_S, lambda: take(top))
        except UsedRunFolder as used:
            if not scheduled:
                raise
            later = apart(DISK_LIMIT_S, take_for_next_start)
            log.once("run folder", f"{used.args[0]}; this one is kept in {later.path}")
            return later
    except (UnpreparedRunFolder, NoAnswerFromStorage, OSError) as error:
        other = temporary_run_folder()
        log.once("run folder", kept_instead(top, error, other))
        return _taken(other, record)


def _taken(folder: RunFolder, record: RunRecord, *, below: bool = False) -> RunFolder:
    # where no number tells nodes apart, each takes one by its name; containers may have one name
    host = socket.gethostname().partition(".")[0]
    names = ["", *(() if below else (host, f"{host}-{os.urandom(4).hex()}"))]
    while True:
        name = names.pop(0)
        taken = folder_of_node(str(folder.path), name) if name else folder
        prepare_run_folder(taken)
        try:
            claim_run_folder(taken, encode_pretty(replace(record, run_id=taken.run_id)))
        except UsedRunFolder:
            # whether it is the same job that took it, which still goes on: on another node, then
            held = read_fact(taken.run_file, RunRecord, EVIDENCE_BYTES)
            if not names or held is None or held.ended_at is not None:
                raise
            if not held.job or held.job != record.job:
                raise
        else:
            return taken
