"""What `hangcheck merge` does: read the run folders of several nodes, join, judge, keep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.attach.merging.folded_nodes import FoldedNodes
from lightning_hangcheck.attach.merging.merged_history import known_clocks, of_newest_round
from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files.atomic import write_atomically
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import NodeCase, merge_cases
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.observe.saving import save_run
from lightning_hangcheck.report.running_ranks import joined_rounds, moved_ranks
from lightning_hangcheck.rundir.layout import RunFolder, find_run_folder, folders_of_nodes
from lightning_hangcheck.rundir.rank_journals import journals_in, read_rank
from lightning_hangcheck.rundir.saved_evidence import newest_case
from lightning_hangcheck.time_limit import PART_LIMIT_S, READING_LIMIT_S, NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict

MOST_JOURNALS = 1_024


class Merged(NamedTuple):
    """What the run folders of several nodes come to.

    Attributes:
        left_out: One for each folder that cannot be used; they are gaps of the case, too.
        moved: A line for each rank that was on several hosts.
    """

    case: Case
    verdict: Verdict
    left_out: tuple[Gap, ...]
    moved: tuple[str, ...] = ()


def merge_runs(named: Sequence[str], merged: RunFolder) -> Merged:
    """Join what `attach` or `run` wrote on several nodes into one verdict, and keep it.

    Args:
        named: Run folders, each node's once; one that all nodes were given holds the others.
        merged: Where to keep it.

    Raises:
        BadUsage: A folder is named twice.
        UnreadableRun: What was named is no folder, or none of them can be used.
        UsedRunFolder: The folder to keep it in holds another run.
    """
    _refuse_twice(named)
    roots = [find_run_folder(name) for name in named]
    below = [one for root in roots for one in _below(root)]
    folders = list(dict.fromkeys([*roots, *below]))
    told = {str(folder.path): _record(folder) for folder in folders}
    records = [one for one in told.values() if one is not None]
    rounds, clocks = joined_rounds(records), known_clocks(records)
    nodes, refused = _read_all(folders, rounds[-1].number if rounds else 0)
    if not nodes:
        raise _none_of(list(refused.values()))
    left_out = tuple(
        Gap(f"run folder {folder.path}", None, str(one.args[0]), "saved_evidence", one.remedy)
        for folder, one in refused.items()
        if not _is_silent(folder, one, below)
    )
    nodes = [replace(one, ahead_s=_ahead_s(told[one.source], clocks)) for one in nodes]
    present, before = of_newest_round(nodes, told, rounds)
    joined = merge_cases(present, merged.run_id)
    case = replace(joined, gaps=(*joined.gaps, *before, *left_out), seen_in="files")
    verdict = judge(case)
    ranks = tuple(rank for record in records for rank in record.ranks)
    save_run(case, verdict, ranks, merged, rounds)
    _keep_journals(folders, merged)
    return Merged(case, verdict, left_out, tuple(moved_ranks(rounds)))


def _ahead_s(record: RunRecord | None, clocks: Mapping[int, float]) -> float | None:
    return clocks.get(record.node) if record is not None and record.node is not None else None


def _keep_journals(folders: Sequence[RunFolder], merged: RunFolder) -> None:
    """Join each rank's journals, so that its history is one also where nodes have own folders."""

    def keep() -> None:
        for name, paths in list(journals_in(folders).items())[:MOST_JOURNALS]:
            entries, _ = read_rank(paths)
            lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
            write_atomically(merged.journals / f"{name}.jsonl", lines)

    try:
        within(READING_LIMIT_S, keep)
    except (OSError, NoAnswer) as error:
        log.once("journals", f"not all journals were joined in {merged.path} ({error})")


class _NoEvidence(UnreadableRun):
    """The folder is one, and nothing was judged in it."""


def _refuse_twice(named: Sequence[str]) -> None:
    seen: set[Path] = set()
    for name in named:
        path = Path(name).resolve()
        if path in seen:
            raise BadUsage(f"{name} is named twice", "name the run folder of each node once")
        seen.add(path)


def _below(root: RunFolder) -> list[RunFolder]:
    try:
        return within(PART_LIMIT_S, lambda: folders_of_nodes(root))
    except NoAnswer:
        return []  # that it does not answer is said when it is read


def _read_all(
    folders: Sequence[RunFolder], newest_round: int, *, fold: bool = True
) -> tuple[list[NodeCase], dict[RunFolder, UnreadableRun]]:
    """Read what each node saved last; of a large job's ranks that stand alike only one is kept."""
    folded, nodes = FoldedNodes() if fold else None, list[NodeCase]()
    refused: dict[RunFolder, UnreadableRun] = {}
    for folder in folders:
        one = _read(folder)
        if isinstance(one, UnreadableRun):
            refused[folder] = one
        elif folded is None:
            nodes.append(one)
        elif one.case.run.round < newest_round or not folded.take(one):
            if not folded.empty:
                return _read_all(folders, newest_round, fold=False)
            folded, nodes = None, [one]
    return folded.joined() if folded is not None else nodes, refused


def _read(folder: RunFolder) -> NodeCase | UnreadableRun:
    """Read one node's case, or say why it cannot be: one dead disk or torn file costs no other."""
    try:
        return within(READING_LIMIT_S, lambda: _node(folder))
    except UnreadableRun as error:
        return error
    except NoAnswer as error:
        return UnreadableRun(f"{folder.path} does not answer ({error})", "try again, or leave it")


def _is_silent(folder: RunFolder, error: UnreadableRun, below: Sequence[RunFolder]) -> bool:
    """Whether a folder that nobody named holds no evidence: a healthy node may have left none."""
    return folder in below and isinstance(error, _NoEvidence)


def _none_of(refused: Sequence[UnreadableRun]) -> UnreadableRun:
    first = refused[0]
    more = f" (and none of {len(refused) - 1} more can be used)" if len(refused) > 1 else ""
    return UnreadableRun(f"{first.args[0]}{more}", first.remedy)


def _node(folder: RunFolder) -> NodeCase:
    case, gaps = newest_case(folder)
    if case is None:
        raise _NoEvidence(
            f"{folder.path} holds no evidence",
            "name a folder that hangcheck attach wrote, or hangcheck run after a verdict",
        )
    return NodeCase(str(folder.path), replace(case, gaps=(*case.gaps, *gaps)))


def _record(folder: RunFolder) -> RunRecord | None:
    """Read who the ranks were, in each round; without run.json the verdict still stands."""
    file = folder.run_file
    try:
        data = within(PART_LIMIT_S, lambda: read_owned(file, EVIDENCE_BYTES))
        return decode(data, RunRecord, str(file))
    except (OSError, UnreadableRun, NoAnswer):
        return None
