"""What records, logs and stacks that a run left tell, each alone and together."""

from __future__ import annotations

import faulthandler
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from cases import agrees
from hypothesis import given
from hypothesis import strategies as st
from log_lines import status, timeout
from postmortem.dumps import LEFT_BEHIND, did, dump, judged, judged_files, posted, write

from lightning_hangcheck.postmortem.stacks import read_stack_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Dumps = dict[int, dict[str, Any]]

ALL = range(8)
ONE = {"0": list(ALL)}
MESH = {"0": list(ALL), "1": [0, 1, 2, 3], "2": [4, 5, 6, 7], "3": [0, 4], "4": [1, 5]}


def whole(*entries: dict[str, Any], groups: Mapping[str, Sequence[int]] = ONE) -> Dumps:
    """The same of all ranks."""
    return {rank: dump(rank, *entries, groups=groups) for rank in ALL}


def mixed(dumps: Dumps, *entries: dict[str, Any], of: int, **told: Any) -> Dumps:
    """The same, but for one rank."""
    return dumps | {of: dump(of, *entries, **{"groups": ONE, **told})}


TWO = {"0": [0, 1]}
OTHER = {"0": list(ALL), "1": [0, 1]}
PAIR = {"0": list(ALL), "7": [2, 5]}
PARTS = {"0": list(ALL), "1": [0, 1, 2, 3]}
LINE = (("step", "/home/ada/demo/train.py", 88), ("main", "/home/ada/demo/train.py", 120))
UNTOLD: Any = {"culprits": (), "certainty": None}


def uncounted(dumps: Dumps, rank: int) -> Dumps:
    """The same, but that the record of a rank counts nothing."""
    return dumps | {rank: dumps[rank] | {"pg_status": {}}}


def at_messages(*posts: str) -> Dumps:
    """Ranks 2 and 5 are at one end of a message each."""
    posted_by = {2: posted(41, posts[0], group="7"), 5: posted(41, posts[1], group="7")}
    there = {rank: dump(rank, post, groups=PAIR) for rank, post in posted_by.items()}
    return whole(did(3, ended=True), groups=PAIR) | there


TOLD: dict[str, tuple[Dumps, dict[str, Any]]] = {
    "where all but one have nothing open and are not there nothing tells who is wrong": (
        mixed(whole(did(7, ended=True)), did(7, ended=True), did(8), of=6),
        {"culprits": (), "certainty": "guess", "fact": "a guess: "}),
    "what a dump does not list, whose ring has wrapped, may have ended": (
        uncounted(
            whole(did(50, ended=True), groups=OTHER)
            | {0: dump(0, did(9, group="1"), groups=OTHER)}, 1),
        {"culprits": ()}),
    "a first operation that never ends is the machine": (
        whole(did(1)), {"culprits": (), "cause": "network_wait", "now": "NCCL_P2P_DISABLE=1"}),
    "a rank with nothing open that others wait for is in its own code, or inside that call": (
        mixed(whole(did(6, ended=True), did(7)), did(6, ended=True, frames=LINE), of=3),
        {"culprits": (3,), "cause": "rank_stalled", "victims": (0, 1, 2, 4, 5, 6, 7),
         "says": "rank 3 has not entered all_reduce #7 of the default group, and has nothing else"
         " open: it is in its own code, or inside that call after its last call at demo/train.py:"},
    ),
    "an operation that ended on others is its own GPU's": (
        mixed(whole(did(5, ended=True), did(6)), did(5), did(6), of=2),
        {"culprits": (2,), "says": "GPU, driver or link of rank 2", "now": "dcgmi diag"}),
    **{
        f"the root of a {op} may be through before the others": (
            mixed(whole(did(5, op)), did(5, op, ended=True), of=0), {"culprits": ()},
        )
        for op in ("broadcast", "reduce")
    },
    "other sizes under one number are told by the majority": (
        mixed(whole(did(7, size=628)), did(7, size=1140), of=5),
        {"culprits": (5,), "cause": "collective_mismatch", "certainty": "majority"}),
    "of two ranks that differ none is named": (
        {0: dump(0, did(7), groups=TWO), 1: dump(1, did(7, "broadcast"), groups=TWO)},
        {**UNTOLD, "cause": "collective_mismatch", "says": "nothing shows which of them is wrong"}),
    **{
        f"sizes are not compared where they may differ: {op}": (
            {rank: dump(rank, did(7, op, size=rank + 1), groups=ONE) for rank in ALL},
            {"cause": "network_wait"},
        )
        for op in ("all_to_all", "reduce_scatter", "gather")
    },
    "member 1 of a group is rank 5": (
        {rank: dump(rank, groups=PAIR, counted={"0": (3, 3)}) for rank in ALL}
        | {2: dump(2, posted(41, "recv 0<-1", group="7"), groups=PAIR),
           5: dump(5, groups=PAIR, counted={"0": (3, 3), "7": (40, 40)})},
        {"culprits": (5,)}),
    "groups entered in another order are a mismatch of nobody": (
        {0: dump(0, did(9, group="1"), groups=TWO | {"1": [0, 1]}, counted={"0": (3, 3)}),
         1: dump(1, did(4, group="0"), groups=TWO | {"1": [0, 1]}, counted={"1": (8, 8)})},
        {**UNTOLD, "cause": "collective_mismatch", "says": "ranks wait for each other"}),
    "what several wait for has not ended on a rank with nothing open": (
        uncounted(whole(did(50, ended=True), groups=PARTS), 3)
        | {rank: dump(rank, did(9, group="1"), groups=PARTS) for rank in (0, 1, 2)},
        {"culprits": (3,)}),
    "both ends of a message that wait for each other": (
        at_messages("send 0->1", "recv 1<-0"), {"verdict": "hang", **UNTOLD}),
    "a job of which nothing is open is not called a hang": (
        whole(did(7, ended=True)),
        {"verdict": "healthy", "culprits": (), "says": "was open on ranks 0-7"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_what_records_prove(tmp_path: Path, name: str) -> None:
    dumps, expected = TOLD[name]
    agrees(judged(tmp_path, dumps), expected)


def test_waits_are_followed_through_groups_and_messages(tmp_path: Path) -> None:
    """Ranks 0 to 3 wait for rank 4's message, rank 4 and its group for rank 6."""
    dumps = {
        **{rank: dump(rank, did(40, group="1"), groups=MESH) for rank in (1, 2, 3)},
        0: dump(0, posted(9, "recv 0<-1", group="3"), did(40, group="1"), groups=MESH),
        **{rank: dump(rank, did(900, group="2"), groups=MESH) for rank in (4, 5, 7)},
        6: dump(6, groups=MESH, counted={"0": (3, 3), "2": (899, 899)}),
    }
    verdict = judged(tmp_path, dumps)
    assert verdict.culprits == (6,)
    edges = {(one.source, one.target) for one in verdict.wait_for}
    assert edges >= {("rank:1", "rank:0"), ("rank:0", "rank:4"), ("rank:4", "rank:6")}


def test_a_rank_without_a_dump_is_unknown_and_not_guilty(tmp_path: Path) -> None:
    dumps = whole(did(7))
    del dumps[4]
    verdict = judged(tmp_path, dumps)
    assert (verdict.verdict, verdict.culprits) == ("hang", ())
    assert "no dump of rank 4 is here" in verdict.summary
    (gap,) = [one for one in verdict.gaps if "flight record" in one.what]
    assert "TORCH_FR_BUFFER_SIZE" in gap.why
    assert next(row.state for row in verdict.ranks if row.rank == 4) == "unseen"


FOUR = {"0": [0, 1, 2, 3]}
PIECES = sorted(one.parent for one in LEFT_BEHIND.glob("*/truth.json"))
LOADER = """Process 700: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 700 (idle): "MainThread"
    wait (threading.py:331)
    get (queue.py:180)
    _try_get_data (torch/utils/data/dataloader.py:1295)
    __next__ (torch/utils/data/dataloader.py:741)
    fit (/home/ada/demo/train.py:41)
    <module> (/home/ada/demo/train.py:90)
"""


@pytest.fixture
def late(tmp_path: Path) -> Path:
    """The records of a job of four ranks, of which rank 2 did not come to its #70."""
    entries = [did(69, ended=True), did(70)]
    dumps = {
        f"dump_{rank}": dump(rank, *entries[: 1 if rank == 2 else 2], groups=FOUR)
        for rank in range(4)
    }
    return write(tmp_path / "left", dumps)


def test_what_a_log_adds_to_records_is_told_beside_them(late: Path) -> None:
    (late / "job.out").write_text("\n".join([timeout(0, 70), status(0, 70, 70, 69)]) + "\n")
    verdict = judged_files([late])
    assert (verdict.verdict, verdict.culprits) == ("hang", (2,))
    assert any(one.kind == "also" for one in verdict.evidence)
    assert any("job.out:1" in one.text for one in verdict.evidence)
    assert not any(gap.what == "logs" for gap in verdict.gaps)
    assert not any("flight record" in gap.what for gap in verdict.gaps)


def test_the_line_comes_from_a_stack_that_somebody_took(late: Path) -> None:
    (late / "rank2.txt").write_text(LOADER)
    verdict = judged_files([late])
    assert (verdict.culprits, verdict.certainty) == ((2,), "proven")
    assert "train.py:41" in verdict.summary


@pytest.mark.parametrize("name", ["stack_of_rank_0.txt", "stack.txt"])
def test_a_stack_alone_tells_the_line_and_no_duration(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LOADER)
    verdict = judged_files([tmp_path])
    assert (verdict.culprits, verdict.cause) == ((0,), "dataloader_worker")
    assert (verdict.stalled_since, verdict.stalled_for_s) == (None, 0.0)
    assert "an unknown time" in verdict.summary
    assert verdict.stack_groups[0].frames[1] == "fit (/home/ada/demo/train.py:41)"
    assert any("it is shown as rank 0" in gap.why for gap in verdict.gaps) is (name == "stack.txt")


@pytest.mark.skipif(not PIECES, reason=f"{LEFT_BEHIND} is not there")
def test_given_pieces_name_nobody_innocent() -> None:
    for piece in PIECES:
        truth = json.loads((piece / "truth.json").read_bytes())
        verdict = judged_files([piece])
        assert set(verdict.culprits) <= set(truth["culprits"] or ()), piece
        if truth["truth_from"] == "evidence" and truth["culprits"]:
            assert verdict.culprits == tuple(truth["culprits"]), piece
        if truth["truth_from"] == "evidence" and truth["cause"]:
            assert verdict.cause in (truth["cause"], *truth["also_ok"]), piece


# Stacks that somebody took into files, of every tool, and what is judged by them.

IN_LOADER = ("_try_get_data", "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py")
REDUCE = ("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py")
TRAIN = ("fit", "/home/ada/train.py")


def in_lines(form: str, *inner_first: tuple[str, str], outer_first: bool = False) -> str:
    """The calls of a dump, each written in its form."""
    frames = enumerate((*inner_first, TRAIN, ("<module>", TRAIN[1])))
    lines = [form.format(file=file, line=30 + at, name=name) for at, (name, file) in frames]
    return "\n".join(lines[::-1] if outer_first else lines)


def py_spy(pid: int, *inner_first: tuple[str, str], state: str = "idle") -> str:
    shown = in_lines("    {name} ({file}:{line})", *inner_first)
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
    shown = in_lines('  File "{file}", line {line} in {name}', *inner_first)
    return (
        "Timeout (0:05:00)!\n"
        "Thread 0x00007f4a2e7fc6c0 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 324 in wait\n'
        '  File "/usr/lib/python3.11/threading.py", line 973 in _bootstrap\n\n'
        f"Thread 0x00007f4a2e7fd740 (most recent call first):\n{shown}\n"
    )


def gdb(*inner_first: tuple[str, str]) -> str:
    shown = in_lines('  File "{file}", line {line}, in {name}\n    code()', *inner_first)
    return (
        'Thread 2 (Thread 0x7f4a2e7fc6c0 (LWP 913) "python"):\n'
        "#4 Frame 0x7f12, for file /usr/lib/python3.11/threading.py, line 324, in wait (self=<c>)\n"
        "#9 Frame 0x7f19, for file /usr/lib/python3.11/threading.py, line 9, in _bootstrap ()\n"
        'Thread 1 (Thread 0x7f4a2e7fd740 (LWP 900) "python"):\n'
        f"Traceback (most recent call first):\n  <built-in method acquire>\n{shown}\n"
    )


def pystack(*inner_first: tuple[str, str]) -> str:
    form = '    (Python) File "{file}", line {line}, in {name}'
    shown = in_lines(form, *inner_first, outer_first=True)
    return f"Traceback for thread 900 (python) [] (most recent call last):\n{shown}\n"


WRITTEN = {
    "py-spy": py_spy(900, IN_LOADER),
    "py-spy json": py_spy_json(900, IN_LOADER),
    "faulthandler": faulted(IN_LOADER),
    "gdb": gdb(IN_LOADER),
    "pystack": pystack(IN_LOADER),
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
    parts = [
        f"{heading.format(rank)}\n{faulted(IN_LOADER if rank else REDUCE)}" for rank in range(3)
    ]
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
    for one in read_stack_file("rank0.txt", text[:at] + garbage + text[at:]):
        assert all(thread.frames for thread in one.stack.threads)


def test_a_rank_without_a_file_is_unseen_and_not_away(tmp_path: Path) -> None:
    (tmp_path / "rank1.txt").write_text(py_spy(901, IN_LOADER))
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
    (tmp_path / "rank1.txt").write_text(py_spy(7, ("g", long["filename"]), IN_LOADER))
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
