"""What `hangcheck postmortem` does: read what is left, join it, judge it, keep the verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.attach.merging import merge_runs
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.left_behind import LeftBehind, LeftOut, ReadFile
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.postmortem.case import case_of
from lightning_hangcheck.postmortem.files import Reader, read_left
from lightning_hangcheck.postmortem.flight_records import is_record, read_record
from lightning_hangcheck.postmortem.run_folders import ENDED_BADLY, jobs_in
from lightning_hangcheck.postmortem.stacks import is_text, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.postmortem.files import Left
    from lightning_hangcheck.postmortem.run_folders import Job
    from lightning_hangcheck.rundir import RunFolder

READERS = (Reader(is_record, read_record), Reader(is_text, read_text))
"""The most specific first: the first that knows a file reads it."""


class Postmortem(NamedTuple):
    """What files come to, what they were taken for, and what was left out."""

    case: Case
    verdict: Verdict
    left: LeftBehind


def postmortem(named: Sequence[str], folder: RunFolder) -> Postmortem:
    """Say what can be said of a job from what is left of it, and keep that.

    Args:
        named: Files and folders.
        folder: Where to keep the verdict.

    Raises:
        UnreadableRun: Nothing of it can be read.
        UsedRunFolder: The folder holds another run.
    """
    left = read_left(named, READERS)
    asked = {Path(name).absolute() for name in named}
    jobs = jobs_in(left.run_folders, together=all(one.path in asked for one in left.run_folders))
    others = [*map(_unused, jobs), *left.left_out]
    case = None
    try:
        case = read_job(named, left._replace(left_out=others), folder.run_id)
    except UnreadableRun:
        if not jobs:
            raise
    if case is None or (jobs and jobs[0].ended_badly):
        unused = [*map(_unused, jobs[1:]), *left.left_out]
        return _of_run_folders(jobs[0], unused, case, folder)
    verdict = judge(case)
    save_run(case, verdict, (), folder)
    return Postmortem(case, verdict, case.left or LeftBehind())


def read_job(named: Sequence[str], left: Left, run_id: str) -> Case:
    """Join what was read, but for run folders, into one case.

    Args:
        named: For the sentence that says that there is nothing.
        left: What lies there.
        run_id: Of the run folder that the case is kept in.

    Raises:
        UnreadableRun: Nothing of it can be used.
    """
    case = case_of(left.readings, left.left_out, run_id)
    if case.left is None or not case.left.read:
        raise _nothing_in(named, case)
    return case


def _of_run_folders(
    job: Job, left_out: Sequence[LeftOut], beside: Case | None, folder: RunFolder
) -> Postmortem:
    """Explain what a watch saw; what the files beside it say is told, and proves nothing of it."""
    also: list[EvidenceItem] = []
    told = LeftBehind(left_out=tuple(left_out))
    if beside is not None and beside.left is not None:
        told, by_files = beside.left, judge(beside)
        if by_files.verdict in ENDED_BADLY:
            also = [EvidenceItem("also", None, f"other files say: {by_files.summary}")]
    paths = [str(one.folder.path) for one in job.nodes]
    merged = merge_runs(paths, folder, also)
    refused = {one.what.removeprefix("run folder "): one.reason for one in merged.left_out}
    read = [ReadFile(path=one, kind="run folder") for one in paths if one not in refused]
    out = [LeftOut(path, why) for path, why in refused.items()]
    out += [one for one in told.left_out if one.path not in paths]
    told = replace(told, read=(*read, *told.read), left_out=tuple(out))
    return Postmortem(merged.case, merged.verdict, told)


def _unused(job: Job) -> LeftOut:
    path, verdict = str(job.nodes[0].folder.path), job.verdict
    if job.derived:
        return LeftOut(path, "it was made from other evidence, by postmortem or merge")
    if verdict is None:
        return LeftOut(path, "a run folder that holds no verdict")
    told = verdict.verdict.upper()
    if not job.ended_badly:
        return LeftOut(path, f"a run that shows nothing wrong ({told})")
    return LeftOut(path, f"another run, {told}: name it by itself to read it")


def _nothing_in(named: Sequence[str], case: Case) -> UnreadableRun:
    whys = Counter(one.why for one in case.left.left_out) if case.left is not None else Counter()
    told = "; ".join(
        f"{count} files: {why}" if count > 1 else why for why, count in whys.most_common(3)
    )
    first = f"nothing in {', '.join(named)[:200]} can be read"
    return UnreadableRun(
        f"{first}{f' ({told})' if told else ', it holds no file'}",
        "name flight-record dumps, logs, stack dumps or run folders of the job",
    )
