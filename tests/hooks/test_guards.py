"""A barrier names who is missing, and a lock who holds it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from hooks.launching import OFFLINE, TORCHRUN, json_lines, run_job, start_job
from processes import end

import lightning_hangcheck as hc
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.guards import find_holder, write_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import StartProgram


@pytest.mark.real
def test_missing_rank_is_named_with_its_stack_and_the_group_stays_usable(tmp_path: Path) -> None:
    job = run_job(
        tmp_path, "hooks_barrier.py", str(tmp_path), launcher=TORCHRUN, environment=OFFLINE
    )

    assert job.code == 0, job.errors
    assert [said["failed"] for said in job.of("before").values()] == [None, None]
    missing = job.of("after data")
    assert missing[0]["failed"] == missing[1]["failed"]
    assert "rank 1 of 2 did not come to 'after data' within 2 s" in missing[0]["failed"]
    assert [said["failed"] for said in job.of("end").values()] == [None, None]
    assert [said["total"] for said in job.of("sum").values()] == [2.0, 2.0]
    assert f"rank 1: pid {missing[1]['pid']}, main thread:" in missing[0]["failed"]
    assert "prepare_data (" in missing[0]["failed"]


LIMIT_S = 240.0


def take(path: Path, patience_s: float) -> tuple[dict[str, Any], str]:
    """Take the lock in a process of its own; return what it said, and on stderr."""
    words = ("hooks_locking.py", "take", str(path), str(patience_s))
    job = start_job(
        path.parent, *words, environment={"HANGCHECK_RUN_DIR": str(path.parent / "run")}
    )
    try:
        output, errors = job.communicate(timeout=LIMIT_S)
    finally:
        end(job)
    (said,) = json_lines(output)
    return said, errors


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


@pytest.fixture
def ended(program: StartProgram) -> int:
    """The process id of one that has ended."""
    job = program("sleeping.py")
    job.process.kill()
    job.process.wait(LIMIT_S)
    return job.pid


@pytest.mark.parametrize(
    ("record", "words"),
    [
        # as on a network file system: the kernel of this machine does not know the holder
        ("17\nnode7\nrank 8\n2026-01-01T00:00:00Z\npython train.py\n",
         ", since 2026-01-01T00:00:00Z, which cannot be seen from this host"),
        # a soft lock of filelock's has a process id and a host's name, and nothing else
        ("{ended}\n{here}\n", "or is of another container that has this host's name"),
    ],
    ids=["another host", "only its host"],
)  # fmt: skip
def test_a_holder_that_the_kernel_does_not_name_is_known_from_the_file(
    record: str, words: str, ended: int, tmp_path: Path
) -> None:
    path = tmp_path / "cache.lock"
    path.write_text(record.format(ended=ended, here=socket.gethostname()))
    holder = find_holder(path)
    assert words in holder.words
    assert not holder.gone


def test_file_that_is_no_lock_file_keeps_its_content(tmp_path: Path) -> None:
    file = tmp_path / "poetry.lock"
    file.write_text("[[package]]\nname = 'torch'\n")
    write_record(file, None)
    assert file.read_text() == "[[package]]\nname = 'torch'\n"


def test_lock_in_a_folder_that_is_missing_is_refused_with_the_way_out(tmp_path: Path) -> None:
    refused = pytest.raises(BadUsage, match=r"/no/x\.lock cannot be made")
    with refused, hc.locked(tmp_path / "no" / "x"):
        pytest.fail("its body ran")


@pytest.mark.parametrize(
    "guard",
    [
        lambda limit: hc.barrier("here", limit),
        lambda limit: hc.make_directory("here", limit),
        lambda limit: hc.rank_zero_evaluation(0, limit).__enter__(),
    ],
)
def test_limit_that_is_none_is_refused(guard: Callable[[float], object]) -> None:
    with pytest.raises(BadUsage, match="timeout=0 is no positive number"):
        guard(0)
