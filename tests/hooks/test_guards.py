"""A barrier names who is missing, and a lock who holds it."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hooks.launching import OFFLINE, TORCHRUN, Ended, run_job
from long_tests import real_when_asked_for
from processes import until

import lightning_hangcheck as hc
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.guards import find_holder, write_record
from lightning_hangcheck.machine import read_process_stat, which_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import StartProgram


def check(job: Ended, place: str) -> dict[int, Any]:
    """The rank that stands was missed, and all met at the end; return what was said of it."""
    assert job.code == 0, job.errors
    missing = job.of("after data")
    assert missing[0]["failed"] == missing[1]["failed"]
    assert "rank 1 of 2 did not come to 'after data' within 2 s" in missing[0]["failed"]
    assert f"rank 0 waited at {place}" in missing[0]["failed"]
    assert [said["failed"] for said in job.of("end").values()] == [None, None]
    assert [said["total"] for said in job.of("sum").values()] == [2.0, 2.0]
    return missing


@pytest.mark.real
def test_missing_rank_is_named_with_its_stack_and_the_group_stays_usable(tmp_path: Path) -> None:
    job = run_job(
        tmp_path, "hooks_barrier.py", str(tmp_path), launcher=TORCHRUN, environment=OFFLINE
    )

    assert [said["failed"] for said in job.of("before").values()] == [None, None]
    missing = check(job, "folder ")
    assert f"rank 1: pid {missing[1]['pid']}, main thread:" in missing[0]["failed"]
    assert "prepare_data (" in missing[0]["failed"]


@real_when_asked_for
def test_spawned_ranks_without_a_launcher_meet_in_the_store_of_their_group(tmp_path: Path) -> None:
    job = run_job(tmp_path, "hooks_barrier.py", str(tmp_path), environment=OFFLINE)

    missing = check(job, "the process group's store")
    assert "rank 1: no stack: the ranks have no session in common" in missing[0]["failed"]


LIMIT_S = 240.0


def take(path: Path, patience_s: float) -> tuple[dict[str, Any], str]:
    """Take the lock in a process of its own; return what it said, and on stderr."""
    words = ("hooks_locking.py", "take", str(path), str(patience_s))
    job = run_job(path.parent, *words, environment={"HANGCHECK_RUN_DIR": str(path.parent / "run")})
    (said,) = job.said
    return said, job.errors


def test_whoever_waits_names_the_holder_while_it_waits_and_in_its_error(
    program: StartProgram, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    holder = program("hooks_locking.py", "hold", str(path), RANK="3", WORLD_SIZE="4")
    assert holder.first_words == f"{path}.lock"

    said, errors = take(path, 1.0)
    who = f"pid {holder.pid} (rank 3, host {socket.gethostname()}, "
    assert f"the lock {path}.lock was not free within 1 s: held by {who}" in said["failed"]
    assert "hooks_locking.py hold" in said["failed"]
    assert f"py-spy dump --pid {holder.pid}" in said["failed"]
    assert f"the lock {path}.lock is held by {who}" in errors
    assert not path.exists()

    holder.tell("let go")
    assert take(path, 20.0)[0]["taken"] == f"{path}.lock"
    assert (tmp_path / "tokenizer.json.lock").read_text() == ""


def test_lock_of_a_killed_holder_is_free_and_its_end_is_said(
    program: StartProgram, tmp_path: Path
) -> None:
    path = tmp_path / "cache.lock"
    holder = program("hooks_locking.py", "hold", str(path))
    holder.process.kill()
    holder.process.wait(LIMIT_S)

    said, errors = take(path, 5.0)
    assert said["taken"] == str(path)
    assert f"was left by pid {holder.pid}" in errors


def test_a_lock_that_a_child_inherited_is_held_still(program: StartProgram, tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"
    holder = program("hooks_locking.py", "bequeath", str(path))
    until(lambda: _has_ended(holder.pid), "the holder to end")

    said, _ = take(path, 1.0)
    assert f"held by pid {holder.pid}" in said["failed"]
    assert "which has ended; a child of it has the lock still" in said["failed"]
    holder.tell("end")
    until(lambda: _has_ended(int(holder.first_words)), "its child to end")


@pytest.fixture
def ended(program: StartProgram) -> int:
    """The process id of one that has ended."""
    job = program("sleeping.py")
    job.process.kill()
    job.process.wait(LIMIT_S)
    return job.pid


HERE, THERE = socket.gethostname(), "3f2a9c1e-4026532000"
OF_SOMEBODY = "rank 8\n2026-01-01T00:00:00Z\npython train.py\n"


@pytest.mark.parametrize(
    ("record", "words", "gone"),
    [
        # as on a network file system: the kernel of this machine does not know the holder
        (f"17\nnode7\n{OF_SOMEBODY}", ", since 2026-01-01T00:00:00Z, which cannot be seen from "
         "this host", False),
        # a process of this number is here, too; the kernel's start and the pid namespace tell
        (f"17\n{HERE}\n{OF_SOMEBODY}{THERE}\n", "cannot be seen from this container", False),
        # a soft lock of filelock's has a process id and a host's name, and nothing else
        (f"{{ended}}\n{HERE}\n", "or is of another container that has this host's name", False),
        # after hostnamectl, or in a container that changed its name alone
        (f"{{ended}}\nnode7\n{OF_SOMEBODY}{{machine}}\n", "which has ended", True),
    ],
    ids=["another host", "a container of this host's name", "only its host", "two names"],
)  # fmt: skip
def test_a_holder_that_the_kernel_does_not_name_is_known_from_the_file(
    record: str, words: str, gone: bool, ended: int, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "cache.lock"
    path.write_text(record.format(ended=ended, machine=which_machine()))
    holder = find_holder(path)
    assert words in holder.words
    assert ("its holder is gone" in holder.remedy) == gone
    with hc.locked(path):
        assert (f"was left by pid {ended}" in capfd.readouterr().err) == gone


def test_kernel_is_believed_over_the_file(program: StartProgram, tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"
    holder = program("hooks_locking.py", "hold", str(path))
    path.write_text(f"17\nnode7\n{OF_SOMEBODY}")

    assert f"py-spy dump --pid {holder.pid}" in find_holder(path).remedy
    assert "hooks_locking.py hold" in find_holder(path).words


def test_file_that_is_no_lock_file_keeps_its_content(tmp_path: Path) -> None:
    file = tmp_path / "poetry.lock"
    file.write_text("[[package]]\nname = 'torch'\n")
    write_record(file, None)
    assert file.read_text() == "[[package]]\nname = 'torch'\n"


def test_lock_in_a_folder_that_is_missing_is_refused_with_the_way_out(tmp_path: Path) -> None:
    refused = pytest.raises(BadUsage, match=r"/no/x\.lock cannot be made")
    with refused, hc.locked(tmp_path / "no" / "x"):
        pytest.fail("its body ran")


def _has_ended(pid: int) -> bool:
    stat = read_process_stat(pid)
    return stat is None or stat.state == "Z"


@pytest.mark.parametrize(
    "guard",
    [
        lambda limit: hc.barrier("here", limit),
        lambda limit: hc.make_directory("here", limit),
        lambda limit: hc.rank_zero_evaluation(0, limit).__enter__(),
    ],
)
def test_limit_that_is_none_is_refused(guard: Callable[[Any], object]) -> None:
    for limit in (0, "soon", timedelta(minutes=1)):
        with pytest.raises(BadUsage, match=r"timeout=.* is no positive number; write seconds"):
            guard(limit)
