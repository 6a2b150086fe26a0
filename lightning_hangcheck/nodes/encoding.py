"""The only form in which a digest travels: msgpack, compressed, read as if a stranger wrote it.

Whoever can write to the meeting place could send anything. So sizes are bounded before and while
bytes grow, nothing but the structs of a digest is built from them, and what these say is checked
before it is used. There is no pickle.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.gather.group_families import can_be_families
from lightning_hangcheck.gather.rank_set import common, is_rank_set, joined, size
from lightning_hangcheck.model.decoders import msgpack_decoder
from lightning_hangcheck.model.evidence import ThreadState
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.nodes.digest import (
    NodeDigest,
    NodeState,
    NodeViews,
    unfold,
    unfold_folds,
)
from lightning_hangcheck.nodes.round_end import MOST_ENDS, RoundEnd
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.nodes.folding import FoldedRanks

MARK = b"HCND"
VERSION = 2
MOST_PACKED = 4 * 1024 * 1024
"""Bytes of a digest as it travels: eight ranks that hang take about 20 kB."""
MOST_UNPACKED = 64 * 1024 * 1024
DEEPEST_STACK = 1_024
"""Python's own limit for calls within each other is 1,000."""
MOST_FRAMES = 2_000_000
"""Of all stacks, each node of their tree counted with its callers."""
MOST_RANKS = 1 << 20
"""Of a job."""
INTEGERS = range(-(1 << 63), 1 << 63)
"""msgpack has 64 bits, one more where there is no sign; JSON has as many as are written."""
REGISTERS = range(1 << 64)
"""As the kernel shows those of a thread: without a sign, so -1 is the largest of all."""
MOST_ASKED = 64
"""Addresses of silent nodes: where more fell silent, those of a few tell enough."""
MOST_LOST = 64
"""Nodes that fell silent, told to those who may have to judge without whoever knew them."""
MOST_OF_A_NODE = 1_024
"""Ranks of one node."""
LONGEST_RANKS = 1_024
"""Characters of the ranks of one node."""
LONGEST_VERSION = 64
"""Characters of the version of this package that a node has."""
LONGEST_S = 1e9
"""30 years: no duration is longer, and in nanoseconds it still has 64 bits."""
MOST_OF_WORD = 8 * 1024 * 1024
"""Bytes of what the first node says, unpacked: 1,024 ranks and 512 ways to stand take a tenth."""
LONGEST_SENTENCE = 64 * 1024
"""Characters of one text in it: all nodes print the summary."""
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
    asks: tuple[str, ...] = ()
    state: NodeState | None = None
    ranks: str = ""
    wall_clock_s: float = 0.0
    up_s: float = 0.0
    line: tuple[int, ...] = ()
    lost: tuple[NodeState, ...] = ()
    end: RoundEnd | None = None
    known: bool = False


Told = TypeVar("Told", NodeDigest, JudgesWord)
DECODERS: dict[type[msgspec.Struct], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (NodeDigest, JudgesWord)
}
"""Made while one thread runs: msgspec 0.22 reads a type's annotations when it first decodes it, and
two threads that did so at the same moment crashed the interpreter."""


def pack(told: NodeDigest | JudgesWord) -> bytes:
    """Encode what is told."""
    return MARK + zlib.compress(msgspec.msgpack.encode(told), LEVEL)


def unpack_word(data: bytes) -> JudgesWord:
    """Decode what the node that judges tells, whoever wrote it.

    Raises:
        BadDigest: As for `unpack`.
    """
    word = _decoded(data, JudgesWord, MOST_OF_WORD)
    if len(word.asks) > MOST_ASKED or len(word.ranks) > LONGEST_RANKS:
        raise BadDigest("it asks for more, or has more ranks, than can be")
    if len(word.line) > MOST_ASKED or len(word.lost) > MOST_LOST:
        raise BadDigest("it tells of more nodes than can be")
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


def unpack(data: bytes) -> tuple[NodeDigest, list[NodeViews], tuple[FoldedRanks, ...]]:
    """Decode a digest, whoever wrote it.

    Returns:
        The digest, its nodes with the views of their ranks, and its folds with theirs.

    Raises:
        BadDigest: It is none, too large, of another version, or says what cannot be.
    """
    digest = _decoded(data, NodeDigest, MOST_UNPACKED)
    _refuse_deep(digest)
    _refuse_odd_groups(digest)
    try:
        stacks = digest.tree.stacks(DEEPEST_STACK)
        nodes, folds = unfold(digest, stacks), unfold_folds(digest, stacks)
    except ValueError as error:
        raise BadDigest(str(error)) from error
    _refuse_impossible(digest)
    return digest, nodes, folds


def _decoded(data: bytes, kind: type[Told], most: int) -> Told:
    if not data.startswith(MARK):
        raise BadDigest("these bytes are none of ours")
    try:
        told = msgpack_decoder(kind).decode(_inflated(data, most))
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
    for one in (*told, *(fold.told for fold in digest.folds)):
        records = one.view.flight.groups if one.view.flight is not None else ()
        if not 0 <= one.view.rank < MOST_RANKS:
            raise BadDigest("it has a node or rank whose number cannot be")
        if not can_be_families(one.groups, len(records), MOST_RANKS):
            raise BadDigest("it has groups of ranks that cannot be")


def _refuse_impossible(digest: NodeDigest) -> None:
    views = [one.view for state in digest.nodes for one in state.ranks]
    views += [one.told.view for one in digest.folds]
    left = [state.left for state in digest.nodes if state.left is not None]
    views += [view for one in left for view in one.ranks]
    if any(len(one.ranks) > MOST_ENDS or not 0 <= one.world_size <= MOST_RANKS for one in left):
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
    if any(len(state.software) > LONGEST_VERSION for state in states):
        raise BadDigest("it has a version that cannot be")
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
    if isinstance(fact, float):
        return math.isfinite(fact)
    if isinstance(fact, int):
        return fact in INTEGERS
    if isinstance(fact, ThreadState) and fact.arguments:
        known = all(one in REGISTERS for one in fact.arguments)
        return known and can_be_reckoned_with(replace(fact, arguments=()))
    if isinstance(fact, msgspec.Struct):
        return all(can_be_reckoned_with(getattr(fact, name)) for name in fact.__struct_fields__)
    if isinstance(fact, dict):
        return all(map(can_be_reckoned_with, fact.values()))
    return all(map(can_be_reckoned_with, fact)) if isinstance(fact, tuple) else True
