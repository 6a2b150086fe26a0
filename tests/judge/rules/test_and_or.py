"""Waits that need all of some ranks, and waits that any of some threads may end."""

from __future__ import annotations

from typing import Any

import pytest
from cases import (
    FUTEX,
    IN_BARRIER,
    IN_LOAD,
    MAIN,
    SITE,
    STDLIB,
    beside,
    changed_rank,
    gone,
    job,
    look,
    rank,
    torch,
    user,
    waiting_for,
)
from flights import flying, posting
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.graph import helpless_in, solve
from lightning_hangcheck.judge.operations import AllOf
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import CodeNote, RankView
from lightning_hangcheck.model.evidence import Frame, WaitTarget

REMOTE = waiting_for("socket", "recvfrom", "10.0.0.1:443")
WANTS_LOCK = waiting_for("lock", "flock", "/data/index.lock", 100)
IN_POLL = (MAIN, user("wait_for_flag", 37))
SAVES = (user("save", 12), torch("barrier"))


def meets(view: RankView, *members: int, group: str = "0", thread: int = 0) -> RankView:
    return flying(view, "barrier", group=group, ranks=members, thread=thread)


def knows(view: RankView, *members: int, group: str = "0") -> RankView:
    """A rank that is in a group and has entered nothing there."""
    return flying(view, group=group, ranks=members, open_ops=0)


@pytest.mark.parametrize(
    ("waits", "ends", "stuck"),
    [
        # a lock and a barrier in a circle; a member that computes changes nothing
        ([((0,), AllOf((1, 2))), ((1,), (0,))], {0, 1}, {0, 1}),
        # where any suffices, it may help
        ([((0,), (1, 2)), ((1,), (0,))], {2}, set()),
        # who waits for a member of the circle waits for the circle, not for the busy one
        ([((0, 3), AllOf((1, 2))), ((1,), (0,))], {0, 1}, {0, 1, 3}),
        ([((0,), AllOf((1,))), ((1,), AllOf((2,)))], {2}, set()),
    ],
)
def test_who_can_never_go_on_waits_only_for_others_of_this_kind(
    waits: Any, ends: set[int], stuck: set[int]
) -> None:
    assert (solve(waits).ends, helpless_in(waits)) == (ends, stuck)


def test_a_rank_that_is_gone_is_where_the_graph_ends() -> None:
    assert solve([((0,), AllOf((1, 2))), ((1,), (0,))], gone={2}).ends == {2}


def circle(silent: float = 6.0, **of_2: Any) -> tuple[RankView, ...]:
    """Rank 0 keeps a lock across a barrier, rank 1 wants it, and rank 2 does this."""
    keeps = meets(rank(0, IN_BARRIER, silent=silent), 0, 1, 2)
    wants = knows(rank(1, IN_POLL, silent=silent, **WANTS_LOCK), 0, 1, 2)
    return keeps, wants, knows(rank(2, IN_LOAD, silent=0.0, **of_2), 0, 1, 2)


def test_a_lock_and_a_barrier_are_a_circle_while_a_third_rank_computes() -> None:
    verdict = judge(job(*circle(cpu=1.0)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0, 1), "file_lock")
    assert verdict.victims == ()


def test_a_circle_in_which_a_barrier_has_a_time_limit_may_end() -> None:
    step = next(frame for frame in IN_BARRIER if frame.function == "step")
    note = CodeNote(file=step.file, line=step.line, limited=True)
    assert judge(job(*circle(silent=12.0, cpu=1.0), code=(note,))).verdict == "suspect"


def saver(*, of_2: dict[str, Any]) -> str:
    """Rank 0's saver keeps the lock, in a barrier with rank 2, which does this."""
    keeps = meets(rank(0, IN_BARRIER, silent=40.0), 0, 1)
    keeps = beside(keeps, SAVES, waits_for=FUTEX, syscall=202)
    keeps = changed_rank(
        keeps, lambda _, states, stacks: (states, (stacks[0], replace(stacks[1], ident=77)))
    )
    keeps = meets(keeps, 0, 2, group="1", thread=77)
    wants = knows(rank(1, IN_POLL, silent=40.0, **WANTS_LOCK), 0, 1)
    uploads = knows(rank(2, IN_LOAD, silent=40.0, **of_2), 0, 2, group="1")
    return judge(job(keeps, wants, uploads)).verdict


def test_a_thread_in_a_barrier_has_the_patience_of_whom_it_waits_for() -> None:
    assert saver(of_2=REMOTE) == "suspect"
    assert saver(of_2=WANTS_LOCK) == "hang"


def test_a_thread_that_receives_has_the_patience_of_who_has_yet_to_send() -> None:
    keeps = meets(rank(0, IN_BARRIER, silent=40.0), 0, 1)
    keeps = beside(keeps, (user("save", 12), torch("recv")), waits_for=FUTEX, syscall=202)
    keeps = posting(keeps, order=("recv 2",))
    wants = knows(rank(1, IN_POLL, silent=40.0, **WANTS_LOCK), 0, 1)
    for at, told in ((REMOTE, "suspect"), (WANTS_LOCK, "hang")):
        sends = posting(rank(2, IN_LOAD, silent=40.0, **at))
        assert judge(job(keeps, wants, sends)).verdict == told


IN_EVENT = Frame("Event.wait", f"{STDLIB}/threading.py", 629)
IN_CONDITION = Frame("Condition.wait", f"{STDLIB}/threading.py", 327)
IN_QUEUE = Frame("Queue.get", f"{STDLIB}/queue.py", 171)


@pytest.mark.parametrize(
    ("native", "inner", "told"),
    [
        ("socket", (), "suspect"),
        ("futex", (), "hang"),
        # the library may call back what it was given, but nobody waits for a worker without work
        ("socket", (IN_EVENT,), "suspect"),
        ("socket", (IN_QUEUE, IN_EVENT), "hang"),
    ],
)
def test_a_thread_in_a_librarys_call_has_the_patience_of_the_librarys_thread(
    native: Any, inner: tuple[Frame, ...], told: str
) -> None:
    keeps = meets(rank(0, IN_BARRIER, silent=40.0), 0, 1)
    keeps = beside(keeps, (user("archive", 12), *inner), waits_for=FUTEX, syscall=202)
    waits = (WaitTarget(call="read", kind=native, name="10.0.0.1:443"),)
    keeps = changed_rank(
        keeps,
        lambda _, states, stacks: (
            tuple(
                replace(each, name="sdk-io", waits_for=waits) if each.tid > 90_000 else each
                for each in states
            ),
            stacks,
        ),
    )
    wants = knows(rank(1, IN_POLL, silent=40.0, **WANTS_LOCK), 0, 1)
    assert judge(job(keeps, wants)).verdict == told


def test_ranks_apart_have_diverged_before_the_third_has_come() -> None:
    """Rank 0 is in the group of all, rank 1 in that of the two: they never meet."""
    first = meets(knows(rank(0, IN_BARRIER, silent=6.0), 0, 1, group="1"), 0, 1, 2)
    second = knows(rank(1, (MAIN, user("tune", 9), torch("barrier")), silent=6.0), 0, 1, 2)
    second = meets(second, 0, 1, group="1")
    third = knows(rank(2, IN_LOAD, silent=0.0, cpu=1.0), 0, 1, 2)
    verdict = judge(job(first, second, third))
    assert (verdict.verdict, set(verdict.culprits)) == ("hang", {0, 1})


TIMER = (
    Frame("Thread._bootstrap", f"{STDLIB}/threading.py", 1002),
    Frame("Timer.run", f"{STDLIB}/threading.py", 1376),
    IN_EVENT,
)


@pytest.mark.parametrize(("calls", "told"), [(True, "suspect"), (False, "hang"), (None, "hang")])
def test_a_timer_may_make_the_missing_call_if_the_source_says_so(
    calls: bool | None, told: str
) -> None:
    asleep = (WaitTarget(call="futex", kind="time"),)
    first = meets(knows(rank(0, IN_BARRIER, silent=12.0), 0, 1, group="1"), 0, 1)
    first = beside(first, TIMER, wakes=(9, 9, 9), waits_for=asleep, syscall=202)
    second = knows(rank(1, (MAIN, user("tune", 9), torch("barrier")), silent=12.0), 0, 1)
    second = meets(second, 0, 1, group="1")
    note = CodeNote(file=MAIN.file, line=MAIN.line, collectives_timed=calls)
    assert judge(job(first, second, code=(note,))).verdict == told


@pytest.mark.parametrize(("ends", "told"), [(True, "suspect"), (False, "hang")])
def test_who_polls_its_thread_in_a_loop_that_ends_may_go_on(ends: bool, told: str) -> None:
    """The thread reads what a tool should write, and the tool what the rank should."""
    tool = look(IN_LOAD, pid=700, role="child", **waiting_for("pipe", "read", "pipe:[8]", 101))
    polls = (
        MAIN,
        user("ask", 30),
        Frame("Thread.join", f"{STDLIB}/threading.py", 1119),
        Frame("Thread._wait_for_tstate_lock", f"{STDLIB}/threading.py", 1139),
    )
    timed = (WaitTarget(call="futex", kind="time"),)
    asks = rank(1, polls, silent=12.0, children=[tool], waits_for=timed, syscall=202)
    reads = waiting_for("pipe", "read", "pipe:[9]", 700)
    asks = beside(asks, (user("read_all", 5),), **reads)

    def wakes(number: int, states: Any, stacks: Any) -> Any:
        return (replace(states[0], wakes_ns=number + 1), *states[1:]), stacks

    note = CodeNote(file=polls[1].file, line=polls[1].line, loop_ends=ends)
    waits = rank(0, IN_BARRIER, silent=12.0)
    assert judge(job(waits, changed_rank(asks, wakes), code=(note,))).verdict == told


@pytest.mark.parametrize(("membership", "told"), [("none", "suspect"), ("member", "dead")])
def test_a_rank_that_fails_outside_of_any_group_takes_no_other_along(
    membership: Any, told: str
) -> None:
    failed = replace(gone(1, 1), beat=Beat(pid=101, membership=membership))
    assert judge(job(rank(0, IN_LOAD, silent=31.0, **REMOTE), failed)).verdict == told


def test_a_smaller_group_does_not_wait_for_a_rank_that_ended_well() -> None:
    joins = rank(0, (MAIN, torch("init_process_group"), torch("_new_process_group_helper")))
    late = rank(1, IN_LOAD, **REMOTE)
    verdict = judge(job(joins, late, gone(2, 0)))
    assert (verdict.verdict, verdict.culprits) == ("suspect", (1,))


def test_a_message_of_another_tag_is_proven_at_once_where_all_ranks_rest() -> None:
    """Rank 1 sent what rank 0 does not take, and waits for the answer."""
    asks = knows(rank(0, (MAIN, user("exchange", 8), torch("recv")), silent=6.0), 0, 1)
    asks = posting(asks, order=("recv 1", "send 1", "recv 1"))
    sent = knows(rank(1, (MAIN, user("exchange", 9), torch("recv")), silent=6.0), 0, 1)
    sent = posting(sent, order=("send 0", "recv 0", "send 0", "recv 0"))
    verdict = judge(job(asks, sent))
    assert (verdict.verdict, verdict.culprits) == ("hang", (0, 1))
    assert verdict.cause == "collective_mismatch"
    assert "tags" in verdict.summary


@pytest.mark.parametrize("agent", ["", "TP_agent"])
def test_a_server_that_gathers_calls_waits_for_who_has_not_called(agent: str) -> None:
    served = (
        Frame("_run_function", f"{SITE}/torch/distributed/rpc/internal.py", 9),
        user("push", 10),
        IN_CONDITION,
    )
    ends = (MAIN, torch("shutdown", "distributed/rpc/api.py"))
    server = beside(rank(0, ends, silent=31.0), served, waits_for=FUTEX, syscall=202)
    server = changed_rank(
        server,
        lambda _, states, stacks: (
            tuple(replace(each, name=agent) if each.tid > 90_000 else each for each in states),
            stacks,
        ),
    )
    calls = rank(1, (MAIN, torch("rpc_sync", "distributed/rpc/api.py")), silent=31.0)
    late = rank(2, IN_LOAD, silent=31.0, **REMOTE)
    verdict = judge(job(server, calls, late))
    assert (verdict.culprits, verdict.cause) == ((2,), "network_wait")


@pytest.mark.parametrize(("timed", "told"), [(True, "suspect"), (False, "hang")])
def test_a_timer_of_another_rank_may_give_the_answer_to_a_call(timed: bool, told: str) -> None:
    """A server that gathers calls for a while answers all of them by a timer."""
    waits = (WaitTarget(call="futex", kind="time"),) if timed else FUTEX
    ends = (MAIN, torch("shutdown", "distributed/rpc/api.py"), IN_EVENT, IN_CONDITION)
    server = rank(0, ends, silent=40.0, waits_for=FUTEX, syscall=202)
    server = beside(server, (*TIMER, IN_CONDITION), waits_for=waits, syscall=202)
    calls = rank(1, (MAIN, torch("rpc_sync", "distributed/rpc/api.py")), silent=40.0)
    assert judge(job(server, calls)).verdict == told


LOOP = (
    Frame("Thread._bootstrap", f"{STDLIB}/threading.py", 1002),
    Frame("BaseEventLoop.run_forever", f"{STDLIB}/asyncio/base_events.py", 607),
    Frame("BaseEventLoop._run_once", f"{STDLIB}/asyncio/base_events.py", 1884),
    Frame("EpollSelector.select", f"{STDLIB}/selectors.py", 468),
)
RUN = Frame("Server.run", f"{SITE}/uvicorn/server.py", 65)
WAKER = (WaitTarget(call="epoll_wait", kind="socket"),)


@pytest.mark.parametrize("frames", [LOOP, (LOOP[0], RUN, *LOOP[1:])])
@pytest.mark.parametrize(("waits", "told"), [((), "suspect"), (WAKER, "hang")])
def test_a_loop_with_more_connections_than_are_named_is_not_without_work(
    frames: tuple[Frame, ...], waits: Any, told: str
) -> None:
    asks = knows(rank(1, IN_POLL, silent=40.0, **waiting_for("socket", "recvfrom", "a:1", 100)), 0)
    serves = beside(meets(rank(0, IN_BARRIER, silent=40.0), 0, 1), frames, waits_for=waits)
    assert judge(job(serves, asks)).verdict == told


@pytest.mark.parametrize(("limited", "told"), [(True, "suspect"), (False, "hang")])
def test_a_main_thread_may_leave_alone_a_thread_in_a_barrier(limited: bool, told: str) -> None:
    """It keeps a lock that the other rank needs to come to that barrier."""
    joins = (MAIN, user("finish", 50), Frame("Thread.join", f"{STDLIB}/threading.py", 1119))
    waits = (WaitTarget(call="futex", kind="time"),) if limited else FUTEX
    keeps = rank(0, joins, silent=12.0, waits_for=waits, syscall=202)
    keeps = beside(keeps, SAVES, waits_for=FUTEX, syscall=202)
    keeps = changed_rank(
        keeps,
        lambda _, states, stacks: (
            states,
            (replace(stacks[0], joined=300), replace(stacks[1], ident=77)),
        ),
    )
    keeps = meets(keeps, 0, 1, thread=77)
    wants = knows(rank(1, IN_POLL, silent=12.0, **WANTS_LOCK), 0, 1)
    assert judge(job(keeps, wants)).verdict == told
