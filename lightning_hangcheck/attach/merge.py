"""What `hangcheck merge` does: read the run folders of several nodes, join, judge, keep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.gather.node_merge import NodeCase, merge_cases
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.observe.saving import save_run
from lightning_hangcheck.rundir.layout import RunFolder, find_run_folder, folders_of_nodes
from lightning_hangcheck.rundir.saved_evidence import newest_case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.run import RankRecord
    from lightning_hangcheck.model.verdict import Verdict


def merge_runs(named: Sequence[str], merged: RunFolder) -> tuple[Case, Verdict]:
    """Join what `attach` or `run` wrote on several nodes into one verdict, and keep it.

    Args:
        named: Run folders, each node's once; one that all nodes were given holds the others.
        merged: Where to keep it.

    Raises:
        BadUsage: A folder is named twice.
        UnreadableRun: A folder cannot be read or holds no evidence.
        UsedRunFolder: The folder to keep it in holds another run.
    """
    from lightning_hangcheck.diagnosis import judge

    _refuse_twice(named)
    roots = [find_run_folder(name) for name in named]
    below = [one for root in roots for one in folders_of_nodes(root)]
    folders = list(dict.fromkeys([*roots, *below]))
    nodes = [_node(folder) for folder in folders if folder not in below or _saw_ranks(folder)]
    case = merge_cases(nodes, merged.run_id)
    verdict = judge(case)
    save_run(case, verdict, tuple(rank for folder in folders for rank in _ranks(folder)), merged)
    return case, verdict


def _refuse_twice(named: Sequence[str]) -> None:
    seen: set[Path] = set()
    for name in named:
        path = Path(name).resolve()
        if path in seen:
            raise BadUsage(f"{name} is named twice", "name the run folder of each node once")
        seen.add(path)


def _saw_ranks(folder: RunFolder) -> bool:
    """Whether a folder that nobody named holds evidence: a healthy node may have left none."""
    return newest_case(folder)[0] is not None


def _node(folder: RunFolder) -> NodeCase:
    case, gaps = newest_case(folder)
    if case is None:
        raise UnreadableRun(
            f"{folder.path} holds no evidence",
            "name a folder that hangcheck attach wrote, or hangcheck run after a verdict",
        )
    return NodeCase(str(folder.path), replace(case, gaps=(*case.gaps, *gaps)))


def _ranks(folder: RunFolder) -> tuple[RankRecord, ...]:
    """Read who the ranks were; without run.json the verdict still stands."""
    file = folder.run_file
    try:
        return decode(read_owned(file, EVIDENCE_BYTES), RunRecord, str(file)).ranks
    except (OSError, UnreadableRun):
        return ()
