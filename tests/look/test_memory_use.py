"""The tightest limit of memory, from real and from written control groups."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from lightning_hangcheck.look.kernel import memory_use
from lightning_hangcheck.machine.control_groups import GROUPS

MIB = 1 << 20


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


@pytest.mark.skipif(not GROUPS.is_dir(), reason="no control groups are mounted here")
def test_a_process_that_is_gone_has_only_the_machines_limit() -> None:
    use = memory_use(2**22 + 1)
    assert use is not None
    assert use.scope == "machine"
