"""What `hangcheck attach` does: look, judge, save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.attach.observer import Observer
from lightning_hangcheck.attach.recorded_session import RecordedSession
from lightning_hangcheck.observe.run_record import rank_record
from lightning_hangcheck.observe.saving import save_run

if TYPE_CHECKING:
    from lightning_hangcheck.attach.job_grouping import FoundJob
    from lightning_hangcheck.model.case import Case, Limits
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder

NOTHING = RecordedSession()


def attach(
    job: FoundJob,
    limits: Limits,
    folder: RunFolder,
    recorded: RecordedSession = NOTHING,
    *,
    local_values: bool = False,
) -> tuple[Case, Verdict]:
    """Diagnose a job that runs already and knows nothing of us. Takes under three seconds.

    Nothing is started in the job, and it never waits for us: the only thing that it may notice is a
    pause of some milliseconds while the stacks of a process that runs are read.

    Args:
        job: Which; see `job_search`.
        limits: Patience in force.
        folder: Where to keep the verdict and its evidence. One that cannot be written costs no
            verdict: that is said on stderr.
        recorded: The session in which the job records, if it does; see `find_session`.
        local_values: Whether to read the ranks' local variables too.

    Raises:
        NoJobFound: Nothing of the job could be seen.
        UsedRunFolder: The folder holds another run.
    """
    observer = Observer(job, limits, recorded, local_values=local_values)
    case = observer.take_evidence(folder.run_id)
    # imported here because the observer imports it while it waits between two looks
    from lightning_hangcheck.diagnosis import judge

    verdict = judge(case)
    ranks = tuple(rank_record(found, observer.host) for found in job.ranks)
    save_run(case, verdict, ranks, folder)
    return case, verdict
