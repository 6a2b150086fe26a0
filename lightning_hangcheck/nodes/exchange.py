"""What nodes leave for each other at one place where they meet, and take from there.

Each node leaves its word under a key of its own. Everything is done in a thread of its own: a place
that does not answer holds nobody up. What was left by an earlier job looks like a node that is
there, so nothing counts before it has changed while we watched.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.nodes.encoding import BadWord, can_be_told, pack, read_word
from lightning_hangcheck.nodes.word import shortened
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.nodes.meeting_place import NodesPlace
    from lightning_hangcheck.nodes.peers import Peers
    from lightning_hangcheck.nodes.word import Word

UNOPENED_EVERY_S = 3.0
"""How often one who uses another place looks here for nodes that are not heard there."""
STUCK_AFTER_S = 7.5
LAPSE_S = 4.0
"""Who listens so much later than it meant to, as on a starved machine, knows nothing of others'
silence."""
TROUBLE_AFTER_S = 60.0
"""The first node may start so much later than the others; training waits for it, too."""
LAST_WORD_S = 1.0
IDLE_TIMES, LONGEST_IDLE_S = 3, 5.0
"""A place is left alone for so many times as long as it took to use it, and no longer than that: a
turn during which this process was stopped took as long, and others must not find it silent."""
MOST_LOOKED_FOR = 64
LARGE = 256 * 1024
"""Bytes of a word that may be more than others read."""


class Exchange:
    """Tells the other nodes what this one sees, and hears what they tell, at one place.

    It may have ``answered`` once, another node been heard there; it is unusable since
    ``trouble_since_ns``, if at all.
    """

    def __init__(self, meeting: NodesPlace, peers: Peers, *, opened: bool) -> None:
        self._meeting = meeting
        self._peers = peers
        self.opened = opened
        self.answered = self.heard_any = False
        self.posted: Word | None = None
        self.trouble_since_ns = 0
        self._trouble = ""
        self._began_ns = self._due_ns = 0
        self._took_s = 0.0
        self._seen: dict[str, int] = {}
        self._judged = 0
        self.own_number = OwnNumber()
        self._wake, self._told = threading.Event(), threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def where(self) -> str:
        """The place in words."""
        return self._meeting.where

    @property
    def usable(self) -> bool:
        """Whether the place answered when last tried, and not too long ago."""
        return self.answered and not self.trouble_since_ns and not self._lasts(STUCK_AFTER_S)

    def trouble(self, now_ns: int) -> str:
        """Return what is wrong with the place for longer than a job's start takes, else nothing."""
        if self._lasts(TROUBLE_AFTER_S):
            return (
                f"{self.where} has not answered for {TROUBLE_AFTER_S:.0f} s; see whether its "
                "storage is up, and join the verdicts with hangcheck merge"
            )
        since_ns = self.trouble_since_ns
        if since_ns and now_ns - since_ns >= TROUBLE_AFTER_S * NANOSECONDS:
            return f"{self._trouble}; join them with hangcheck merge"
        return ""

    def _lasts(self, seconds: float) -> bool:
        """Whether the present turn has gone on for so long."""
        began_ns = self._began_ns
        return bool(began_ns) and self._peers.now_ns() - began_ns >= seconds * NANOSECONDS

    def start(self) -> None:
        """Take turns in a thread of its own from now on."""

        def run() -> None:
            while not self._closing.is_set():
                self._wake.wait(self._pause_s)
                self._wake.clear()
                self.take_turn()
                self._closing.wait(self._idle_s)

        self._thread = threading.Thread(target=run, name="hangcheck-nodes", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Take a turn now: there is something to tell, or the place is used from now on."""
        self._told.clear()
        self._wake.set()

    def close(self) -> None:
        """Tell what was asked for last, and no more; a place that does not answer is left alone."""
        if self._thread is not None:
            if self.opened:
                self._told.wait(LAST_WORD_S)
            self._closing.set()
            self._wake.set()
            self._thread.join(LAST_WORD_S)
        self._meeting.close()

    @property
    def _idle_s(self) -> float:
        return min(LONGEST_IDLE_S, IDLE_TIMES * self._took_s)

    @property
    def _pause_s(self) -> float:
        return self._peers.pause_s if self.opened else UNOPENED_EVERY_S

    def take_turn(self) -> None:
        """Hear the others once, and tell them what is to be told, as `start` does ever again."""
        now_ns = self._peers.now_ns()
        self._began_ns = now_ns
        try:
            try:
                self._hear()
            finally:  # whatever is wrong with hearing, the others are to hear this node
                if self.opened:
                    self._post()
            ended_ns = self._peers.now_ns()
            lapse = 0 < self._due_ns < ended_ns - LAPSE_S * NANOSECONDS
            if self.opened and (lapse or self.trouble_since_ns):
                self._peers.listen_anew(ended_ns)
            self.trouble_since_ns = 0
            self.answered = True
        except MeetingFailed as error:
            self._trouble = str(error)
            self.trouble_since_ns = self.trouble_since_ns or now_ns
        except Exception as error:  # noqa: BLE001 - the thread's boundary: the watch goes on
            log.once("nodes failed", f"the nodes do not hear each other: {error!r}")
        ended_ns = self._peers.now_ns()
        self._took_s = (ended_ns - now_ns) / NANOSECONDS
        self._due_ns = ended_ns + int((self._pause_s + self._idle_s) * NANOSECONDS)
        self._began_ns = 0
        if self.opened:
            self._peers.listened_ns = ended_ns

    def _hear(self) -> None:
        nodes = self._peers.listens_to() if self.opened else self._peers.sought()[:MOST_LOOKED_FOR]
        keys = [key_of(node) for node in nodes]
        for node, key, data in zip(nodes, keys, self._meeting.look_all(keys), strict=True):
            known = self._seen.get(key)
            self._seen[key] = seen = hash(data)
            news = data is not None and known not in (None, seen)
            if data is not None and news and self._peers.take(node, data):
                self.heard_any = self.opened = True
        judge = self._peers.judgement_to_read()
        if judge is not None and self.opened:
            data = self._meeting.look(f"judgement-{judge}")
            if data is not None:
                self._peers.take_judgement(judge, data)

    def _post(self) -> None:
        word, judgement = self._peers.to_tell()
        if word is None:
            return
        key = key_of(word.node)
        self.own_number.look(self._meeting.look(key), self._peers.now_ns())
        if judgement is not None and judgement.stamp != self._judged:
            self._meeting.post(f"judgement-{word.node}", pack(judgement))
            self._judged = judgement.stamp
        data = pack(word)
        if len(data) >= LARGE and not can_be_told(data):
            data = pack(shortened(word))
        self._meeting.post(key, data)
        self.own_number.told(data)
        self.posted = word
        self._told.set()


def key_of(node: int) -> str:
    """Return the key of a node's word."""
    return f"node-{node}"


class OwnNumber:
    """Is there another node with this one's number? By what stands where this one alone tells.

    While torchrun numbers its nodes anew two may have one number for a second or two, and slow
    storage may show an older word again: so it takes four words of another one in ten seconds.
    ``found`` are the addresses of that one.
    """

    LASTS_NS, PAUSE_NS, FEWEST, KEPT = 10 * NANOSECONDS, 15 * NANOSECONDS, 4, 32

    def __init__(self) -> None:
        self.found: tuple[str, ...] | None = None
        self._ours: deque[int] = deque(maxlen=self.KEPT)
        self._seen: int | None = None
        self._count = self._since_ns = self._last_ns = 0

    def look(self, data: bytes | None, now_ns: int) -> None:
        """Take what stands there; what was left before our first word counts as nothing."""
        seen = hash(data)
        if data is None or seen == self._seen or not self._ours or seen in self._ours:
            return
        if now_ns - self._last_ns > self.PAUSE_NS:
            self._since_ns, self._count = now_ns, 0
        self._seen, self._last_ns, self._count = seen, now_ns, self._count + 1
        if self._count >= self.FEWEST and now_ns - self._since_ns >= self.LASTS_NS:
            try:
                self.found = read_word(data)[0].addresses
            except BadWord:
                self.found = ()

    def told(self, data: bytes) -> None:
        """Note what this node leaves there now."""
        self._ours.append(hash(data))
