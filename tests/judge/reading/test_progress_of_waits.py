"""Bytes and work of the threads that could end a wait are progress, those of others are none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cases import MAIN, rank, user
from judge.reading.waiting_threads import (
    IN_FETCH,
    IN_FUTURE,
    IN_LOOP,
    IN_METRICS,
    IN_QUEUE,
    SELF_PIPE,
    SERVER,
    TRACKER,
    Thread,
    parked,
    process,
)

from lightning_hangcheck.judge.activity import read_process_activity, read_rank_activity


def _activity(*threads: Thread) -> str:
    view = msgspec.structs.replace(rank(1, IN_QUEUE), processes=(process(*threads),))
    return read_rank_activity(view).activity


def test_any_byte_at_the_awaited_connection_is_progress_and_none_elsewhere() -> None:
    slow = Thread(IN_FETCH, (SERVER,), carried=20)
    assert _activity(parked(IN_FUTURE), slow) == "moving"
    metrics = Thread(IN_METRICS, (TRACKER,), carried=20)
    assert _activity(parked(IN_FUTURE), metrics, Thread(IN_FETCH, (SERVER,))) == "idle"


def test_another_connection_to_the_same_place_is_progress() -> None:
    asks = process(parked(IN_FUTURE), Thread(IN_FETCH, (SERVER,)))
    *earlier, newest = asks.samples
    assert newest.kernel is not None
    main, helper = newest.kernel.threads
    again = (msgspec.structs.replace(SERVER, connection=7, carried_bytes=0),)
    threads = (main, msgspec.structs.replace(helper, waits_for=again))
    kernel = msgspec.structs.replace(newest.kernel, threads=threads)
    samples = (*earlier, msgspec.structs.replace(newest, kernel=kernel))
    moved = msgspec.structs.replace(asks, samples=samples)
    assert read_process_activity(moved).activity == "moving"
    assert read_process_activity(asks).activity == "idle"


def test_a_loop_at_several_connections_stands_still_until_one_of_them_carries() -> None:
    several = tuple(msgspec.structs.replace(SERVER, connection=inode) for inode in (7, 8, 9))
    loop = Thread(IN_LOOP, (*several, SELF_PIPE), syscall=232)
    assert _activity(loop) == "idle"
    assert _activity(msgspec.structs.replace(loop, carried=20)) == "moving"


@pytest.mark.parametrize(
    ("later", "activity"),
    [
        ({"carried_bytes": None}, "idle"),
        ({"carried_bytes": None, "connection": None}, "idle"),
        ({"connection": 10, "carried_bytes": 0}, "moving"),
        (None, "moving"),
    ],
)
def test_a_connection_that_the_kernel_left_out_of_its_list_has_carried_nothing(
    later: dict[str, Any] | None, activity: str
) -> None:
    """It may skip sockets where others come and go meanwhile; one that is gone was answered."""
    several = [msgspec.structs.replace(SERVER, connection=inode) for inode in (7, 8, 9)]
    seen = process(Thread(IN_LOOP, (*several, SELF_PIPE), syscall=232))
    *earlier, newest = seen.samples
    assert newest.kernel is not None
    (main,) = newest.kernel.threads
    first, *others = main.waits_for
    changed = [msgspec.structs.replace(first, **later)] if later is not None else []
    threads = (msgspec.structs.replace(main, waits_for=(*changed, *others)),)
    kernel = msgspec.structs.replace(newest.kernel, threads=threads)
    samples = (*earlier, msgspec.structs.replace(newest, kernel=kernel))
    read = read_process_activity(msgspec.structs.replace(seen, samples=samples))
    assert read.activity == activity


def test_a_helper_that_computes_something_else_excuses_nobody() -> None:
    computes = Thread(IN_METRICS, syscall=None, cpu=1.0)
    fetches = Thread(IN_FETCH, (SERVER,))
    assert _activity(parked(IN_FUTURE), fetches, computes) == "idle"
    receives = Thread((MAIN, user("receive", 3)), (SERVER,))
    assert _activity(receives, computes) == "idle"
    works = Thread(IN_FETCH, syscall=None, cpu=1.0)
    assert _activity(parked(IN_FUTURE), works) == "busy"
