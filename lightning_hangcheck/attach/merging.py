"""`hangcheck merge`: what was written on several nodes, joined into one verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files.safe import EVIDENCE_BYTES, decode, read_owned, write_atomically
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.alike import without_members
from lightning_hangcheck.judge.joining import NodeCase, merge_cases, rebased
from lightning_hangcheck.judge.standing import standings_of
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import Round, RunRecord
from lightning_hangcheck.nodes.classes import (
    FOLDED_ABOVE,
    RankClass,
    RankLine,
    alike_of,
    bounded,
    class_of,
    first_view,
    together,
    without_evidence,
)
from lightning_hangcheck.nodes.word import MOST_CODE, MOST_GAPS, TAKEN_NS
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.report.running_ranks import joined_rounds, moved_ranks
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
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.case import Case, CodeNote, RankView
    from lightning_hangcheck.model.verdict import Verdict


FIRST = 0
CLOSE_S = 2.0
"""An estimate that may be further off orders nothing that a job does."""


def known_clocks(records: Sequence[RunRecord]) -> dict[int, float]:
    """Return how far the wall clocks of nodes are ahead of the first one's, by their number."""
    estimating = [one for one in records if one.clocks]
    if len(estimating) != 1 or estimating[0].node != FIRST:
        return {}
    found = {one.node: one.ahead_s for one in estimating[0].clocks if one.within_s <= CLOSE_S}
    return {FIRST: 0.0, **found}


def of_newest_round(
    nodes: Sequence[NodeCase],
    records: Mapping[str, RunRecord | None],
    rounds: Sequence[Round],
) -> tuple[list[NodeCase], list[Gap]]:
    """Leave out evidence from before the newest round began: ranks of two rounds are never mixed.

    Returns:
        The others, and a gap for each that was left out.
    """
    newest = rounds[-1] if rounds else Round()
    before = [node for node in nodes if _is_before(node, nodes, records[node.source], newest)]
    present = [node for node in nodes if node not in before]
    if not present:
        return list(nodes), []
    return present, [
        Gap(
            f"run folder {node.source}",
            None,
            f"its evidence is of round {node.case.run.round}, and round {newest.number} has begun "
            "since: it counts as history only",
            "saved_evidence",
        )
        for node in before
    ]


def _is_before(
    node: NodeCase, nodes: Sequence[NodeCase], record: RunRecord | None, newest: Round
) -> bool:
    """Whether what a node saw last is of an earlier round, whatever its clock says.

    Its own clock tells where it was in the newest round, too. Else its number does, if nodes that
    met gave it; of others, which may count their rounds otherwise, that all its ranks have gone on
    to other nodes, or that there are no such ranks any more.
    """
    if node.case.run.round >= newest.number:
        return False
    own = {one.number: one for one in record.rounds} if record is not None else {}
    if newest.number in own:
        return node.case.taken_at < own[newest.number].started_at
    if record is not None and record.meeting:
        return True
    later = [one.case for one in nodes if one.case.run.round > node.case.run.round]
    elsewhere = {view.rank for case in later for view in case.ranks if view.pid is not None}
    world_size = max((case.run.world_size for case in later), default=0)
    ours = [view.rank for view in node.case.ranks if view.pid is not None]
    return bool(later) and all(rank in elsewhere or rank >= world_size for rank in ours)


if TYPE_CHECKING:
    Way = tuple[object, ...]


class FoldedNodes:
    """The nodes that were taken so far."""

    def __init__(self) -> None:
        self._first: NodeCase | None = None
        self._seen: set[int] = set()
        self._sizes: list[int] = []
        self._folds: list[RankClass] = []
        self._best: dict[Way, tuple[RankClass, int]] = {}
        self._alone: list[NodeCase] = []
        self._gaps: dict[Gap, None] = {}
        self._code: dict[CodeNote, None] = {}

    @property
    def empty(self) -> bool:
        """Whether none was taken."""
        return not self._sizes

    def take(self, node: NodeCase) -> bool:
        """Take one in, and say whether it, and so all, can be joined this way."""
        first = self._first = self._first or node
        case, size = node.case, node.case.run.local_world_size
        if size is None or not _is_of_one_standing_job(case, first.case):
            return False
        ranks = {view.rank for view in case.ranks}
        if len(ranks) != len(case.ranks) or ranks & self._seen:
            return False
        self._seen |= ranks
        self._sizes.append(size)
        pairs = list(zip(case.ranks, standings_of(case.ranks, case.taken_ns), strict=True))
        for view, standing in pairs:
            if standing:
                self._fold(view, standing, TAKEN_NS - case.taken_ns)
        alone = [view for view, standing in pairs if not standing]
        self._gaps |= dict.fromkeys(gap for gap in case.gaps if gap.kind != "other_nodes")
        self._code |= dict.fromkeys(case.code)
        if alone:
            run = replace(case.run, local_world_size=len(alone))
            own = replace(case, run=run, ranks=tuple(alone), gaps=(), code=())
            self._alone.append(replace(node, case=own))
        return True

    def joined(self) -> list[NodeCase]:
        """Return the cases that say of all these nodes what they say of them."""
        if self._first is None:
            return []
        best = [replace(one, told=_moved(one.told, by_ns)) for one, by_ns in self._best.values()]
        folds, _ = bounded(together([*best, *self._folds]))
        case, alone = self._first.case, sum(len(one.case.ranks) for one in self._alone)
        told = replace(
            case,
            run=replace(case.run, local_world_size=sum(self._sizes) - alone, machine=""),
            taken_ns=TAKEN_NS,
            ranks=tuple(map(first_view, folds)),
            alike=tuple(map(alike_of, folds)),
            gaps=tuple(self._gaps)[:MOST_GAPS],
            code=tuple(self._code)[:MOST_CODE],
        )
        return [NodeCase(self._first.source, told), *self._alone]

    def _fold(self, view: RankView, standing: int, shift_ns: int) -> None:
        """Keep the evidence of the rank of its way that was silent for the shortest time."""
        bare, groups = without_members(view)
        way = standing, tuple(family.offsets for family in groups)
        mine, known = class_of(bare, groups, standing), self._best.get(way)
        kept = known is not None and _place(known[0]) <= _place(mine)
        if not kept:
            self._best[way] = mine, shift_ns
        other = mine if kept else known[0] if known is not None else None
        if other is not None:
            self._folds.append(without_evidence(other))


def _is_of_one_standing_job(case: Case, first: Case) -> bool:
    own, run = case.run, first.run
    same = (own.command, own.world_size, own.round) == (run.command, run.world_size, run.round)
    plain = not (case.ended or case.alike or own.silent_nodes or case.slowness or case.aftermath)
    ranks = all(
        view.pid is not None and view.process_exit is None and not view.unheard_for_s
        for view in case.ranks
    )
    return (
        same and plain and ranks and own.world_size > FOLDED_ABOVE and case.limits == first.limits
    )


def _place(fold: RankClass) -> tuple[float, int]:
    """As `together` chooses the view that stands for all."""
    return fold.told.view.silent_for_s, fold.told.view.rank


def _moved(told: RankLine, by_ns: int) -> RankLine:
    return replace(told, view=rebased(told.view, by_ns))


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
