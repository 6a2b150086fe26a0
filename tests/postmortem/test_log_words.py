"""What is read out of logs of any launcher, and what garbage does to the reader."""

from __future__ import annotations

import io
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_lines import judged, raised, summary, tag, timeout

from lightning_hangcheck.postmortem.log_words import WORDS
from lightning_hangcheck.postmortem.logs import PIECE, rank_of_name, read_log

if TYPE_CHECKING:
    from lightning_hangcheck.model.log_facts import LogFact, LogReading


def read(*lines: str, name: str = "job.log") -> LogReading:
    return read_log(name, io.BytesIO("\n".join(lines).encode()))


def only(reading: LogReading, kind: str) -> LogFact:
    (fact,) = (one for one in reading.facts if one.kind == kind)
    return fact


WATCHDOG = {
    "torch 1.13": "[E ProcessGroupNCCL.cpp:737] [Rank 3] Watchdog caught collective operation"
    " timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[12], Timeout(ms)=1800000) ran for 1801256"
    " milliseconds before timing out.",
    "torch 2.0": "[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, TensorShape=[12], Timeout(ms)=1800000) ran for"
    " 1801256 milliseconds before timing out.",
    "torch 2.2": "[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=12, NumelOut=12,"
    " Timeout(ms)=1800000) ran for 1801256 milliseconds before timing out.",
    "torch 2.7": "[rank3]:[E513 13:25:57.714781669 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog"
    " caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=12,"
    " NumelOut=12, Timeout(ms)=1800000) ran for 1801256 milliseconds before timing out.",
}


@pytest.mark.parametrize("version", WATCHDOG)
def test_time_outs_of_all_versions(version: str) -> None:
    fact = only(read(WATCHDOG[version]), "timeout")
    assert (fact.op, fact.group_rank, fact.limit_ms, fact.ran_ms) == (
        "ALLREDUCE",
        3,
        1_800_000,
        1_801_256,
    )
    assert set(fact.sizes) == {12}
    assert fact.seq == (None if version == "torch 1.13" else 9)


@pytest.mark.parametrize(
    ("text", "group", "numbers"),
    [
        ("[PG 5 Rank 3] Timeout at NCCL work: 9, last enqueued NCCL work: 12, last completed NCCL"
         " work: 8.", "PG 5", (9, 12, 8)),
        ("[PG 1 (default_pg) Rank 3] Exception (either an error or timeout) detected by watchdog at"
         " work: 9, last enqueued NCCL work: 12, last completed NCCL work: 8.", "default",
         (9, 12, 8)),
        (f"{tag(3, '21(TENSOR_PARALLEL)')}  failure detected by watchdog at work sequence id: 9 PG"
         " status: last enqueued work: 12, last completed work: -1", "guid 21", (9, 12, -1)),
        (f"{tag(3)}  failure detected by watchdog at work sequence id: 9 PG status: last enqueued"
         " work: 12, last started work: 9, last completed work: 8", "default", (9, 12, 8)),
    ],
)  # fmt: skip
def test_numbers_of_a_group_in_all_spellings(
    text: str, group: str, numbers: tuple[int, int, int]
) -> None:
    fact = only(read(f"[rank3]:[E ProcessGroupNCCL.cpp:1] {text}"), "status")
    assert (fact.seq, fact.enqueued, fact.completed) == numbers
    assert (fact.group, fact.group_rank, fact.rank) == (group, 3, 3)


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "[default3]:",
        "3: ",
        "[1,3]<stderr>:",
        "[pod/train-0/pytorch] [rank3]: ",
        "(TrainWorker pid=615, ip=10.0.0.7) [rank3]: ",
        "(Policy[rank=3] pid=615, ip=10.0.0.7) ",
        "2026-02-18T10:28:25.497Z [rank3]: ",
        "[10:23:45.123][+2.456s][R3/8][LR3][PID:12345] ",
    ],
)
def test_whose_a_line_is_with_the_prefixes_of_launchers(prefix: str) -> None:
    lines = [f"{prefix} epoch {number}" for number in range(5)]
    reading = read(*lines, f"{prefix} torch.OutOfMemoryError: CUDA out of memory. Tried")
    assert only(reading, "memory").rank == 3
    assert reading.ranks == (3,)
    assert reading.last_words[0].text.startswith("torch.OutOfMemoryError")


def test_labels_that_contradict_torch_are_numbers_of_nodes() -> None:
    lines = [f"{rank // 8}: [rank{rank}]: epoch 1" for rank in range(16)]
    reading = read(*lines, "1: RuntimeError: CUDA out of memory")
    assert only(reading, "memory").rank is None


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("logs/rank3.log", 3),
        ("rank_12/stderr.log", 12),
        ("global-rank-7.txt", 7),
        ("slurm-991.out", None),
        ("crank5.log", None),
        ("frank/train.log", None),
    ],
)
def test_the_rank_in_a_files_name(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank
    (word,) = read("epoch 1", name=name).last_words
    assert word.rank == rank


def test_last_words_are_of_the_program_not_of_its_end() -> None:
    reading = read(
        "[rank1]: step 7 before_backward", timeout(1, 3), timeout(0, 3), "[rank0]: step 8"
    )
    assert {word.rank: word.text for word in reading.last_words} == {
        1: "step 7 before_backward",
        0: "step 8",
    }
    assert [word.line for word in reading.last_words] == [1, 4]


def test_interleaved_tracebacks_are_taken_apart() -> None:
    pair = zip(
        raised(0, "KeyError: 'a'").split("\n"), raised(1, "ValueError: b").split("\n"), strict=True
    )
    reading = read(*(line for both in pair for line in both))
    found = {fact.rank: fact.error for fact in reading.facts if fact.kind == "exception"}
    assert found == {0: "KeyError: 'a'", 1: "ValueError: b"}


def test_of_chained_exceptions_the_last_one_counts() -> None:
    chain = "\nDuring handling of the above exception, another exception occurred:\n"
    reading = read(raised(None, "_queue.Empty"), chain, raised(None, "RuntimeError: worker died"))
    assert [fact.error for fact in reading.facts] == ["RuntimeError: worker died"]


def test_a_traceback_in_torchruns_summary_is_of_its_rank() -> None:
    told = summary((2, 1, "2023-09-14_01:45:50")).replace(
        "To enable traceback see: https://pytorch.org/docs/stable/elastic",
        'Traceback (most recent call last):\n    File "x.py", line 3, in f\n'
        "    KeyError: 'label'\n",
    )
    fact = only(read(told), "exit")
    assert (fact.rank, fact.error) == (2, "KeyError: 'label'")
    assert judged(told).culprits == (2,)


def test_a_log_is_read_the_same_in_many_pieces() -> None:
    line = "[rank2]: epoch 3 loss 0.1 is fine and long enough to fill pieces\n"
    filler = line * (3 * PIECE // 2 // len(line))
    text = f"{timeout(0, 3)}\n{filler}{raised(5, 'KeyError: 1')}\n{filler}{timeout(1, 3)}\n"
    reading = read_log("job.log", io.BytesIO(text.encode()))
    assert [fact.rank for fact in reading.facts] == [0, 5, 1]
    lines = text.split("\n")
    assert all(
        fact.text in lines[fact.line - 1] for fact in reading.facts if fact.kind == "timeout"
    )


class Endless(io.RawIOBase):
    """A stream that never shows an end of its only line, up to so many bytes."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        given = min(size if size >= 0 else self.left, self.left)
        self.left -= given
        return b"x" * given


def test_memory_stays_small_with_a_line_without_an_end() -> None:
    stream = Endless(14 * PIECE)
    tracemalloc.start()
    read_log("job.log", stream)  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * PIECE
    assert stream.left == 0


def test_nul_bytes_and_broken_text_do_no_harm() -> None:
    data = b"\0\xff\xfe" + timeout(4, 3).encode() + b"\0\0\n\x80"
    assert only(read_log("job.log", io.BytesIO(data)), "timeout").seq == 3


def test_a_clock_that_goes_back_is_noticed_and_midnight_is_not() -> None:
    def at(*times: str) -> bool:
        return read(*(timeout(n, 3, at=f"{time} ") for n, time in enumerate(times))).clock_went_back

    assert at("E513 13:25:57.714781669", "E513 12:25:57.714781669")
    assert not at("E513 23:59:57.714781669", "E514 00:00:07.714781669")


def test_of_a_log_full_of_one_word_the_first_are_kept() -> None:
    reading = read(*["NVRM: Xid (PCI:0000:44:00): 79, pid=4, name=python, GPU is lost"] * 2_100)
    assert len(reading.facts) == 2_000


words = st.sampled_from([needle for needle, _, _ in WORDS])
digits = st.integers(0, 10**30).map(str)
bits = st.one_of(
    words,
    digits,
    st.text(max_size=12),
    st.sampled_from(
        ["\n", "\r", "[rank", "]: ", "Rank ", "[PG ", "exitcode  : -", " (pid: ", "%| ", "/9 [1:2<",
         "SeqNum=", "NumelIn=", ", ", "[", "] finished collective #", " vs ",
         ", but didn't join collective #", " clients joined",
         "CollectiveFingerPrint(OpType=", "Timeout(ms)=", " ranks have launched up to operation ",
         "seconds waiting for clients. ", "op.nbytes. ", "tasks 0-", ": "]
    ),
)  # fmt: skip


@given(st.lists(bits, max_size=40))
def test_no_text_breaks_the_reader_or_the_judgement(parts: list[str]) -> None:
    found = judged("".join(parts), rank1="".join(reversed(parts)))
    assert not set(found.culprits) & set(found.victims)
    assert not found.culprits or found.certainty
