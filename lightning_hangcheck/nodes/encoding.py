"""The only form in which a digest travels: msgpack, compressed, read as if a stranger wrote it.

Whoever can write to the meeting place could send anything. So sizes are bounded before and while
bytes grow, nothing but the structs of a digest is built from them, and what these say is checked
before it is used. What goes wrong on the way is that sender's fault alone. There is no pickle.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec.structs import astuple

from lightning_hangcheck.gather.group_families import can_be_families, is_number, members_in
from lightning_hangcheck.gather.rank_set import common, is_rank_set, joined, size
from lightning_hangcheck.model.codec import encode_packed
from lightning_hangcheck.model.decoders import msgpack_decoder
from lightning_hangcheck.model.evidence import ThreadState, WaitTarget
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.nodes import bounds
from lightning_hangcheck.nodes.bounds import (
    A_MEMBER,
    DEEPEST_STACK,
    LONGEST_S,
    LONGEST_SENTENCE,
    MOST_FRAMES,
    MOST_MEMBERS,
    MOST_MEMBERSHIPS,
    MOST_MEMORY,
    MOST_MEMORY_OF_WORD,
    MOST_OF_A_NODE,
    MOST_OF_WORD,
    MOST_PACKED,
    MOST_RANKS,
    MOST_TOLD,
    MOST_UNPACKED,
    most_memory,
)
from lightning_hangcheck.nodes.digest import (
    NodeDigest,
    NodeState,
    NodeViews,
    unfold,
    unfold_folds,
)
from lightning_hangcheck.nodes.round_end import RoundEnd
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.nodes.folding import FoldedRanks

MARK = b"HCND"
VERSION = 2
INTEGERS = range(-(1 << 63), 1 << 63)
"""msgpack has 64 bits, one more where there is no sign; JSON has as many as are written."""
REGISTERS = range(1 << 64)
"""As the kernel shows those of a thread: without a sign, so -1 is the largest of all."""
LEVEL = 6


class BadDigest(Exception):
    """These bytes are no digest that this version reads; the sentence says why."""


class JudgesWord(msgspec.Struct, frozen=True, kw_only=True):
    """What the node that judges tells all others: the first one, or who follows it.

    Attributes:
        version: Of this form; another one is not read.
        stamp: Another one each time.
        verdict: The newest that it told; None while there is none.
        asks: Addresses of nodes that it no longer hears: what shows of them?
        state: Of the node itself, without its ranks: should it fall silent, the others are to know
            who it was.
        ranks: Their numbers, as ranges.
        wall_clock_s: Of the node, when it told this.
        up_s: How long its host was up then.
        line: The lowest numbers that it hears: they follow it, in this order.
        lost: Nodes that it no longer hears, their ranks as those that are folded.
        end: How the round before ended on all nodes; None once that is long ago.
        known: All nodes that it hears have read a verdict of this kind.
    """

    version: int = 2
    stamp: int
    verdict: Verdict | None = None
    asks: Annotated[tuple[str, ...], bounds.ASKED] = ()
    state: NodeState | None = None
    ranks: Annotated[str, bounds.RANKS_TEXT] = ""
    wall_clock_s: float = 0.0
    up_s: float = 0.0
    line: Annotated[tuple[int, ...], bounds.ASKED] = ()
    lost: Annotated[tuple[NodeState, ...], bounds.LOST] = ()
    end: RoundEnd | None = None
    known: bool = False


Told = TypeVar("Told", NodeDigest, JudgesWord)
Read = TypeVar("Read")
ReadDigest = tuple[NodeDigest, list[NodeViews], "tuple[FoldedRanks, ...]"]
DECODERS: dict[type[msgspec.Struct], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (NodeDigest, JudgesWord)
}
"""Made while one thread runs: msgspec 0.22 reads a type's annotations when it first decodes it, and
two threads that did so at the same moment crashed the interpreter."""


def pack(told: NodeDigest | JudgesWord) -> bytes:
    """Encode what is told."""
    return MARK + zlib.compress(encode_packed(told), LEVEL)


def memory_of(digest: NodeDigest) -> int:
    """Return how many bytes a digest takes at most, with the members of its groups."""
    return most_memory(encode_packed(digest)) + A_MEMBER * _members(digest)


def can_be_told(packed: bytes) -> bool:
    """Whether other nodes will read a digest of ours, as far as that hangs on how much it tells."""
    try:
        _blamed(_bounded, packed)
    except BadDigest:
        return False
    return True


def unpack_word(data: bytes) -> JudgesWord:
    """Decode what the node that judges tells, whoever wrote it.

    Raises:
        BadDigest: As for `unpack`.
    """
    return _blamed(_word, data)


def unpack(data: bytes) -> ReadDigest:
    """Decode a digest, whoever wrote it.

    Returns:
        The digest, its nodes with the views of their ranks, and its folds with theirs.

    Raises:
        BadDigest: It is none, too large, of another version, or says what cannot be.
    """
    return _blamed(_digest, data)


def _blamed(read: Callable[[bytes], Read], data: bytes) -> Read:
    """Whatever a stranger's bytes break, memory that is not there too, other nodes are heard."""
    try:
        return read(data)
    except BadDigest:
        raise
    except Exception as error:  # whatever it is, it is of their making
        raise BadDigest(f"reading it fails ({error!r:.200})") from error


def _word(data: bytes) -> JudgesWord:
    word = _decoded(data, JudgesWord, MOST_OF_WORD, MOST_MEMORY_OF_WORD)
    states = [*word.lost, *([word.state] if word.state is not None else [])]
    _refuse_odd_states(states)
    if any(one.ranks or size(one.folded) > MOST_OF_A_NODE for one in word.lost):
        raise BadDigest("it has a node with more ranks than can be")
    told = (word.verdict, word.wall_clock_s, word.up_s, word.line, word.end)
    if not can_be_reckoned_with(told):
        raise BadDigest("it has a number that cannot be")
    if word.verdict is not None:
        _refuse_impossible_verdict(word.verdict)
    if word.end is not None:
        _refuse_impossible_verdict(word.end.verdict)
        if len(word.end.round.summary) > LONGEST_SENTENCE:
            raise BadDigest("it has a longer text than can be")
    return word


def _refuse_impossible_verdict(verdict: Verdict) -> None:
    if not 0 <= verdict.stalled_for_s <= LONGEST_S:
        raise BadDigest("it has a duration that cannot be")
    texts = (verdict.summary, verdict.command, verdict.run_id)
    if not 0 <= verdict.world_size <= MOST_RANKS or max(map(len, texts)) > LONGEST_SENTENCE:
        raise BadDigest("its verdict has more ranks, or a longer text, than can be")
    try:
        for moment in (verdict.detected_at, verdict.stalled_since or verdict.detected_at):
            read_utc(moment)
    except ValueError as error:
        raise BadDigest("its verdict has a moment that cannot be") from error


def _digest(data: bytes) -> ReadDigest:
    digest = _bounded(data)
    try:
        stacks = digest.tree.stacks(DEEPEST_STACK)
        nodes, folds = unfold(digest, stacks), unfold_folds(digest, stacks)
    except ValueError as error:
        raise BadDigest(str(error)) from error
    _refuse_impossible(digest)
    return digest, nodes, folds


def _bounded(data: bytes) -> NodeDigest:
    """Decode a digest that has no more of anything than it may."""
    digest = _decoded(data, NodeDigest, MOST_UNPACKED, MOST_MEMORY)
    _refuse_deep(digest)
    _refuse_odd_groups(digest)
    return digest


def _decoded(data: bytes, kind: type[Told], most_bytes: int, most_taken: int) -> Told:
    if not data.startswith(MARK):
        raise BadDigest("these bytes are none of ours")
    try:
        inflated = _inflated(data, most_bytes)
        if most_memory(inflated) > most_taken:
            raise BadDigest(f"its parts could take more than {most_taken:,} bytes of memory")
        told = msgpack_decoder(kind).decode(inflated)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadDigest(
            f"it cannot be read ({error}); is the same lightning-hangcheck on all nodes?"
        ) from error
    if told.version != VERSION:
        raise BadDigest(
            f"it has version {told.version}, this one reads {VERSION}: install the same "
            "lightning-hangcheck on all nodes"
        )
    return told


def _inflated(data: bytes, most: int) -> bytes:
    if len(data) > MOST_PACKED:
        raise BadDigest(f"it has {len(data):,} bytes; at most {MOST_PACKED:,} are read")
    inflating = zlib.decompressobj()
    unpacked = inflating.decompress(data[len(MARK) :], most)
    if inflating.unconsumed_tail or not inflating.eof or inflating.unused_data:
        raise BadDigest(f"it is cut short, or has more than {most:,} bytes unpacked")
    return unpacked


def _refuse_deep(digest: NodeDigest) -> None:
    """Before any stack is built: how many frames all of them will have together."""
    depths = [0]
    for parent in digest.tree.parents:
        if not 0 <= parent < len(depths):
            raise BadDigest("a node of the stack tree names what is not there")
        depths.append(depths[parent] + 1)
    if sum(depths) > MOST_FRAMES:
        raise BadDigest(f"its stacks have more than {MOST_FRAMES:,} frames")


def _refuse_odd_groups(digest: NodeDigest) -> None:
    """Before any group is made: whose shapes, and how many members, can be."""
    told = [one for state in digest.nodes for one in state.ranks]
    if len(told) > MOST_TOLD:
        raise BadDigest(f"it tells of more than {MOST_TOLD:,} ranks one by one")
    for one in (*told, *(fold.told for fold in digest.folds)):
        records = one.view.flight.groups if one.view.flight is not None else ()
        if not 0 <= one.view.rank < MOST_RANKS:
            raise BadDigest("it has a node or rank whose number cannot be")
        if not can_be_families(one.groups, len(records), MOST_RANKS):
            raise BadDigest("it has groups of ranks that cannot be")
    every = sum(members_in(family) for one in told for family in one.groups)
    if every > MOST_MEMBERSHIPS or _members(digest) > MOST_MEMBERS:
        raise BadDigest("its groups have more members than can be")


def _members(digest: NodeDigest) -> int:
    """Count the members of all groups that `unfold` makes, each group once."""
    told = (one for state in digest.nodes for one in state.ranks)
    return sum(map(members_in, {family for one in told for family in one.groups}))


def _refuse_impossible(digest: NodeDigest) -> None:
    views = [one.view for state in digest.nodes for one in state.ranks]
    views += [one.told.view for one in digest.folds]
    left = [state.left for state in digest.nodes if state.left is not None]
    views += [view for one in left for view in one.ranks]
    if any(not 0 <= one.world_size <= MOST_RANKS for one in left):
        raise BadDigest("it has a round with more ranks than can be")
    _refuse_odd_states(digest.nodes)
    if any(not 0 <= view.rank < MOST_RANKS for view in views):
        raise BadDigest("it has a rank whose number cannot be")
    told = (digest.folds, digest.gaps, digest.code)
    spans = _durations(views)
    if not can_be_reckoned_with(told) or any(not 0 <= one <= LONGEST_S for one in spans):
        raise BadDigest("it has a duration that cannot be")
    _refuse_odd_folds(digest)


def _refuse_odd_states(states: Sequence[NodeState]) -> None:
    numbers = [state.node for state in states]
    sizes = [size for one in states for size in (one.world_size, one.local_world_size or 0)]
    if len(set(numbers)) != len(numbers):
        raise BadDigest("it tells of one node twice")
    if any(not 0 <= one < MOST_RANKS for one in numbers):
        raise BadDigest("it has a node whose number cannot be")
    if any(not 0 <= size <= MOST_RANKS for size in sizes):
        raise BadDigest("it has a world size that cannot be")
    if not all(is_rank_set(state.folded, MOST_RANKS) for state in states):
        raise BadDigest("it has a set of ranks that cannot be")
    ages = [age for one in states for age in (one.age_s, one.mark.began_s)]
    if not can_be_reckoned_with(tuple(states)) or any(not 0 <= age <= LONGEST_S for age in ages):
        raise BadDigest("it has a duration that cannot be")


def _refuse_odd_folds(digest: NodeDigest) -> None:
    """Sets of ranks that can be, and of nodes that are told of, however often each rank is told."""
    of_nodes = [state.folded for state in digest.nodes]
    of_folds = [one.ranks for one in digest.folds]
    if not all(is_rank_set(one, MOST_RANKS) for one in of_folds):
        raise BadDigest("it has a set of ranks that cannot be")
    if not all(of_folds) or sum(map(size, of_folds)) > MOST_RANKS:
        raise BadDigest("it tells of no ranks, or of more than can be")
    told = joined(of_folds)
    if common(told, joined(of_nodes)) != told:
        raise BadDigest("it tells of ranks that no node has")


def _durations(views: list[RankView]) -> Iterator[float]:
    for view in views:
        yield from (view.silent_for_s, view.idle_for_s, view.nothing_new_for_s)


def can_be_reckoned_with(fact: object) -> bool:
    """Whether every number in a fact is finite, and every whole one has 64 bits."""
    left: list[Any] = [fact]
    while left:
        one = left.pop()
        if isinstance(one, str) or one is None:
            continue
        if isinstance(one, float):
            if not math.isfinite(one):
                return False
        elif isinstance(one, int):
            if one not in INTEGERS:
                return False
        elif isinstance(one, tuple):
            left += one
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, msgspec.Struct):
            if not _can_be(one):
                return False
            left += _without_registers(one) if isinstance(one, ThreadState) else astuple(one)
    return True


def _can_be(fact: msgspec.Struct) -> bool:
    """Whether texts and registers in which others look for numbers have such as can be."""
    if isinstance(fact, ThreadState):
        return all(one in REGISTERS for one in fact.arguments)
    if isinstance(fact, WaitTarget) and fact.kind == "process":
        return not fact.name or is_number(fact.name.removeprefix("-"))
    return True


def _without_registers(state: ThreadState) -> list[object]:
    return [one for one in astuple(state) if one is not state.arguments]
