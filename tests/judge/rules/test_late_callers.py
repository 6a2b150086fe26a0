"""Ranks in different collectives have parted for good where no thread may yet make the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    job,
    look,
    rank,
    torch,
    user,
    waiting_for,
)
from flights import flying
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.evidence import Frame, WaitTarget

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessLook

SLEEP = WaitTarget(call="clock_nanosleep", kind="time")
HELPER = (user("prefetch", 12),)
QUEUE_GET = Frame("Queue.get", f"{STDLIB}/queue.py", 171)
CHILD = 700
FOR_CHILD = waiting_for("process", "wait4", str(CHILD), CHILD)
OF_CHILD = waiting_for("pipe", "read", "pipe:[9]", CHILD)
ACCEPT = waiting_for("socket", "accept4", "127.0.0.1:80")
REMOTE = waiting_for("socket", "recvfrom", "10.0.0.9:443")
IN_NEWS = {"waits_for": FUTEX, "syscall": 202}
ASLEEP = {"waits_for": (SLEEP,)}
IN_SAVE = (MAIN, user("save", 31), torch("all_reduce"))


def parted(
    *threads: tuple[Any, ...],
    calls: bool | None,
    child: ProcessLook | None = None,
    nothing_new: float = 0.0,
) -> str:
    """What is told after 20 s where rank 1 has these threads: frames, state, when each wakes."""
    saves = flying(rank(0, IN_SAVE, silent=20.0), "all_reduce 1", group="1", ranks=(0, 1))
    waits = rank(1, IN_BARRIER, silent=20.0, children=[child] if child is not None else [])
    for number, (frames, state, *wakes) in enumerate(threads):
        waits = beside(waits, frames, *wakes, tid=300 + number, **state)
    waits = replace(waits, nothing_new_for_s=nothing_new)
    note = CodeNote(file=HELPER[0].file, line=HELPER[0].line, collectives_ahead=calls)
    case = job(saves, flying(waits, "barrier", ranks=(0, 1)))
    return judge(replace(case, code=(note,))).verdict


def child(**state: Any) -> ProcessLook:
    return look(IN_LOAD, pid=CHILD, role="child", **state)


def test_a_helper_that_calls_no_collective_is_no_way_out() -> None:
    """A heartbeat that sleeps, a thread that reads what a child writes, a server."""
    for state in (ASLEEP, OF_CHILD, ACCEPT, REMOTE, {"state": "R", "waits_for": ()}):
        told = parted((HELPER, state), calls=False, child=child(**ASLEEP))
        assert told == "hang", state


@pytest.mark.parametrize("calls", [True, None])
@pytest.mark.parametrize("waits", [FOR_CHILD, OF_CHILD])
def test_one_that_waits_for_a_child_may_call_it_when_that_ends(
    waits: dict[str, Any], calls: bool | None
) -> None:
    assert parted((HELPER, waits), calls=calls, child=child(**ASLEEP)) == "suspect"
    assert parted((HELPER, waits), calls=calls, child=child(cpu=1.0)) != "hang"


def test_a_child_that_waits_for_the_rank_itself_brings_nothing() -> None:
    waits_back = child(**waiting_for("pipe", "read", "pipe:[8]", 101))
    assert parted((HELPER, FOR_CHILD), calls=None, child=waits_back) == "suspect"
    ends_it = waiting_for("pipe", "read", "pipe:[9]", 101)
    assert parted((HELPER, ends_it), calls=True) == "hang", "the other end is its own"


def test_one_that_waits_for_news_is_told_by_who_could_bring_them() -> None:
    """A queue that a second thread fills once it wakes, or that nobody fills any more."""
    takes = (*HELPER, QUEUE_GET), IN_NEWS
    fills = (user("feed", 40),), ASLEEP, (9, 9, 9)
    assert parted(takes, calls=True) == "hang"
    assert parted(takes, fills, calls=True) == "suspect"


def test_one_that_wakes_and_goes_back_to_sleep_may_still_call_what_its_code_names() -> None:
    polls = HELPER, ASLEEP, (1, 2, 3)
    assert parted(polls, calls=True) == "suspect"
    assert parted(polls, calls=None) == "hang"


def test_what_an_outsider_may_bring_counts_only_for_one_that_is_known_to_call() -> None:
    for waits in (ACCEPT, REMOTE):
        assert parted((HELPER, waits), calls=True) == "suspect"
        assert parted((HELPER, waits), calls=None) == "hang"


def test_a_helper_in_a_framework_that_trains_may_call_one() -> None:
    """An asynchronous save of torch's; the threads of other libraries make no such calls."""
    saves = (torch("_do_save", "distributed/checkpoint/async_executor.py"),)
    assert parted((saves, ASLEEP, (9, 9, 9)), calls=None) == "suspect"
    uploads = (Frame("run", f"{SITE}/wandb/sdk/upload.py", 5),)
    assert parted((uploads, ASLEEP, (9, 9, 9)), calls=None) == "hang"


def test_one_that_goes_round_without_a_call_excuses_nobody() -> None:
    """An actor that steps an environment for ever."""
    steps: Any = HELPER, {"state": "R", "waits_for": ()}
    assert parted(steps, calls=None) == "healthy"
    assert parted(steps, calls=None, nothing_new=15.0) == "healthy", "in one long call"
    assert _stepping(calls=None, nothing_new=0.0) == "healthy"
    assert _stepping(calls=None, nothing_new=15.0) == "hang"
    assert _stepping(calls=True, nothing_new=15.0) == "suspect", "it may yet come to its call"


def _stepping(*, calls: bool | None, nothing_new: float) -> str:
    """What is told where the helper was at another line at each look."""
    saves = flying(rank(0, IN_SAVE, silent=20.0), "all_reduce 1", group="1", ranks=(0, 1))
    waits = beside(rank(1, IN_BARRIER, silent=20.0), HELPER, state="R", waits_for=())

    def change(number: int, states: Any, stacks: Any) -> Any:
        inner = (*HELPER, user("Env.step", 20 + number))
        return states, (stacks[0], replace(stacks[1], frames=inner))

    waits = replace(changed_rank(waits, change), nothing_new_for_s=nothing_new)
    lines = [(HELPER[0].line, calls), *((20 + number, False) for number in range(3))]
    notes = tuple(
        CodeNote(file=HELPER[0].file, line=line, collectives_ahead=known) for line, known in lines
    )
    case = job(saves, flying(waits, "barrier", ranks=(0, 1)))
    return judge(replace(case, code=notes)).verdict
