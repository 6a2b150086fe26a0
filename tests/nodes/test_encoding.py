"""Bytes of a stranger give one clear error, whatever they are, and take no more than allowed."""

from __future__ import annotations

import math
import zlib
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
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
from lightning_hangcheck.nodes.encoding import MARK, BadWord, pack, read_judgement, read_word
from lightning_hangcheck.nodes.peers import Heard
from lightning_hangcheck.nodes.word import (
    VERSION,
    Judgement,
    RankLine,
    RoundMark,
    class_of,
    word_of,
)
from lightning_hangcheck.watch.other_nodes.joining import join_heard

CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD), world_size=4)
WORD = word_of(CASE, 1, 7)
PACKED = pack(WORD)
FOLDED = word_of(CASE, 1, 7, folded_above=0, wanted=[0, 1])


def refusal(data: bytes) -> str:
    with pytest.raises(BadWord) as caught:
        read_word(data)
    return str(caught.value)


def with_state(**fields: Any) -> bytes:
    return pack(replace(WORD, **fields))


def with_first_rank(**fields: Any) -> bytes:
    first, *others = WORD.lines
    view = replace(first.told.view, **fields)
    return with_state(lines=(replace(first, told=RankLine(view, first.told.stacks)), *others))


def with_class(**fields: Any) -> bytes:
    first, *others = FOLDED.lines
    return pack(replace(FOLDED, lines=(replace(first, **fields), *others)))


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
    with suppress(BadWord):
        assert read_word(bytes(changed))[0] == read_word(PACKED)[0]


@given(st.lists(st.integers(-3, 1 << 24), max_size=8))
def test_lines_of_odd_ranks_are_refused_or_joined(ranks: list[int]) -> None:
    first, *others = FOLDED.lines
    odd = replace(FOLDED, lines=(replace(first, ranks=tuple(ranks)), *others))
    with suppress(BadWord):
        word, _ = read_word(pack(odd))
        assert len(join_heard(job(rank(0, IN_BARRIER), world_size=4), [Heard(word, 1)]).alike) <= 4


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from(["version", "node", "lines", "stamp", "ranks", "gaps", "stacks"]), JSON_LIKE
)


@given(FIELDS)
def test_a_word_of_odd_parts_is_refused_or_says_nothing_odd(fields: dict[str, Any]) -> None:
    data = MARK + zlib.compress(msgspec.msgpack.encode(fields))
    with suppress(BadWord):
        assert read_word(data)[0].version == VERSION


def test_a_bomb_is_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_UNPACKED", 100_000)
    assert "bytes unpacked" in refusal(MARK + zlib.compress(bytes(1_000_000)))


def test_what_is_too_large_to_travel_is_not_even_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_PACKED", len(PACKED) - 1)
    assert "at most" in refusal(PACKED)


def with_registers(*arguments: int) -> bytes:
    """The first rank, its main thread in a call with these arguments."""
    (look,) = WORD.lines[0].told.view.processes
    kernel = look.samples[-1].kernel
    assert kernel is not None
    thread = replace(kernel.threads[0], arguments=arguments)
    sample = replace(look.samples[-1], kernel=replace(kernel, threads=(thread,)))
    return with_first_rank(processes=(replace(look, samples=(*look.samples[:-1], sample)),))


def test_registers_have_no_sign() -> None:
    """A call leaves -1 in what it does not use; so told, a node is heard all the same."""
    largest = (1 << 64) - 1
    word, _ = read_word(with_registers(3, largest))
    kernel = word.lines[0].told.view.processes[0].samples[-1].kernel
    assert kernel is not None
    assert kernel.threads[0].arguments == (3, largest)


@pytest.mark.parametrize(
    "data",
    [
        with_registers(-1),
        with_state(node=-1),
        with_state(world_size=1 << 40),
        with_state(software="9" * 100),
        with_state(mark=RoundMark(math.nan, 1)),
        with_state(wall_clock_s=math.inf),
        with_state(wants=(-1,)),
        with_state(asks=("10.0.0.1",) * 1_000),
        with_state(world_size=-1),
        with_state(stacks=((5_000,),)),
        with_state(stacks=((0,) * 2_000,)),
        with_state(stacks=()),
        with_state(lines=WORD.lines * 2),
        with_first_rank(rank=1 << 40),
        with_first_rank(rank=1),
        with_first_rank(silent_for_s=math.inf),
        with_first_rank(idle_for_s=-1.0),
        with_first_rank(silent_for_s=1e300),
        with_first_rank(processes=()),
        with_class(ranks=()),
        with_class(ranks=(0,)),
        with_class(ranks=(1, 0)),
        with_class(ranks=(-1, 0)),
        with_class(ranks=(0, 0, 0, 0)),
        with_class(ranks=(0, 1 << 40)),
        with_class(ranks=(0, 3)),
        with_class(ranks=(2, 5_000)),
        with_class(told=RankLine(FOLDED.lines[0].told.view)),
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
    """A rank by itself, and one of a class, in such groups."""
    flight = replace(IN_GROUPS, sites={1: CallSite(root=root)})
    view = replace(WORD.lines[0].told.view, flight=flight, processes=())
    words = [class_of(view, (family,), standing) for standing in (0, 7)]
    alone, alike = (pack(replace(WORD, lines=(one, *WORD.lines[1:]))) for one in words)
    return alone, alike


def made_use_of(data: bytes) -> None:
    """Do all that is done with what was read."""
    word, _ = read_word(data)
    judge(join_heard(job(rank(3, IN_BARRIER), world_size=4), [Heard(word, 1)]))


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
    first: int, step: int, count: int, name: str, name_step: int, offsets: list[int], root: str
) -> None:
    run = GroupRun(first, step, count, name, name_step)
    for data in in_groups(GroupFamily(tuple(offsets), (run,)), root):
        with suppress(BadWord):
            made_use_of(data)


@pytest.mark.parametrize("name", [DIGITS, "abc", "4 4", "\u00b2"])
def test_a_process_that_is_waited_for_has_a_number(name: str) -> None:
    (look,) = WORD.lines[0].told.view.processes
    kernel = look.samples[-1].kernel
    assert kernel is not None
    target = WaitTarget(call="waitid", kind="process", name=name)
    thread = replace(kernel.threads[0], waits_for=(target,))
    sample = replace(look.samples[-1], kernel=replace(kernel, threads=(thread,)))
    odd = with_first_rank(processes=(replace(look, samples=(*look.samples[:-1], sample)),))
    assert "that cannot be" in refusal(odd)


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), ValueError("x"), OSError()])
def test_whatever_goes_wrong_with_a_word_is_its_senders_fault(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(encoding, "can_be_reckoned_with", fails)
    assert type(error).__name__ in refusal(PACKED)
    with pytest.raises(BadWord, match=type(error).__name__):
        read_judgement(pack(Judgement(version=VERSION, stamp=3)))


def test_another_version_says_what_to_do() -> None:
    assert "install the same lightning-hangcheck" in refusal(with_state(version=VERSION + 1))


VERDICT = judge(CASE)


@pytest.mark.parametrize(
    "changes",
    [
        {"stalled_for_s": math.nan},
        {"stalled_for_s": math.inf},
        {"stalled_for_s": 1e300},
        {"stalled_for_s": -1.0},
        {"world_size": 1 << 40},
        {"stalled_since": "three o'clock"},
        {"detected_at": "2" * 10_000},
        {"culprits": (-1,)},
        {"summary": "x " * 50_000},
        {"command": "x" * 100_000},
        {"remedies": VERDICT.remedies * 30_000},
    ],
)
def test_a_judgement_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    verdict = replace(VERDICT, **changes)
    with pytest.raises(BadWord):
        read_judgement(pack(Judgement(version=VERSION, stamp=3, verdict=verdict)))


def test_a_judgement_is_read_as_it_was_told() -> None:
    told = Judgement(version=VERSION, stamp=3, verdict=VERDICT)
    assert read_judgement(pack(told)) == told
    with pytest.raises(BadWord):
        read_judgement(PACKED[:-9])
