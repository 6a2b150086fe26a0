"""The only format of messages: msgpack, compressed, read as if a stranger wrote them.

Sizes are bounded before and while bytes unpack, only a message's structs are built, and their
values are checked before use. There is no pickle. Whatever fails only costs the sender's message.
"""

from __future__ import annotations

import zlib
from itertools import chain

import msgspec

from lightning_hangcheck.judge.alike import can_be_families, is_rank_set, members_in, size
from lightning_hangcheck.model.codec import encode_packed, msgpack_decoder
from lightning_hangcheck.model.verdict import MOST_RANKS
from lightning_hangcheck.nodes import message as messages

MARK = b"HCND"
MOST_PACKED = 4 * 1024 * 1024
"""Bytes of a message on the way: eight ranks that hang take about 20 kB."""
MOST_UNPACKED = 32 * 1024 * 1024
MOST_MEMBERSHIPS = 1 << 22
"""Members in all groups of the ranks that have lines of their own."""
LONGEST_S = 1e9
"""30 years: no duration is longer."""
LEVEL = 6


def pack(message: messages.Message) -> bytes:
    """Encode a message; without evidence, if other nodes would refuse it for its size."""
    unpacked = encode_packed(message)
    packed = MARK + zlib.compress(unpacked, LEVEL)
    if len(unpacked) <= MOST_UNPACKED and len(packed) <= MOST_PACKED:
        return packed
    short = messages.shortened(message)
    return packed if short == message else pack(short)


def read_message(data: bytes) -> messages.Message:
    """Decode a message, whoever wrote it.

    BadMessage: it is none, too large, of another version, or has impossible values.
    """
    try:
        message = _decoded(data)
        _refuse_odd(message)
    except messages.BadMessage:
        raise
    except Exception as error:  # even a lack of memory: other nodes are still read
        raise messages.BadMessage(f"reading it fails ({error!r:.200})") from error
    return message


def _decoded(data: bytes) -> messages.Message:
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
    return message


def _refuse_odd(message: messages.Message) -> None:
    left, views = message.left, [line.view for line in message.lines]
    if left is not None:
        views = [*views, *left.ranks]
    lines = [line.ranks for line in message.lines]
    spans = [(view.silent_for_s, view.idle_for_s, view.nothing_new_for_s) for view in views]
    end, told = message.judgement.end, message.judgement.verdict
    told_of_end = end.verdict if end is not None else None
    verdicts = [verdict for verdict in (told, told_of_end) if verdict is not None]
    seconds = (
        message.mark.began_s,
        *chain.from_iterable(spans),
        *(verdict.stalled_for_s for verdict in verdicts),
    )
    sizes = [verdict.world_size for verdict in verdicts]
    members = 0
    for rank_class in message.lines:
        flight, groups = rank_class.view.flight, rank_class.groups
        records = len(flight.groups) if flight is not None else len(groups)
        _refuse_if(not can_be_families(groups, records, MOST_RANKS), "groups of ranks")
        if rank_class.alone:
            members += sum(map(members_in, groups))
            number = rank_class.view.rank
            _refuse_if(rank_class.ranks != (number, number), "a rank whose number")
    _refuse_if(members > MOST_MEMBERSHIPS, "groups with more members")
    _refuse_if(any(not 0 <= size <= MOST_RANKS for size in sizes), "a world size")
    odd = not all(line and is_rank_set(line, MOST_RANKS) for line in lines)
    _refuse_if(odd, "a set of ranks")
    ranks = sum(map(size, lines))
    odd = ranks > messages.MOST_OF_A_NODE or ranks != size(message.ranks)
    _refuse_if(odd, "a node with ranks")
    _refuse_if(any(not 0 <= second <= LONGEST_S for second in seconds), "a duration")


def _refuse_if(odd: bool, what: str) -> None:
    if odd:
        raise messages.BadMessage(f"it has {what} that cannot be")
