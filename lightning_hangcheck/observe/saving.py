"""Saving a verdict with its evidence, in a watched run or as a run of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.atomic import make_private_folder, write_atomically
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.observe.run_record import versions
from lightning_hangcheck.report.stacks_text import render_stacks
from lightning_hangcheck.rundir.layout import claim_run_folder, prepare_run_folder
from lightning_hangcheck.rundir.saved_evidence import CASE_FILE

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.run import RankRecord
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder

DISK_LIMIT_S = 5.0


def save_run(
    case: Case, verdict: Verdict, ranks: tuple[RankRecord, ...], folder: RunFolder
) -> None:
    """Save a case and its verdict as a run of its own, or say that they could not be saved.

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


def save_verdict(folder: RunFolder, number: int, case: Case, verdict: Verdict) -> None:
    """Save a verdict with the evidence that it rests on; the evidence comes first.

    Args:
        folder: Of the run.
        number: Of the verdict, from 1.
        case: What was judged.
        verdict: What it came to.

    Raises:
        OSError: The folder is gone, full or not ours.
    """
    evidence = folder.evidence(number)
    make_private_folder(evidence)
    write_atomically(evidence / CASE_FILE, encode_pretty(case))
    write_atomically(evidence / "stacks.txt", render_stacks(case).encode())
    make_private_folder(folder.numbered_verdict(number).parent)
    write_atomically(folder.numbered_verdict(number), encode_pretty(verdict))
    write_atomically(folder.verdict_file, encode_pretty(verdict))
