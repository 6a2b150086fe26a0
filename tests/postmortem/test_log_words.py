"""What lines of logs mean: torch's, NCCL's, the kernel's, and our own."""

from __future__ import annotations

import io
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from cases import agrees
from hypothesis import example, given
from hypothesis import strategies as st
from log_lines import judged, raised, timeout

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.postmortem.log_words import WORDS
from lightning_hangcheck.postmortem.logs import PIECE, rank_of_name, read_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightning_hangcheck.model.left_behind import LogFact, LogReading


def read(*lines: str, name: str = "job.log") -> LogReading:
    return read_log(name, io.BytesIO("\n".join(lines).encode()))


def only(reading: LogReading, kind: str) -> LogFact:
    (fact,) = (one for one in reading.facts if one.kind == kind)
    return fact


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "3: ",
        "[1,3]<stderr>:",
        "[1,mpirank:3,algo-2]<stderr>:",
        "[default3]:",
        "trainer-1-1  | [rank3]:",
        "(TrainWorker pid=615, ip=10.0.0.7) [rank3]: ",
        "[2024-02-27T21:35:28.705869Z] fa88a9df [rank=3] || ",
        "[10:23:45.123][+2.456s][R3/8][LR3][PID:12345] ",
    ],
)
def test_whose_a_line_is_with_the_prefixes_of_launchers(prefix: str) -> None:
    lines = [f"{prefix} epoch {number}" for number in range(5)]
    reading = read(*lines, f"{prefix} torch.OutOfMemoryError: CUDA out of memory. Tried")
    assert only(reading, "memory").rank == 3
    assert reading.ranks == (3,)
    assert reading.last_words[0].text.startswith("torch.OutOfMemoryError")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("logs/rank3.log", 3),
        ("rank_12/stderr.log", 12),
        ("slurm-991.out", None),
        ("crank5.log", None),
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


@pytest.mark.parametrize(
    "prefix", ["trainer-2-1  | ", "pod-1 pytorch ", "May 7 10:00 node python[12]: "]
)
def test_a_traceback_is_read_behind_any_prefix(prefix: str) -> None:
    lines = raised(None, "KeyError: 'a'").split("\n")
    reading = read(*(one for line in lines for one in (prefix + line, "trainer-0-1  | step 3")))
    assert only(reading, "exception").error == "KeyError: 'a'"


def test_of_chained_exceptions_the_last_one_counts() -> None:
    chain = "\nDuring handling of the above exception, another exception occurred:\n"
    reading = read(raised(None, "_queue.Empty"), chain, raised(None, "RuntimeError: worker died"))
    assert [fact.error for fact in reading.facts] == ["RuntimeError: worker died"]


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


BITS = st.one_of(
    st.sampled_from([needle for needle, _, _ in WORDS]),
    st.integers(0, 10**30).map(str),
    st.text(max_size=12),
    st.sampled_from(
        ["\n", "\r", "[rank", "]: ", "Rank ", "[PG ", "exitcode  : -", " (pid: ", "%| ", "/9 [1:2<",
         "SeqNum=", "NumelIn=", ", ", "[", "] finished collective #", " vs ",
         ", but didn't join collective #", " clients joined",
         "CollectiveFingerPrint(OpType=", "Timeout(ms)=", " ranks have launched up to operation ",
         "seconds waiting for clients. ", "op.nbytes. ", "tasks 0-", ": "]
    ),
    st.sampled_from(  # of hangcheck's own lines
        ["[rank ", "[R0/2]", "[LR0]", "[PID:", "7", " ", "10:24:31", "99:99:99", ".5", "٣",
         "2026-11-24", "2026-99-99", "[+2.1s]", "step ", "CHECKPOINT 5: x", "\x1b[31m", "[R",
         "About to call f...", "f returned (0.1s)", "f raised E (0.1s)", "ValueError: x", "[DEBUG]",
         "[10:24:31]", "[rank 12345678]", "[R?/?]"]
    ),
)  # fmt: skip


@given(st.lists(BITS, max_size=40))
@example(["RANK", "1024"])
def test_no_text_breaks_the_reader_or_the_judgement(parts: list[str]) -> None:
    own = f"{line(0, 'About to call f...')}\n"
    found = judged(own + "".join(parts), rank1="".join(reversed(parts)))
    # of more ranks only culprits and one of each group have a row
    assert found.world_size > 1_024 or 0 in [row.rank for row in found.ranks]
    assert not set(found.culprits) & set(found.victims)
    assert not found.culprits or found.certainty


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what puts lines into a log, and gives the text that is printed of it."""

    def run(*lines: str) -> str:
        log = tmp_path / "job.log"
        log.write_text("\n".join(lines) + "\n")
        invoke(["postmortem", str(log), "--run-dir", str(tmp_path / "out")])
        return " ".join(capsys.readouterr().out.split())

    return run


def line(rank: int | str, text: str, *, world: int | str = 2, pid: int = 0, at: float = 2.0) -> str:
    """A console line, as the ranks write it."""
    number = pid or (100 + rank if isinstance(rank, int) else 99)
    clock = f"10:{int(at) // 60:02}:{at % 60:06.3f}"
    return f"[{clock}][+{at:.3f}s][R{rank}/{world}][LR{rank}][PID:{number}] {text}"


def test_a_rank_in_a_call_from_which_the_others_returned_is_proven_to_hold_them_up(
    printed: Callable[..., str],
) -> None:
    ranks = (0, 1, 2)
    lines = (
        *(line(rank, "CHECKPOINT 8: Accelerator configured", world=3) for rank in ranks),
        *(line(rank, "About to call WandbLogger constructor...", world=3) for rank in ranks),
        *(line(rank, "WandbLogger constructor returned (0.400s)", world=3) for rank in (1, 2)),
        *(line(rank, "About to call barrier...", world=3, at=3) for rank in (1, 2)),
    )
    known = {"verdict": "hang", "cause": "logger_init", "culprits": (0,), "victims": (1, 2)}
    agrees(judged(*lines), {**known, "certainty": "proven", "now": "guarded_wandb_logger"})
    text, passed = printed(*lines), "CHECKPOINT 8: Accelerator configured in"
    assert f"rank 0 {passed} WandbLogger constructor last line" in text
    assert f"ranks 1-2 {passed} barrier last line 10:00:03.000" in text


def at_logger(*others: str) -> list[str]:
    """Rank 0 is in its logger's constructor, rank 1 said this."""
    return [line(0, "About to call WandbLogger constructor..."), *(line(1, one) for one in others)]


TOLD: dict[str, tuple[list[str], dict[str, Any]]] = {
    "who fell silent first is told over midnight": (
        ["[23:59:41.000][+1.0s][R1/2][LR1][PID:11] loading shard 5",
         "[00:00:20.000][+40.0s][R0/2][LR0][PID:10] loading took long"],
        {"guessed": (1,), "says": "Rank 1 fell silent first, 39 s before rank 0"}),
    "who raised first is told over midnight": (
        ["[23:59:58.000][+1.0s][R1/2][LR1][PID:11] load_vocab raised ValueError: no such split"
         " (0.010s)",
         "[00:00:01.000][+4.0s][R0/2][LR0][PID:10] read raised KeyError: 'a' (0.010s)",
         "[00:00:09.000][+12.0s][R1/2][LR1][PID:11] its log is at disk"],
        {"verdict": "crashed", "guessed": (1,), "says": "no such split. Rank 0 raised later"}),
    "all at the logger is known and nobody is blamed": (
        at_logger("About to call WandbLogger constructor..."),
        {"verdict": "suspect", "cause": "logger_init", "guessed": ()}),
    "who raised first goes by the time of the line that raised": (
        [line(0, "read raised KeyError: 'a' (0.010s)", at=3.5),
         line(1, "load_vocab raised ValueError: no such split (0.010s)", at=3.0),
         line(1, "its log is at disk", at=9.0)],
        {"verdict": "crashed", "guessed": (1,), "says": "no such split. Rank 0 raised later"}),
    "a call of one rank where the other wrote no line": (
        at_logger(),
        {"verdict": "suspect", "cause": "logger_init", "guessed": (0,), "unseen": [1]}),
    "a rank that wrote no line": (
        [line(0, "CHECKPOINT 2: Args parsed")],
        {"verdict": "suspect", "guessed": (), "says": "No line of rank 1", "unseen": [1]}),
    **{
        f"ranks that said the same together are not blamed: {text}": (
            [line(rank, text) for rank in (0, 1)],
            {"verdict": "healthy", "says": "left: no log line tells of a failure"},
        )
        for text in (
            "CHECKPOINT 12: Training finished",
            "CHECKPOINT 2: Args parsed",
            "About to call Trainer.fit...",
        )
    },
    **{
        f"the rank at an earlier step, in lines of the form {form}": (
            [form.format(rank=rank, step=step)
             for rank, last in ((0, 9), (1, 4)) for step in range(1, last + 1)],
            {"verdict": "suspect", "guessed": (1,), "says": "step 4"},
        )
        for form in (
            "[10:24:{step:02}.007][+{step}.1s][R{rank}/2][LR{rank}][PID:1{rank}] step {step}: tool",
            "3: \x1b[31m[DEBUG][10:24:{step:02}.007][+{step}.1s][R{rank}/2] step {step}",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_what_console_lines_tell(name: str) -> None:
    lines, expected = TOLD[name]
    agrees(judged(*lines), expected)


def test_last_lines_are_ordered_over_midnight(printed: Callable[..., str]) -> None:
    said = printed(
        "[23:59:59.000][+1.0s][R0/2][LR0][PID:3] About to call WandbLogger constructor...",
        "[00:00:01.000][+3.0s][R1/2][LR1][PID:4] About to call WandbLogger constructor...",
    )
    assert "last lines 23:59:59.000 to 00:00:01.000" in said


def test_a_hostile_name_does_nothing_to_the_terminal(printed: Callable[..., str]) -> None:
    said = printed(line(0, "CHECKPOINT 1: \x1b[2J\u202eevil"), line(1, "CHECKPOINT 2: b"))
    assert "evil" in said
    assert not {"\x1b", "\u202e"} & set(said)
