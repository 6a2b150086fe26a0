"""What nodes tell each other: short, safe to read, and folded where ranks stand alike."""

from __future__ import annotations

import math
import tracemalloc
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_LOAD,
    IN_LOADER,
    NOW_NS,
    SECOND,
    gone,
    job,
    look,
    rank,
    worker,
)
from flights import flying, spinning
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some
from hypothesis import strategies as st
from mesh_jobs import OF_TENSORS, Mesh, Oddity, ranks_of
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import rebased
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.flight import (
    CallSite,
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
    GroupFamily,
    GroupRun,
)
from lightning_hangcheck.nodes import encoding
from lightning_hangcheck.nodes.encoding import MARK, pack, read_message
from lightning_hangcheck.nodes.message import (
    FOLDED_ABOVE,
    TAKEN_NS,
    TOO_LARGE,
    BadMessage,
    Judgement,
    Message,
    RoundMark,
    class_of,
    message_of,
)
from lightning_hangcheck.nodes.who_judges import PeerState
from lightning_hangcheck.watch.join_nodes import (
    join_peers,
    silent_node,
    wanted_of,
    with_silent_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict

LARGE = job(rank(0, IN_BARRIER), rank(1, IN_BARRIER), rank(2, IN_LOAD), world_size=8)


def test_a_rank_that_gets_on_tells_no_stacks() -> None:
    (line,) = message_of(job(rank(0, IN_LOAD, silent=0.2)), 0, 1).lines
    assert (line.view.processes, line.view.pid) == ((), 100)


def test_in_a_large_job_evidence_is_told_where_it_is_asked_for() -> None:
    waits, loads = message_of(LARGE, 0, 1, folded_above=0).lines
    assert (waits.ranks, loads.ranks) == ((0, 1), (2, 2))
    assert not waits.view.processes
    asked = message_of(LARGE, 0, 1, folded_above=0, wanted=[1])
    assert [bool(line.view.processes) for line in asked.lines] == [True, False]


def test_a_calm_rank_takes_no_hundred_bytes_a_second() -> None:
    calm = job(*(rank(number, silent=0.2) for number in range(8)), world_size=131_072)
    assert len(pack(message_of(calm, 0, 1))) / 8 < 100


CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD), world_size=4)
WORD = message_of(CASE, 1, 7)
PACKED = pack(WORD)
FOLDED = message_of(CASE, 1, 7, folded_above=0, wanted=[0, 1])


def refusal(data: bytes) -> str:
    with pytest.raises(BadMessage) as caught:
        read_message(data)
    return str(caught.value)


def with_state(**fields: Any) -> bytes:
    return pack(replace(WORD, **fields))


def with_first_rank(**fields: Any) -> bytes:
    first, *others = WORD.lines
    view = replace(first.view, **fields)
    return with_state(lines=(replace(first, view=view), *others))


def with_class(**fields: Any) -> bytes:
    first, *others = FOLDED.lines
    return pack(replace(FOLDED, lines=(replace(first, **fields), *others)))


@given(st.binary(max_size=400))
@example(b"\x80")  # an empty map of msgpack
def test_bytes_of_any_kind_are_refused(data: bytes) -> None:
    for one in (data, MARK + data, MARK + zlib.compress(data)):
        assert refusal(one)


@given(st.lists(st.integers(-3, 1 << 24), max_size=8))
def test_lines_of_odd_ranks_are_refused_or_joined(ranks: list[int]) -> None:
    first, *others = FOLDED.lines
    odd = replace(FOLDED, lines=(replace(first, ranks=tuple(ranks)), *others))
    with suppress(BadMessage):
        message = read_message(pack(odd))
        assert (
            len(join_peers(job(rank(0, IN_BARRIER), world_size=4), [PeerState(message, 1)]).alike)
            <= 4
        )


def test_what_is_too_large_to_travel_is_not_even_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_PACKED", len(PACKED) - 1)
    assert "at most" in refusal(PACKED)


@pytest.mark.parametrize(
    "data",
    [
        with_state(node=-1),
        with_state(world_size=1 << 40),
        with_state(software="9" * 100),
        with_state(mark=RoundMark(math.nan, 1)),
        with_state(wants=(-1,)),
        with_state(asks=("10.0.0.1",) * 1_000),
        with_state(world_size=-1),
        with_state(lines=WORD.lines * 2),
        with_first_rank(rank=1 << 40),
        with_first_rank(rank=1),
        with_first_rank(silent_for_s=math.inf),
        with_first_rank(idle_for_s=-1.0),
        with_first_rank(silent_for_s=1e300),
        with_class(ranks=()),
        with_class(ranks=(0,)),
        with_class(ranks=(1, 0)),
        with_class(ranks=(-1, 0)),
        with_class(ranks=(0, 0, 0, 0)),
        with_class(ranks=(0, 1 << 40)),
        with_class(ranks=(0, 3)),
        with_class(ranks=(2, 5_000)),
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
    view = replace(WORD.lines[0].view, flight=flight, processes=())
    words = [class_of(view, (family,), standing) for standing in (0, 7)]
    alone, alike = (pack(replace(WORD, lines=(one, *WORD.lines[1:]))) for one in words)
    return alone, alike


def made_use_of(data: bytes) -> None:
    """Do all that is done with what was read."""
    message = read_message(data)
    judge(join_peers(job(rank(3, IN_BARRIER), world_size=4), [PeerState(message, 1)]))


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
        with suppress(BadMessage):
            made_use_of(data)


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), ValueError("x"), OSError()])
def test_whatever_goes_wrong_with_a_word_is_its_senders_fault(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(zlib, "decompressobj", fails)
    assert type(error).__name__ in refusal(PACKED)


@pytest.mark.parametrize(
    "changes",
    [
        {"stalled_for_s": math.nan},
        {"stalled_for_s": math.inf},
        {"stalled_for_s": 1e300},
        {"stalled_for_s": -1.0},
        {"world_size": 1 << 40},
        {"culprits": (-1,)},
    ],
)
def test_a_judgement_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    verdict = replace(judge(CASE), **changes)
    assert refusal(with_state(judgement=Judgement(verdict)))


def traced(read: Callable[[], object]) -> tuple[object, int]:
    """What a function gives, or its refusal, and how many bytes it took at most."""
    tracemalloc.start()
    try:
        result: object = read()
    except BadMessage as error:
        result = error
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return result, most


def with_families(families: list[GroupFamily], ranks: int = 1) -> Message:
    """A message of ranks that are each in groups of these shapes."""
    flight = FlightRecord(taken_ns=1, groups=(CollectiveRecord(group="0"),) * len(families))
    views = [RankView(rank=one, flight=flight) for one in range(ranks)]
    return replace(WORD, lines=tuple(class_of(view, tuple(families), 0) for view in views))


@pytest.mark.parametrize(
    ("shapes", "ranks"), [(16, 1), (1, 1_000)], ids=["of many shapes", "of many ranks"]
)
def test_groups_of_a_million_members_are_not_made(shapes: int, ranks: int) -> None:
    """Six bytes say a million members: of groups that differ, or of each rank once more."""
    million = 1_000_000
    families = [GroupFamily((0, 1, million - n), (GroupRun(0, 1, 1, "0"),)) for n in range(shapes)]
    refused, most = traced(lambda: read_message(pack(with_families(families, ranks))))
    assert "members" in str(refused)
    assert most < 12 * 1_000_000


def test_a_node_that_sees_too_much_says_so_instead_of_being_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one node leaves, any other may read; else it would look silent."""
    monkeypatch.setattr(encoding, "MOST_PACKED", len(PACKED) - 1)
    told = read_message(pack(WORD))
    assert told.gaps == (TOO_LARGE,)
    assert [line.view.rank for line in told.lines] == [0, 1]


def test_the_evidence_of_real_training_is_told_by_a_node_of_many_ranks() -> None:
    """Ranks of real training were 40 to 57 kB each: as many bytes are made of workers here."""
    workers = [look(IN_LOAD, pid=9_000 + number, role="worker") for number in range(45)]
    waits = rank(0, IN_BARRIER, children=workers)
    told = message_of(job(*(replace(waits, rank=one) for one in range(64))), 1, 1)
    assert len(msgspec.msgpack.encode(told)) > 40_000 * 64
    assert len(read_message(pack(told)).lines[0].view.processes) == 46


def test_a_bomb_is_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_UNPACKED", 100_000)
    assert "bytes unpacked" in refusal(MARK + zlib.compress(bytes(1_000_000)))


def test_a_word_comes_out_as_it_went_in_on_another_clock() -> None:
    message = read_message(pack(message_of(CASE, 0, 1)))
    views = tuple(line.view for line in message.lines)
    assert views == rebased(CASE, TAKEN_NS - NOW_NS).ranks


# Ranks that stand alike are told once, across groups of a mesh too, and judged the same.

A_NODE = 4
HELD_NS = 1 << 40
SILENT_NS = 20 * SECOND


def told_to_first(views: Sequence[RankView], *, folded: bool, silent: int = 0) -> Case:
    """The case of the first node once all others have told it; one may be silent since."""
    world = len(views)
    nnodes = -(-world // A_NODE)
    above = 0 if folded else world
    cases = [
        job(
            *views[node * A_NODE : (node + 1) * A_NODE],
            world_size=world,
            local_world_size=min(A_NODE, world - node * A_NODE),
            nnodes=nnodes,
        )
        for node in range(nnodes)
    ]
    heard = [told(case, node, above) for node, case in enumerate(cases)][1:]
    if folded:
        wanted = wanted_of(heard, FOLDED_ABOVE + 1)
        heard = [told(case, node, above, wanted) for node, case in enumerate(cases)][1:]
    since_ns = cases[0].taken_ns - SILENT_NS
    gone = [replace(one, received_ns=since_ns) for one in heard if silent == one.message.node]
    there = [one for one in heard if silent != one.message.node]
    unheard = [silent_node(one, SILENT_NS / SECOND, (), ()) for one in gone]
    case = join_peers(cases[0], there, gone)
    return with_silent_nodes(cases[0], case, (), unheard, ())


def told(case: Case, node: int, above: int, wanted: Sequence[int] = ()) -> PeerState:
    message = message_of(case, node, 1, wanted=wanted, folded_above=above)
    return PeerState(read_message(pack(message)), HELD_NS)


def both(views: Sequence[RankView], silent: int = 0) -> tuple[Verdict, Verdict, Case]:
    case = told_to_first(views, folded=True, silent=silent)
    alone = told_to_first(views, folded=False, silent=silent)
    return judge(case), judge(alone), case


def comparable(verdict: Verdict) -> Verdict:
    """Without what is told of one process alone: of many that stand alike few are described."""
    rows = tuple(replace(row, host="", pid=None, local_rank=None) for row in verdict.ranks)
    evidence = tuple(one for one in verdict.evidence if one.rank is None)
    return replace(verdict, ranks=rows, evidence=evidence)


KINDS: dict[str, Callable[[int], RankView]] = {
    "waits": lambda number: flying(rank(number, IN_ALL_REDUCE), "all_reduce 4", "all_reduce 4"),
    "elsewhere": lambda number: flying(rank(number, IN_BARRIER), "all_reduce 4", "barrier"),
    "unrecorded": lambda number: rank(number, IN_ALL_REDUCE),
    "stalled": lambda number: flying(rank(number, IN_LOAD), "all_reduce 4", open_ops=0),
    "idle": lambda number: rank(number, IN_LOAD),
    "dead": lambda number: gone(number, -9),
    "spins": spinning,
    "calm": lambda number: rank(number, silent=0.2),
    "at its loader": lambda number: rank(number, IN_LOADER, children=(worker(0, IN_LOAD),)),
    "at its worker": lambda number: rank(number, IN_LOAD, children=(worker(0, IN_LOAD),)),
}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    some.lists(some.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True),
    some.integers(5, 60) | some.just(200),
    some.randoms(use_true_random=False),
    some.integers(0, 3),
)
def test_the_folded_job_is_judged_as_the_unfolded_one(
    kinds: list[str], world: int, random: Any, odd: int
) -> None:
    usual, *others = kinds
    chosen = [usual] * world
    for other in others:
        for number in random.sample(range(world), min(odd, world)):
            chosen[number] = other
    views = [KINDS[kind](number) for number, kind in enumerate(chosen)]
    folded, unfolded, case = both(views)
    assert comparable(folded) == comparable(unfolded)
    assert len(case.ranks) <= A_NODE + 2 * len(kinds)


def test_ranks_of_a_silent_node_are_known_where_they_were_folded() -> None:
    """All that is said of them is who they are: what they do by now, nobody knows."""
    views = [replace(KINDS["waits"](number), silent_for_s=4_000.0) for number in range(40)]
    folded, unfolded, case = both(views, silent=3)
    assert comparable(folded) == comparable(unfolded)
    assert folded.culprits == (12, 13, 14, 15)
    assert case.run.silent_nodes[0].ranks == "12-15"
    assert len(case.ranks) == A_NODE + 2


MESHES = [
    Mesh(data, stages, tensor)
    for data in (1, 2, 4, 8)
    for stages in (1, 2, 4)
    for tensor in (1, 2, 4)
    if 8 <= data * stages * tensor <= 64 and (data > 1 or tensor > 1)
]


def answers(verdict: Verdict) -> tuple[object, ...]:
    return verdict.verdict, verdict.culprits, verdict.victims, verdict.cause, verdict.phase


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(some.data())
def test_a_mesh_is_judged_as_if_nobody_were_folded(data: some.DataObject) -> None:
    mesh = data.draw(some.sampled_from(MESHES))
    kinds = ["stalled", "other", "skips"] if mesh.tensor > 1 else ["stalled"]
    oddities = some.tuples(some.sampled_from(kinds), some.integers(0, OF_TENSORS - 1))
    odd = data.draw(some.dictionaries(some.integers(0, mesh.world - 1), oddities, max_size=3))
    view = ranks_of(mesh, odd)
    folded, unfolded, case = both([view(number) for number in range(mesh.world)])
    assert answers(folded) == answers(unfolded)
    assert set(folded.wait_for) == set(unfolded.wait_for)
    assert len(case.ranks) <= A_NODE + (mesh.stages + 1) * (len(odd) + 1) * 8


@pytest.mark.parametrize("odd", ["stalled", "other"])
def test_the_odd_one_is_found_across_groups(odd: Oddity) -> None:
    """Its tensor group waits for it, stages beside for that, and all other replicas for them."""
    mesh = Mesh(8, 4, 2)
    view = ranks_of(mesh, {21: (odd, 2)})
    folded, unfolded, case = both([view(number) for number in range(mesh.world)])
    assert set(folded.wait_for) == set(unfolded.wait_for)
    assert set(folded.culprits) <= {20, 21}
    assert 21 in folded.culprits
    assert len(case.ranks) < mesh.world / 2
    assert {*folded.victims, *folded.culprits} == set(range(mesh.world))
    labels = {edge.through for edge in folded.wait_for}
    assert labels >= {"in all_reduce of mesh_tensor", "in all_reduce of mesh_data", "in recv"}


def test_a_slow_stage_is_no_hang() -> None:
    """All replicas wait for ranks of one stage, which go on through their layers."""
    mesh = Mesh(4, 4, 2)
    slow = [number for number in range(mesh.world) if mesh.seat(number)[1] == 1]
    view = ranks_of(mesh, dict.fromkeys(slow, ("slow", 1)))
    folded, unfolded, _ = both([view(number) for number in range(mesh.world)])
    assert folded.verdict == unfolded.verdict == "healthy"
