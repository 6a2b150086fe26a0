"""What `hangcheck postmortem` does: read what is left, join it, judge it, keep the verdict."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.attach.merging import merge_runs
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.left_behind import LeftBehind, LeftOut, ReadFile
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.postmortem import texts
from lightning_hangcheck.postmortem.case import case_of
from lightning_hangcheck.postmortem.files import Reader, read_left
from lightning_hangcheck.postmortem.records import (
    KIND,
    is_json,
    is_pickle,
    read_json,
    read_pickle,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.postmortem.files import Left
    from lightning_hangcheck.rundir import RunFolder

READERS = (
    Reader(KIND, is_pickle, read_pickle),
    Reader(KIND, is_json, read_json),
    Reader(texts.KIND, texts.is_text, texts.read_text),
)
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
    if left.run_folders and not left.readings:
        return _of_run_folders(left, folder)
    case = read_job(named, left, folder.run_id)
    verdict = judge(case)
    save_run(case, verdict, (), folder)
    return Postmortem(case, verdict, case.left or LeftBehind())


def read_job(named: Sequence[str], left: Left, run_id: str) -> Case:
    """Join what was read into one case.

    Args:
        named: For the sentence that says that there is nothing.
        left: What lies there.
        run_id: Of the run folder that the case is kept in.

    Raises:
        UnreadableRun: Nothing of it can be used.
    """
    case = case_of(left.readings, _with_run_folders(left), run_id)
    if case.left is None or not case.left.read:
        raise _nothing_in(named, case.left.left_out if case.left is not None else ())
    return case


def _of_run_folders(left: Left, folder: RunFolder) -> Postmortem:
    merged = merge_runs([str(one.path) for one in left.run_folders], folder)
    refused = {one.what.removeprefix("run folder "): one.reason for one in merged.left_out}
    told = LeftBehind(
        read=tuple(
            ReadFile(path=str(one.path), kind="run folder")
            for one in left.run_folders
            if str(one.path) not in refused
        ),
        left_out=(*(LeftOut(path, why) for path, why in refused.items()), *left.left_out),
    )
    return Postmortem(merged.case, merged.verdict, told)


def _with_run_folders(left: Left) -> list[LeftOut]:
    why = "a run folder beside other files: read it by itself, it holds more"
    return [*(LeftOut(str(one.path), why) for one in left.run_folders), *left.left_out]


def _nothing_in(named: Sequence[str], left_out: Sequence[LeftOut]) -> UnreadableRun:
    whys = Counter(one.why for one in left_out)
    told = "; ".join(f"{count} of them: {why}" for why, count in whys.most_common(3))
    first = f"nothing in {', '.join(named)[:200]} can be read"
    return UnreadableRun(
        f"{first}{f' ({told})' if told else ', it holds no file'}",
        "name flight-record dumps, logs, stack dumps or run folders of the job",
    )
