"""Who tells whom, and what was heard when: the nodes of a job as a tree, its root the first node.

Each node leaves its digest, joined with what it heard of the nodes below it, at the meeting place;
the node above takes it from there. So none takes more than `FAN_IN`, however many there are. All is
done in a thread of its own: a place that does not answer holds nobody up.

No clock of another node counts for anything but to be shown. What was left by a job before this one
looks like a node that is there, so nothing counts before it has changed while we watched.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.gather.rank_set import members
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.nodes.clocks import Clocks, Quickest, clock_of, own_clocks
from lightning_hangcheck.nodes.digest import (
    NodeDigest,
    NodeState,
    folds_of,
    merge_digests,
    shortened,
)
from lightning_hangcheck.nodes.encoding import (
    MOST_PACKED,
    BadDigest,
    FirstWord,
    pack,
    unpack,
    unpack_word,
)
from lightning_hangcheck.nodes.folding import FoldedRanks, together
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.text.rank_ranges import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lightning_hangcheck.gather.rank_set import RankSet
    from lightning_hangcheck.model.run import NodeClock, NodePlace
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.meeting_place import MeetingPlace

FIRST = 0
FAN_IN = 32
EVERY_S = 1.0
HURRIED_S = 0.2
"""Where a rank has failed: the store that its launcher serves goes with it in a second or two."""
SILENT_AFTER_S = 15.0
"""A node tells something each second; a busy one, or a busy place, may be ten times as slow."""
TROUBLE_AFTER_S = 60.0
"""The first node may start so much later than the others; training waits for it, too."""
FIRST_KEY = "first"
MOST_OF_A_NODE = 1_024
"""Ranks of one node."""
LAST_WORD_S = 1.0


class Heard(Struct, frozen=True):
    """A node of which something was heard.

    Attributes:
        views: Of its ranks, times as `digest` tells them.
        heard_ns: When that was new, by our monotonic clock.
        source: The digest that it came in.
        folds: Of that digest, the views of their ranks as in ``views``.
    """

    state: NodeState
    views: tuple[RankView, ...]
    heard_ns: int
    source: NodeDigest
    folds: tuple[FoldedRanks, ...] = ()


class Exchange:
    """Tells the other nodes what this one sees, and hears what they tell.

    Args:
        place: Which node this is, of how many.
        meeting: Where they meet.
    """

    def __init__(self, place: NodePlace, meeting: MeetingPlace) -> None:
        self._own, self._nnodes = place.number, place.nnodes
        self._meeting = meeting
        self._heard: dict[int, Heard] = {}
        self._stamps: dict[int, int] = {}
        self._read: dict[str, bytes] = {}
        self._word: FirstWord | None = None
        self._word_ns = 0
        self._word_stamp: int | None = None
        self._words = Quickest()
        self._answers: dict[int, Quickest] = {}
        self._digest: NodeDigest | None = None
        self._verdict: Verdict | None = None
        self._asks: tuple[str, ...] = ()
        self._trouble_since_ns = 0
        self._hurried = False
        self._turn_began_ns = 0
        self._wake = threading.Event()
        self._told = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hangcheck-nodes", daemon=True)
        self._thread.start()

    @property
    def heard(self) -> dict[int, Heard]:
        """The nodes of which something was heard, by their number."""
        return dict(self._heard)

    @property
    def follows(self) -> bool:
        """Whether the first node, which is another, was heard lately: its verdict counts."""
        limit_ns = SILENT_AFTER_S * NANOSECONDS
        return bool(self._word_ns) and time.monotonic_ns() - self._word_ns < limit_ns

    @property
    def verdict_of_first(self) -> Verdict | None:
        """What the first node told last, while it is heard."""
        word = self._word
        return word.verdict if word is not None and self.follows else None

    @property
    def first(self) -> Heard | None:
        """What is known of the first node, which is another; None while nothing was heard of it."""
        word = self._word
        if word is None or word.state is None:
            return None
        views = tuple(RankView(rank=rank) for rank in _few_ranks(word.ranks))
        state = replace(word.state, ranks=(), folded=())
        return Heard(state, views, self._word_ns, NodeDigest(nodes=()))

    @property
    def clocks(self) -> dict[int, NodeClock]:
        """Clocks of the nodes that were heard; the first node's only."""
        answers = dict(self._answers) if self._own == FIRST else {}
        ours = own_clocks()
        found = (
            clock_of(node, told.first_word_up_s, answers[node].least, _clocks_of(told), ours)
            for node, told in ((node, heard.state) for node, heard in self.heard.items())
            if node in answers
        )
        return {clock.node: clock for clock in found if clock is not None}

    @property
    def asked(self) -> tuple[str, ...]:
        """Addresses of which the first node wants to know what connections to them show."""
        word = self._word
        return word.asks if word is not None and self.follows else ()

    def tell(self, digest: NodeDigest, verdict: Verdict | None, asks: tuple[str, ...] = ()) -> None:
        """Have this told next.

        Args:
            digest: Of this node alone.
            verdict: The newest; only the first node's is told, and so is what it asks.
            asks: Addresses of nodes that are no longer heard.
        """
        self._digest, self._verdict, self._asks = digest, verdict, asks
        self._told.clear()
        self._wake.set()
        self._notice_stall()

    @property
    def in_trouble(self) -> bool:
        """Whether the place where the nodes meet was not to be used when last tried."""
        return bool(self._trouble_since_ns)

    def hurry(self) -> None:
        """Hear and tell more often from now on: the end is near."""
        self._hurried = True
        self._wake.set()

    def close(self) -> None:
        """Tell what was asked for last, and no more; a place that does not answer is left alone."""
        self._told.wait(LAST_WORD_S)
        self._closing = True
        self._wake.set()
        self._thread.join(LAST_WORD_S)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(HURRIED_S if self._hurried else EVERY_S)
            self._wake.clear()
            self._turn_began_ns = time.monotonic_ns()
            try:
                self._hear()
                self._post()
                self._trouble_since_ns = 0
            except MeetingFailed as error:
                self._note_trouble(error)
            except Exception as error:  # noqa: BLE001 - the thread's boundary: the watch goes on
                log.once("nodes failed", f"the nodes do not hear each other: {error!r}")
            self._turn_began_ns = 0

    def _notice_stall(self) -> None:
        """Said by whoever tells: the thread itself waits for storage that does not answer."""
        began_ns = self._turn_began_ns
        if began_ns and time.monotonic_ns() - began_ns >= TROUBLE_AFTER_S * NANOSECONDS:
            log.once(
                "nodes",
                "the nodes do not hear each other, each gives a verdict of its own: "
                f"{self._meeting.where} has not answered for {TROUBLE_AFTER_S:.0f} s; see whether "
                "its storage is up, and join the verdicts with hangcheck merge",
            )

    def _note_trouble(self, error: MeetingFailed) -> None:
        now_ns = time.monotonic_ns()
        self._trouble_since_ns = self._trouble_since_ns or now_ns
        if now_ns - self._trouble_since_ns >= TROUBLE_AFTER_S * NANOSECONDS:
            log.once(
                "nodes",
                f"the nodes do not hear each other, each gives a verdict of its own: {error}; "
                "join them with hangcheck merge",
            )

    def _hear(self) -> None:
        for child in self._asked():
            data = self._meeting.look(_key(child))
            if data is not None and data != self._read.get(_key(child)):
                self._read[_key(child)] = data
                self._take(child, data)
        if self._own != FIRST:
            self._hear_first(self._meeting.look(FIRST_KEY))

    def _asked(self) -> Iterator[int]:
        """The nodes right below, and in place of one that is silent those below it."""
        now_ns = time.monotonic_ns()
        asked = list(below(self._own, self._nnodes))
        for node in asked:
            yield node
            heard = self._heard.get(node)
            silent_ns = now_ns - heard.heard_ns if heard is not None else 0
            if silent_ns > SILENT_AFTER_S * NANOSECONDS:
                asked.extend(below(node, self._nnodes))

    def _take(self, child: int, data: bytes) -> None:
        try:
            digest, nodes, folds = unpack(data)
        except BadDigest as error:
            log.once(f"digest {child}", f"what node {child} tells is not used: {error}")
            return
        now_ns = time.monotonic_ns()
        for told in nodes:
            state = told.state
            if not is_below(state.node, child, self._nnodes):
                continue
            before = self._stamps.get(state.node)
            self._stamps[state.node] = state.stamp
            if before not in (None, state.stamp):
                heard_ns = now_ns - int(state.age_s * NANOSECONDS)
                self._heard[state.node] = Heard(state, told.views, heard_ns, digest, folds)
                answers = self._answers.setdefault(state.node, Quickest())
                answers.take(own_clocks().up_s - state.up_s, time.monotonic())

    def _hear_first(self, data: bytes | None) -> None:
        if data is None or data == self._read.get(FIRST_KEY):
            return
        self._read[FIRST_KEY] = data
        try:
            word = unpack_word(data)
        except BadDigest as error:
            log.once("first node", f"what the first node tells is not used: {error}")
            return
        before, self._word_stamp = self._word_stamp, word.stamp
        if before not in (None, word.stamp):
            self._word, self._word_ns = word, time.monotonic_ns()
            self._words.take(own_clocks().up_s - word.up_s, time.monotonic())

    def _with_clock(self, digest: NodeDigest) -> NodeDigest:
        (state,) = digest.nodes
        least, ours = self._words.least, own_clocks()
        state = replace(state, wall_clock_s=ours.wall_s, up_s=ours.up_s, first_word_up_s=least)
        return replace(digest, nodes=(state,))

    def _post(self) -> None:
        digest = self._digest
        if digest is None:
            return
        now_ns = time.monotonic_ns()
        above = self._own != FIRST  # nobody is above the first node: it tells only that it is there
        heard = self._heard.values() if above else ()
        joined = merge_digests([self._with_clock(digest), *_aged(heard, now_ns)])
        data = pack(joined)
        if len(data) > MOST_PACKED:
            data = pack(shortened(joined))
        self._meeting.post(_key(self._own), data)
        if self._own == FIRST:
            word = _first_word(digest, now_ns, self._verdict, self._asks)
            self._meeting.post(FIRST_KEY, pack(word))
        if digest is self._digest:
            self._told.set()


def _first_word(
    digest: NodeDigest, stamp: int, verdict: Verdict | None, asks: tuple[str, ...]
) -> FirstWord:
    (state,) = digest.nodes
    ours = own_clocks()
    return FirstWord(
        stamp=stamp,
        verdict=verdict,
        asks=asks,
        wall_clock_s=ours.wall_s,
        up_s=ours.up_s,
        state=replace(state, ranks=(), folded=(), gaps=(), code=()),
        ranks=format_ranks([*(one.view.rank for one in state.ranks), *members(state.folded)]),
    )


def _clocks_of(state: NodeState) -> Clocks:
    return Clocks(state.wall_clock_s, state.up_s)


def _few_ranks(text: str) -> tuple[int, ...]:
    """Read the ranks of a node; none where they are not to be read, or more than a node has."""
    try:
        return parse_ranks(text, MOST_OF_A_NODE)
    except ValueError:
        return ()


def folds_heard(heard: Iterable[Heard]) -> tuple[FoldedRanks, ...]:
    """Return what is told of the ranks of some nodes that stand alike, the same on all of them."""
    sources: dict[int, tuple[tuple[FoldedRanks, ...], list[RankSet]]] = {}
    for one in heard:
        sources.setdefault(id(one.source), (one.folds, []))[1].append(one.state.folded)
    return together(one for folds, ranks in sources.values() for one in folds_of(folds, ranks))


def below(node: int, nnodes: int) -> range:
    """Return the nodes right below one in the tree."""
    first = node * FAN_IN + 1
    return range(min(first, nnodes), min(first + FAN_IN, nnodes))


def is_below(node: int, top: int, nnodes: int) -> bool:
    """Whether a node is another one, or anywhere below it."""
    if not 0 <= node < nnodes:
        return False
    while node > top:
        node = (node - 1) // FAN_IN
    return node == top


def _aged(heard: Iterable[Heard], now_ns: int) -> Iterator[NodeDigest]:
    """What was heard, as it is told further up: as old as it is by now."""
    sources: dict[int, tuple[NodeDigest, list[NodeState]]] = {}
    for one in heard:
        age_s = max(0.0, (now_ns - one.heard_ns) / NANOSECONDS)
        _, states = sources.setdefault(id(one.source), (one.source, []))
        states.append(replace(one.state, age_s=age_s))
    for source, states in sources.values():
        yield replace(source, nodes=tuple(states))


def _key(node: int) -> str:
    return f"node-{node}"
