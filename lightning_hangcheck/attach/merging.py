"""`hangcheck merge`: what was written on several nodes, joined into one verdict."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files.safe import EVIDENCE_BYTES, read_fact, write_atomically
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import NodeCase, merge_cases
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import Round, RunRecord
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.report.saved_run import joined_rounds, moved_ranks
from lightning_hangcheck.rundir import (
    RunFolder,
    find_run_folder,
    folders_of_nodes,
    journals_in,
    newest_case,
    read_rank,
)
from lightning_hangcheck.time_limit import PART_LIMIT_S, READING_LIMIT_S, NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import EvidenceItem, Verdict

FIRST = 0
CLOSE_S = 2.0
"""An estimate that may be further off orders nothing that a job does."""
MOST_JOURNALS = 1_024


class Merged(NamedTuple):
    """What the run folders of several nodes come to; ``left_out`` are gaps of the case, too."""

    case: Case
    verdict: Verdict
    left_out: tuple[Gap, ...]
    moved: tuple[str, ...] = ()


def merge_runs(
    named: Sequence[str], merged: RunFolder, also: Sequence[EvidenceItem] = ()
) -> Merged:
    """Join what `attach` or `run` wrote on several nodes into one verdict, and keep it.

    A folder that all nodes were given holds the others. ``also`` is told before other evidence.
    BadUsage where a folder is named twice, UnreadableRun where none can be used, UsedRunFolder
    where the one to keep it in holds another run.
    """
    paths = [Path(name).resolve() for name in named]
    for number, name in enumerate(named):
        if paths[number] in paths[:number]:
            raise BadUsage(f"{name} is named twice", "name the run folder of each node once")
    roots = [find_run_folder(name) for name in named]
    below: list[RunFolder] = []
    for root in roots:
        with suppress(NoAnswer):  # that it does not answer is said when it is read
            below += within(PART_LIMIT_S, partial(folders_of_nodes, root))
    folders = list(dict.fromkeys([*roots, *below]))
    told: dict[RunFolder, RunRecord | None] = dict.fromkeys(folders)
    for folder in folders:  # who the ranks were; without run.json the verdict still stands
        with suppress(NoAnswer):
            file = folder.run_file
            told[folder] = within(PART_LIMIT_S, partial(read_fact, file, RunRecord, EVIDENCE_BYTES))
    records = [one for one in told.values() if one is not None]
    rounds, clocks = joined_rounds(records), dict[int, float]()
    estimating = [one for one in records if one.clocks]
    if len(estimating) == 1 and estimating[0].node == FIRST:
        # where several were the first after each other, nobody knows whose the figures are
        close = (clock for clock in estimating[0].clocks if clock.within_s <= CLOSE_S)
        clocks = {FIRST: 0.0, **{clock.node: clock.ahead_s for clock in close}}
    nodes: dict[RunFolder, NodeCase] = {}
    refused: list[UnreadableRun] = []
    left_out: list[Gap] = []
    for folder, record in told.items():
        empty = False
        try:
            case, gaps = within(READING_LIMIT_S, partial(newest_case, folder))
            if case is not None:
                node = -1 if record is None or record.node is None else record.node
                case = replace(case, gaps=(*case.gaps, *gaps))
                nodes[folder] = NodeCase(str(folder.path), case, clocks.get(node))
                continue
            empty = True
            refusal = UnreadableRun(
                f"{folder.path} holds no evidence",
                "name a folder that hangcheck attach wrote, or hangcheck run after a verdict",
            )
        except UnreadableRun as error:
            refusal = error
        except NoAnswer as error:  # one dead disk costs no other node's evidence
            why = f"{folder.path} does not answer ({error})"
            refusal = UnreadableRun(why, "try again, or leave it")
        refused.append(refusal)
        # a healthy node may have left a folder that nobody named, and no evidence in it
        if not (empty and folder in below):
            what, why = f"run folder {folder.path}", str(refusal.args[0])
            left_out.append(Gap(what, None, why, "saved_evidence", refusal.remedy))
    if not nodes:
        first, more = refused[0], len(refused) - 1
        rest = f" (and none of {more} more can be used)" if more else ""
        raise UnreadableRun(f"{first.args[0]}{rest}", first.remedy)
    newest = rounds[-1] if rounds else Round()
    of_files = sorted(
        (one for one in nodes if nodes[one].case.left is not None),
        key=lambda one: nodes[one].case.taken_at,
    )
    for folder in of_files if len(of_files) < len(nodes) else of_files[:-1]:
        del nodes[folder]
        what, why = f"run folder {folder.path}", "it was made from other files, not by a watch"
        remedy = "name these files: hangcheck postmortem PATH..."
        left_out.append(Gap(what, None, why, "saved_evidence", remedy))
    cases = list(nodes.values())
    before = [one for one in nodes if _is_before(nodes[one], cases, told[one], newest)]
    before = before if len(before) < len(cases) else []
    joined = merge_cases([nodes[one] for one in nodes if one not in before], merged.run_id)
    history = [
        Gap(
            f"run folder {folder.path}",
            None,
            f"its evidence is of round {nodes[folder].case.run.round}, and round {newest.number} "
            "has begun since: it counts as history only",
            "saved_evidence",
        )
        for folder in before
    ]
    case = replace(joined, gaps=(*joined.gaps, *history, *left_out), seen_in="files")
    verdict = judge(case)
    verdict = replace(verdict, evidence=(*also, *verdict.evidence))
    ranks = tuple(rank for record in records for rank in record.ranks)
    save_run(case, verdict, ranks, merged, rounds)

    def keep_journals() -> None:
        """Join each rank's, so that its history is one also where nodes have own folders."""
        for name, paths in list(journals_in(folders).items())[:MOST_JOURNALS]:
            entries, _ = read_rank(paths)
            lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
            write_atomically(merged.journals / f"{name}.jsonl", lines)

    try:
        within(READING_LIMIT_S, keep_journals)
    except (OSError, NoAnswer) as error:
        log.once("journals", f"not all journals were joined in {merged.path} ({error})")
    return Merged(case, verdict, tuple(left_out), tuple(moved_ranks(rounds)))


def _is_before(
    node: NodeCase, nodes: Sequence[NodeCase], record: RunRecord | None, newest: Round
) -> bool:
    """Whether what a node saw last is of an earlier round: ranks of two rounds are never mixed.

    Its own clock tells where it was in the newest round, too. Else its number does, if nodes that
    met gave it; of others, which may count their rounds otherwise, that all its ranks have gone on
    to other nodes, or that there are no such ranks any more.
    """
    if node.case.run.round >= newest.number:
        return False
    own = {} if record is None else {seen.number: seen for seen in record.rounds}
    if newest.number in own:
        return node.case.taken_at < own[newest.number].started_at
    if record is not None and record.meeting:
        return True
    later = [one.case for one in nodes if one.case.run.round > node.case.run.round]
    elsewhere = {view.rank for case in later for view in case.ranks if view.pid is not None}
    world_size = max((case.run.world_size for case in later), default=0)
    ours = [view.rank for view in node.case.ranks if view.pid is not None]
    return bool(later) and all(rank in elsewhere or rank >= world_size for rank in ours)
