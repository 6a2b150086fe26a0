"""The line of /proc/PID/stat is read rightly, whatever the process calls itself."""

from __future__ import annotations

import os

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hangcheck.look.proc import read_stat
from lightning_hangcheck.machine.process_stat import (
    PAGE_BYTES,
    TICKS_PER_SECOND,
    StatLine,
    parse_stat,
)

# fields 3 to 52 of a process that was killed by SIGKILL (exit status 9)
FIELDS = (
    "Z 55 55 57 0 -1 4194304 1931 0 1 0 130 27 0 0 20 0 2 0 111803 93368320 3305 "
    "18446744073709551615 1 2 3 0 0 0 0 16781318 8194 0 0 0 17 0 0 0 0 0 0 4 5 6 7 8 9 10 9"
)


@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
def test_any_process_name_leaves_the_fields_behind_it_whole(name: str) -> None:
    line = b"4711 (" + name + b") " + FIELDS.encode() + b"\n"
    assert parse_stat(line) == StatLine(
        name=name.decode(errors="replace"),
        state="Z",
        parent_pid=55,
        major_faults=1,
        cpu_s=157 / TICKS_PER_SECOND,
        started_ticks=111803,
        rss_bytes=3305 * PAGE_BYTES,
        caught_signals=8194,
        exit_status=9,
    )


@pytest.mark.parametrize("line", [b"", b"4711", b"4711 (x", b"4711 (x) S 1 2"])
def test_a_torn_line_is_an_error_not_a_wrong_answer(line: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_stat(line)


def test_our_own_line_agrees_with_psutil() -> None:
    line, known = read_stat(os.getpid()), psutil.Process()
    assert line.parent_pid == os.getppid()
    started = psutil.boot_time() + line.started_ticks / TICKS_PER_SECOND
    assert started == pytest.approx(known.create_time(), abs=1.5)
    assert line.rss_bytes == pytest.approx(known.memory_info().rss, rel=0.2)
    assert line.exit_status == 0
