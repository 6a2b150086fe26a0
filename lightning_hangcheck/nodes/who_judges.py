"""Which node judges for all, by what this node has heard of the others.

    the first node     always judges
    any other          follows the lowest number that it has heard within 15 s
    hears no lower one judges for all that it hears, once it has listened for 15 s

So of nodes that hear each other the lowest judges, and the others repeat its verdict. Silence
counts only while this node listens. After a silence a node counts again once it was heard for 10 s.

Nodes meet in one place. If that is a store, nodes that lose it also use a folder, if one is known
that all nodes may see. Nodes that miss them look there. Each node may have a folder of its own by
that name, so the folder counts once another node was heard in it. A node that uses the folder keeps
using both: a store that failed once may do so again.

At each place a thread leaves this node's message under the node's own key: a place that does not
answer blocks nobody. An earlier job's message looks like a node that is there. So a message counts
only once it has changed while this node watched.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.judge.alike import members
from lightning_hangcheck.nodes import encoding
from lightning_hangcheck.nodes import message as messages
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightning_hangcheck.identity import NodePlace
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.meeting_place import NodesPlace

FIRST = 0
SILENT_AFTER_S = 15.0
"""Three times the longest pause of a calm node; busy nodes and places are slower."""
MISSED_AFTER_S = 7.5
"""Silence after which a node is looked for in other places."""
BACK_AFTER_S = 10.0
FEW = 3
"""Lower-numbered nodes, possible judges, that are listened to."""
MOST_ABOVE = MOST_LOOKED_FOR = 64
"""Higher-numbered nodes listened to if no lower one is there, or the store is lost; missed
nodes."""
HURRIED_S, EVERY_S, CALM_S, CALMER = 0.2, 1.0, 5.0, 4.0
"""Seconds between messages: if a rank has failed, as its launcher's store goes in 1 to 2 s; if
something is silent; and at most if all advance, after `CALMER` times as long."""
UNOPENED_EVERY_S = 3.0
"""How often an unused place is searched for nodes that are missed in the other."""
LOST_AFTER_S = 5.0
"""Trouble with a store that has answered before; a busy store answers again within 1 to 2 s."""
STUCK_AFTER_S = 7.5
TROUBLE_AFTER_S = 60.0
"""The first node may start that much later than the others; training waits for it, too."""
LAPSE_S = 4.0
"""A node that listens this much later than planned, as on a starved machine, knows nothing of
others' silence."""
LAST_WORD_S = 1.0
IDLE_TIMES, LONGEST_IDLE_S = 3, 5.0
"""A place rests for this multiple of its last turn, and at most for this time: a turn in which this
process was stopped took long, too, and other nodes must not find it silent."""
STRANGERS, STRANGE_S, STRANGERS_WITHIN_S = 4, 10.0, 15.0
"""Foreign messages under our key that show a double, the seconds that they span, longest pause."""


def key_of(node: int) -> str:
    """Return the key of a node's message."""
    return f"node-{node}"


class _Exchange:
    """One place: a thread leaves this node's messages there, and reads the other nodes'.

    If it is not ``opened``, missed nodes are only looked for. ``answered``: it did so once.
    ``met_others``: another node was heard there. ``trouble_since_ns``: since when it is unusable,
    else 0. ``double``: addresses of another node with our number.
    """

    def __init__(self, meeting: NodesPlace, peers: Peers, *, opened: bool) -> None:
        self._meeting, self._peers = meeting, peers
        self.where, self.opened = meeting.where, opened
        self.answered = self.met_others = False
        self.double: tuple[str, ...] | None = None
        self.wake = threading.Event()
        self.trouble_since_ns = self._began_ns = self._due_ns = 0
        self._trouble = ""
        self._took_s = 0.0
        self._seen: dict[int, int] = {}
        self._ours: deque[int] = deque(maxlen=32)
        self._strangers: list[tuple[int, int]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hangcheck-nodes", daemon=True)

    @property
    def usable(self) -> bool:
        """Whether the place answered the last attempt, and does not hang in the present one."""
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
        began_ns = self._began_ns
        return bool(began_ns) and self._peers.now_ns() - began_ns >= seconds * NANOSECONDS

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send the last message; a place that does not answer is left alone."""
        self._closing.set()
        self.wake.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_WORD_S)
        self._meeting.close()

    def _run(self) -> None:
        last = False
        while not last:
            self.wake.wait(self._pause_s)
            self.wake.clear()
            last = self._closing.is_set()
            self.take_turn()
            self._closing.wait(self._idle_s)

    @property
    def _idle_s(self) -> float:
        return min(LONGEST_IDLE_S, IDLE_TIMES * self._took_s)

    @property
    def _pause_s(self) -> float:
        return self._peers.pause_s if self.opened else UNOPENED_EVERY_S

    def take_turn(self) -> None:
        """Read the others' messages once, and send what is due; `start` repeats this."""
        now_ns = self._peers.now_ns()
        self._began_ns = now_ns
        try:
            try:
                self._hear()
            finally:  # even if reading fails, others must hear this node
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
        nodes = self._peers.listens_to() if self.opened else self._peers.sought()
        for node, data in zip(nodes, self._meeting.look_all(list(map(key_of, nodes))), strict=True):
            known = self._seen.get(node)
            self._seen[node] = seen = hash(data)
            news = data is not None and known not in (None, seen)
            if data is not None and news and self._peers.take(node, data):
                self.met_others = self.opened = True

    def _post(self) -> None:
        message = self._peers.outgoing
        if message is None:
            return
        key = key_of(message.node)
        self._note_double(self._meeting.look(key))
        data = encoding.pack(replace(message, stamp=self._peers.now_ns()))
        self._meeting.post(key, data)
        self._ours.append(hash(data))

    def _note_double(self, data: bytes | None) -> None:
        """Detect another node with our number, by messages under the key that only we use.

        While torchrun renumbers its nodes, two nodes may share a number for 1 to 2 s, and slow
        storage may show an older message again. So several messages count, none of them ours.
        """
        seen, now_ns, strangers = hash(data), self._peers.now_ns(), self._strangers
        known = seen in self._ours or (bool(strangers) and strangers[-1][1] == seen)
        if data is None or not self._ours or known or self.double is not None:
            return
        if strangers and now_ns - strangers[-1][0] > STRANGERS_WITHIN_S * NANOSECONDS:
            strangers.clear()
        strangers.append((now_ns, seen))
        if len(strangers) >= STRANGERS and now_ns - strangers[0][0] >= STRANGE_S * NANOSECONDS:
            try:
                self.double = encoding.read_message(data).addresses
            except messages.BadMessage:
                self.double = ()


class Role(NamedTuple):
    """What a node does: follow another node, or judge for all.

    ``waits``: the node that it followed fell silent, and who judges is not known yet.
    """

    judge: int | None = None
    judges: bool = False
    waits: bool = False


ALONE = Role()
"""No node is heard, and none can be reached: this node judges its own ranks."""


class PeerState(Struct, frozen=True):
    """A node that was heard: its newest message, and when that came, by our clock.

    ``back_ns``: since when it is heard again after a silence; 0 if it never was silent.
    """

    message: messages.Message
    received_ns: int
    back_ns: int = 0

    @property
    def ranks(self) -> Iterator[int]:
        """All ranks of the node."""
        return members(self.message.ranks)


class Peers:
    """This node and its peers; ``meetings`` are their place, and the place that replaces it.

    ``role`` is as of the last message, ``followed`` the node that judged for this node last.
    ``outgoing``: the message to send next, but for its stamp.
    ``unused``: nodes with messages that cannot be read, and why.
    """

    def __init__(
        self,
        place: NodePlace,
        meetings: Sequence[NodesPlace],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.now_ns = now_ns
        self._own, self._nnodes = place.number, place.nnodes
        self.role = Role(judges=True) if self._own == FIRST else ALONE
        self.unused: dict[int, str] = {}
        self.listened_ns = self._busy_ns = now_ns()
        self.followed: int | None = None
        self._others: dict[int, PeerState] = {}
        self._asked: dict[int, int] = {}
        self.outgoing: messages.Message | None = None
        self._hurried = False
        self._lock = threading.Lock()
        self._ways = [_Exchange(meeting, self, opened=n == 0) for n, meeting in enumerate(meetings)]

    def start(self) -> None:
        """Read and send in threads from now on."""
        for way in self._ways:
            way.start()

    def take_turn(self) -> None:
        """Read and send once at each place; `start` repeats this."""
        for way in self._ways:
            way.take_turn()

    def close(self) -> None:
        """Send the last message, and close the places."""
        for way in self._ways:
            way.close()

    # What is received

    @property
    def others(self) -> dict[int, PeerState]:
        """The nodes that this node has heard itself."""
        return dict(self._others)

    def quiet_s(self, node: int) -> float:
        """Seconds for which this node has listened to another node and heard nothing."""
        peer = self._others.get(node)
        received_ns = peer.received_ns if peer is not None else 0
        since_ns = max(received_ns, self._asked.get(node, received_ns or self.listened_ns))
        return (self.listened_ns - since_ns) / NANOSECONDS

    def silent_s(self, peer: PeerState) -> float:
        """Seconds since a silent node was heard; 0 if it is not silent, or its job has ended."""
        silent = self.quiet_s(peer.message.node) >= SILENT_AFTER_S
        seconds = (self.listened_ns - peer.received_ns) / NANOSECONDS
        return seconds if silent and not peer.message.ended else 0.0

    def absent(self) -> list[int]:
        """Return the nodes that were never heard, though this node has listened for long."""
        known = self._others.keys() | self.unused.keys() | {self._own}
        asked = (node for node in list(self._asked) if node not in known)
        return sorted(node for node in asked if self.quiet_s(node) >= SILENT_AFTER_S)

    def listens_to(self) -> list[int]:
        """Return the nodes to read: all if this node judges, else those that may judge."""
        if self.role.judges:
            nodes = [node for node in range(self._nnodes) if node != self._own]
        else:
            nodes, there = [], 0
            for node in range(self._own):
                nodes.append(node)
                there += self.quiet_s(node) < SILENT_AFTER_S
                if there == FEW:
                    break
            if self._ways[0].trouble_since_ns or not there:
                nodes += range(self._own + 1, min(self._nnodes, self._own + 1 + MOST_ABOVE))
        now_ns = self.now_ns()
        with self._lock:
            self._asked = {node: self._asked.get(node, now_ns) for node in nodes}
        return nodes

    def sought(self) -> list[int]:
        """Return some missed nodes, to look for in places that this node does not use."""
        missed = [node for node in list(self._asked) if self.quiet_s(node) >= MISSED_AFTER_S]
        return missed[:MOST_LOOKED_FOR]

    def listen_anew(self, now_ns: int) -> None:
        """Count silence from now on: this node could not listen for a while."""
        with self._lock:
            self._asked = dict.fromkeys(self._asked, now_ns)

    def take(self, node: int, data: bytes) -> bool:
        """Take a message found under a node's key; return whether the node is heard by it."""
        now_ns = self.now_ns()
        try:
            message = encoding.read_message(data)
        except messages.BadMessage as error:
            log.once(f"message {node}", f"what node {node} tells is not used: {error}")
            self.unused[node] = str(error)
            return False
        with self._lock:
            before, back_ns = self._others.get(node), 0
            if message.node != node:
                return False
            if before is not None:
                silent = self.quiet_s(node) >= SILENT_AFTER_S
                older = message.stamp <= before.message.stamp
                if older and message.machine == before.message.machine and not silent:
                    return False
                back_ns = now_ns if silent else before.back_ns
            self._others[node] = PeerState(message, now_ns, back_ns)
            self.unused.pop(node, None)
        return True

    # Who judges, and the judgement

    def look_round(self) -> None:
        """Update this node's role, and use the folder as well once the store is lost."""
        self.role = self._role()
        self.followed = self.role.judge if self.role.judge is not None else self.followed
        store, folder = self._ways[0], self._ways[-1]
        since_ns = store.trouble_since_ns
        if since_ns and not folder.opened:
            patience_s = LOST_AFTER_S if store.answered else TROUBLE_AFTER_S
            lost = self.now_ns() - since_ns >= patience_s * NANOSECONDS
            if lost or (self._hurried and store.answered):
                folder.opened = True
                folder.wake.set()

    def _role(self) -> Role:
        if self._own == FIRST:
            return Role(judges=True)
        lower = [node for node in self.listens_to() if node < self._own]
        there = [node for node in lower if self.quiet_s(node) < SILENT_AFTER_S]
        for node in there:  # ascending; after a silence a node counts again later
            peer = self._others.get(node)
            if peer is not None:
                back_s = (self.listened_ns - peer.back_ns) / NANOSECONDS
                if not peer.back_ns or back_s >= BACK_AFTER_S:
                    return Role(judge=node)
        if not any(way.usable for way in self._shared):
            return ALONE
        if self.role.judges or not there:
            return Role(judges=True)
        return Role(waits=True) if self.followed is not None else ALONE

    @property
    def judge(self) -> PeerState | None:
        """The node that this node follows, as it was heard last."""
        return self._others.get(self.role.judge) if self.role.judge is not None else None

    @property
    def judged(self) -> messages.Judgement:
        """That node's last judgement: of the job, and of the round before."""
        return self.judge.message.judgement if self.judge is not None else messages.Judgement()

    # What is sent

    @property
    def pause_s(self) -> float:
        """Seconds until the next message, if nothing asks for it before."""
        if self._hurried:
            return HURRIED_S
        calm_s = (self.now_ns() - self._busy_ns) / NANOSECONDS
        return min(CALM_S, max(EVERY_S, calm_s / CALMER))

    def hurry(self, *, ends: bool = True) -> None:
        """Exchange more often, as the end is near; or as usual again, if only a round ended."""
        if ends or self._hurried:
            self._hurried = ends
            for way in self._ways:
                way.wake.set()

    def tell(
        self,
        message: messages.Message,
        verdict: Verdict | None = None,
        end: messages.RoundEnd | None = None,
        *,
        busy: bool = True,
    ) -> None:
        """Send this next; a judging node adds the verdict, and how the last round ended."""
        self.look_round()
        followed, judgement = self.judge, messages.Judgement()
        settled = self.role.judges or self.role.judge is not None
        asked = followed is not None and (followed.message.asks or followed.message.wants)
        if busy or not settled or asked:
            self._busy_ns = self.now_ns()
        if self.role.judges:
            judgement = messages.Judgement(verdict, end)
        self.outgoing = replace(message, judgement=judgement)
        for way in self._ways:
            if way.opened:
                way.wake.set()

    # Where they meet

    @property
    def _shared(self) -> list[_Exchange]:
        """The places where nodes can hear each other, as far as that is known."""
        return self._ways if self._ways[-1].met_others else self._ways[:1]

    @property
    def where(self) -> str:
        """The place where the nodes meet, in words."""
        return self._shared[-1].where

    @property
    def moved(self) -> bool:
        """Whether other nodes were heard in the folder, as some have lost the store."""
        return len(self._shared) > 1

    @property
    def in_trouble(self) -> bool:
        """Whether no place can be used; a usable place may have no other node."""
        return not any(way.usable for way in self._ways if way.opened)

    @property
    def trouble(self) -> str:
        """Why the nodes have not heard each other for long; empty if they do."""
        troubles = [way.trouble(self.now_ns()) for way in self._shared]
        if not all(troubles):
            return ""
        empty = [way for way in self._ways if way.opened and way not in self._shared]
        return "; ".join(
            [*(f"no other node was seen in {way.where}" for way in empty), troubles[0]]
        )

    @property
    def same_number(self) -> tuple[str, ...] | None:
        """Addresses of another node that has this node's number; None if there is none."""
        return next((way.double for way in self._ways if way.double is not None), None)
