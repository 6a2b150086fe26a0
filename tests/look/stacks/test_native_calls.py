"""A closer look shows what a thread waits in below Python, where the kernel alone does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S

from lightning_hangcheck.look.proc import thread_ids
from lightning_hangcheck.look.py_spy import MOST_CALLS, innermost_calls, native_calls
from lightning_hangcheck.look.sample import Target, sample_all
from lightning_hangcheck.machine import read_stat

if TYPE_CHECKING:
    from processes import StartProgram


@WHEN_ASKED_FOR
@pytest.mark.real
def test_only_a_closer_look_has_native_calls(program: StartProgram) -> None:
    running = program("sleeping.py")
    ((plain, _),) = sample_all([Target(pid=running.pid)], PATIENCE_S)
    ((closer, gaps),) = sample_all([Target(pid=running.pid)], PATIENCE_S, closer=(0,))
    assert plain.native_calls == ()
    assert gaps == ()
    assert any("sleep" in call for call in closer.native_calls)


def test_calls_end_at_the_innermost_python_frame_and_are_bounded() -> None:
    native = [{"name": f"call{number}", "module": "/lib/libc10.so"} for number in range(20)]
    nameless = {"name": "0x7f032024524a", "module": "/lib/libc.so.6"}
    python = {"name": "load", "module": None}
    threads = [
        {"os_thread_id": 8, "frames": [python]},
        {"os_thread_id": 7, "frames": [nameless, *native[:3], python, *native]},
    ]
    assert innermost_calls(msgspec.json.encode(threads), 7) == ("call2", "call1", "call0")
    many = [{"os_thread_id": 7, "frames": [*native, python]}]
    assert len(innermost_calls(msgspec.json.encode(many), 7)) == MOST_CALLS


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_look_that_is_killed_leaves_nothing_stopped(program: StartProgram) -> None:
    running = program("many_threads.py", "200")
    for limit_s in (0.02, 0.05, 0.1, 0.2):
        native_calls(running.pid, 3, limit_s)
        tids = thread_ids(running.pid)
        assert {read_stat(running.pid, tid).state for tid in tids}.isdisjoint("Tt")
    assert running.process.poll() is None
