"""Stacks that somebody took into files, of every tool, and what is judged by them."""

from __future__ import annotations

import faulthandler
import json
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from postmortem.dumps import judged_files

from lightning_hangcheck.postmortem.stacks import read_stack_file

if TYPE_CHECKING:
    from pathlib import Path

LOADER = ("_try_get_data", "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py")
REDUCE = ("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py")
TRAIN = ("fit", "/home/ada/train.py")


def py_spy(pid: int, *inner_first: tuple[str, str], state: str = "idle") -> str:
    frames = (*inner_first, TRAIN, ("<module>", TRAIN[1]))
    shown = "\n".join(f"    {name} ({file}:{30 + at})" for at, (name, file) in enumerate(frames))
    return (
        f"Process {pid}: python train.py --lr 1\nPython v3.11.9 (/usr/bin/python3.11)\n\n"
        f'Thread 0x7FA6E7C01740 ({state}): "MainThread"\n{shown}\n'
        f'Thread 0x7FA6E0000740 (idle): "QueueFeederThread"\n    wait (threading.py:320)\n'
        '        Arguments:\n            self: <Condition at 0x7f>\n'
    )  # fmt: skip


def py_spy_json(pid: int, *inner_first: tuple[str, str]) -> str:
    frames = [
        {"name": name, "filename": file, "line": 30 + at, "module": None, "locals": None}
        for at, (name, file) in enumerate((*inner_first, TRAIN, ("<module>", TRAIN[1])))
    ]
    thread = {"pid": pid, "thread_id": 77, "thread_name": "MainThread", "os_thread_id": pid,
              "active": False, "owns_gil": False, "frames": frames}  # fmt: skip
    return json.dumps([thread])


def faulted(*inner_first: tuple[str, str]) -> str:
    frames = (*inner_first, TRAIN, ("<module>", TRAIN[1]))
    shown = "\n".join(
        f'  File "{file}", line {30 + at} in {name}' for at, (name, file) in enumerate(frames)
    )
    return (
        "Timeout (0:05:00)!\n"
        "Thread 0x00007f4a2e7fc6c0 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 324 in wait\n'
        '  File "/usr/lib/python3.11/threading.py", line 973 in _bootstrap\n\n'
        f"Thread 0x00007f4a2e7fd740 (most recent call first):\n{shown}\n"
    )


def gdb(*inner_first: tuple[str, str]) -> str:
    frames = (*inner_first, TRAIN, ("<module>", TRAIN[1]))
    shown = "\n".join(
        f'  File "{file}", line {30 + at}, in {name}\n    code()'
        for at, (name, file) in enumerate(frames)
    )
    return (
        'Thread 2 (Thread 0x7f4a2e7fc6c0 (LWP 913) "python"):\n'
        "#4 Frame 0x7f12, for file /usr/lib/python3.11/threading.py, line 324, in wait (self=<c>)\n"
        "#9 Frame 0x7f19, for file /usr/lib/python3.11/threading.py, line 9, in _bootstrap ()\n"
        'Thread 1 (Thread 0x7f4a2e7fd740 (LWP 900) "python"):\n'
        f"Traceback (most recent call first):\n  <built-in method acquire>\n{shown}\n"
    )


def pystack(*inner_first: tuple[str, str]) -> str:
    frames = (*inner_first, TRAIN, ("<module>", TRAIN[1]))
    shown = "\n".join(
        f'    (Python) File "{file}", line {30 + at}, in {name}'
        for at, (name, file) in reversed(list(enumerate(frames)))
    )
    return f"Traceback for thread 900 (python) [] (most recent call last):\n{shown}\n"


WRITTEN = {
    "py-spy": py_spy(900, LOADER),
    "py-spy json": py_spy_json(900, LOADER),
    "faulthandler": faulted(LOADER),
    "gdb": gdb(LOADER),
    "pystack": pystack(LOADER),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_stack_out_of_a_file_is_judged_as_a_live_one(tmp_path: Path, kind: str) -> None:
    (tmp_path / "rank0.txt").write_text(WRITTEN[kind])
    (tmp_path / "rank1.txt").write_text(py_spy(901, REDUCE))
    verdict = judged_files([tmp_path])
    told = (verdict.verdict, verdict.cause, verdict.phase)
    assert told == ("hang", "dataloader_worker", "dataloading")
    assert (verdict.culprits, verdict.victims) == ((0,), (1,))
    assert "were not seen" in verdict.summary


@pytest.mark.parametrize("heading", ["=== Rank {}: node0:7001 ===", "<h2>Rank {}: node0</h2><pre>"])
def test_one_page_of_torchs_debug_server_has_all_ranks(heading: str) -> None:
    parts = [f"{heading.format(rank)}\n{faulted(LOADER if rank else REDUCE)}" for rank in range(3)]
    dumps = read_stack_file("stacks.txt", "\n".join(parts).encode())
    assert [one.rank for one in dumps] == [0, 1, 2]
    assert [len(one.stack.threads) for one in dumps] == [2, 2, 2]


def test_what_faulthandler_really_writes_is_read(tmp_path: Path) -> None:
    answers = tmp_path / "rank5.dump"
    with answers.open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    dumps = read_stack_file(answers, answers.read_bytes())
    assert [one.rank for one in dumps] == [5]
    functions = {frame.function for one in dumps[0].stack.threads for frame in one.frames}
    assert "test_what_faulthandler_really_writes_is_read" in functions
    assert len(dumps[0].stack.threads) == answers.read_text().count("most recent call first")


@given(st.sampled_from(sorted(WRITTEN)), st.integers(0, 600), st.binary(max_size=30))
def test_torn_and_garbled_dumps_do_no_harm(kind: str, at: int, garbage: bytes) -> None:
    text = WRITTEN[kind].encode()
    for dump in read_stack_file("rank0.txt", text[:at] + garbage + text[at:]):
        assert all(thread.frames for thread in dump.stack.threads)


def test_a_rank_without_a_file_is_unseen_and_not_away(tmp_path: Path) -> None:
    (tmp_path / "rank1.txt").write_text(py_spy(901, LOADER))
    verdict = judged_files([tmp_path])
    assert [(row.rank, row.state) for row in verdict.ranks] == [(0, "unseen"), (1, "stalled")]


def test_huge_dumps_are_read_in_seconds_and_told_in_a_sentence(tmp_path: Path) -> None:
    """As many threads and as long names as fit in."""
    threads = "".join(
        f'Thread 0x{at + 1:016x} (most recent call first):\n  File "/a.py", line {at % 99} in f\n'
        for at in range(20_000)
    )
    long = {"name": "f" * 9_000, "filename": f"/{'d/' * 400_000}a.py", "line": 1}
    call = {"name": "fit", "filename": "/home/ada/train.py", "line": 2}
    thread = {"pid": 7, "thread_id": 1, "thread_name": "MainThread", "frames": [long, call]}
    (tmp_path / "rank0.txt").write_text(threads)
    (tmp_path / "rank1.txt").write_text(py_spy(7, ("g", long["filename"]), LOADER))
    (tmp_path / "rank2.json").write_text(json.dumps([thread]))
    began = time.process_time()
    verdict = judged_files([tmp_path])
    assert time.process_time() - began < 5
    assert len(verdict.summary) < 1_000
    shown = {frame for group in verdict.stack_groups for frame in group.frames}
    assert {"fit (/home/ada/train.py:2)", "f (/a.py:0)"} <= shown
    assert max(map(len, shown)) < 1_000


@pytest.mark.parametrize("data", [b"", b"[]", b'[{"frames": 3, "thread_id": 1}]', b"epoch 3\n"])
def test_other_files_hold_no_stacks(data: bytes) -> None:
    assert read_stack_file("rank0.txt", data) == ()
