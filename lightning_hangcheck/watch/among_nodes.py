"""This node's watch among those of the job's other nodes: what it tells them, and what they add.

The first node judges the whole job: the others' ranks join its cases, and its verdict is told on
all nodes. A node that does not hear the first one judges its own ranks, as it would alone.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.gather.case_building import ELSEWHERE
from lightning_hangcheck.gather.node_merge import NodeCase, merge_cases
from lightning_hangcheck.model.case import Case, RunFacts
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.nodes.digest import TAKEN_NS, digest_of
from lightning_hangcheck.nodes.encoding import MOST_PACKED
from lightning_hangcheck.nodes.exchange import EVERY_S, FIRST, SILENT_AFTER_S, Exchange, Heard
from lightning_hangcheck.nodes.meeting_place import FolderPlace
from lightning_hangcheck.nodes.store_place import CourierPlace
from lightning_hangcheck.reading.wording import name_ranks
from lightning_hangcheck.text.moments import NANOSECONDS, read_utc, utc
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.run import NodePlace
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.meeting_place import MeetingPlace
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings

JITTER_NS = NANOSECONDS // 2
"""By which the same look may seem to be of another moment, as its telling took longer."""
RELAYED = ("suspect", "slow", "hang", "dead", "recovered")
"""Verdicts on the whole job; how it ended each node says of its own ranks."""


class AmongNodes:
    """One of several nodes.

    Args:
        place: Which.
        meeting: Where they meet.
        now_ns: Present time.
    """

    def __init__(self, place: NodePlace, meeting: MeetingPlace, now_ns: int) -> None:
        self._place = place
        self._meeting = meeting
        self._exchange = Exchange(place, meeting)
        self._began_ns = now_ns
        self._told_ns = 0
        self._relayed: Verdict | None = None
        self._unjoinable = False
        self._looked_ns: dict[int, int] = {}

    @property
    def follows(self) -> bool:
        """Whether the first node's verdict counts, and this node judges nothing by itself."""
        return self._exchange.follows

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time to tell the others how things are."""
        return now_ns - self._told_ns >= EVERY_S * NANOSECONDS

    def tell(self, own: Case, verdict: Verdict | None, *, ended: bool = False) -> None:
        """Tell the other nodes.

        Args:
            own: Case of the ranks of this node.
            verdict: The newest that was told here.
            ended: The command has ended here.
        """
        self._told_ns = own.taken_ns
        digest = digest_of(own, self._place.number, own.taken_ns, ended=ended)
        relayed = verdict if verdict is not None and verdict.verdict in RELAYED else None
        self._exchange.tell(digest, relayed)

    def news(self) -> Verdict | None:
        """Return what the first node has told since last asked, where this one follows it."""
        verdict = self._exchange.verdict_of_first
        if verdict is None or verdict == self._relayed:
            return None
        self._relayed = verdict
        return verdict

    def looked_elsewhere(self) -> bool:
        """Whether other nodes have told since last asked what a look of theirs brought."""
        looked = {node: _newest_sample_ns(heard) for node, heard in self._exchange.heard.items()}
        known = self._looked_ns
        news = [node for node, at_ns in looked.items() if at_ns - known.get(node, 0) > JITTER_NS]
        self._looked_ns = {**known, **{node: looked[node] for node in news}}
        return bool(news)

    def join(self, own: Case) -> Case:
        """Return the case with the ranks of the other nodes; the first node's only.

        Args:
            own: Case of the ranks of this node.
        """
        if self._place.number != FIRST or self._unjoinable:
            return own
        try:
            return self._joined(own)
        except Exception as error:  # noqa: BLE001 - others' facts must not end the watch of ours
            self._unjoinable = True
            log.once("join", f"what other nodes tell is left out, it cannot be joined: {error!r}")
            return own

    def _joined(self, own: Case) -> Case:
        heard, now_ns = self._exchange.heard, own.taken_ns
        silent = {node: one for node, one in heard.items() if _silent_s(one, now_ns)}
        there = [one for node, one in heard.items() if node not in silent]
        started = own.run.local_world_size is not None
        cases = [_case_of(one, own) for one in there if started and _belongs(one, own)]
        joined = merge_cases([NodeCase("node 0", own), *cases], own.run.run_id) if cases else own
        absent = tuple(node for node in range(1, self._place.nnodes) if node not in heard)
        gaps = [_silent_node(one, now_ns) for one in silent.values()]
        waited_s = (now_ns - self._began_ns) / NANOSECONDS
        if absent and waited_s >= SILENT_AFTER_S:
            gaps.append(self._absent_nodes(absent, waited_s))
        else:
            absent = ()
        return replace(
            joined,
            gaps=(*(gap for gap in joined.gaps if not gaps or gap.why != ELSEWHERE), *gaps),
            run=_run_facts(own.run, joined.run, absent, self._place.nnodes),
        )

    def elsewhere(self, now_ns: int) -> dict[int, int]:
        """Return when ranks of other nodes last showed progress, by our monotonic clock."""
        return {
            view.rank: one.heard_ns - int(view.silent_for_s * NANOSECONDS)
            for one in self._exchange.heard.values()
            if not _silent_s(one, now_ns)
            for view in one.views
        }

    def notice_silence(self, now_ns: int) -> None:
        """Say once of each node on the first one that it has fallen silent."""
        if self._place.number != FIRST:
            return
        for node, one in self._exchange.heard.items():
            if _silent_s(one, now_ns):
                gap = _silent_node(one, now_ns)
                log.once(f"node {node} {one.state.stamp}", f"{gap.what} {gap.why}")

    def close(self) -> None:
        """Tell what was asked for last, and end what talks with the store."""
        self._exchange.close()
        if isinstance(self._meeting, CourierPlace):
            self._meeting.close()

    def _absent_nodes(self, absent: Iterable[int], waited_s: float) -> Gap:
        numbers = format_ranks(absent)
        return Gap(
            f"node{'s' if ',' in numbers or '-' in numbers else ''} {numbers}",
            None,
            f"nothing was heard from there for {waited_s:.0f} s: it has not come, no hangcheck run "
            f"watches there, or it does not reach {self._meeting.where}",
            "other_nodes",
        )


def among_nodes(session: Session, settings: Settings, now_ns: int) -> AmongNodes | None:
    """Join the other nodes of the job; None where there are none, or no place to meet."""
    place = session.facts.node
    meeting = _meeting(place, settings) if place is not None else None
    if place is None or meeting is None:
        return None
    return AmongNodes(place, meeting, now_ns)


def why_there(session: Session, settings: Settings) -> str:
    """Say for run.json where this job's nodes meet, and why; empty for a job of one node."""
    place = session.facts.node
    if place is None:
        return ""
    which = f"this is node {place.number} of {place.nnodes}"
    meeting = _meeting(place, settings)
    if meeting is None:
        return f"nowhere: torchrun serves no store that its command names, no --nodes-dir; {which}"
    why = "--nodes-dir names it" if settings.nodes_dir else "the command names it, no --nodes-dir"
    return f"{meeting.where}: {why}; {which}"


def _meeting(place: NodePlace, settings: Settings) -> MeetingPlace | None:
    if settings.nodes_dir is not None:
        # two jobs may be given one folder
        job = hashlib.sha256(f"{place.host}:{place.port}:{place.nnodes}".encode()).hexdigest()[:12]
        return FolderPlace(Path(settings.nodes_dir).absolute() / f"hangcheck-{job}", MOST_PACKED)
    return CourierPlace(place.host, place.port) if place.host else None


def _belongs(heard: Heard, own: Case) -> bool:
    """Whether a launcher has numbered its ranks, and they are of the round that we see."""
    state = heard.state
    return state.local_world_size is not None and state.round == own.run.round


def _case_of(heard: Heard, own: Case) -> NodeCase:
    """What another node told, as its case would be: on our clocks, of our command."""
    state = heard.state
    age_s = max(0.0, (own.taken_ns - heard.heard_ns) / NANOSECONDS)
    told = Case(
        run=RunFacts(
            run_id=own.run.run_id,
            command=own.run.command,
            started_at=own.run.started_at,
            world_size=state.world_size or own.run.world_size,
            nnodes=own.run.nnodes,
            local_world_size=state.local_world_size,
        ),
        taken_at=utc(read_utc(own.taken_at) - timedelta(seconds=age_s)),
        taken_ns=TAKEN_NS,
        ranks=heard.views,
        gaps=state.gaps,
        code=state.code,
        limits=own.limits,
    )
    return NodeCase(f"node {state.node}", told)


def _run_facts(own: RunFacts, joined: RunFacts, absent: tuple[int, ...], nnodes: int) -> RunFacts:
    return replace(
        own,
        world_size=joined.world_size,
        local_world_size=joined.local_world_size,
        nnodes=max(nnodes, joined.nnodes),
        absent_nodes=absent,
    )


def _silent_s(heard: Heard, now_ns: int) -> float:
    """Seconds since a node was heard; 0 where they are few, or its job has ended."""
    silent_s = (now_ns - heard.heard_ns) / NANOSECONDS
    return silent_s if silent_s >= SILENT_AFTER_S and not heard.state.ended else 0.0


def _silent_node(heard: Heard, now_ns: int) -> Gap:
    ranks = [view.rank for view in heard.views]
    which = f"node {heard.state.node}" + (f" ({name_ranks(ranks)})" if ranks else "")
    return Gap(
        which,
        None,
        f"has not been heard for {_silent_s(heard, now_ns):.0f} s: its host is down, the network "
        f"is cut, or its sidecar is dead{_last_known(heard.views)}",
        "other_nodes",
    )


def _last_known(views: Iterable[RankView]) -> str:
    """The furthest that its ranks were known to be."""
    marks = [view.beat.checkpoint for view in views if view.beat and view.beat.checkpoint]
    steps = [view.beat.step for view in views if view.beat and view.beat.step is not None]
    mark = max(marks, key=lambda one: one.number, default=None)
    known = [f"checkpoint {mark.number} ({mark.name})"] if mark is not None else []
    known += [f"step {max(steps)}"] if steps else []
    return f"; last known there: {', '.join(known)}" if known else ""


def _newest_sample_ns(heard: Heard) -> int:
    """When a node last looked at any of its ranks, by our monotonic clock; 0 if it did not."""
    moments = [
        sample.taken_ns
        for view in heard.views
        for look in view.processes
        for sample in look.samples
    ]
    return heard.heard_ns - TAKEN_NS + max(moments) if moments else 0
