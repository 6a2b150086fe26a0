"""What `hangcheck attach` does: look, judge, save; or only look, where another host judges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.attach.observer import Observer
from lightning_hangcheck.attach.recorded_session import RecordedSession
from lightning_hangcheck.judge import judge
from lightning_hangcheck.observe.run_record import rank_record, save_run

if TYPE_CHECKING:
    from lightning_hangcheck.attach.job_search import FoundJob
    from lightning_hangcheck.model.case import Case, Limits
    from lightning_hangcheck.model.run import RankRecord
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir import RunFolder

NOTHING = RecordedSession()


def look(
    job: FoundJob,
    limits: Limits,
    run_id: str,
    recorded: RecordedSession = NOTHING,
    *,
    local_values: bool = False,
) -> tuple[Case, tuple[RankRecord, ...]]:
    """Take the evidence of a job that runs already and knows nothing of us, in under three seconds.

    Nothing is started in the job, and it never waits for us: the only thing that it may notice is a
    pause of some milliseconds while the stacks of a process that runs are read.

    Args:
        job: Which; see `job_search`.
        limits: Patience in force.
        run_id: For the case.
        recorded: The session in which the job records, if it does; see `find_session`.
        local_values: Whether to read the ranks' local variables too.

    Returns:
        The case, and who its ranks are.

    Raises:
        NoJobFound: Nothing of the job could be seen.
    """
    observer = Observer(job, limits, recorded, local_values=local_values)
    case = observer.take_evidence(run_id)
    return case, tuple(rank_record(found, observer.host) for found in job.ranks)


def attach(
    job: FoundJob,
    limits: Limits,
    folder: RunFolder,
    recorded: RecordedSession = NOTHING,
    *,
    local_values: bool = False,
) -> tuple[Case, Verdict]:
    """Diagnose a job that runs already: `look`, and judge.

    Args:
        job: As for `look`.
        limits: As for `look`.
        folder: Where to keep the verdict and its evidence. One that cannot be written costs no
            verdict: that is said on stderr.
        recorded: As for `look`.
        local_values: As for `look`.

    Raises:
        NoJobFound: Nothing of the job could be seen.
        UsedRunFolder: The folder holds another run.
    """
    case, ranks = look(job, limits, folder.run_id, recorded, local_values=local_values)
    verdict = judge(case)
    save_run(case, verdict, ranks, folder)
    return case, verdict
