"""Saves what is kept of a run: run.json, verdicts with evidence, notes for `attach`."""

from __future__ import annotations

import os
import platform
import signal
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files import (
    NoAnswerFromStorage,
    apart,
    make_private_folder,
    write_atomically,
)
from lightning_hangcheck.look.proc import read_environment
from lightning_hangcheck.model.case import Case, Pace
from lightning_hangcheck.model.codec import encode_for_file, encode_pretty
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RankRecord, Round, RunRecord
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.verdict_text import render_stacks
from lightning_hangcheck.rundir import CASE_FILE, RunFolder, claim_run_folder, prepare_run_folder
from lightning_hangcheck.session.run_folders import kept_instead, temporary_run_folder
from lightning_hangcheck.text.redaction import redact_values
from lightning_hangcheck.text.shown import DISTRIBUTIONS, published_environment

if TYPE_CHECKING:
    from lightning_hangcheck.observe.discovery import FoundRank


def rank_record(found: FoundRank, host: str) -> RankRecord:
    """Describe one rank as it was started, its environment redacted, or empty if it is gone."""
    environment = read_environment(found.pid)
    seen = {} if isinstance(environment, Gap) else environment
    return RankRecord(
        rank=found.rank,
        local_rank=found.local_rank,
        host=host,
        pid=found.pid,
        environment=redact_values(published_environment(seen)),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of packages that are installed with this one."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class RankNote(Struct, frozen=True, kw_only=True):
    """One live rank, as the sidecar knows it; times as in `RankView`.

    ``step_s``: median seconds of its last steps, or of its beats if it shows no steps.
    """

    rank: int
    pid: int
    started_ticks: int
    silent_for_s: float
    idle_for_s: float
    circling_for_s: float
    pace: Pace | None = None
    step_s: float | None = None


class WatchNotes(Struct, frozen=True, kw_only=True):
    """watch.json: all of one monotonic time; ``newest`` is the last verdict, ``recovered`` too."""

    schema_version: int = 1
    written_ns: int
    ranks: tuple[RankNote, ...] = ()
    newest: Verdict | None = None
    published_ns: int = 0


DISK_LIMIT_S = 5.0
UNWRITTEN = (UnpreparedRunFolder, NoAnswerFromStorage, OSError)
PAGE_WAIT_S = 0.8
"""A page of 8 ranks takes a quarter of that; the end of a job waits no longer for it."""
PAGE_LIMIT_S = 60
"""For the page of thousands of ranks on an overloaded machine; then its process is ended."""
PAGE_NICENESS = 10


def save_run(
    case: Case,
    verdict: Verdict,
    ranks: tuple[RankRecord, ...],
    folder: RunFolder,
    rounds: tuple[Round, ...] = (),
) -> RunFolder | None:
    """Save a case and its verdict as a run of its own; return where, or None if that failed.

    If the folder cannot be written, a temporary one is used. Raises UsedRunFolder, and changes
    nothing, if the folder holds another run.
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

    def write(into: RunFolder) -> None:
        prepare_run_folder(into)
        claim_run_folder(into, encode_pretty(record))
        save_verdict(into, 1, case, verdict)

    kept = folder
    try:
        apart(DISK_LIMIT_S, partial(write, kept))
    except UNWRITTEN as error:
        try:
            kept = temporary_run_folder()
            apart(DISK_LIMIT_S, partial(write, kept))
        except UNWRITTEN:
            log.once("run folder", f"the verdict was not saved in {folder.path} ({error})")
            return None
        log.once("run folder", kept_instead(folder, error, kept))
    save_page(kept, 1, case, verdict)
    return kept


def save_verdict(folder: RunFolder, number: int, case: Case, verdict: Verdict) -> None:
    """Save a verdict, numbered from 1, after the evidence that it rests on."""
    evidence = folder.evidence(number)
    make_private_folder(evidence)
    write_atomically(evidence / CASE_FILE, encode_pretty(case))
    write_atomically(evidence / "stacks.txt", render_stacks(case).encode())
    make_private_folder(folder.numbered_verdict(number).parent)
    data = encode_for_file(verdict)
    write_atomically(folder.numbered_verdict(number), data)
    write_atomically(folder.verdict_file, data)


def save_page(
    folder: RunFolder, number: int, case: Case, verdict: Verdict, *, goes_on: bool = False
) -> None:
    """Write report.html for a saved verdict, in a process of low priority.

    A slow page is finished after this returned, a failure is logged once, and no page replaces that
    of a newer verdict. ``goes_on``: a later page will follow, so this one reloads itself.
    """

    def write() -> None:
        # imported here: the sidecar imports this module at its start
        from lightning_hangcheck.report.page import write_as

        signal.alarm(PAGE_LIMIT_S)
        os.nice(PAGE_NICENESS)
        page = write_as(
            "html",
            folder,
            verdict,
            case,
            run_folder=str(folder.path),
            price=os.environ.get("HANGCHECK_PRICE", ""),
            goes_on=goes_on,
        )
        if max(folder.verdict_numbers(), default=0) <= number:
            write_atomically(folder.page_file, page.encode())

    try:
        apart(PAGE_WAIT_S, write)
    except NoAnswerFromStorage:
        return  # it is still being written
    except Exception as error:  # noqa: BLE001 - whatever fails in it, the verdict stands
        log.once(
            "page",
            f"report.html was not written ({type(error).__name__}: {error}); the verdict stands, "
            f"and this tries again: hangcheck report {folder.path} --html report.html",
        )
