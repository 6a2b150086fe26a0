"""What the kernel says of memory: ends for want of it, and the tightest limit of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import end

from lightning_hangcheck.look.kernel import KillCounter, kill_counter, memory_use
from lightning_hangcheck.machine import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    gone = KillCounter("control group", str(tmp_path / "memory.events"), 3)
    assert gone.since() == 0, "of a group that is gone"


def test_the_machines_memory_is_a_limit_for_every_process(tmp_path: Path) -> None:
    use = memory_use(os.getpid(), groups=tmp_path)
    assert use is not None
    assert (use.scope, use.limit_bytes) == ("machine", psutil.virtual_memory().total)
    assert 0 < use.used_bytes < use.limit_bytes


def test_a_group_above_that_has_less_left_counts(tmp_path: Path) -> None:
    """Written for both versions of control groups, whichever this machine has."""
    separate = "memory:" in Path("/proc/self/cgroup").read_text()
    group = tmp_path / "memory" if separate else tmp_path
    used, limit, cached = (
        ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
        if separate
        else ("memory.current", "memory.max", "inactive_file")
    )
    group.mkdir(exist_ok=True)
    (group / used).write_text(f"{9 * MIB}\n")
    (group / limit).write_text(f"{10 * MIB}\n")
    (group / "memory.stat").write_text(f"anon 1\n{cached} {2 * MIB}\n")
    use = memory_use(os.getpid(), groups=tmp_path)
    assert use is not None
    assert (use.scope, use.used_bytes, use.limit_bytes) == ("control group", 7 * MIB, 10 * MIB)
    (group / limit).write_text("max\n")
    unlimited = memory_use(os.getpid(), groups=tmp_path)
    assert unlimited is not None
    assert unlimited.scope == "machine"


def test_a_process_that_is_gone_has_only_the_machines_limit() -> None:
    use = memory_use(2**22 + 1)
    assert use is not None
    assert use.scope == "machine"
