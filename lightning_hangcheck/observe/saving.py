"""Saving a verdict with its evidence, in a watched run or as a run of its own."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.atomic import make_private_folder, write_atomically
from lightning_hangcheck.model.codec import encode_for_file, encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.observe.run_record import versions
from lightning_hangcheck.report.page.forms import prices_from, write_as
from lightning_hangcheck.report.verdict_text import render_stacks
from lightning_hangcheck.rundir.layout import claim_run_folder, prepare_run_folder
from lightning_hangcheck.rundir.saved_evidence import CASE_FILE

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.run import RankRecord, Round
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder

DISK_LIMIT_S = 5.0
PAGE_WAIT_S = 0.8
"""A page of 8 ranks takes a quarter of that; whoever ends a job waits no longer for it."""
PAGE_LIMIT_S = 60
"""For the page of thousands of ranks on a machine at its limits; then its process is ended."""
PAGE_NICENESS = 10


def save_run(
    case: Case,
    verdict: Verdict,
    ranks: tuple[RankRecord, ...],
    folder: RunFolder,
    rounds: tuple[Round, ...] = (),
) -> None:
    """Save a case and its verdict as a run of its own, or say that they could not be saved.

    Args:
        case: What was judged.
        verdict: What it came to.
        ranks: For run.json.
        folder: New, or empty.
        rounds: Likewise.

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
        rounds=rounds,
    )

    def write() -> None:
        prepare_run_folder(folder)
        claim_run_folder(folder, encode_pretty(record))
        save_verdict(folder, 1, case, verdict)

    try:
        apart(DISK_LIMIT_S, write)
    except (UnpreparedRunFolder, NoAnswerFromStorage, OSError) as error:
        log.once("run folder", f"the verdict was not saved in {folder.path} ({error})")
        return
    save_page(folder, 1, case, verdict)


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
    told = encode_for_file(verdict)
    write_atomically(folder.numbered_verdict(number), told)
    write_atomically(folder.verdict_file, told)


def save_page(
    folder: RunFolder, number: int, case: Case, verdict: Verdict, *, goes_on: bool = False
) -> None:
    """Write report.html for a verdict that is on the disk, in a process that harms nobody.

    It is a convenience: it is made at low priority, one that takes long is finished after this
    returned, and one that fails is said once.

    Args:
        folder: Of the run.
        number: Of the verdict; a page never replaces that of a newer one.
        case: What was judged.
        verdict: What it came to.
        goes_on: A later page will follow, so this one reloads itself.
    """
    try:
        apart(PAGE_WAIT_S, lambda: _write_page(folder, number, case, verdict, goes_on=goes_on))
    except NoAnswerFromStorage:
        return  # it is still being made
    except Exception as error:  # noqa: BLE001 - whatever fails in it, the verdict stands
        log.once(
            "page",
            f"report.html was not written ({type(error).__name__}: {error}); the verdict stands, "
            f"and this tries again: hangcheck report {folder.path} --html report.html",
        )


def _write_page(
    folder: RunFolder, number: int, case: Case, verdict: Verdict, *, goes_on: bool
) -> None:
    signal.alarm(PAGE_LIMIT_S)
    os.nice(PAGE_NICENESS)
    prices = prices_from(os.environ)
    page = write_as(
        "page",
        folder,
        verdict,
        case,
        run_folder=str(folder.path),
        prices=prices,
        goes_on=goes_on,
    )
    if max(folder.verdict_numbers(), default=0) <= number:
        write_atomically(folder.page_file, page.encode())
