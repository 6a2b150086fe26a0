"""A whole visit to a job: look, judge, save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.attach.observation import Attached
from lightning_hangcheck.attach.offer import Offer
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.observe.run_record import rank_record, versions
from lightning_hangcheck.rundir.layout import claim_run_folder, prepare_run_folder
from lightning_hangcheck.watch.publishing import save_verdict

if TYPE_CHECKING:
    from lightning_hangcheck.attach.job_grouping import FoundJob
    from lightning_hangcheck.model.case import Case, Limits
    from lightning_hangcheck.model.run import RankRecord
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder

DISK_LIMIT_S = 5.0
NOTHING = Offer()


def attach(
    job: FoundJob,
    limits: Limits,
    folder: RunFolder,
    offer: Offer = NOTHING,
    *,
    local_values: bool = False,
) -> tuple[Case, Verdict]:
    """Diagnose a job that runs already and never heard of us. Takes under three seconds.

    Nothing is started in the job, and it never waits for us: the only thing that it may notice is a
    pause of some milliseconds while the stacks of a process that runs are read.

    Args:
        job: Which; see `job_search`.
        limits: Patience in force.
        folder: Where to keep the verdict and its evidence. One that cannot be written costs no
            verdict: that is said on stderr.
        offer: What the job offers, if it records; see `offered`.
        local_values: Whether to read the ranks' local variables too.

    Raises:
        NoJobFound: Nothing of the job could be seen.
        UsedRunFolder: The folder holds another run.
    """
    visitor = Attached(job, limits, offer, local_values=local_values)
    case = visitor.take_evidence(folder.run_id)
    # imported here because the visitor imports it while it waits between two looks
    from lightning_hangcheck.diagnosis import judge

    verdict = judge(case)
    ranks = tuple(rank_record(found, visitor.host) for found in job.ranks)
    keep(case, verdict, ranks, folder)
    return case, verdict


def keep(case: Case, verdict: Verdict, ranks: tuple[RankRecord, ...], folder: RunFolder) -> None:
    """Keep a case and its verdict as a run of its own, or say that it could not be kept.

    Args:
        case: What was judged.
        verdict: What it came to.
        ranks: For run.json.
        folder: New, or empty.

    Raises:
        UsedRunFolder: It holds another run; nothing was touched.
    """
    record = RunRecord(
        run_id=case.run.run_id,
        command=case.run.command,
        started_at=case.run.started_at,
        world_size=case.run.world_size,
        nodes=tuple(dict.fromkeys(view.host for view in case.ranks if view.host)),
        versions=versions(),
        ranks=ranks,
    )

    def write() -> None:
        prepare_run_folder(folder)
        claim_run_folder(folder, encode_pretty(record))
        save_verdict(folder, 1, case, verdict)

    try:
        apart(DISK_LIMIT_S, write)
    except (UnpreparedRunFolder, NoAnswerFromStorage, OSError) as error:
        log.once("run folder", f"the verdict was not saved in {folder.path} ({error})")
