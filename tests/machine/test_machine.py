"""How much room there is, and what storage is."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_python

from lightning_hangcheck.look.open_files import OF_NETWORK, mounted_types, type_at
from lightning_hangcheck.machine import NoRoom, require_room

LIMITED = """
import resource
from lightning_hangcheck.machine import NoRoom, require_room
resource.setrlimit(resource.{kind}, ({limit}, {limit}))
try:
    require_room(9)
    print("room")
except NoRoom as refusal:
    print(refusal)
"""


@pytest.mark.parametrize(
    ("kind", "limit", "said"),
    [
        ("RLIMIT_NOFILE", 100, "the limit of open files (ulimit -n) is 100"),
        ("RLIMIT_NOFILE", 400, "room"),
        ("RLIMIT_AS", 8 * 2**30, "the limit of address space (ulimit -v) is 8589934592"),
        ("RLIMIT_AS", 64 * 2**30, "room"),
    ],
)
def test_a_limit_that_is_near_is_named(kind: str, limit: int, said: str) -> None:
    ended = run_python("-c", LIMITED.format(kind=kind, limit=limit))
    assert (ended.returncode, ended.stdout.startswith(said)) == (0, True), ended


def _own_groups(mounted: Path) -> list[Path]:
    """Folders of this process's own groups, made in a mount of ours, whichever version it has."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            found.append(mounted / controllers / path.lstrip("/"))
            found[-1].mkdir(parents=True, exist_ok=True)
    return found


def test_a_control_group_that_is_nearly_full_leaves_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(most: str) -> None:
        for group in _own_groups(tmp_path):
            (group / "pids.max").write_text(f"{most}\n")
            (group / "pids.current").write_text("120\n")

    require_room(9, groups=tmp_path)
    limit("300")
    require_room(9, groups=tmp_path)
    with pytest.raises(NoRoom, match=r"pids\.max of the control group is 300, in use are 120"):
        require_room(9, ranks=8, groups=tmp_path)
    limit("max")
    require_room(9, ranks=8, groups=tmp_path)
    limit("300")
    monkeypatch.setenv("OMP_NUM_THREADS", "100")  # the pools of the training are left to it
    with pytest.raises(NoRoom, match="273 should be free"):
        require_room(9, groups=tmp_path)


MOUNTS = mounted_types(
    [
        ["/dev/root", "/", "ext4", "rw,relatime", "0", "0"],
        ["nas:/sets", "/data\\040sets", "nfs4", "rw,vers=4.2", "0", "0"],
        ["tmpfs", "/data\\040sets/scratch", "tmpfs", "rw", "0", "0"],
        ["a", "line"],
    ]
)


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        ("/home/ada/a.lock", False),
        ("/data sets/a.lock", True),
        ("/data sets/scratch/a.lock", False),
        ("", False),
    ],
)
def test_the_innermost_mount_tells(path: str, shared: bool) -> None:
    assert type_at(path, MOUNTS).startswith(OF_NETWORK) == shared
