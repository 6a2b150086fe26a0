"""What nodes leave for each other at one place where they meet, and take from there.

Each node leaves its digest, joined with what it heard of the nodes below it, and the node above
takes it (`judging.tree`). Who judges for all leaves a word for all. Everything is done in a thread
of its own: a place that does not answer holds nobody up.

No clock of another node counts for anything but to be shown. What was left by a job before this one
looks like a node that is there, so nothing counts before it has changed while we watched.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.nodes.bounds import MOST_WORDS
from lightning_hangcheck.nodes.clocks import Clocks, Quickest, clock_of, own_clocks
from lightning_hangcheck.nodes.digest import (
    UNREAD,
    NodeDigest,
    NodeState,
    merge_digests,
    shortened,
)
from lightning_hangcheck.nodes.encoding import (
    BadDigest,
    can_be_told,
    pack,
    unpack_word,
)
from lightning_hangcheck.nodes.heard import Heard, addresses_in, newly_heard, passed_on
from lightning_hangcheck.nodes.judging.same_number import SameNumber
from lightning_hangcheck.nodes.judging.tree import FIRST, is_below, taken_by
from lightning_hangcheck.nodes.words import HeardWord, Posted, Telling, judge_of, posted_after
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.model.run import NodeClock, NodePlace
    from lightning_hangcheck.nodes.places.meeting_place import MeetingPlace

EVERY_S = 1.0
HURRIED_S = 0.2
"""Where a rank has failed: the store that its launcher serves goes with it in a second or two."""
LISTENS_EVERY_S = 3.0
"""How often one who uses another place looks whether somebody is here."""
RELIEVED_AFTER_S = 7.5
"""Silence of a node after which those below it are asked in its place: before it counts as silent,
so that none of them ever does for its sake."""
TROUBLE_AFTER_S = 60.0
"""The first node may start so much later than the others; training waits for it, too."""
FIRST_KEY = "first"
SUCCESSOR_KEY = "successor"
MOVED_KEY = "moved"
LAST_WORD_S = 1.0


class Exchange:
    """Tells the other nodes what this one sees, and hears what they tell, at one place.

    Args:
        place: Which node this is, of how many.
        meeting: The place.
        listens: It only looks whether somebody is there, until `begin` is called.
        now_ns: Tells the present time, monotonic.

    Attributes:
        answered: The place was used once.
        posted: What this node told last to all; None before.
    """

    def __init__(
        self,
        place: NodePlace,
        meeting: MeetingPlace,
        *,
        listens: bool = False,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._now_ns = now_ns
        self._own, self._nnodes = place.number, place.nnodes
        self._meeting = meeting
        self._listens = self._beside = listens
        self._looked = False
        self._heard: dict[int, Heard] = {}
        self._stamps: dict[int, int] = {}
        self._asked_since_ns: dict[int, int] = {}
        self._read: dict[str, bytes] = {}
        self._words: dict[int, HeardWord] = {}
        self._word_stamps: dict[int, int] = {}
        self._unreadable: dict[int, str] = {}
        self._unused: dict[int, str] = {}
        self._same_number = SameNumber()
        self._quickest = Quickest()
        self._answers: dict[int, Quickest] = {}
        self._telling: Telling | None = None
        self._trouble = ""
        self._trouble_since_ns = 0
        self._moved_ns = self._marked_ns = 0
        self._hurried = False
        self._turn_began_ns = 0
        self._wake = threading.Event()
        self._told = threading.Event()
        self._closing = False
        self.answered = False
        self.posted: Posted | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take turns in a thread of its own from now on."""
        self._thread = threading.Thread(target=self._run, name="hangcheck-nodes", daemon=True)
        self._thread.start()

    @property
    def telling(self) -> Telling | None:
        """What is told next, or was last."""
        return self._telling

    @property
    def where(self) -> str:
        """The place in words."""
        return self._meeting.where

    @property
    def heard(self) -> dict[int, Heard]:
        """The nodes of which something was heard, by their number."""
        return dict(self._heard)

    @property
    def words(self) -> dict[int, HeardWord]:
        """What nodes that judge told last, by their number."""
        return dict(self._words)

    @property
    def unused(self) -> dict[int, str]:
        """The nodes that tell what cannot be read, and why, by their number."""
        return dict(self._unused)

    @property
    def same_number(self) -> tuple[str, ...] | None:
        """Addresses of another node that has this one's number; None while there is none."""
        found = self._same_number.found
        return None if found is None else addresses_in(found, self._own)

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
    def somebody_came(self) -> bool:
        """Whether another node was seen to use this place, beside another one."""
        return bool(self._moved_ns)

    @property
    def in_trouble(self) -> bool:
        """Whether the place was not to be used when last tried."""
        return bool(self._trouble_since_ns)

    @property
    def usable(self) -> bool:
        """Whether the place answered when last tried, and not too long ago."""
        began_ns = self._turn_began_ns
        stuck = began_ns and self._now_ns() - began_ns > RELIEVED_AFTER_S * NANOSECONDS
        return self.answered and not self.in_trouble and not stuck

    def trouble(self, now_ns: int) -> str:
        """Return what is wrong with the place for longer than a job's start takes, else nothing.

        Args:
            now_ns: Present time.
        """
        began_ns, since_ns = self._turn_began_ns, self._trouble_since_ns
        if began_ns and now_ns - began_ns >= TROUBLE_AFTER_S * NANOSECONDS:
            return (
                f"{self.where} has not answered for {TROUBLE_AFTER_S:.0f} s; see whether its "
                "storage is up, and join the verdicts with hangcheck merge"
            )
        if since_ns and now_ns - since_ns >= TROUBLE_AFTER_S * NANOSECONDS:
            return f"{self._trouble}; join them with hangcheck merge"
        return ""

    def tell(self, telling: Telling) -> None:
        """Have this told next."""
        self._telling = telling
        self._told.clear()
        self._wake.set()

    def begin(self, telling: Telling | None) -> None:
        """Use the place from now on, where it was only listened at.

        Args:
            telling: What is to be told there first.
        """
        self._telling = telling
        self._listens = False
        self._wake.set()

    def hurry(self, *, ends: bool = True) -> None:
        """Hear and tell more often from now on: the end is near; or as ever: it was a round's."""
        self._hurried = ends
        self._wake.set()

    def close(self) -> None:
        """Tell what was asked for last, and no more; a place that does not answer is left alone."""
        thread = self._thread
        if thread is None:
            return
        if not self._listens:
            self._told.wait(LAST_WORD_S)
        self._closing = True
        self._wake.set()
        thread.join(LAST_WORD_S)

    def _run(self) -> None:
        while not self._closing:
            self._wait()
            self.take_turn()

    def take_turn(self) -> None:
        """Hear the others once, and tell them what is to be told: `start` does it each second."""
        self._turn_began_ns = self._now_ns()
        try:
            self._turn()
            self._trouble_since_ns = 0
            self.answered = True
        except MeetingFailed as error:
            self._trouble = str(error)
            self._trouble_since_ns = self._trouble_since_ns or self._now_ns()
        except Exception as error:  # noqa: BLE001 - the thread's boundary: the watch goes on
            log.once("nodes failed", f"the nodes do not hear each other: {error!r}")
        self._turn_began_ns = 0

    def _wait(self) -> None:
        every_s = HURRIED_S if self._hurried else EVERY_S
        self._wake.wait(LISTENS_EVERY_S if self._listens else every_s)
        self._wake.clear()

    def _turn(self) -> None:
        telling = self._telling
        if self._listens:
            self._look_for_others()
            return
        try:
            self._hear(judges=telling is not None and telling.word is not None)
        finally:  # whatever is wrong with hearing, the others are to hear this node
            if telling is not None:
                self._post(telling)
                if telling is self._telling:
                    self._told.set()

    def _look_for_others(self) -> None:
        """Those who came leave a mark again and again: one that does not change is of nobody."""
        data, known = self._meeting.look(MOVED_KEY), self._read.get(MOVED_KEY)
        if data is not None and data != known:
            self._read[MOVED_KEY] = data
            if self._looked:
                self._moved_ns = self._now_ns()
        self._looked = True

    def _hear(self, *, judges: bool) -> None:
        now_ns = self._now_ns()

        def silent(node: int) -> bool:
            heard = self._heard.get(node)
            asked_ns = self._asked_since_ns.get(node, now_ns)
            heard_ns = max(heard.heard_ns if heard is not None else 0, asked_ns)
            return now_ns - heard_ns > RELIEVED_AFTER_S * NANOSECONDS

        asked = {}
        for node in taken_by(self._own, self._nnodes, silent, judges=judges):
            asked[node] = self._asked_since_ns.get(node, now_ns)
            data = self._news(_key(node))
            if data is not None:
                self._take(node, data)
        self._asked_since_ns = asked
        if self._own != FIRST:
            for key in (FIRST_KEY, SUCCESSOR_KEY):
                data = self._news(key)
                if data is not None:
                    self._take_word(key, data)

    def _news(self, key: str) -> bytes | None:
        data = self._meeting.look(key)
        if data is None or data == self._read.get(key):
            return None
        self._read[key] = data
        return data

    def _take(self, sender: int, data: bytes) -> None:
        try:
            found = newly_heard(data, self._heard.values(), self._now_ns())
        except (BadDigest, MemoryError) as error:
            log.once(f"digest {sender}", f"what node {sender} tells is not used: {error}")
            self._leave_out(sender, str(error))
            return
        self._unused.pop(sender, None)
        for heard in found:
            state = heard.state
            if state.node == self._own or not is_below(state.node, sender, self._nnodes):
                continue
            before, known = self._stamps.get(state.node), self._heard.get(state.node)
            self._stamps[state.node] = state.stamp
            # by way of a node that has come back, older words may come than were heard directly
            if before in (None, state.stamp) or (known and known.heard_ns > heard.heard_ns):
                continue
            self._heard[state.node] = heard
            answers = self._answers.setdefault(state.node, Quickest())
            answers.take(own_clocks().up_s - state.up_s, self._now_ns() / NANOSECONDS)

    def _take_word(self, key: str, data: bytes) -> None:
        try:
            word = unpack_word(data)
        except BadDigest as error:
            log.once(f"{key} node", f"what the {key} node tells is not used: {error}")
            if key == FIRST_KEY:
                self._leave_out(FIRST, str(error))
            return
        judge = judge_of(word)
        possible = judge < self._nnodes and judge != self._own
        if (judge == FIRST) != (key == FIRST_KEY) or not possible:
            return
        before, self._word_stamps[judge] = self._word_stamps.get(judge), word.stamp
        if before not in (None, word.stamp):
            self._unused.pop(judge, None)
            others = [(one, told) for one, told in self._words.items() if one != judge]
            newest = HeardWord(word, self._now_ns())
            self._words = {**dict(others[1 - MOST_WORDS :]), judge: newest}
            if judge == FIRST:
                self._quickest.take(own_clocks().up_s - word.up_s, self._now_ns() / NANOSECONDS)

    def _leave_out(self, node: int, why: str) -> None:
        """Note a node that tells more than once what cannot be read: no earlier job left that."""
        if node in self._unreadable:
            self._unused[node] = why
        self._unreadable[node] = why

    def _post(self, telling: Telling) -> None:
        now_ns, key = self._now_ns(), _key(self._own)
        data = self._packed(telling.digest, now_ns)
        self._same_number.look(self._meeting.look(key), self._now_ns() / NANOSECONDS)
        self._meeting.post(key, data)
        self._same_number.told(data)
        if telling.word is not None:
            ours = own_clocks()
            word = replace(telling.word, stamp=now_ns, wall_clock_s=ours.wall_s, up_s=ours.up_s)
            key = FIRST_KEY if self._own == FIRST else SUCCESSOR_KEY
            self._meeting.post(key, pack(word))
            self.posted = posted_after(self.posted, word)
        if self._beside:
            self._leave_mark(now_ns)

    def _leave_mark(self, now_ns: int) -> None:
        """Show that this one came; each does, for those who came alone and those who listen."""
        self._look_for_others()
        if not self._moved_ns or now_ns - self._marked_ns > LISTENS_EVERY_S * NANOSECONDS:
            self._marked_ns = now_ns
            self._read[MOVED_KEY] = mark = f"{self._own} {now_ns}".encode()
            self._meeting.post(MOVED_KEY, mark)

    def _packed(self, digest: NodeDigest, now_ns: int) -> bytes:
        """Nobody is above the first node: it tells only that it is there."""
        nodes = [] if self._own == FIRST else list(self._heard.items())
        below = [one for node, one in nodes if is_below(node, self._own, self._nnodes)]
        own = self._present(digest)
        try:
            joined = merge_digests([own, *passed_on(below, now_ns)])
        except Exception as error:  # noqa: BLE001 - what others told is no reason to fall silent
            log.once("not joined", f"what the nodes below tell is not passed on: {error!r}")
            joined = own
        data = pack(joined)
        return data if can_be_told(data) else pack(shortened(joined))

    def _present(self, digest: NodeDigest) -> NodeDigest:
        """Put in what is of the moment at which it goes: our clocks, and what was heard by then."""
        (state,) = digest.nodes
        ours, heard = own_clocks(), max(self.words.values(), key=_heard_ns, default=None)
        state = replace(
            state,
            wall_clock_s=ours.wall_s,
            up_s=ours.up_s,
            first_word_up_s=self._quickest.least,
            read=UNREAD if heard is None else heard.as_read,
        )
        return replace(digest, nodes=(state,))


def _heard_ns(heard: HeardWord) -> int:
    return heard.heard_ns


def _clocks_of(state: NodeState) -> Clocks:
    return Clocks(state.wall_clock_s, state.up_s)


def _key(node: int) -> str:
    return f"node-{node}"
