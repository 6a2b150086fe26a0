"""This node's watch among those of the job's other nodes: what it tells them, and what they add.

One node judges the whole job, the first one or who follows it: the others' ranks join its cases,
and its verdict is told on all nodes. A node that hears no judge judges its own ranks, as it would
alone.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.nodes.bounds import MOST_ASKED
from lightning_hangcheck.nodes.circle import Circle
from lightning_hangcheck.nodes.clocks import worth_showing
from lightning_hangcheck.nodes.digest import UNMARKED, Network, digest_of
from lightning_hangcheck.nodes.exchange import EVERY_S
from lightning_hangcheck.nodes.heard import Heard, folds_heard, newest, newest_sample_ns
from lightning_hangcheck.nodes.judging.succession import SILENT_AFTER_S
from lightning_hangcheck.nodes.judging.tree import FIRST
from lightning_hangcheck.probes.waits.connections.reach import own_addresses, reach_of
from lightning_hangcheck.reading.standing import standings_of
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.other_nodes.contradictions import (
    contradictions,
    other_versions,
    same_number,
)
from lightning_hangcheck.watch.other_nodes.joining import (
    join_heard,
    last_progress,
    with_unheard,
)
from lightning_hangcheck.watch.other_nodes.last_words import (
    first_failure_ns,
    have_said,
    join_end,
    told_and_gone,
)
from lightning_hangcheck.watch.other_nodes.meeting_choice import meetings_of
from lightning_hangcheck.watch.other_nodes.relayed import have_read, is_on_whole_job
from lightning_hangcheck.watch.other_nodes.round_number import agreed_number, mark_of
from lightning_hangcheck.watch.other_nodes.silent_nodes import (
    absent_nodes,
    addresses_to_ask,
    silence_gap,
    silent_node,
    silent_s,
    unused_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightning_hangcheck.model.case import Case, SilentNode
    from lightning_hangcheck.model.evidence import AddressReach, Gap
    from lightning_hangcheck.model.run import NodeClock, NodePlace
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.places.meeting_place import ClosablePlace
    from lightning_hangcheck.nodes.round_end import LeftRound, RoundEnd
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.ranks.rounds import WatchedRound

JITTER_NS = NANOSECONDS // 2
"""By which the same look may seem to be of another moment, as its telling took longer."""
SAID_AFTER_S = SILENT_AFTER_S + 5.0
"""Silence after which it is said though nothing shows why."""
ALONE = "; until it is heard again, each node judges its own ranks: hangcheck merge joins that"
HERE = "; until it is heard again, this node judges for all that are heard"
THERE = "; until it is heard again, node {} judges for all that are heard"
ANSWERING = ("answers", "goes_on")
LAST_WORDS_S = 3.0
POLL_S = 0.05


class AmongNodes:
    """One of several nodes.

    Args:
        place: Which.
        meetings: Where they meet, and the folder in which they go on, if there is one.
        now_ns: Present time.
        clock: Tells it later on.

    Attributes:
        place: The same.
        left: The round before, of this node's own ranks, for the others.
        round_end: What became of it on all nodes, where this one judged it.
    """

    def __init__(
        self,
        place: NodePlace,
        meetings: Sequence[ClosablePlace],
        now_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.place = place
        self._circle = Circle(place, meetings, clock)
        self._circle.start()
        self._store = meetings[0].where
        self._judges_since_ns = now_ns if place.number == FIRST else 0
        self._told_ns = 0
        self.left: LeftRound | None = None
        self.round_end: RoundEnd | None = None
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
        """Whether another node judges for this one, or is about to."""
        role = self._circle.role
        return role.judge is not None or role.waits

    @property
    def judges(self) -> bool:
        """Whether this node judges for all that are heard."""
        return self._circle.role.judges

    @property
    def moved_to(self) -> str:
        """The folder in which the nodes go on beside a store that some lost; empty before that."""
        return self._circle.where if self._circle.moved else ""

    def clocks(self) -> tuple[NodeClock, ...]:
        """Return how far other nodes' clocks are ahead of this one's; the first node's only."""
        self._clocks = worth_showing(self._circle.clocks, self._clocks)
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
        watched.number = agreed_number(watched, self._mark, self.judged_with().values(), now_ns)

    def tell(self, own: Case, verdict: Verdict | None, *, ended: bool = False) -> None:
        """Tell the other nodes.

        Args:
            own: Case of the ranks of this node.
            verdict: The newest that was told here.
            ended: The command has ended here.
        """
        self._told_ns = own.taken_ns
        self._circle.hurry(ends=any(view.process_exit is not None for view in own.ranks))
        asks = self._look_for_silent(own)
        network = Network(self._addresses, () if self._circle.role.judges else self._reach)
        digest = digest_of(
            own,
            self.place.number,
            own.taken_ns,
            ended=ended,
            network=network,
            mark=self._mark,
            left=self.left,
            standings=standings_of,
        )
        relayed = verdict if is_on_whole_job(verdict) else None
        known = self.judged_with().values()
        silent = [one for one in known if silent_s(one, own.taken_ns)]
        read = relayed is not None and self._is_read(relayed, own.taken_ns)
        self._circle.tell(digest, relayed, asks, silent, self.round_end, known=read)
        self._note_role(own.taken_ns)

    def _note_role(self, now_ns: int) -> None:
        role = self._circle.role
        if not (role.judges or role.claims):
            self._judges_since_ns = 0
        elif not self._judges_since_ns:
            self._judges_since_ns = now_ns

    def _look_for_silent(self, own: Case) -> tuple[str, ...]:
        """Look at our ranks' connections to nodes that who judges no longer hears.

        Returns:
            On that node what it asks of the others.
        """
        silent = addresses_to_ask(self.judged_with(), self._addresses, own.taken_ns)
        asks = tuple(chain.from_iterable(silent.values()))[:MOST_ASKED] or self._circle.asked
        pids = [view.pid for view in own.ranks if view.pid is not None]
        if not own.ended:
            self._reach = reach_of(asks, pids) if asks else ()
        return asks

    def judged_with(self) -> dict[int, Heard]:
        """Return the nodes that this one may say something of.

        Where it judges, all that it heard, and of which whom it followed told last; where it
        follows, that one and those in whose place it judges; alone, those that nobody heard.
        """
        role, known = self._circle.role, self._circle.known
        if role.judges:
            return newest([known, self._circle.heard])
        if role.judge is not None:
            return {node: one for node, one in known.items() if node <= (role.judge or 0)}
        return known

    def news(self) -> Verdict | None:
        """Return what the node has told since last asked that this one follows."""
        verdict = self._circle.verdict
        if verdict is None or verdict == self._relayed:
            return None
        self._relayed = verdict
        return verdict

    def all_know(self, verdict: Verdict | None) -> bool:
        """Whether all nodes are known to have read a verdict, or cannot, or need not.

        Not before who judges has told so: any node may serve the store by which they hear of it.

        Args:
            verdict: That was told here.
        """
        alone = not (self.judges or self.follows) or self._circle.in_trouble
        if verdict is None or alone or not is_on_whole_job(verdict):
            return True
        return self._circle.all_know(verdict)

    def _is_read(self, verdict: Verdict, now_ns: int) -> bool:
        since = self._circle.told_since(verdict)
        if since is None:
            return False
        return have_read(self.place.number, since, self._circle.heard.values(), now_ns)

    def looked_elsewhere(self) -> bool:
        """Whether other nodes have told since last asked what a look of theirs brought."""
        looked = {node: newest_sample_ns(heard) for node, heard in self._circle.heard.items()}
        known = self._looked_ns
        news = [node for node, at_ns in looked.items() if at_ns - known.get(node, 0) > JITTER_NS]
        self._looked_ns = {**known, **{node: looked[node] for node in news}}
        return bool(news)

    def join(self, own: Case) -> Case:
        """Return the case with the ranks of the other nodes, where this one judges for them.

        Where it judges alone, those of nodes that nobody hears join as unheard.

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
        heard, now_ns, number = self.judged_with(), own.taken_ns, self.place.number
        silent = {node: one for node, one in heard.items() if silent_s(one, now_ns)}
        judges = self._circle.role.judges
        there = [one for node, one in heard.items() if judges and node not in silent]
        joined = join_heard(own, there, silent.values(), number)
        fell_silent = tuple(self._silent_nodes(own))
        others = set(range(self.place.nnodes)) - {number} if judges else set()
        unused = {node: why for node, why in self._circle.unused.items() if node != number}
        absent = tuple(sorted(others - heard.keys() - unused.keys()))
        gaps = [*map(silence_gap, fell_silent), *unused_nodes(unused)]
        waited_s = (now_ns - self._judges_since_ns) / NANOSECONDS
        if absent and waited_s >= SILENT_AFTER_S:
            gaps.append(absent_nodes(absent, waited_s, self._circle.where))
        else:
            absent = ()
        return with_unheard(own, joined, absent, fell_silent, gaps)

    def _silent_nodes(self, own: Case) -> Iterator[SilentNode]:
        heard, now_ns = self.judged_with(), own.taken_ns
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
        """Return how the job ended on all nodes, where a rank failed here and this one judges.

        Where it judges alone, nodes that nothing acknowledged for long enough are gone.

        Args:
            own: How it ended here.
        """
        try:
            since_ns = first_failure_ns(own)
            if self.follows or not since_ns:
                return own
            if not self._circle.role.judges:
                return join_end(own, [], self._unanswered(own), self.place.number)
            said = self._wait_for_last_words(since_ns)
            told, gone = told_and_gone(self._without_watch(own, said), said)
            return join_end(own, told, gone, self.place.number)
        except Exception as error:  # noqa: BLE001 - as in `join`
            log.once("join", f"what other nodes tell is left out, it cannot be joined: {error!r}")
            return own

    @property
    def told_end(self) -> RoundEnd | None:
        """How the round before ended, as the node says that judges for this one."""
        return self._circle.end

    def _without_watch(self, own: Case, said: set[int]) -> dict[int, Heard]:
        """Leave out nodes of which only the sidecar had died: what became of them is open."""
        alive = {one.number for one in self._silent_nodes(own) if one.reach in ANSWERING} - said
        return {node: one for node, one in self.judged_with().items() if node not in alive}

    def _unanswered(self, own: Case) -> list[Heard]:
        known = self.judged_with()
        return [known[one.number] for one in self._silent_nodes(own) if one.reach == "unanswered"]

    def _wait_for_last_words(self, since_ns: int) -> set[int]:
        """Wait a little for the others: what failed there is told within a second."""
        deadline = time.monotonic() + LAST_WORDS_S
        self._circle.hurry()
        while True:
            self._circle.look_round()
            heard = self.judged_with()
            said = have_said(heard, since_ns)
            over = time.monotonic() >= deadline or self._circle.in_trouble
            if over or said == heard.keys():
                return said
            time.sleep(POLL_S)

    def elsewhere(self, now_ns: int) -> dict[int, int]:
        """Return when ranks of other nodes last showed progress, by our monotonic clock."""
        heard = [one for one in self._circle.heard.values() if not silent_s(one, now_ns)]
        return last_progress(heard)

    def notice_silence(self, own: Case) -> None:
        """Say once where this node judges of each other one that it fell silent, or is heard again.

        Elsewhere of the one that judged, and who does in its place. What nodes cannot both be right
        about is said by who judges; and that the nodes do not hear each other, by each.

        Args:
            own: Case of the ranks of this node.
        """
        role = self._circle.role
        self._say_where()
        self._say_same_number()
        if role.judges:
            others, number = list(self._circle.heard.values()), self.place.number
            for sentence in contradictions(own, self._mark, others, number):
                log.once(sentence, sentence)
            for node, sentence in other_versions(others, number).items():
                log.once(f"version of node {node}", sentence)
        if role.waits:
            return  # who judges is known in a moment
        heard, silent = self.judged_with(), {one.number: one for one in self._silent_nodes(own)}
        for node in self._said_silent.keys() - silent.keys():
            before, gap = self._said_silent.pop(node)
            if node in heard and not heard[node].state.ended:
                log.once(f"node {node} {before} again", f"{gap.what} is heard again")
        for node, one in silent.items():
            stamp, gap = heard[node].state.stamp, silence_gap(one)
            if one.reach != "unknown" or one.silent_s >= SAID_AFTER_S:
                self._said_silent[node] = stamp, gap
                log.once(f"node {node} {stamp}", f"{gap.what} {gap.why}{self._instead(node)}")

    def _say_same_number(self) -> None:
        addresses = self._circle.same_number
        if addresses is not None:
            theirs = [one for one in addresses if one not in self._addresses]
            log.once("same number", same_number(self.place.number, theirs))

    def _instead(self, silent: int) -> str:
        """Say who judges while a node is silent that did."""
        role, own = self._circle.role, self.place.number
        if role.judge is not None:
            return THERE.format(role.judge)
        if not role.judges:
            return ALONE
        return HERE if silent < own else ""

    def _say_where(self) -> None:
        """Say once that the nodes go on in a folder, and once where they do not meet at all."""
        if self.moved_to:
            log.once("moved", f"{self._store} is lost to some nodes: they go on in {self.moved_to}")
        trouble = self._circle.trouble
        if trouble:
            log.once(
                "nodes",
                f"the nodes do not hear each other, each gives a verdict of its own: {trouble}",
            )

    def close(self) -> None:
        """Tell what was asked for last, and end what talks with the store."""
        self._circle.close()


def among_nodes(place: NodePlace, settings: Settings, now_ns: int) -> AmongNodes | None:
    """Join the other nodes of the job; None where they have no place to meet."""
    meetings = meetings_of(place, settings)
    return AmongNodes(place, meetings, now_ns) if meetings else None
