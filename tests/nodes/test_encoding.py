"""Bytes of a stranger give one clear error, whatever they are, and take no more than allowed."""

from __future__ import annotations

import math
import time
import zlib
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.evidence import WaitTarget
from lightning_hangcheck.model.flight import (
    CallSite,
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
    GroupFamily,
    GroupRun,
)
from lightning_hangcheck.nodes import encoding
from lightning_hangcheck.nodes.digest import NodeDigest, RoundMark, digest_of, merge_digests
from lightning_hangcheck.nodes.encoding import (
    MARK,
    VERSION,
    BadDigest,
    JudgesWord,
    can_be_told,
    pack,
    unpack,
    unpack_word,
)
from lightning_hangcheck.nodes.folding import RankDigest
from lightning_hangcheck.nodes.heard import Heard, _few_ranks
from lightning_hangcheck.nodes.stack_tree import StackTree
from lightning_hangcheck.reading.standing import standings_of
from lightning_hangcheck.watch.other_nodes.joining import join_heard

CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD), world_size=4)
DIGEST = digest_of(CASE, 1, 7)
PACKED = pack(DIGEST)
FOLDED = digest_of(CASE, 1, 7, standings=standings_of, folded_above=0)


def refusal(data: bytes) -> str:
    with pytest.raises(BadDigest) as caught:
        unpack(data)
    return str(caught.value)


def with_state(**fields: Any) -> bytes:
    return pack(replace(DIGEST, nodes=(replace(DIGEST.nodes[0], **fields),)))


def with_first_rank(**fields: Any) -> bytes:
    first, *others = DIGEST.nodes[0].ranks
    return with_state(ranks=(RankDigest(replace(first.view, **fields), first.leaves), *others))


def with_fold(**fields: Any) -> bytes:
    first, *others = FOLDED.folds
    return pack(replace(FOLDED, folds=(replace(first, **fields), *others)))


@given(st.binary(max_size=400))
@example(b"\x80")  # an empty map of msgpack
def test_bytes_of_any_kind_are_refused(data: bytes) -> None:
    for one in (data, MARK + data, MARK + zlib.compress(data)):
        assert refusal(one)


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(at: int, by: int) -> None:
    """The checksum of zlib tells; a few of its bits mean nothing."""
    changed = bytearray(PACKED)
    changed[at] ^= by
    with suppress(BadDigest):
        assert unpack(bytes(changed))[0] == DIGEST


@given(st.lists(st.integers(-3, 1 << 24), max_size=8), st.lists(st.integers(-3, 9), max_size=8))
def test_folds_of_odd_ranks_are_refused_or_joined(ranks: list[int], of_node: list[int]) -> None:
    first, *others = FOLDED.folds
    told = replace(FOLDED.nodes[0], folded=tuple(of_node))
    odd = replace(FOLDED, nodes=(told,), folds=(replace(first, ranks=tuple(ranks)), *others))
    with suppress(BadDigest):
        digest, nodes, folds = unpack(pack(odd))
        heard = [Heard(one.state, one.views, 1, digest, folds) for one in nodes]
        assert len(join_heard(job(rank(0, IN_BARRIER), world_size=4), heard).alike) <= 4
        assert merge_digests([digest, FOLDED])


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from(["version", "nodes", "tree", "stamp", "folds", "gaps", "code"]), JSON_LIKE
)


@given(FIELDS)
def test_a_digest_of_odd_parts_is_refused_or_says_nothing_odd(fields: dict[str, Any]) -> None:
    data = MARK + zlib.compress(msgspec.msgpack.encode(fields))
    try:
        digest, nodes, folds = unpack(data)
    except BadDigest:
        return
    assert digest.version == 2
    assert (len(nodes), len(folds)) == (len(digest.nodes), len(digest.folds))


def test_a_bomb_is_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_UNPACKED", 100_000)
    assert "bytes unpacked" in refusal(MARK + zlib.compress(bytes(1_000_000)))


def test_what_is_too_large_to_travel_is_not_even_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_PACKED", len(PACKED) - 1)
    assert "at most" in refusal(PACKED)


def test_stacks_that_would_fill_the_memory_are_refused_before_they_are_built() -> None:
    frames = DIGEST.tree.frames[:1]
    chain = StackTree(frames, tuple(range(5_000)), (0,) * 5_000)
    assert "frames" in refusal(pack(NodeDigest(nodes=(), tree=chain)))


@pytest.mark.parametrize("tree", [StackTree((), (5,), (0,)), StackTree((), (0,), (0,))])
def test_a_tree_that_names_what_is_not_there_is_refused(tree: StackTree) -> None:
    assert "not there" in refusal(pack(NodeDigest(nodes=(), tree=tree)))


def with_registers(*arguments: int) -> bytes:
    """The first rank, its main thread in a call with these arguments."""
    (look,) = DIGEST.nodes[0].ranks[0].view.processes
    kernel = look.samples[-1].kernel
    assert kernel is not None
    thread = replace(kernel.threads[0], arguments=arguments)
    sample = replace(look.samples[-1], kernel=replace(kernel, threads=(thread,)))
    return with_first_rank(processes=(replace(look, samples=(*look.samples[:-1], sample)),))


def test_registers_have_no_sign() -> None:
    """A call leaves -1 in what it does not use; so told, a node is heard all the same."""
    largest = (1 << 64) - 1
    _, (node,), _ = unpack(with_registers(3, largest))
    kernel = node.views[0].processes[0].samples[-1].kernel
    assert kernel is not None
    assert kernel.threads[0].arguments == (3, largest)


@pytest.mark.parametrize(
    "data",
    [
        with_registers(-1),
        with_state(node=-1),
        with_state(world_size=1 << 40),
        with_state(software="9" * 100),
        with_state(age_s=-1.0),
        with_state(age_s=math.nan),
        with_first_rank(rank=1 << 40),
        with_first_rank(silent_for_s=math.inf),
        with_first_rank(idle_for_s=-1.0),
        with_first_rank(silent_for_s=1e300),
        with_state(age_s=1e12),
        with_state(mark=RoundMark(math.nan, 1)),
        with_first_rank(processes=()),
        pack(replace(DIGEST, nodes=DIGEST.nodes * 2)),
        with_fold(ranks=()),
        with_fold(ranks=(0,)),
        with_fold(ranks=(1, 0)),
        with_fold(ranks=(-1, 0)),
        with_fold(ranks=(0, 0, 0, 0)),
        with_fold(ranks=(0, 1 << 40)),
        with_fold(ranks=(0, 3)),
        with_fold(told=RankDigest(FOLDED.folds[0].told.view)),
        with_fold(told=RankDigest(replace(FOLDED.folds[0].told.view, silent_for_s=math.nan))),
        pack(replace(FOLDED, nodes=())),
        pack(replace(FOLDED, nodes=(replace(FOLDED.nodes[0], folded=(5,)),))),
    ],
)
def test_what_cannot_be_is_refused(data: bytes) -> None:
    assert refusal(data)


DIGITS = "1" * 5_000
"""Python refuses to read a number of so many."""
IN_GROUPS = FlightRecord(
    taken_ns=1,
    groups=(CollectiveRecord(group="1", entries=(CollectiveEntry(seq=1, op="", site=1),)),),
    sites={1: CallSite(root="root 0")},
)


def in_groups(family: GroupFamily, root: str = "root 0") -> tuple[bytes, bytes]:
    """A rank by itself, and one of a fold, in such groups."""
    flight = replace(IN_GROUPS, sites={1: CallSite(root=root)})
    told = FOLDED.folds[0].told
    view = replace(told.view, flight=flight)
    one = RankDigest(replace(DIGEST.nodes[0].ranks[0].view, flight=flight, processes=()))
    alone = with_state(ranks=(replace(one, groups=(family,)), *DIGEST.nodes[0].ranks[1:]))
    return alone, with_fold(told=replace(told, view=view, groups=(family,)))


def made_use_of(data: bytes) -> None:
    """Do all that is done with what was read."""
    digest, nodes, folds = unpack(data)
    found = [Heard(one.state, one.views, 1, digest, folds) for one in nodes]
    own = job(rank(3, IN_BARRIER), world_size=4)
    judge(join_heard(own, found))
    assert can_be_told(pack(merge_digests([digest, FOLDED])))


@given(
    first=st.integers(-2, 5),
    step=st.integers(-2, 1 << 62),
    count=st.integers(-1, 4),
    name=st.text(max_size=5) | st.sampled_from([DIGITS, "7", "07", "-7", "\u0667", "\u00b2"]),
    name_step=st.integers(-(1 << 63), (1 << 63) - 1),
    offsets=st.lists(st.integers(-2, 5), max_size=6),
    root=st.text(max_size=5) | st.sampled_from([f"root {DIGITS}", "root 0", "root \u00b2"]),
)
@example(0, 1, 2, DIGITS, 1, [0, 1, 2], "root 0")
@example(0, 1, 1, DIGITS, 0, [0, 1, 2], "root 0")
@example(0, 1, 1, "1", 0, [0, 1, 2], f"root {DIGITS}")
def test_odd_groups_are_refused_or_harm_nobody(
    first: int,
    step: int,
    count: int,
    name: str,
    name_step: int,
    offsets: list[int],
    root: str,
) -> None:
    run = GroupRun(first, step, count, name, name_step)
    for data in in_groups(GroupFamily(tuple(offsets), (run,)), root):
        with suppress(BadDigest):
            made_use_of(data)


@pytest.mark.parametrize("name", [DIGITS, "abc", "4 4", "\u00b2"])
def test_a_process_that_is_waited_for_has_a_number(name: str) -> None:
    (look,) = DIGEST.nodes[0].ranks[0].view.processes
    kernel = look.samples[-1].kernel
    assert kernel is not None
    target = WaitTarget(call="waitid", kind="process", name=name)
    thread = replace(kernel.threads[0], waits_for=(target,))
    sample = replace(look.samples[-1], kernel=replace(kernel, threads=(thread,)))
    odd = with_first_rank(processes=(replace(look, samples=(*look.samples[:-1], sample)),))
    assert "that cannot be" in refusal(odd)


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), ValueError("x"), OSError()])
def test_whatever_goes_wrong_with_a_digest_is_its_senders_fault(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(encoding, "_refuse_odd_groups", fails)
    monkeypatch.setattr(encoding, "_refuse_odd_states", fails)
    assert type(error).__name__ in refusal(PACKED)
    with pytest.raises(BadDigest, match=type(error).__name__):
        unpack_word(pack(JudgesWord(stamp=3)))


def test_another_version_says_what_to_do() -> None:
    assert "install the same lightning-hangcheck" in refusal(pack(replace(DIGEST, version=3)))


@pytest.mark.parametrize("told", [DIGEST, JudgesWord(stamp=3)], ids=["a node", "who judges"])
def test_the_version_travels_though_a_reader_knows_one_of_its_own(told: Any) -> None:
    told_on = msgspec.msgpack.decode(zlib.decompress(pack(told)[len(MARK) :]))
    assert told_on["version"] == VERSION


def test_what_the_first_node_says_is_read_as_strictly() -> None:
    word = JudgesWord(stamp=3)
    assert unpack_word(pack(word)) == word
    with pytest.raises(BadDigest):
        unpack_word(PACKED[:-9])


VERDICT = judge(CASE)


@pytest.mark.parametrize(
    "word",
    [
        {"verdict": replace(VERDICT, stalled_for_s=math.nan)},
        {"verdict": replace(VERDICT, stalled_for_s=math.inf)},
        {"verdict": replace(VERDICT, stalled_for_s=1e300)},
        {"verdict": replace(VERDICT, stalled_for_s=-1.0)},
        {"verdict": replace(VERDICT, world_size=1 << 40)},
        {"verdict": replace(VERDICT, stalled_since="three o'clock")},
        {"verdict": replace(VERDICT, detected_at="2" * 10_000)},
        {"verdict": replace(VERDICT, culprits=(-1,))},
        {"verdict": replace(VERDICT, summary="x " * 50_000)},
        {"verdict": replace(VERDICT, command="x" * 100_000)},
        {"verdict": replace(VERDICT, remedies=VERDICT.remedies * 30_000)},
        {"state": replace(DIGEST.nodes[0], ranks=(), world_size=-1)},
        {"state": replace(DIGEST.nodes[0], ranks=(), age_s=math.nan)},
        {"state": replace(DIGEST.nodes[0], ranks=(), mark=RoundMark(math.inf, 1))},
        {"wall_clock_s": math.nan},
        {"asks": ("10.0.0.1",) * 1_000},
        {"ranks": "1," * 1_000},
    ],
)
def test_a_word_that_cannot_be_is_refused(word: dict[str, Any]) -> None:
    with pytest.raises(BadDigest):
        unpack_word(pack(JudgesWord(stamp=3, **word)))


def test_a_word_as_the_first_node_says_it_is_read() -> None:
    state = replace(DIGEST.nodes[0], ranks=(), mark=RoundMark(20.0, 29_500))
    word = JudgesWord(stamp=3, verdict=VERDICT, state=state, ranks="0-7", wall_clock_s=1.8e9)
    assert unpack_word(pack(word)) == word


def test_ranks_in_words_are_counted_before_they_are_made() -> None:
    before_s = time.process_time()
    assert _few_ranks("0-9999999") == _few_ranks("0-1023,5000-9999999") == ()
    assert time.process_time() - before_s < 0.1
    assert _few_ranks("8-15") == tuple(range(8, 16))
