"""This node among the job's other nodes: what it sends them, and what they add.

The lowest node that is heard judges the whole job: the other nodes' ranks join its cases, and all
nodes report its verdict. A node that hears no other node judges its own ranks alone.

The launcher's command may say which node this is, and where nodes meet, before any rank runs.
Otherwise a rank says so, anew in each round: torchrun's agents renumber themselves.
"""

from __future__ import annotations

import hashlib
import os
import time
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck import log
from lightning_hangcheck.judge.alike import members
from lightning_hangcheck.judge.wording import name_ranks
from lightning_hangcheck.look.open_files import own_addresses, reach_of
from lightning_hangcheck.model.evidence import AddressReach, Gap
from lightning_hangcheck.nodes import meeting_place
from lightning_hangcheck.nodes import message as messages
from lightning_hangcheck.nodes.encoding import MOST_PACKED
from lightning_hangcheck.nodes.who_judges import (
    FIRST,
    MISSED_AFTER_S,
    SILENT_AFTER_S,
    Peers,
    PeerState,
)
from lightning_hangcheck.rundir import NODES_FOLDER
from lightning_hangcheck.settings import LEAST_SECRET, SHARED_BY_NODES, Settings
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.version import __version__
from lightning_hangcheck.watch import join_nodes, round_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightning_hangcheck.identity import NodePlace
    from lightning_hangcheck.model.case import Case, SilentNode
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.observe.watched_rank import WatchedRound


class Meeting(NamedTuple):
    """Where the nodes of a job meet; if that is a store, also the folder in case it is lost.

    ``description``: the place, or why there is none, for run.json. ``way_out``: how to get a place.
    """

    places: tuple[meeting_place.NodesPlace, ...] = ()
    description: str = ""
    way_out: str = ""


def meeting_of(place: NodePlace, settings: Settings) -> Meeting:
    """Choose the folder that was named, else an existing store, else a store to be served.

    A shared run folder comes last, alone or as a fallback. A job of one node needs no place.
    """
    if place.nnodes == 1:
        return Meeting()
    job = place.job or f"{place.host}:{place.port}"
    secret = os.environ.get(SHARED_BY_NODES, "")
    no_store = "no store that outlives the ranks"
    places: list[meeting_place.NodesPlace] = []
    why, way_out = f"the launcher serves {no_store}, and ", ""
    if settings.nodes_dir is not None:
        places, why = [_folder(settings.nodes_dir, job)], "--nodes-dir names it"
    elif place.host:
        places, why = (
            [meeting_place.CourierPlace(place.host, place.port)],
            "it is there, and no --nodes-dir",
        )
    elif settings.nodes_port is None:
        why += "no folder was named that all nodes see"
        way_out = (
            "name one with --nodes-dir, or give all nodes the same --run-dir on storage that they "
            "share, or have the first node serve a store with --nodes-port, or join the verdicts "
            "with hangcheck merge"
        )
    elif len(secret) < LEAST_SECRET:
        why += "--nodes-port needs a secret that all nodes know"
        way_out = f"export {SHARED_BY_NODES}=$(openssl rand -hex 16) where the job is started"
    elif not place.first:
        why += "for --nodes-port nothing says where the first node is"
        way_out = "set MASTER_ADDR on all nodes"
    else:
        serves = place.number == FIRST
        store = meeting_place.CourierPlace(
            place.first, settings.nodes_port, offered=True, serves=serves
        )
        places = [meeting_place.SealedPlace(store, secret, job)]
        why = f"{no_store}, no --nodes-dir; --nodes-port has one served"
    if settings.run_dir is not None and settings.nodes_dir is None:
        if not places:
            why = f"{no_store}, no --nodes-dir; the nodes were given one --run-dir"
        places.append(_folder(Path(settings.run_dir) / NODES_FOLDER, job))
    where = places[0].where if places else "nowhere"
    sentence = f"{where}: {why}; this is node {place.number} of {place.nnodes}"
    return Meeting(tuple(places), sentence, "" if places else way_out)


def _folder(named: str | Path, job: str) -> meeting_place.FolderPlace:
    """A folder of this job alone: two jobs may be given the same path."""
    mark = hashlib.sha256(job.encode()).hexdigest()[:12]
    return meeting_place.FolderPlace(Path(named).absolute() / f"hangcheck-{mark}", MOST_PACKED)


RELAYED = ("suspect", "slow", "hang", "dead", "recovered")
"""Verdicts on the whole job; each node reports itself how its own ranks ended."""
JITTER_NS = NANOSECONDS // 2
"""A look's moment may seem to differ by this much, as messages take different times."""
SAID_AFTER_S = SILENT_AFTER_S + 5.0
"""Silence after which a node is reported as silent though nothing shows why."""
LAST_WORDS_S = 3.0
POLL_S = 0.05
LONGEST_ADDRESS = 64
"""Characters of an address with its interface's name."""
WANTS_TIMES = 10
"""Pause after choosing wanted ranks, in multiples of that work: it takes 1 s at 16,384 nodes."""


class OtherNodes:
    """This node, and its peers.

    ``left``: the round before, of this node's own ranks, for the other nodes. ``round_end``: how
    that round ended on all nodes, if this node judged it.
    """

    def __init__(
        self,
        place: NodePlace,
        meetings: Sequence[meeting_place.NodesPlace],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.place = place
        self.peers = Peers(place, meetings, clock)
        self.peers.start()
        self._store = meetings[0].where
        self._sent_ns = 0
        self.left: messages.LeftRound | None = None
        self.round_end: messages.RoundEnd | None = None
        self._mark = messages.RoundMark()
        self._relayed: Verdict | None = None
        self._unjoinable = False
        self._looked_ns: dict[int, int] = {}
        self._addresses = own_addresses()
        self._reach: tuple[AddressReach, ...] = ()
        self._wants: tuple[int, ...] = ()
        self._wanted_again_s = 0.0
        self._said_silent: dict[int, tuple[int, Gap]] = {}

    @property
    def follows(self) -> bool:
        """Whether another node judges for this node, or is about to."""
        return self.peers.role.judge is not None or self.peers.role.waits

    @property
    def judges(self) -> bool:
        """Whether this node judges for all nodes that are heard."""
        return self.peers.role.judges

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time to send this node's case."""
        return now_ns - self._sent_ns >= self.peers.pause_s * NANOSECONDS

    def agree(self, watched: WatchedRound, now_ns: int) -> None:
        """Give a round the number that it has on the other nodes, if that is higher."""
        self._mark = round_ends.mark_of(watched)
        watched.number = round_ends.agreed_number(
            watched, self._mark, self.judged_with().values(), now_ns
        )

    def tell(self, own: Case, verdict: Verdict | None, *, ended: bool = False) -> None:
        """Send this node's case to the other nodes."""
        self._sent_ns = own.taken_ns
        ends = any(view.process_exit is not None for view in own.ranks)
        self.peers.hurry(ends=ends)
        judge, known = self.peers.judge, self.judged_with()
        followed = judge.message if judge is not None else None
        # our ranks' connections to nodes that the judging node no longer hears
        missed = self._addresses_of_missed(known)
        asks = tuple(address for found in missed.values() for address in found)[
            : messages.MOST_ASKED
        ]
        asks = asks or (followed.asks if followed is not None else ())
        pids = [view.pid for view in own.ranks if view.pid is not None]
        if not own.ended:
            self._reach = reach_of(asks, pids) if asks else ()
        began_s = time.monotonic()
        if self.judges and began_s >= self._wanted_again_s:
            self._wants = join_nodes.wanted_of(known.values(), own.run.world_size)
            ended_s = time.monotonic()
            self._wanted_again_s = ended_s + WANTS_TIMES * (ended_s - began_s)
        message = messages.message_of(
            own,
            self.place.number,
            own.taken_ns,
            wanted=followed.wants if followed is not None else (),
            left=self.left,
            ended=ended,
            mark=self._mark,
            addresses=self._addresses[: messages.MOST_ASKED],
            reach=() if self.judges else self._reach[: messages.MOST_ASKED],
            asks=asks if self.judges else (),
            wants=self._wants if self.judges else (),
        )
        # only its own node reports a lost pace, which is no silence
        whole = verdict is not None and verdict.verdict in RELAYED and verdict.stalled_since
        relayed = verdict if whole else None
        stands = relayed is not None and relayed.verdict != "recovered"
        silent = any(self.peers.silent_s(peer) for peer in known.values())
        busy = (
            ends or stands or any(view.silent_for_s >= messages.CALM_BELOW_S for view in own.ranks)
        )
        self.peers.tell(message, relayed, self.round_end, busy=busy or silent)

    def _addresses_of_missed(self, known: dict[int, PeerState]) -> dict[int, tuple[str, ...]]:
        peers = self.peers
        missed = [
            node
            for node, peer in known.items()
            if peers.quiet_s(node) >= MISSED_AFTER_S and not peer.message.ended
        ]
        return join_nodes.addresses_to_ask(known, self._addresses, missed) if missed else {}

    def judged_with(self) -> dict[int, PeerState]:
        """Return the nodes about which this node may say something.

        All if it judges. If it follows, the judging node, and lower nodes that it replaces. Alone,
        the node that it followed last: without a meeting place silence says nothing.
        """
        role, peers_known, followed = self.peers.role, self.peers.others, self.peers.followed
        if role.judges:
            return peers_known
        judge = role.judge
        if judge is not None:
            return {node: peer for node, peer in peers_known.items() if node <= judge}
        return {node: peer for node, peer in peers_known.items() if node == followed}

    def news(self) -> Verdict | None:
        """Return the judging node's verdict if it is new since the last call."""
        verdict = self.peers.judged.verdict
        if verdict is None or verdict == self._relayed:
            return None
        self._relayed = verdict
        return verdict

    def looked_elsewhere(self) -> bool:
        """Whether other nodes have sent a new look since the last call."""
        looked = {}
        for node, peer in self.peers.others.items():
            processes = chain.from_iterable(view.processes for view in join_nodes.views_of([peer]))
            moments = [sample.taken_ns for look in processes for sample in look.samples]
            looked[node] = peer.received_ns - messages.TAKEN_NS + max(moments) if moments else 0
        known = self._looked_ns
        news = [node for node, at_ns in looked.items() if at_ns - known.get(node, 0) > JITTER_NS]
        self._looked_ns = {**known, **{node: looked[node] for node in news}}
        return bool(news)

    def join(self, own: Case) -> Case:
        """Return the case, joined with the ranks of the other nodes if this node judges for them.

        If it judges alone, ranks of nodes that nobody hears join as unheard.
        """
        try:
            return own if self.follows or self._unjoinable else self._with_others(own)
        except Exception as error:  # noqa: BLE001 - others' facts must not end the watch of ours
            self._unjoinable = True
            log.once("join", f"{join_nodes.CANNOT_JOIN}: {error!r}")
            return own

    def _with_others(self, own: Case) -> Case:
        peers, theirs = self.peers, self.judged_with()
        fell_silent = list(self._silent_nodes(own))
        if not self.judges:  # without a meeting place, silence alone says nothing
            fell_silent = [node for node in fell_silent if node.reach == "unanswered"]
        silent = [theirs[node.number] for node in fell_silent]
        there = [peer for peer in theirs.values() if self.judges and not peers.silent_s(peer)]
        joined = join_nodes.join_peers(own, there, silent, self.place.number)
        gaps = list(map(join_nodes.silence_gap, fell_silent))
        unused: dict[str, list[int]] = {}  # nodes by the reason why their messages are unreadable
        for node, reason in dict(peers.unused).items():
            unused.setdefault(reason, []).append(node)
        for reason, nodes in unused.items():
            why = f"what is told there is not used: {reason}"
            gaps.append(Gap(join_nodes.which_nodes(nodes), None, why, "other_nodes"))
        absent = peers.absent() if self.judges else []
        if absent:
            waited_s = max(SILENT_AFTER_S, max(map(peers.quiet_s, absent)))
            why = (
                f"nothing was heard from there for {waited_s:.0f} s: it has not come, no hangcheck "
                f"run watches there, or it does not reach {peers.where}"
            )
            gaps.append(Gap(join_nodes.which_nodes(absent), None, why, "other_nodes"))
        return join_nodes.with_silent_nodes(own, joined, absent, fell_silent, gaps)

    def _silent_nodes(self, own: Case) -> Iterator[SilentNode]:
        nodes, peers = self.judged_with(), self.peers
        silent = {node: peers.silent_s(peer) for node, peer in nodes.items()}
        there = [peer for node, peer in nodes.items() if not silent[node]]
        if not any(silent.values()):
            return
        others = [*own.ranks, *join_nodes.views_of(there)]
        reaches = [*self._reach, *(reach for peer in there for reach in peer.message.reach)]
        addresses = self._addresses_of_missed(nodes)
        for node, seconds in silent.items():
            if seconds:
                known = [reach for reach in reaches if reach.address in addresses.get(node, ())]
                yield join_nodes.silent_node(nodes[node], seconds, known, others)

    def join_end(self, own: Case) -> Case:
        """Return how the job ended on all nodes, if a rank failed here and this node judges.

        If it judges alone, nodes that have acknowledged no packet for long enough are gone.
        """
        case: Case | None = None
        try:
            if self.follows or not round_ends.first_failure_ns(own):
                return own
            if not self.judges:
                silent = self._silent_nodes(own)
                gone = {node.number for node in silent if node.reach == "unanswered"}
                known = {n: peer for n, peer in self.judged_with().items() if n in gone}
                return round_ends.ended_on_all(own, known, self.place, lost=True) or own
            # wait a little for the other nodes: they report a failure within 1 s
            deadline = time.monotonic() + LAST_WORDS_S
            self.peers.hurry()
            while case is None:
                time.sleep(POLL_S)
                self.peers.look_round()
                # if only the sidecar of a node died, what became of its ranks is open
                silent = self._silent_nodes(own)
                alive = {node.number for node in silent if node.reach in ("answers", "goes_on")}
                known = {n: peer for n, peer in self.judged_with().items() if n not in alive}
                over = time.monotonic() >= deadline or self.peers.in_trouble
                case = round_ends.ended_on_all(own, known, self.place, over=over)
        except Exception as error:  # noqa: BLE001 - as in `join`
            log.once("join", f"{join_nodes.CANNOT_JOIN}: {error!r}")
        return own if case is None else case

    def elsewhere(self) -> dict[int, int]:
        """Return when ranks of other nodes last showed progress, by our monotonic clock."""
        return {
            rank: peer.received_ns - int(line.view.silent_for_s * NANOSECONDS)
            for peer in self.peers.others.values()
            if not self.peers.silent_s(peer)
            for line in peer.message.lines
            for rank in members(line.ranks)
        }

    def notice_silence(self, own: Case) -> None:
        """Report once for each node that it fell silent, or is heard again, and who judges then.

        The judging node reports contradictions between nodes. If nodes do not hear each other, each
        node says so.
        """
        peers, number = self.peers, self.place.number
        if peers.moved:
            log.once("moved", f"{self._store} is lost to some nodes: they go on in {peers.where}")
        if peers.trouble:
            alone = "the nodes do not hear each other, each gives a verdict of its own"
            log.once("nodes", f"{alone}: {peers.trouble}")
        if peers.same_number is not None:
            theirs = [number for number in peers.same_number if number not in self._addresses]
            where = f" at {theirs[0][:LONGEST_ADDRESS]}" if theirs else ""
            log.once(
                "same number",
                f"another node{where} says that it is node {number}, too, and neither is heard as "
                "it should be: give each node another --node-rank (or NODE_RANK)",
            )
        if self.judges:
            others = list(peers.others.values())
            for sentence in contradictions(own, self._mark, others, number):
                log.once(sentence, sentence)
        if peers.role.waits:
            return  # who judges is known in a moment
        known, silent = self.judged_with(), {node.number: node for node in self._silent_nodes(own)}
        for node in self._said_silent.keys() - silent.keys():
            before, gap = self._said_silent[node]
            if node in known and known[node].received_ns != before:
                del self._said_silent[node]
                if not known[node].message.ended:
                    log.once(f"node {node} {before} again", f"{gap.what} is heard again")
        for node, quiet in silent.items():
            last_ns, gap = known[node].received_ns, join_nodes.silence_gap(quiet)
            if quiet.reach != "unknown" or quiet.silent_s >= SAID_AFTER_S:
                self._said_silent[node] = last_ns, gap
                instead = "this node judges for all that are heard" if node < number else ""
                if peers.role.judge is not None:
                    instead = f"node {peers.role.judge} judges for all that are heard"
                elif not self.judges:
                    instead = "each node judges its own ranks: hangcheck merge joins that"
                instead = f"; until it is heard again, {instead}" if instead else ""
                log.once(f"node {node} {last_ns}", f"{gap.what} {gap.why}{instead}")


# Contradictions between nodes: reported once, even if nothing hangs


def contradictions(
    own: Case, mark: messages.RoundMark, peers: Sequence[PeerState], number: int
) -> Iterator[str]:
    """Compare nodes' messages with this node and each other; yield a sentence for each conflict."""
    versions: dict[str, list[int]] = {}
    for peer in peers:
        versions.setdefault(peer.message.software, []).append(peer.message.node)
    for version, nodes in versions.items():
        if version not in ("", __version__):
            yield (
                f"{join_nodes.which_nodes(nodes)} {'have' if len(nodes) > 1 else 'has'} "
                f"lightning-hangcheck {version}, node {number} has {__version__}: they understand "
                "each other; install the same on all nodes before the next run"
            )
    size = own.run.world_size
    holders = {view.rank: number for view in own.ranks[: round_ends.MOST_COMPARED]}
    for peer in peers if own.run.local_world_size is not None else ():
        message, node = peer.message, peer.message.node
        if message.round != own.run.round or message.local_world_size is None:
            continue
        if size and message.world_size and message.world_size != size:
            yield (
                f"node {node} says that the job has {message.world_size} ranks, node {number} that "
                f"it has {size}: start all nodes with the same --nnodes and --nproc-per-node (or "
                "WORLD_SIZE)"
            )
        # torch 2.13's agents keep the address of their first round, though another node may be the
        # first by now (dynamic_rendezvous.py, ``_bootstrap_store_info``)
        ports = message.mark.store_port, mark.store_port
        stood = min(message.mark.began_s, mark.began_s) >= round_ends.STOOD_S
        if stood and all(ports) and ports[0] != ports[1]:
            yield (
                f"the ranks of node {node} look for their store at port {ports[0]} of MASTER_ADDR, "
                f"those of node {number} at port {ports[1]}: torchrun handed out an address of an "
                "earlier round; export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where each node's "
                "torchrun is started"
            )
        ranks = islice(peer.ranks, max(0, round_ends.MOST_COMPARED - len(holders)))
        doubled = [rank for rank in ranks if holders.setdefault(rank, node) != node]
        if doubled:
            yield (
                f"{name_ranks(doubled)} {'is' if len(doubled) == 1 else 'are'} on node {node} and "
                f"on node {holders[doubled[0]]}: give each node another --node-rank (or NODE_RANK)"
            )
