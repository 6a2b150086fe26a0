"""This node's watch among those of the job's other nodes: what it tells them, and what they add.

The first node judges the whole job: the others' ranks join its cases, and its verdict is told on
all nodes. A node that does not hear the first one judges its own ranks, as it would alone.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.nodes.clocks import worth_showing
from lightning_hangcheck.nodes.digest import TAKEN_NS, UNMARKED, Network, digest_of
from lightning_hangcheck.nodes.encoding import MOST_ASKED
from lightning_hangcheck.nodes.exchange import (
    EVERY_S,
    FIRST,
    SILENT_AFTER_S,
    Exchange,
    Heard,
    folds_heard,
)
from lightning_hangcheck.probes.waits.connections.reach import own_addresses, reach_of
from lightning_hangcheck.reading.standing import standings_of
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.other_nodes.contradictions import contradictions
from lightning_hangcheck.watch.other_nodes.joining import (
    join_heard,
    last_progress,
    with_unheard,
)
from lightning_hangcheck.watch.other_nodes.last_words import (
    first_failure_ns,
    have_said,
    join_end,
)
from lightning_hangcheck.watch.other_nodes.meeting_choice import meeting_of
from lightning_hangcheck.watch.other_nodes.round_number import agreed_number, mark_of
from lightning_hangcheck.watch.other_nodes.silent_nodes import (
    absent_nodes,
    addresses_to_ask,
    silence_gap,
    silent_node,
    silent_s,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.case import Case, SilentNode
    from lightning_hangcheck.model.evidence import AddressReach, Gap
    from lightning_hangcheck.model.run import NodeClock, NodePlace
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.meeting_place import ClosablePlace
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.ranks.rounds import WatchedRound

JITTER_NS = NANOSECONDS // 2
"""By which the same look may seem to be of another moment, as its telling took longer."""
SAID_AFTER_S = SILENT_AFTER_S + 5.0
"""Silence after which it is said though nothing shows why."""
ALONE = "; until it is heard again, each node judges its own ranks: hangcheck merge joins that"
LAST_WORDS_S = 3.0
POLL_S = 0.05
RELAYED = ("suspect", "slow", "hang", "dead", "recovered")
"""Verdicts on the whole job; how it ended each node says of its own ranks."""


class AmongNodes:
    """One of several nodes.

    Args:
        place: Which.
        meeting: Where they meet.
        now_ns: Present time.
    """

    def __init__(self, place: NodePlace, meeting: ClosablePlace, now_ns: int) -> None:
        self._place = place
        self._meeting = meeting
        self._exchange = Exchange(place, meeting)
        self._began_ns = now_ns
        self._told_ns = 0
        self._mark = UNMARKED
        self._relayed: Verdict | None = None
        self._unjoinable = False
        self._looked_ns: dict[int, int] = {}
        self._addresses = own_addresses()
        self._reach: tuple[AddressReach, ...] = ()
        self._clocks: dict[int, NodeClock] = {}
        self._said_silent: dict[int, tuple[int, Gap]] = {}

    @property
    def follows(self) -> bool:
        """Whether the first node's verdict counts, and this node judges nothing by itself."""
        return self._exchange.follows

    def clocks(self) -> tuple[NodeClock, ...]:
        """Return how far other nodes' clocks are ahead of this one's; the first node's only."""
        self._clocks = worth_showing(self._exchange.clocks, self._clocks)
        return tuple(self._clocks.values())

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time to tell the others how things are."""
        return now_ns - self._told_ns >= EVERY_S * NANOSECONDS

    def agree(self, watched: WatchedRound, now_ns: int) -> None:
        """Give a round of this node the number that it has on the others, where they know better.

        Args:
            watched: The present round.
            now_ns: Present time.
        """
        self._mark = mark_of(watched)
        watched.number = agreed_number(watched, self._mark, self._judged_with().values(), now_ns)

    def tell(self, own: Case, verdict: Verdict | None, *, ended: bool = False) -> None:
        """Tell the other nodes.

        Args:
            own: Case of the ranks of this node.
            verdict: The newest that was told here.
            ended: The command has ended here.
        """
        self._told_ns = own.taken_ns
        if any(view.process_exit is not None for view in own.ranks):
            self._exchange.hurry()
        asks = self._look_for_silent(own)
        network = Network(self._addresses, () if self._place.number == FIRST else self._reach)
        digest = digest_of(
            own,
            self._place.number,
            own.taken_ns,
            ended=ended,
            network=network,
            mark=self._mark,
            standings=standings_of,
        )
        relayed = verdict if is_on_whole_job(verdict) else None
        self._exchange.tell(digest, relayed, asks)

    def _look_for_silent(self, own: Case) -> tuple[str, ...]:
        """Look at our ranks' connections to nodes that the first one no longer hears.

        Returns:
            On the first node what it asks of the others.
        """
        silent = addresses_to_ask(self._judged_with(), self._addresses, own.taken_ns)
        asks = tuple(chain.from_iterable(silent.values()))[:MOST_ASKED] or self._exchange.asked
        pids = [view.pid for view in own.ranks if view.pid is not None]
        self._reach = reach_of(asks, pids) if asks else ()
        return asks

    def _judged_with(self) -> dict[int, Heard]:
        """Return the nodes that this one may say something of.

        On the first node all that it heard; on others the first one, which may fall silent.
        """
        if self._place.number == FIRST:
            return self._exchange.heard
        first = self._exchange.first
        return {FIRST: first} if first is not None else {}

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

        On another node, which judges where the first one is silent, that one's ranks join as
        unheard.

        Args:
            own: Case of the ranks of this node.
        """
        if self.follows or self._unjoinable:
            return own
        try:
            return self._joined(own)
        except Exception as error:  # noqa: BLE001 - others' facts must not end the watch of ours
            self._unjoinable = True
            log.once("join", f"what other nodes tell is left out, it cannot be joined: {error!r}")
            return own

    def _joined(self, own: Case) -> Case:
        heard, now_ns = self._judged_with(), own.taken_ns
        silent = {node: one for node, one in heard.items() if silent_s(one, now_ns)}
        there = [one for node, one in heard.items() if node not in silent]
        if self._place.number != FIRST:
            there = []  # the first one has nothing to tell of its ranks but who they are
        joined = join_heard(own, there, silent.values())
        fell_silent = tuple(self._silent_nodes(own))
        others = range(1, self._place.nnodes) if self._place.number == FIRST else ()
        absent = tuple(node for node in others if node not in heard)
        gaps = [silence_gap(one) for one in fell_silent]
        waited_s = (now_ns - self._began_ns) / NANOSECONDS
        if absent and waited_s >= SILENT_AFTER_S:
            gaps.append(absent_nodes(absent, waited_s, self._meeting.where))
        else:
            absent = ()
        return with_unheard(own, joined, absent, fell_silent, gaps)

    def _silent_nodes(self, own: Case) -> Iterator[SilentNode]:
        heard, now_ns = self._judged_with(), own.taken_ns
        there = [one for one in heard.values() if not silent_s(one, now_ns)]
        if len(there) == len(heard):
            return
        alike = (fold.told.view for fold in folds_heard(there))
        others = [*own.ranks, *chain.from_iterable(one.views for one in there), *alike]
        reaches = [*self._reach, *chain.from_iterable(one.state.reach for one in there)]
        addresses = addresses_to_ask(heard, self._addresses, now_ns)
        for node, one in heard.items():
            if silent_s(one, now_ns):
                known = [reach for reach in reaches if reach.address in addresses[node]]
                yield silent_node(one, now_ns, known, others)

    def join_end(self, own: Case) -> Case:
        """Return how the job ended on all nodes, where a rank failed here; the first node's only.

        Args:
            own: How it ended here.
        """
        try:
            since_ns = first_failure_ns(own)
            if self._place.number != FIRST or not since_ns:
                return own
            said = self._wait_for_last_words(since_ns)
            return join_end(own, self._exchange.heard, said)
        except Exception as error:  # noqa: BLE001 - as in `join`
            log.once("join", f"what other nodes tell is left out, it cannot be joined: {error!r}")
            return own

    def _wait_for_last_words(self, since_ns: int) -> set[int]:
        """Wait a little for the others: what failed there is told within a second."""
        deadline = time.monotonic() + LAST_WORDS_S
        self._exchange.hurry()
        while True:
            heard = self._exchange.heard
            said = have_said(heard, since_ns)
            over = time.monotonic() >= deadline or self._exchange.in_trouble
            if over or said == heard.keys():
                return said
            time.sleep(POLL_S)

    def elsewhere(self, now_ns: int) -> dict[int, int]:
        """Return when ranks of other nodes last showed progress, by our monotonic clock."""
        heard = [one for one in self._exchange.heard.values() if not silent_s(one, now_ns)]
        return last_progress(heard)

    def notice_silence(self, own: Case) -> None:
        """Say once on the first node of each other one that it fell silent, or is heard again.

        On the others of the first one, and that it no longer judges for them. What nodes cannot
        both be right about is said by the first one.

        Args:
            own: Case of the ranks of this node.
        """
        if self._place.number == FIRST:
            for sentence in contradictions(own, self._mark, self._exchange.heard.values()):
                log.once(sentence, sentence)
        heard, silent = self._judged_with(), {one.number: one for one in self._silent_nodes(own)}
        for node in self._said_silent.keys() - silent.keys():
            before, gap = self._said_silent.pop(node)
            if not heard[node].state.ended:
                log.once(f"node {node} {before} again", f"{gap.what} is heard again")
        for node, one in silent.items():
            stamp, gap = heard[node].state.stamp, silence_gap(one)
            if one.reach != "unknown" or one.silent_s >= SAID_AFTER_S:
                self._said_silent[node] = stamp, gap
                alone = "" if self._place.number == FIRST else ALONE
                log.once(f"node {node} {stamp}", f"{gap.what} {gap.why}{alone}")

    def close(self) -> None:
        """Tell what was asked for last, and end what talks with the store."""
        self._exchange.close()
        self._meeting.close()


def among_nodes(place: NodePlace, settings: Settings, now_ns: int) -> AmongNodes | None:
    """Join the other nodes of the job; None where they have no place to meet."""
    meeting = meeting_of(place, settings)
    return AmongNodes(place, meeting, now_ns) if meeting is not None else None


def _newest_sample_ns(heard: Heard) -> int:
    """When a node last looked at any of its ranks, by our monotonic clock; 0 if it did not."""
    moments = [
        sample.taken_ns
        for view in (*heard.views, *(fold.told.view for fold in heard.folds))
        for look in view.processes
        for sample in look.samples
    ]
    return heard.heard_ns - TAKEN_NS + max(moments) if moments else 0


def is_on_whole_job(verdict: Verdict | None) -> bool:
    """Whether all nodes are to tell it: a pace that was lost is no stall, and told by its own node.

    Args:
        verdict: The newest of a node, None where it told nothing.
    """
    if verdict is None or verdict.verdict not in RELAYED:
        return False
    return verdict.stalled_since is not None
