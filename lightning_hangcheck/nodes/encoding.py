"""The only format of messages: msgpack, compressed, read as if a stranger wrote them.

Anyone who can write to the meeting place could send anything. So sizes are bounded before and while
bytes unpack, only a message's structs are built, and their values are checked before use. There is
no pickle. Whatever fails on the way only costs the sender's own message.

A few repeated bytes unpack to millions of objects. So a message is refused before any object is
built, by the memory that all of them may take, and list by list while it is decoded.
"""

from __future__ import annotations

import math
import zlib
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import astuple

from lightning_hangcheck.judge.alike import (
    can_be_families,
    is_number,
    is_rank_set,
    members_in,
    size,
)
from lightning_hangcheck.model.codec import encode_packed, msgpack_decoder
from lightning_hangcheck.model.evidence import ThreadState, WaitTarget
from lightning_hangcheck.nodes import message as messages
from lightning_hangcheck.text.shown import read_utc

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = b"HCND"
MOST_PACKED = 4 * 1024 * 1024
"""Bytes of a message on the way: eight ranks that hang take about 20 kB."""
MOST_UNPACKED = 32 * 1024 * 1024
MOST_MEMORY = 256 * 1024 * 1024
"""Bytes that a message may take by `most_memory`, which is some six times too high."""
MOST_TOGETHER = 1024 * 1024 * 1024
"""The same for all messages that a node keeps with evidence: 256 such ranks count as 400 MB."""
MOST_MEMBERSHIPS = 1 << 22
"""Members in all groups of the ranks that have lines of their own."""
A_MEMBER = 36
"""Bytes of a member."""
LONGEST_S = 1e9
"""30 years: no duration is longer, and in nanoseconds it still has 64 bits."""
LONGEST_SENTENCE = 64 * 1024
"""Characters of one text of a judgement: all nodes print the summary."""
LEAST, LARGEST = -(1 << 63), (1 << 63) - 1
"""Signed 64-bit numbers. msgpack also has unsigned ones, and JSON has no limit."""
REGISTERS = range(1 << 64)
"""A thread's registers as the kernel shows them: unsigned, so -1 is the largest."""
PLAIN = frozenset({str, bool, type(None), bytes})
LEVEL = 6

A_CONTAINER, A_PART, A_BYTE = 160, 56, 8
"""Bytes at most: of a struct, tuple or dict; also of these, and of anything else but a small
number; and of each byte, which may be a small number in a tuple."""
_ALL = bytes(range(0x100))
_NO_CONTAINERS = _ALL.translate(None, bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0))))
"""All bytes but those that begin an array or a map in msgpack."""
_NO_PARTS = _ALL.translate(None, bytes(range(0x80, 0x100)))
"""All bytes but those that begin anything except a number from 0 to 127."""


def pack(message: messages.Message) -> bytes:
    """Encode a message."""
    return MARK + zlib.compress(encode_packed(message), LEVEL)


def read_message(data: bytes) -> tuple[messages.Message, int]:
    """Decode a message, whoever wrote it; return also how many bytes it takes at most.

    BadMessage: it is none, too large, of another version, or has impossible values.
    """
    with _blaming_its_sender():
        message, memory = _decoded(data)
        _refuse_odd_groups(message)
        sizes = [message.world_size, message.local_world_size or 0]
        left, views = message.left, [line.view for line in message.lines]
        if left is not None:
            sizes, views = [*sizes, left.world_size], [*views, *left.ranks]
        lines = [line.ranks for line in message.lines]
        spans = [(view.silent_for_s, view.idle_for_s, view.nothing_new_for_s) for view in views]
        numbers = (message.node, *(view.rank for view in views), *message.wants)
        _refuse_if(
            any(not 0 <= number < messages.MOST_RANKS for number in numbers),
            "a node or rank number",
        )
        _refuse_if(any(not 0 <= size <= messages.MOST_RANKS for size in sizes), "a world size")
        odd = not all(line and is_rank_set(line, messages.MOST_RANKS) for line in lines)
        _refuse_if(odd, "a set of ranks")
        ranks = sum(map(size, lines))
        _refuse_if(
            ranks > messages.MOST_OF_A_NODE or ranks != size(message.ranks), "a node with ranks"
        )
        seconds = (message.mark.began_s, *chain.from_iterable(spans))
        _refuse_if(any(not 0 <= second <= LONGEST_S for second in seconds), "a duration")
        _refuse_if(not can_be_reckoned_with(message), "a number")
        end = message.judgement.end
        texts = [] if end is None else [end.round.summary]
        words = (message.judgement.verdict, None if end is None else end.verdict)
        for verdict in filter(None, words):
            texts += [verdict.summary, verdict.command, verdict.run_id]
            _refuse_if(not 0 <= verdict.stalled_for_s <= LONGEST_S, "a duration")
            _refuse_if(not 0 <= verdict.world_size <= messages.MOST_RANKS, "more ranks")
            for moment in (verdict.detected_at, verdict.stalled_since or verdict.detected_at):
                read_utc(moment)  # ValueError if there is no such moment
        _refuse_if(max(map(len, texts), default=0) > LONGEST_SENTENCE, "a longer text")
        alone = (line for line in message.lines if line.alone)
        memory += A_MEMBER * sum(members_in(family) for line in alone for family in line.groups)
        return message, memory


def can_be_sent(packed: bytes) -> bool:
    """Whether other nodes will read a message of ours, as far as its size decides that."""
    try:
        _refuse_odd_groups(_decoded(packed)[0])
    except messages.BadMessage:
        return False
    return True


def most_memory(packed: bytes) -> int:
    """Return how many bytes some msgpack may take at most once it is decoded.

    Nothing is decoded, so bytes of a text may count as objects: the result may be too high.
    """
    containers = len(packed.translate(None, _NO_CONTAINERS))
    parts = len(packed.translate(None, _NO_PARTS))
    return A_CONTAINER * containers + A_PART * parts + A_BYTE * len(packed)


@contextmanager
def _blaming_its_sender() -> Iterator[None]:
    """Raise BadMessage for any error, even a lack of memory: other nodes are still read."""
    try:
        yield
    except messages.BadMessage:
        raise
    except Exception as error:  # whatever it is, its sender caused it
        raise messages.BadMessage(f"reading it fails ({error!r:.200})") from error


def _refuse_if(odd: bool, what: str) -> None:
    if odd:
        raise messages.BadMessage(f"it has {what} that cannot be")


def _decoded(data: bytes) -> tuple[messages.Message, int]:
    if not data.startswith(MARK):
        raise messages.BadMessage("these bytes are none of ours")
    if len(data) > MOST_PACKED:
        raise messages.BadMessage(f"it has {len(data):,} bytes; at most {MOST_PACKED:,} are read")
    try:
        inflating = zlib.decompressobj()
        unpacked = inflating.decompress(data[len(MARK) :], MOST_UNPACKED)
        if inflating.unconsumed_tail or not inflating.eof or inflating.unused_data:
            raise messages.BadMessage(
                f"it is cut short, or has more than {MOST_UNPACKED:,} bytes unpacked"
            )
        memory = most_memory(unpacked)
        if memory > MOST_MEMORY:
            raise messages.BadMessage(
                f"its parts could take more than {MOST_MEMORY:,} bytes of memory"
            )
        message = msgpack_decoder(messages.Message).decode(unpacked)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise messages.BadMessage(
            f"it cannot be read ({error}); is the same lightning-hangcheck on all nodes?"
        ) from error
    if message.version != messages.VERSION:
        raise messages.BadMessage(
            f"it has version {message.version}, this one reads {messages.VERSION}: install the "
            "same lightning-hangcheck on all nodes"
        )
    return message, memory


def _refuse_odd_groups(message: messages.Message) -> None:
    members = 0
    for rank_class in message.lines:
        flight, groups = rank_class.view.flight, rank_class.groups
        records = len(flight.groups) if flight is not None else len(groups)
        _refuse_if(not can_be_families(groups, records, messages.MOST_RANKS), "groups of ranks")
        if rank_class.alone:
            members += sum(map(members_in, groups))
            number = rank_class.view.rank
            _refuse_if(rank_class.ranks != (number, number), "a rank whose number")
    _refuse_if(members > MOST_MEMBERSHIPS, "groups with more members")


def can_be_reckoned_with(fact: object) -> bool:
    """Whether every number in a fact is finite, and every integer has 64 bits."""
    left: list[Any] = [fact]
    while left:
        value = left.pop()
        kind = type(value)
        if kind in PLAIN:
            continue
        if kind is float:
            if not math.isfinite(value):
                return False
        elif kind is int:
            if not LEAST <= value <= LARGEST:
                return False
        elif kind is tuple:
            left += value
        elif kind is dict:
            left += value.values()
        elif kind is ThreadState:
            # registers are unsigned, all else is signed
            if not all(register in REGISTERS for register in value.arguments):
                return False
            left += [field for field in astuple(value) if field is not value.arguments]
        elif issubclass(kind, msgspec.Struct):
            process = kind is WaitTarget and value.kind == "process" and value.name
            if process and not is_number(process.removeprefix("-")):
                return False
            left += astuple(value)
    return True
