"""A timer may call anything back but a lock, and a join is for one thread."""

from __future__ import annotations

import msgspec
import pytest
from cases import MAIN, SITE, STDLIB, user
from judge.reading.waiting_threads import (
    FUTEX,
    IN_JOIN,
    IN_PRODUCE,
    IN_QUEUE,
    LIBRARY_WAIT,
    Thread,
    ends,
    parked,
    process,
)

from lightning_hangcheck.judge.waits import in_own_memory, limited, waits_in_vain
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessLook,
    WaitTarget,
)

TIMER = (
    Frame("Thread._bootstrap", f"{STDLIB}/threading.py", 1002),
    Frame("Timer.run", f"{STDLIB}/threading.py", 1399),
    Frame("Event.wait", f"{STDLIB}/threading.py", 629),
    LIBRARY_WAIT,
)
UNTIL_TIME = (WaitTarget(call="futex", kind="time"),)
IN_LOCK = (MAIN, user("save", 32), Frame("Condition.__enter__", f"{STDLIB}/threading.py", 271))


def timer() -> Thread:
    return Thread(TIMER, UNTIL_TIME, syscall=FUTEX)


@pytest.mark.parametrize("main", [IN_QUEUE, IN_JOIN])
@pytest.mark.parametrize("others", [(), (parked((*IN_PRODUCE, LIBRARY_WAIT)),)])
def test_a_timer_that_has_not_run_out_may_end_a_wait_for_news_or_be_joined(
    main: tuple[Frame, ...], others: tuple[Thread, ...]
) -> None:
    """Whatever it was given to call, it will: that wait has an end."""
    seen = process(parked(main), *others, timer())
    assert limited(seen)
    assert not in_own_memory(seen)
    assert not waits_in_vain(seen)


def test_a_timer_gives_no_lock_back() -> None:
    locked = parked((user("push", 7), IN_LOCK[-1]))
    seen = process(parked(IN_LOCK), locked, timer())
    assert not limited(seen)
    assert waits_in_vain(seen)


def joining(seen: ProcessLook, tid: int) -> ProcessLook:
    """The process, its main thread known to join a thread."""
    samples = []
    for one in seen.samples:
        assert one.stack is not None
        main, *others = one.stack.threads
        threads = (msgspec.structs.replace(main, joined=tid), *others)
        stack = msgspec.structs.replace(one.stack, threads=threads)
        samples.append(msgspec.structs.replace(one, stack=stack))
    return msgspec.structs.replace(seen, samples=tuple(samples))


def test_of_several_threads_the_one_that_is_joined_counts() -> None:
    locked = parked((user("push", 7), IN_LOCK[-1]))
    seen = process(parked(IN_JOIN), locked, timer())
    assert waits_in_vain(joining(seen, 201))
    assert not waits_in_vain(joining(seen, 202))
    assert limited(joining(seen, 202))


def test_a_main_thread_that_serves_others_ends_nobodys_wait_while_it_waits_for_calls() -> None:
    """That of an actor of Ray: its loop in C++ is woken by an eventfd, and by timers of its own."""
    serves = (Frame("Worker.main_loop", f"{SITE}/ray/_private/worker.py", 1069),)
    events, files = (
        tuple(WaitTarget(call="epoll_wait", kind="other", name=name) for name in names)
        for names in (("eventfd:[49]", "anon_inode:[timerfd]"), ("anon_inode:inotify",))
    )
    assert ends(parked(IN_QUEUE), Thread(serves, events, syscall=232)) == []
    assert ends(parked(IN_QUEUE), Thread(serves, files, syscall=232)) == ["Worker.main_loop"]
