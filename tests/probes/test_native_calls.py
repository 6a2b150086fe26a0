"""A closer look shows what a thread waits in below Python, where the kernel alone does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lightning_hangcheck.probes.sample import Subject, sample_all
from lightning_hangcheck.probes.stacks.native_calls import MOST_CALLS, innermost_calls

if TYPE_CHECKING:
    from processes import StartProgram


@pytest.mark.real
def test_only_a_closer_look_has_native_calls(program: StartProgram) -> None:
    running = program("sleeping.py")
    ((plain, _),) = sample_all([Subject(pid=running.pid)], 20.0)
    ((closer, gaps),) = sample_all([Subject(pid=running.pid, closer=True)], 20.0)
    assert plain.native_calls == ()
    assert gaps == ()
    assert any("nanosleep" in call for call in closer.native_calls)


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
