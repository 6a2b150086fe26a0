"""Where ways part: by frames, by numbers, by an operation walked past, and by messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import (
    C10D,
    FUTEX,
    IN_ALL_REDUCE,
    IN_BACKWARD,
    IN_BARRIER,
    IN_LOAD,
    MAIN,
    NOW_NS,
    STDLIB,
    gone,
    job,
    rank,
    torch,
    user,
)
from flights import AT_ITEM, IN_HOOK, IN_LOOP, PARKED, flying, on_device, posting, spinning
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import (
    CallSite,
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
    Message,
)

if TYPE_CHECKING:
    from cases import Frames

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.verdict import Verdict


def test_a_rank_that_ended_well_after_fewer_steps_ran_out_of_work() -> None:
    beat = Beat(pid=101, rank=1, beats=40, step=30, ending="finished")
    left = replace(gone(1, 0), beat=beat)
    waits = rank(0, IN_ALL_REDUCE, beat=Beat(pid=100, rank=0, beats=40, step=31))
    verdict = judge(job(waits, left))
    assert (verdict.culprits, verdict.cause) == ((1,), "uneven_work")
    same_step = replace(left, beat=replace(beat, step=31))
    assert judge(job(waits, same_step)).cause == "process_dead"


def test_parting_long_before_the_wait_is_found() -> None:
    """An extra broadcast that ended at once, because its root waits for nobody, shifts the rest."""
    case = job(
        flying(rank(0, IN_LOOP), "all_reduce 4", "broadcast 1", "all_reduce 4", "all_reduce 4"),
        flying(rank(1, IN_LOOP), "all_reduce 4", "all_reduce 4", open_ops=1),
    )
    verdict = judge(case)
    assert verdict.culprits == (0,)
    assert "last agreed at #1 of the default group" in verdict.summary


IN_LOG = CallSite((MAIN, user("train", 22), user("Log.write", 55)), root="root 0")
AT_END = CallSite((MAIN, user("train", 30)))


@pytest.mark.parametrize(("open_ops", "verdict"), [(2, "hang"), (1, "suspect")])
@pytest.mark.parametrize("differs", ["root", "shape", "kind"])
def test_what_differs_is_a_mismatch_until_all_ranks_have_been_through_it(
    differs: str, open_ops: int, verdict: str
) -> None:
    """All wait in one barrier: who has ended the operation before it is not held up by that.

    That the barrier does not end, though all are in it and no device works, is suspected.
    """
    ops = {"root": ("broadcast 1",) * 2, "shape": ("broadcast 1", "broadcast 2")}
    first = ops.get(differs, ("broadcast 1", "all_reduce 1"))
    roots = [CallSite((MAIN, user("step", 88)), root=f"root {n}") for n in range(2)]
    sites = roots if differs == "root" else [roots[0]] * 2
    case = job(
        *(
            flying(
                rank(n, IN_BARRIER), first[n], "barrier",
                called=[sites[n], AT_END], open_ops=open_ops,
            )
            for n in range(2)
        )
    )  # fmt: skip
    judged = judge(case)
    assert judged.verdict == verdict
    if open_ops == 2:
        assert (judged.culprits, judged.cause) == ((0, 1), "collective_mismatch")
    else:
        assert judged.cause == "unknown"


def test_a_scalar_and_a_vector_of_one_meet() -> None:
    vector, scalar = (flying(rank(n, IN_ALL_REDUCE), "all_reduce 1") for n in range(2))
    assert scalar.flight is not None
    (group,) = scalar.flight.groups
    entries = (replace(group.entries[0], sizes=((),)),)
    flight = replace(scalar.flight, groups=(replace(group, entries=entries),))
    judged = judge(job(vector, replace(scalar, flight=flight), rank(2, IN_LOAD)))
    assert judged.culprits == (2,)


def test_who_ended_well_is_in_no_group_that_goes_on() -> None:
    """No record has a monitored barrier, so nobody knows in which of its groups a rank is."""
    monitored = (MAIN, user("step", 9), Frame("monitored_barrier", C10D, 1))
    waits = flying(rank(0, monitored), "all_reduce 4", open_ops=0)
    assert judge(job(waits, rank(1, IN_LOAD), gone(2, 0))).culprits == (1,)
    assert 2 in judge(job(waits, rank(1, IN_LOAD), gone(2, 1))).culprits
    assert judge(job(waits, gone(1, 0))).culprits == (1,)


def test_news_that_torch_alone_may_bring_is_of_the_operation_that_is_open() -> None:
    """An event that the callback of a collective's future sets."""
    in_event = (MAIN, user("Reduced.get", 9), Frame("wait", f"{STDLIB}/threading.py", 629))
    waits = rank(0, in_event, waits_for=FUTEX, syscall=202)
    skips = flying(rank(1, IN_BARRIER), *["all_reduce 4", "barrier"] * 2, "barrier")
    assert judge(job(waits, skips)).culprits == (0,)
    began = flying(waits, *["all_reduce 4", "barrier"] * 2, "all_reduce 4")
    judged = judge(job(began, skips))
    assert (judged.culprits, judged.cause) == ((1,), "rank_diverged")


def test_a_root_that_only_one_rank_noted_is_no_mismatch() -> None:
    ops = "broadcast 1", "barrier"
    noted = flying(rank(0, IN_BARRIER), *ops, called=[IN_LOG, AT_END], open_ops=2)
    case = job(noted, flying(rank(1, IN_BARRIER), *ops, open_ops=2))
    assert judge(case).cause != "collective_mismatch"


@pytest.mark.parametrize("way", [IN_HOOK, (MAIN, user("save", 7), Frame("barrier", C10D, 1))])
def test_without_a_record_frames_tell_with_less_confidence(way: Frames) -> None:
    """A rank in the user's hook against one that Lightning parked at its next step."""
    verdict = judge(job(rank(0, way), rank(1, PARKED)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0,), "rank_diverged")
    assert verdict.confidence == 0.6
    assert "flight record" in [gap.what for gap in verdict.gaps]
    early = judge(job(rank(0, way, silent=11.0), rank(1, PARKED, silent=11.0)))
    assert early.verdict == "suspect"


def entering(view: RankView, letters: str, still_open: str) -> RankView:
    """Give a rank a record of two groups, ``a`` of the steps and ``b`` of saves, in this order.

    The newest of ``still_open`` has not ended.
    """
    for letter, (group, op) in {"a": ("0", "all_reduce"), "b": ("1", "barrier")}.items():
        at = [when for when, one in enumerate(letters, start=1) if one == letter]
        still = int(letter == still_open)
        view = flying(view, *[op] * len(at), group=group, open_ops=still, ranks=(0, 1, 2, 3), at=at)
    return view


def waiting_for_save(number: int, letters: str) -> RankView:
    """A rank that asks for the end of a save that it started before."""
    return entering(rank(number, IN_BARRIER, silent=6.0), letters, "b")


def stepping(number: int, letters: str) -> RankView:
    """A rank that waits for the others in its step."""
    return entering(rank(number, IN_BACKWARD, silent=6.0), letters, "a")


def judged(*views: RankView) -> Verdict:
    return judge(job(*views))


def test_threads_that_enter_side_by_side_come_a_step_sooner_or_later() -> None:
    """As far as the ranks were apart before, and no farther."""
    verdict = judged(
        waiting_for_save(0, "aaaaab" + "aaaaaab" + "aaaaab" + "aa"),
        stepping(1, "aaaaaab" + "aaaaaab" + "aaaaaaaa"),
    )
    assert verdict.culprits == (1,)


@pytest.mark.parametrize(
    "early", ["aab" + "a", "aaaaaab" + "a"], ids=["sooner than ever", "later than ever"]
)
def test_where_no_earlier_step_had_it_there_nobody_is_named_for_it(early: str) -> None:
    saving = "aaab"
    past = early.replace("b", "") + "a"
    verdict = judged(waiting_for_save(0, saving * 2 + early), stepping(1, saving * 2 + past))
    assert verdict.culprits != (1,)


def test_what_all_have_entered_ends_and_whoever_is_behind_in_it_goes_on() -> None:
    """Rank 0 gets no processor: it stands in what its partner left long ago. Nobody parted."""
    newest = [(9, "row", 4), (12, "row", 4), (12, "column", 5), (12, "column", 5)]
    ranks = []
    for number, (row, waits_in, column) in enumerate(newest):
        view = rank(number, IN_ALL_REDUCE, silent=6.0)
        first, second = number // 2 * 2, number % 2
        for name, ops, members in (
            ("row", row, (first, first + 1)),
            ("column", column, (second, second + 2)),
        ):
            still, group = int(name == waits_in), f"{name} {members}"
            view = flying(view, *["all_reduce"] * ops, group=group, open_ops=still, ranks=members)
        ranks.append(view)
    verdict = judged(*ranks)
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("suspect", (0,), "unknown")


@pytest.mark.parametrize(
    ("before", "ways", "left"),
    [
        (["a 1"] * 20 + ["b 1"] + ["a 1"] * 20, ("b 1", "a 1"), (1,)),  # it came round once
        (["a 1"] * 20 + ["b 1"] + ["a 1"] * 19, ("b 1", "a 1"), (0, 1)),
        (["a 1", "b 1"], ("a 1", "b 1"), (1,)),  # the first round has just ended
        (["a 1", "b 1", "c 1"], ("c 1", "a 1"), (0,)),
    ],
)
def test_what_came_once_tells_who_left(
    before: list[str], ways: tuple[str, str], left: tuple[int, ...]
) -> None:
    case = job(*(flying(rank(n, IN_BARRIER), *before, way) for n, way in enumerate(ways)))
    assert judge(case).culprits == left


def test_a_rank_that_alone_handles_an_exception_has_left() -> None:
    """A ``finally`` behind the loop looks as the end of its data does."""
    error = "ValueError: no such split in check (demo/train.py:12)"

    def told(handling: str, other: str = "") -> Verdict:
        ways = (("all_reduce 4", IN_LOOP, other), ("barrier", IN_BARRIER, handling))
        return judge(
            job(
                *(
                    flying(rank(n, way, beat=Beat(pid=100 + n, rank=n, handling=words)), op)
                    for n, (op, way, words) in enumerate(ways)
                )
            )
        )

    verdict = told(error)
    assert (verdict.culprits, verdict.cause) == ((1,), "rank_diverged")
    assert f"(handling {error})" in verdict.summary
    assert "handling" not in told("").summary
    assert told(error, error).culprits == told("").culprits


# The pairs of records on which torch tests its own analyzer (test_fr_analysis.py, 2026), judged by
# ours: operation, sizes and state of two ranks under one number, and what torch's analyzer says. A
# culprit is never named where two ranks differ and nothing tells who is right.

SQUARE = (4, 4)
ALL_REDUCE = CollectiveEntry(seq=1, op="all_reduce", sizes=(SQUARE,), dtypes=("Float",))
OTHER_SIZE = replace(ALL_REDUCE, sizes=((5, 4),))
OTHER_TYPE = replace(ALL_REDUCE, dtypes=("Half",))
ALL_GATHER = replace(ALL_REDUCE, op="all_gather")
ALL_TO_ALL = replace(ALL_REDUCE, op="all_to_all")
GATHER = replace(ALL_REDUCE, op="gather")
ENDED = replace(ALL_REDUCE, retired=True)


def recorded(number: int, entry: CollectiveEntry) -> RankView:
    """A rank that waits in this operation; one that ended it has gone on."""
    inside = (MAIN, user("step", 90), torch(entry.op))
    view = rank(number, IN_LOAD if entry.retired else inside, silent=40.0)
    record = CollectiveRecord(
        group="0",
        description="default_pg",
        ranks=(0, 1),
        on_device=True,
        last_enqueued=entry.seq,
        last_completed=entry.seq if entry.retired else entry.seq - 1,
        entries=(entry,),
    )
    return replace(view, flight=FlightRecord(taken_ns=1, groups=(record,)))


@pytest.mark.parametrize(
    ("first", "second", "torch_says"),
    [
        (ALL_REDUCE, ALL_GATHER, "COLLECTIVE_TYPE_MISMATCH"),
        (ALL_REDUCE, OTHER_SIZE, "SIZE_OR_SYNTAX_MISMATCH"),
        (ALL_REDUCE, OTHER_TYPE, "COLLECTIVE_DTYPE_MISMATCH"),
    ],
)
def test_what_torch_finds_between_two_ranks_is_found(
    first: CollectiveEntry, second: CollectiveEntry, torch_says: str
) -> None:
    verdict = judge(job(recorded(0, first), recorded(1, second)))
    assert verdict.verdict == "hang", torch_says
    assert verdict.cause in ("collective_mismatch", "rank_diverged")
    assert verdict.culprits == (0, 1)


@pytest.mark.parametrize(
    ("first", "second", "torch_says"),
    [
        (ALL_REDUCE, ALL_REDUCE, "FULLY_MATCHED"),
        (GATHER, GATHER, "FULLY_MATCHED"),
        (ALL_TO_ALL, ALL_TO_ALL, "UNDECIDED"),
        (ALL_REDUCE, ENDED, "COLLECTIVE_STATE_MISMATCH"),
    ],
    ids=["equal", "gather", "all_to_all", "one is a moment ahead"],
)
def test_where_ranks_agree_nobody_parted(
    first: CollectiveEntry, second: CollectiveEntry, torch_says: str
) -> None:
    """Torch calls it a mismatch, too, that one rank ended what the other has open.

    That is how ranks look of which one is behind, or whose records were taken moments apart.
    """
    verdict = judge(job(recorded(0, first), recorded(1, second)))
    assert verdict.cause not in ("collective_mismatch", "rank_diverged"), torch_says


# Sends and receives: who waits for which other end, and where that ends.

IN_RECV = (MAIN, user("forward", 20), torch("recv"))
IN_SEND = (MAIN, user("backward", 25), torch("send"))


def test_two_that_wait_for_each_other_in_messages_of_other_tags_are_told() -> None:
    """As many were sent as received, so by number they match, and no byte goes anywhere."""
    sends = posting(rank(0, IN_SEND, silent=6.0), sent={1: 17}, received={1: 16})
    asks = posting(rank(1, IN_RECV, silent=6.0), sent={0: 16}, received={0: 17})
    verdict = judge(job(sends, asks))
    assert (verdict.verdict, verdict.culprits) == ("suspect", (0, 1))
    later = judge(job(*(replace(one, silent_for_s=31.0, idle_for_s=31.0) for one in (sends, asks))))
    assert (later.verdict, later.cause) == ("hang", "collective_mismatch")
    assert "tags" in later.summary
    assert "tag" in later.remedies[0].text


def test_two_stages_whose_messages_differ_are_told_and_the_stages_beside_them_wait() -> None:
    """Stage 1 dropped a micro-batch, and sends the next one under that one's number."""
    verdict = judge(
        job(
            posting(rank(0, IN_RECV, silent=31.0), sent={1: 17}, received={1: 17}),
            posting(rank(1, IN_SEND, silent=31.0), sent={0: 16, 2: 17}, received={0: 17, 2: 16}),
            posting(rank(2, IN_RECV, silent=31.0), sent={1: 16, 3: 16}, received={1: 17, 3: 16}),
            posting(rank(3, IN_RECV, silent=31.0), sent={2: 16}, received={2: 17}),
        )
    )
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1, 2), (0, 3))
    assert verdict.cause == "collective_mismatch"
    assert verdict.summary.startswith(
        "ranks 1-2 have waited for 31 s: rank 1 in send called in backward (demo/train.py:25), "
        "rank 2 in recv"
    )
    assert "their tags, groups or sizes differ; ranks 0,3 wait for them" in verdict.summary


def test_a_rank_whose_device_keeps_it_for_a_message_waits_for_the_other_end() -> None:
    """Rank 1 asks its GPU for a number behind a receive for which rank 0 never sends.

    The GPU may as well work beside a receive that was posted early: that has a computation's time.
    """
    receives = posting(on_device(spinning(1), first=41), received={0: 1})
    goes_on = posting(on_device(spinning(0), "barrier", first=41))

    def after(seconds: float) -> Verdict:
        return judge(job(*(replace(one, silent_for_s=seconds) for one in (goes_on, receives))))

    assert [after(seconds).verdict for seconds in (299.0, 300.0)] == ["healthy", "hang"]
    verdict = after(300.0)
    assert (verdict.culprits, verdict.cause) == ((0, 1), "rank_diverged")
    assert ("rank:1", "rank:0") in {(edge.source, edge.target) for edge in verdict.wait_for}


def _queued(number: int, *messages: str, frames: Frames = AT_ITEM, ended: int = 0) -> RankView:
    """A rank that has posted these to its GPU, oldest first, of which some have ended there.

    As NCCL's record has them, and as ranks count them.
    """
    told = tuple(
        Message(
            seq=at,
            away=int(peer) - number,
            sends=kind == "send",
            retired=at <= ended,
            created_ns=NOW_NS + at,
        )
        for at, one in enumerate(messages, start=1)
        for kind, peer in [one.split()]
    )
    view = on_device(spinning(number, frames))
    group = replace(view.flight.groups[0], messages=told)
    return posting(replace(view, flight=replace(view.flight, groups=(group,))), order=messages)


def test_stages_whose_gpus_hold_messages_behind_one_that_never_comes_wait_in_a_circle() -> None:
    """Stage 2 asks for a third micro-batch; the gradients are posted on all GPUs, behind that."""
    first = _queued(0, *2 * ["send 1"], *2 * ["recv 1"], ended=2)
    middle = _queued(1, *2 * ["recv 0", "send 2"], *2 * ["recv 2", "send 0"], ended=4)
    last = _queued(2, *3 * ["recv 1"], *3 * ["send 1"], ended=2)

    def after(seconds: float) -> Verdict:
        ranks = (replace(one, silent_for_s=seconds) for one in (first, middle, last))
        return judge(job(*ranks))

    assert after(299.0).verdict != "hang"  # a GPU may compute beside a message
    verdict = after(300.0)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1, 2), (0,))
    assert {(edge.source, edge.target) for edge in verdict.wait_for} == {
        ("rank:0", "rank:1"),
        ("rank:1", "rank:2"),
        ("rank:2", "rank:1"),
    }


def _averaging(view: RankView, group: str, ranks: tuple[int, ...], *, done: bool) -> RankView:
    """After its messages it has posted what averages gradients with the same stage elsewhere."""
    after = CollectiveEntry(seq=1, op="all_reduce", retired=done, created_ns=NOW_NS + 100)
    record = CollectiveRecord(
        group=group, ranks=ranks, on_device=True, last_enqueued=1, entries=(after,)
    )
    return replace(view, flight=replace(view.flight, groups=(*view.flight.groups, record)))


def test_who_waits_behind_a_message_keeps_up_the_collective_that_it_has_posted() -> None:
    """Two pipelines of two stages; in the first one stage asks for one micro-batch too many."""
    stages = (
        _queued(0, *2 * ["send 1"], *2 * ["recv 1"], ended=2),
        _queued(1, *3 * ["recv 0"], *3 * ["send 0"], ended=2),
        _queued(2, *2 * ["send 3"], *2 * ["recv 3"], ended=4),
        _queued(3, *2 * ["recv 2"], *2 * ["send 2"], ended=4),
    )
    ranks = [
        _averaging(one, str(1 + one.rank % 2), (one.rank % 2, 2 + one.rank % 2), done=False)
        for one in stages
    ]
    verdict = judge(job(*(replace(one, silent_for_s=300.0) for one in ranks)))
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (0, 1), (2, 3))
    edges = {(edge.source, edge.target) for edge in verdict.wait_for}
    assert {("rank:2", "rank:0"), ("rank:3", "rank:1")} <= edges


def test_a_rank_whose_partner_waits_for_another_waits_for_that_one_too() -> None:
    """Rank 1 is in its own code. Rank 0 waits for it, with an operation behind that of rank 2."""
    own = (MAIN, user("load", 7))
    waits, away, behind = (
        _averaging(_queued(number, frames=frames), group, ranks, done=done)
        for number, frames, group, ranks, done in (
            (0, AT_ITEM, "1", (0, 1), False),
            (1, own, "2", (1,), True),
            (2, AT_ITEM, "3", (0, 2), False),
        )
    )
    later = CollectiveEntry(seq=1, op="all_reduce", created_ns=NOW_NS + 200)
    shared = CollectiveRecord(
        group="3", ranks=(0, 2), on_device=True, last_enqueued=1, entries=(later,)
    )
    groups = (*waits.flight.groups, shared)
    waits = replace(waits, flight=replace(waits.flight, groups=groups))
    verdict = judge(job(waits, replace(away, processes=rank(1, own).processes), behind))
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2))


def test_a_gpu_that_has_come_to_a_message_is_not_behind_in_it() -> None:
    """Both ends are at it: nothing shows that either stands before it."""
    ends = (_queued(0, "send 1", "send 2"), _queued(1, "recv 0"), _queued(2, "recv 0"))
    assert judge(job(*ends)).verdict == "healthy"


HALO = [7, -7, 9, -9]
"""Sent to rank 6, asked of rank 6, sent to rank 8, asked of rank 8: none of them is seen."""


def _names_first(posted: list[int]) -> bool:
    """Whether rank 0 is named for what it posted, where ranks 1 and 2 follow their steps."""

    def receives(number: int, newest: list[int]) -> RankView:
        words = [f"{'send' if one > 0 else 'recv'} {abs(one) - 1}" for one in newest]
        return posting(rank(number, IN_RECV), order=words)

    return judge(job(receives(0, posted), *(receives(n, 9 * HALO) for n in (1, 2)))).culprits == (
        0,
    )


@pytest.mark.parametrize(
    ("posted", "departs"),
    [
        (10 * HALO, False),
        (10 * HALO + HALO[:3], False),
        ([8, 8, 5, *10 * HALO], False),
        ([*HALO[2:], *10 * HALO, 5], True),
        (10 * HALO + [-9], True),
        (10 * HALO + [7, 7], True),
        (10 * HALO + [5] + 2 * HALO, False),
        (2 * HALO + [5], False),
        (20 * [5], False),
        ([*20 * [5], -5], True),
        (list(range(10, 60)), False),
    ],
)
def test_a_pattern_is_what_was_repeated_three_times(posted: list[int], *, departs: bool) -> None:
    assert _names_first(posted) is departs
