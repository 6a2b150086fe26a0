"""Files, time limits and room: whatever storage and the machine do, nobody waits for it."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import run_python, until

from lightning_hangcheck import files as module
from lightning_hangcheck.files import (
    NoAnswerFromStorage,
    UnusableFile,
    apart,
    create_once,
    read_end_owned,
    read_owned,
    read_regular,
    write_atomically,
)
from lightning_hangcheck.look.open_files import OF_NETWORK, mounted_types, type_at
from lightning_hangcheck.look.proc import guarded
from lightning_hangcheck.machine import NoRoom, require_room
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.time_limit import (
    MOST_LEFT_BEHIND,
    MOST_OF_ONE,
    MOST_TARGETS,
    NoAnswer,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Callable

STRANGER = 12_345
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


MADE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a symbolic link": lambda path: path.symlink_to("/dev/zero"),
    "a socket": a_socket,
}


@pytest.mark.parametrize("kind", MADE)
def test_what_is_no_file_is_named_at_once(kind: str, tmp_path: Path) -> None:
    MADE[kind](tmp_path / "file")
    with pytest.raises(UnusableFile, match=f"it is {kind}"):
        read_owned(tmp_path / "file")


def test_a_device_behind_a_link_that_may_be_followed(tmp_path: Path) -> None:
    (tmp_path / "source.py").symlink_to("/dev/zero")
    with pytest.raises(UnusableFile, match="it is a device"):
        read_regular(tmp_path / "source.py", 10)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_owned(path, 10) == b"0123456789"
    assert read_end_owned(path, 4) == (b"6789", 6)
    with pytest.raises(UnusableFile, match="it has 10 bytes; at most 9 are read"):
        read_owned(path, 9)


@only_root
def test_a_stranger_puts_no_file_into_our_folder_and_a_colleagues_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"{}")
    os.chown(path, STRANGER, -1)
    with pytest.raises(UnusableFile, match="it belongs to user id 12345, its folder to another"):
        read_owned(path)
    os.chown(tmp_path, STRANGER, -1)
    assert read_owned(path) == b"{}"


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.mkdir()
    (path / "in-the-way").touch()
    with pytest.raises(OSError, match=r"verdict\.json"):
        write_atomically(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_of_several_writers_one_wins_and_all_agree(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    assert create_once(path, b"first") == b"first"
    assert create_once(path, b"second") == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_beside_a_writer_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    texts = [bytes([letter]) * 50_000 for letter in b"ab"]
    write_atomically(path, texts[0])
    seen = set()

    def read() -> None:
        for _ in range(300):
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(100):
        write_atomically(path, texts[turn % 2])
    reader.join(30)
    assert seen <= set(texts)


def test_work_in_a_lock_that_nobody_gives_back_ends_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEFT_FOR_S", 1)
    locked, noted = threading.Lock(), tmp_path / "pid"
    locked.acquire()

    def work() -> None:
        noted.write_text(str(os.getpid()))
        locked.acquire()

    with pytest.raises(NoAnswerFromStorage):
        apart(0.2, work)
    pid = int(until(lambda: noted.is_file() and noted.read_text(), "the work to begin"))
    until(lambda: not psutil.pid_exists(pid), "the work to be ended")


# Work that fails becomes a gap; work that blocks is left behind, up to a bound.


def test_a_probe_that_raises_becomes_a_gap_that_names_the_error() -> None:
    def broken() -> int:
        raise ValueError("half a line")

    assert guarded("stack", "stack of pid 7", 3, broken) == (
        None,
        (Gap("stack of pid 7", 3, "the probe failed (ValueError: half a line)", "stack"),),
    )


def test_bounded_work_gives_its_result_or_raises_its_error() -> None:
    def denied() -> None:
        raise PermissionError(13, "Permission denied")

    assert within(10.0, lambda: "seen") == "seen"
    with pytest.raises(PermissionError):
        within(10.0, denied)


def test_no_more_work_is_begun_while_sixteen_pieces_are_blocked() -> None:
    release = threading.Event()
    ended = threading.Semaphore(0)

    def block() -> None:
        release.wait()
        ended.release()

    for _ in range(MOST_LEFT_BEHIND):
        with pytest.raises(NoAnswer):
            within(0.001, block)
    with pytest.raises(NoAnswer, match="16 earlier"):
        within(10.0, lambda: "never begun")
    release.set()
    for _ in range(MOST_LEFT_BEHIND):
        assert ended.acquire(timeout=120)
    while any(thread.name == "hangcheck-bounded" for thread in threading.enumerate()):
        pass
    assert within(10.0, lambda: "again") == "again"


def test_a_process_whose_reads_block_costs_its_own_places_and_no_other_reads() -> None:
    release = threading.Event()
    for _ in range(MOST_OF_ONE):
        with pytest.raises(NoAnswer, match=r"no answer within 0\.001 s"):
            within(0.001, release.wait, of=7)
    with pytest.raises(NoAnswer, match="3 earlier reads of pid 7 are still blocked"):
        within(10.0, lambda: "never begun", of=7)
    assert within(10.0, lambda: "seen", of=8) == "seen"
    for pid in range(8, 8 + MOST_TARGETS):
        with pytest.raises(NoAnswer):
            within(0.001, release.wait, of=pid)
    assert within(10.0, lambda: "read") == "read"
    release.set()
    while any(thread.name == "hangcheck-bounded" for thread in threading.enumerate()):
        pass
    assert within(10.0, lambda: "again", of=7) == "again"


# How much room there is, and what storage is.

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
