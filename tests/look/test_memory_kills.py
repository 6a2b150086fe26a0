"""The kernel's count of processes that it ended for want of memory: read around a real such end."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from processes import end

from lightning_hangcheck.look.kernel import KillCounter, kill_counter
from lightning_hangcheck.machine.control_groups import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
EATS = "import sys; sys.stdin.readline(); bytearray(400 << 20)"


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of our own with 64 MiB; only root on some machines may have one."""
    separate = (GROUPS / "memory").is_dir()
    folder = GROUPS / ("memory" if separate else "") / f"hangcheck-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if separate else "memory.max"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(64 * MIB))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group can be made here ({error.strerror})")
    yield folder
    folder.rmdir()


def test_an_end_for_want_of_memory_is_counted(group: Path) -> None:
    eater = subprocess.Popen([sys.executable, "-c", EATS], stdin=subprocess.PIPE, text=True)
    try:
        (group / "cgroup.procs").write_text(str(eater.pid))
        counter = kill_counter(eater.pid)
        assert counter is not None
        assert (counter.scope, counter.since()) == ("control group", 0)
        eater.communicate("eat\n", timeout=120)
        assert eater.returncode == -9
        assert counter.since() == 1
    finally:
        end(eater)


def test_without_control_groups_the_machines_counter_is_read(tmp_path: Path) -> None:
    counter = kill_counter(os.getpid(), groups=tmp_path)
    assert counter is not None
    assert counter == KillCounter("machine", "/proc/vmstat", counter.kills)


def test_a_group_that_is_gone_counts_nothing_more(tmp_path: Path) -> None:
    assert KillCounter("control group", str(tmp_path / "memory.events"), 3).since() == 0
