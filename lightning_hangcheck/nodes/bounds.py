"""How much of what a stranger sent is read. Pure.

A few bytes that repeat become millions of parts once they are unpacked, so what is told is refused
before any of it is made: by what all its parts may take, and list by list while it is decoded. Each
bound is some times what the largest job that is supported needs: 131,072 ranks on 16,384 nodes. A
node that would tell more tells it without evidence.
"""

from __future__ import annotations

from msgspec import Meta

MOST_PACKED = 4 * 1024 * 1024
"""Bytes of a digest as it travels: eight ranks that hang take about 20 kB."""
MOST_UNPACKED = 32 * 1024 * 1024
"""Bytes of the same: 132 ranks of real training, the most that one node tells of 256, take 7 MB."""
MOST_MEMORY = 512 * 1024 * 1024
"""Bytes that a digest may take, by `most_memory`: those ranks are 200 MB by it, 30 MB in truth."""
MOST_TOGETHER = 2 * MOST_MEMORY
"""Of all digests that a node keeps with their evidence: 256 such ranks are 400 MB by it."""
MOST_OF_WORD = 8 * 1024 * 1024
"""Bytes of what the first node says, unpacked: 1,024 ranks and 512 ways to stand took a tenth."""
MOST_MEMORY_OF_WORD = 96 * 1024 * 1024
MOST_WORDS = 8
"""Nodes that judged, of which the word is kept: one does, and another one follows it."""
DEEPEST_STACK = 1_024
"""Python's own limit for calls within each other is 1,000."""
MOST_FRAMES = 2_000_000
"""Of all stacks, each node of their tree counted with its callers."""
MOST_RANKS = 1 << 20
"""Of a job."""
MOST_MEMBERS = 1 << 22
"""Of all groups of the ranks that are told one by one, each group once: in those of one dimension
of a mesh is each rank once, so sixteen dimensions of the largest job have half as many."""
MOST_MEMBERSHIPS = 1 << 26
"""The same for each rank anew: 500 odd ranks in a group of all others."""
A_MEMBER = 36
"""Bytes that one takes."""
MOST_TOLD = 16_384
"""Ranks of a digest that are told one by one: in a job that is folded a few that are odd."""
MOST_ASKED = 64
"""Addresses of silent nodes: where more fell silent, those of a few tell enough."""
MOST_LOST = 64
"""Nodes that fell silent, told to those who may have to judge without whoever knew them."""
MOST_OF_A_NODE = 1_024
"""Ranks of one node."""
LONGEST_RANKS = 1_024
"""Characters of the ranks of one node."""
LONGEST_S = 1e9
"""30 years: no duration is longer, and in nanoseconds it still has 64 bits."""
LONGEST_SENTENCE = 64 * 1024
"""Characters of one text of a word: all nodes print the summary."""
MOST_GAPS = 64
MOST_CODE = 1_024
"""Gaps, and lines of code, that all nodes together tell of ranks that are folded."""
MOST_WAYS = 256
"""Ways to stand that are told with their evidence: jobs that hang have a handful."""
MOST_NAMES = 32
"""Ranks of one way to stand whose processes are named."""
MOST_ENDS = 8
"""Ranks of a node whose end is told: those that ended first, and of large jobs only a few."""

NODES = Meta(max_length=16_384)
FOLDS = Meta(max_length=2 * MOST_WAYS)
GAPS = Meta(max_length=MOST_GAPS)
GAPS_OF_A_NODE = Meta(max_length=4_096)
"""A few of each of its ranks."""
CODE = Meta(max_length=MOST_CODE)
ENDS = Meta(max_length=MOST_ENDS)
NAMES = Meta(max_length=MOST_NAMES)
RANKS_OF_A_NODE = Meta(max_length=MOST_OF_A_NODE)
SET_OF_A_NODE = Meta(max_length=2 * MOST_OF_A_NODE)
"""A first and a last number for each rank, if no two follow each other."""
SET = Meta(max_length=131_072)
"""The same for every second rank of a job."""
ASKED = Meta(max_length=MOST_ASKED)
LOST = Meta(max_length=MOST_LOST)
LEAVES = Meta(max_length=16_384)
"""Stacks of a rank with its workers: three samples of 5,000 threads."""
GROUPS = Meta(max_length=4_096)
CALLS = Meta(max_length=1 << 16)
NODES_OF_TREE = Meta(max_length=1 << 17)
"""Stacks 30 deep that share half of their calls reach `MOST_FRAMES` with as many."""
VERSION_TEXT = Meta(max_length=64)
MACHINE = Meta(max_length=1_024)
RANKS_TEXT = Meta(max_length=LONGEST_RANKS)

A_CONTAINER, A_PART, A_BYTE = 160, 56, 8
"""What each takes at most: a struct, tuple or dict; that and anything else which is no small
number; and each byte, which may be such a number in a tuple."""
CONTAINERS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""With which msgpack begins an array or a map."""
PARTS = bytes(range(0x80, 0x100))
"""With which it begins anything but a number from 0 to 127."""
_ALL = bytes(range(0x100))
_NO_CONTAINERS = _ALL.translate(None, CONTAINERS)
_NO_PARTS = _ALL.translate(None, PARTS)


def most_memory(packed: bytes) -> int:
    """Return how many bytes some msgpack may take at most once it is decoded.

    Nothing is decoded for it: a text may have bytes that begin a part elsewhere, which makes it too
    many, and never too few.

    Args:
        packed: The msgpack.
    """
    containers = len(packed.translate(None, _NO_CONTAINERS))
    parts = len(packed.translate(None, _NO_PARTS))
    return A_CONTAINER * containers + A_PART * parts + A_BYTE * len(packed)
