"""Rank 1 waits through its threads and children: what the sidecar says of it."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS, end
from watch.launched import run, start_run, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
PATIENCE = {
    "HANGCHECK_IDLE_AFTER": "8",
    "HANGCHECK_PROVEN_AFTER": "6",
    "HANGCHECK_STALL_TIMEOUT": "12",
    "HANGCHECK_ABORT_GRACE": "1",
    "OMP_NUM_THREADS": "1",
}
LIMIT_S = 240


class Right(NamedTuple):
    """The right answer: cause, and a line of the user's own code by its function."""

    cause: str
    function: str
    culprits: tuple[int, ...] = (1,)


SHAPES = {
    "pool_download": Right("network_wait", "ask"),
    "thread_pool_map": Right("network_wait", "ask"),
    "queue_of_prefetcher": Right("network_wait", "ask"),
    "event_of_loop_thread": Right("network_wait", "event_of_loop_thread"),
    "loop_with_connections": Right("network_wait", "loop_with_connections"),
    "lock_under_to_thread": Right("file_lock", "take_lock"),
    "joined_writer": Right("filesystem_wait", "open_fifo"),
    "lock_in_process_pool": Right("file_lock", "lock_in_process_pool"),
    "joined_child": Right("network_wait", "joined_child"),
    "program_that_sleeps": Right("rank_stalled", "program_that_sleeps"),
    "interpreter_lock": Right("gil_held", "keep_interpreter_lock"),
    "barrier_in_thread": Right("rank_stalled", "barrier_in_thread"),
}


def _run(tmp_path: Path, shape: str, port: int, lock: Path, **environment: str) -> str:
    """Run the program, and return what was printed to stderr."""
    process = start_run(
        tmp_path,
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"),
            str(PROGRAMS / "waiting_through.py"),
            *(shape, str(port), str(lock)),
        ],
        *("--on-hang", "abort"),
        **environment,
    )
    try:
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        end(process)
    return errors


@WHEN_ASKED_FOR  # the corpus has recordings of such programs
@pytest.mark.parametrize("shape", SHAPES)
def test_a_wait_is_followed_to_where_it_ends(tmp_path: Path, shape: str) -> None:
    lock = tmp_path / "cache.lock"
    os.mkfifo(lock.with_suffix(".fifo"))
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _run(tmp_path, shape, silent.getsockname()[1], lock, **PATIENCE)
    verdict = verdict_of(tmp_path / "run")
    right = SHAPES[shape]
    assert (verdict.verdict, verdict.culprits, verdict.cause) == (
        "hang",
        right.culprits,
        right.cause,
    )
    assert f"in {right.function} (" in verdict.summary


def test_ranks_that_only_call_each_other_are_watched(tmp_path: Path) -> None:
    """Nothing numbers them but `init_rpc`, and no process group is made."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    program = [sys.executable, str(PROGRAMS / "calling_each_other.py"), str(port)]
    ended = run(tmp_path, program, "--on-hang", "abort", **PATIENCE)
    verdict = verdict_of(tmp_path / "run")
    assert ended.returncode == 75
    assert (verdict.verdict, verdict.cause, verdict.world_size) == ("hang", "rank_stalled", 2)
    assert 0 in verdict.culprits
    assert "stuck in call_back (" in verdict.summary
