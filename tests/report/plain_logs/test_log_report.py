"""`hangcheck report --log` on logs as runs leave them, and on files that are none."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.report.plain_logs.log_report import logs_of, meanings

if TYPE_CHECKING:
    from pathlib import Path


class Report(Protocol):
    """Writes each text into a log of that name, and gives what the command prints of them all."""

    def __call__(self, *texts: str, names: tuple[str, ...] = ...) -> str: ...


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    """Words of the report, single blanks between them."""

    def run(*texts: str, names: tuple[str, ...] = ("a.log", "b.log")) -> str:
        files = [tmp_path / name for name, _ in zip(names, texts, strict=False)]
        for file, text in zip(files, texts, strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
        assert invoke(["report", "--log", *map(str, files)]) == 0
        return " ".join(capsys.readouterr().out.split())

    return run


def line(rank: int | str, text: str, *, world: int | str = 2, pid: int = 0, at: float = 2.0) -> str:
    """A console line, as the ranks write it."""
    number = pid or (100 + rank if isinstance(rank, int) else 99)
    who = f"[R{rank}/{world}]" if rank != "?" else "[R?/?]"
    return f"[10:23:{at:06.3f}][+{at:.3f}s]{who}[LR{rank}][PID:{number}] {text}"


def watchdog(rank: int, *, at: int, enqueued: int) -> str:
    """A line of NCCL's watchdog, torch 2.9."""
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:2001] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        f"Exception (either an error or timeout) detected by watchdog at work: {at}, "
        f"last enqueued NCCL work: {enqueued}, last completed NCCL work: 8."
    )


PIECES = (
    *("[", "]", "rank", "[R0/2]", "][LR0", "PID:", "7", " ", "10:24:31", "99:99:99", ".5", "٣"),
    *("2026-11-24", "2026-99-99", "T", "[+2.1s]", "step ", "CHECKPOINT 5: x", "\r", "\x1b[31m"),
    *("About to call f...", "f returned (0.1s)", "f raised E (0.1s)", "ValueError: x", "INFO"),
    *("Traceback (most recent call last)", "[default0]:", "world_size=3", "[rank 12345678]"),
)
PROGRAM = """
import lightning_hangcheck as hc
hc.checkpoint("Script started")
with hc.section("tokenizer"):
    hc.checkpoint("Tokenizer loaded")
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What two processes, told their ranks by the launcher's variables, really wrote."""
    file = tmp_path / "slurm-4711.out"
    with file.open("wb") as stream:
        for rank in ("0", "1"):
            program = PROGRAM if rank == "0" else PROGRAM.split("with")[0]
            environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                stderr=stream,
                check=True,
                timeout=120,
            )
    return file


def test_the_rank_that_is_behind_is_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["report", "--log", str(log)]) == 0

    said = capsys.readouterr().out
    assert said.startswith("logs of 2 of 2 ranks, last written ")
    assert (
        "rank 0 came to CHECKPOINT 2: Tokenizer loaded, rank 1 to CHECKPOINT 1: Script started: "
        "look first at what rank 1 does after it"
    ) in " ".join(said.split())
    assert len(said.splitlines()) <= 40


@pytest.mark.parametrize(
    ("arguments", "clear"),
    [
        (["--log"], "no log is named"),
        (["--log", "--json", "a.log"], "one form at a time"),
        (["--log", "absent.log"], "absent.log cannot be read (No such file or directory)"),
        (["a", "b"], "report takes one run folder"),
    ],
)
def test_bad_usage_is_one_clear_line(
    arguments: list[str], clear: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["report", *arguments]) == 2

    error = capsys.readouterr().err
    assert clear in error
    assert error.count("\n") == 1


def test_a_log_of_something_else_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.log"
    file.write_bytes(b"\x00\xff epoch 3 of 5\n" * 3 + b"x" * 200_000)

    assert invoke(["report", "--log", str(file)]) == 2

    assert "no line in these logs tells of a rank" in capsys.readouterr().err


def test_a_hostile_name_does_nothing_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hostile.log"
    file.write_text("[10:23:45.123][+2.456s][R0/1][LR0][PID:5] CHECKPOINT 1: \x1b[2J\u202eevil\n")

    assert invoke(["report", "--log", str(file)]) == 0

    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said


def written(*lines: str) -> str:
    return "\n".join(lines)


def steps_of(rank: int, last: int, form: str) -> str:
    return written(*(form.format(rank=rank, step=step) for step in range(1, last + 1)))


@pytest.mark.parametrize(
    "form",
    [
        "[10:24:{step:02}.007][+{step}.1s][R{rank}/2][LR{rank}][PID:1{rank}] step {step}: tool",
        "[DEBUG] [10:24:{step:02}] [Rank {rank}/2] step {step} loss=0.{step}",
        "[DEBUG][rank {rank}] step {step} of 100",
        "[rank{rank}]: step {step}",
        "[{rank}]:step {step}",
        "{rank}: Epoch 1, step {step}",
        "[default{rank}]:2026-11-24 10:24:{step:02},123 - my.train - INFO - step {step}",
        "2026-11-24 10:24:{step:02},123 [INFO] __main__ - [rank {rank}] batch {step}",
        "INFO:train:rank {rank} step {step}",
        "2026-11-24 10:24:{step:02}.123 | INFO     | __main__:fit:42 - rank {rank} | step {step}",
    ],
)
def test_the_rank_at_an_earlier_step_is_named_whatever_form_the_lines_have(
    form: str, report: Report
) -> None:
    said = report(written(steps_of(0, 9, form), steps_of(1, 4, form)))

    assert "look first at what rank 1 does after it" in said
    assert "logs of 2 " in said


@pytest.mark.parametrize(
    "names",
    [
        ("train_rank0.log", "train_rank1.log"),
        ("run/attempt_0/0/stderr.log", "run/attempt_0/1/stderr.log"),
        ("slurm-4711.0.out", "slurm-4711.1.out"),
    ],
)
def test_in_a_file_for_each_rank_no_line_need_name_it(
    names: tuple[str, ...], report: Report
) -> None:
    form = "2026-11-24 10:24:{step:02},123 - INFO - step {step}"

    said = report(steps_of(0, 9, form), steps_of(1, 4, form), names=names)

    assert "rank 0 came to 'step 9', rank 1 to 'step 4': look first at what rank 1 does" in said
    assert "rank 1 fell silent first, 5 s before the others; its last line: 'step 4'" in said


def test_logs_of_nodes_are_not_taken_for_logs_of_ranks(report: Report) -> None:
    said = report(
        "[default0]:step 3\nnobody said this",
        "[default0]:step 3\nnobody said this",
        names=("node0.log", "node1.log"),
    )

    assert said.startswith("logs of 0 ranks and of 2 others without a rank")
    assert "default0 of" in said
    assert "nobody said this" not in said


def test_ranks_that_said_the_same_at_different_times_are_told_apart(report: Report) -> None:
    said = report(
        written(
            "[10:24:31.007][+2.1s][R1/2][LR1][PID:11] CHECKPOINT 2: Args parsed",
            "[10:31:31.007][+422.1s][R0/2][LR0][PID:10] CHECKPOINT 2: Args parsed",
        )
    )

    assert "last lines 10:24:31.007 to 10:31:31.007 (+2.1 to +422.1 s)" in said
    assert (
        "all said the same last, rank 0 7 min 00 s after rank 1: look first at what rank 0 did "
        "before it"
    ) in said


def test_who_fell_silent_first_is_told_over_midnight(report: Report) -> None:
    said = report(
        written(
            "23:59:40 [rank 0] loading shard 4",
            "23:59:41 [rank 1] loading shard 5",
            "00:00:20 [rank 0] loading took long",
        )
    )

    assert "rank 1 fell silent first, 39 s before the others; its last line: 'loading shard 5'" in (
        said
    )


def test_without_clocks_the_order_of_the_lines_tells_who_fell_silent_first(report: Report) -> None:
    others = [f"[rank {rank}] shard {shard} is read" for shard in range(9) for rank in (0, 2)]

    said = report(written("[rank 1] about to save", *others))

    assert "rank 1 fell silent first, 17 lines before the others" in said


def test_of_64_ranks_the_one_that_stopped_is_the_first_row(report: Report) -> None:
    lines = [
        f"2026-11-24 10:00:{step:02},1{rank:02} [INFO] [rank {rank}/64] step {step}"
        for step in range(60)
        for rank in range(64)
        if not (rank == 17 and step > 20)
    ]

    said = report(written(*lines))

    assert "logs of 64 of 64 ranks" in said
    assert said.index("rank 17 step 20") < said.index("ranks 0-16,18-63 step 59")
    assert "rank 17 fell silent first, 39 s before the others" in said


def test_who_raised_first_goes_by_the_line_that_raised(report: Report) -> None:
    said = report(
        written(
            line(1, "load_vocab raised ValueError: no such split (0.010s)", at=3.0),
            line(0, "reduce raised RuntimeError: Connection closed by peer (0.010s)", at=3.1),
            line(1, "its log is at disk", at=9.0),
        )
    )

    assert "means rank 1 raised ValueError: no such split (rank 0 raised later)" in said


def test_the_end_of_a_traceback_tells_who_raised(report: Report) -> None:
    said = report(
        written(
            "[rank1]: Traceback (most recent call last):",
            '[rank1]:   File "train.py", line 3, in <module>',
            "[rank1]: ValueError: no such split",
            "[rank0]: RuntimeError: [../gloo] Connection closed by peer [10.0.0.1]:2344",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        )
    )

    assert "means rank 1 raised ValueError: no such split (rank 0 raised later)" in said


def test_of_two_files_a_connection_that_broke_was_not_first(report: Report) -> None:
    said = report(
        "10:00:00 step 5\nRuntimeError: Connection closed by peer",
        "10:00:00 step 5\nValueError: no such split",
        names=("rank0.log", "rank1.log"),
    )

    assert "means rank 1 raised ValueError: no such split: the others wait for it" in said


def test_an_order_that_two_files_do_not_tell_is_not_made_up(report: Report) -> None:
    said = report("step 5\nKeyError: 'a'", "ValueError: b", names=("rank0.log", "rank1.log"))

    assert (
        "ranks 0-1 raised, in an order that the logs do not tell: rank 0 KeyError: 'a'; rank 1 "
        "ValueError: b"
    ) in said


def test_a_rank_that_went_on_is_not_said_to_have_raised(report: Report) -> None:
    said = report(
        written(
            line(1, "read raised OSError: try again (0.010s)"),
            line(1, "step 2: answer, 4.4 s"),
            line(0, "step 2: answer, 4.4 s"),
        )
    )

    assert "raised" not in said


def test_an_exception_of_a_rank_that_is_not_named_is_shown(report: Report) -> None:
    said = report("[rank 0] step 5\n[rank 1] step 5\nValueError: no such split")

    assert "a rank that the log does not name raised ValueError: no such split" in said


def test_all_at_the_logger_is_known_by_name(report: Report) -> None:
    said = report(
        written(*(line(rank, "About to call WandbLogger constructor...") for rank in (0, 1)))
    )

    assert "means every rank is at the logger" in said
    assert "WANDB_MODE=disabled for rank != 0" in said


def test_a_section_that_returned_is_left(report: Report) -> None:
    said = report(
        written(
            line(0, "About to call barrier..."),
            line(1, "About to call barrier..."),
            line(0, "barrier returned (0.400s)"),
        )
    )

    assert (
        "means rank 1 began barrier and did not come back from it; rank 0 said nothing of it"
    ) in said


def test_of_sections_of_one_name_the_inner_one_is_left_first(report: Report) -> None:
    said = report(
        written(
            line(0, "About to call read..."),
            line(0, "About to call parse..."),
            line(0, "About to call read..."),
            line(0, "read returned (0.100s)"),
        )
    )

    assert "rank 0 in parse read returned" in said


def test_a_rank_without_a_line_is_missing(report: Report) -> None:
    said = report(written(*(line(rank, "CHECKPOINT 1: Started", world=3) for rank in (0, 1))))

    assert "means rank 2 of 3 wrote no line" in said


def test_a_rank_that_learns_its_number_later_is_one_process(report: Report) -> None:
    said = report(
        written(
            line("?", "CHECKPOINT 1: Script started", pid=7),
            line(1, "CHECKPOINT 2: Args parsed", pid=7),
        )
    )

    assert "logs of 1 of 2 ranks" in said
    assert "rank 1 CHECKPOINT 2: Args parsed last line" in said


def test_of_a_restarted_rank_the_new_process_counts(report: Report) -> None:
    said = report(
        written(
            line(0, "CHECKPOINT 4: Tokenizer loaded", world=1, pid=5),
            line(0, "CHECKPOINT 1: Script started", world=1, pid=9),
        )
    )

    assert "rank 0 CHECKPOINT 1: Script started last line" in said
    assert "rank 0 was started again: what its last process said is shown" in said


def test_processes_of_one_id_on_two_nodes_stay_apart(report: Report) -> None:
    said = report(
        line(0, "CHECKPOINT 1: Script started", pid=7), line(1, "CHECKPOINT 2: Args", pid=7)
    )

    assert "rank 0 CHECKPOINT 1: Script started last line" in said
    assert "rank 1 CHECKPOINT 2: Args last line" in said


def test_processes_of_one_id_in_one_file_are_told_apart_by_their_ranks(report: Report) -> None:
    said = report(
        written(*(line(rank, f"step {step}: tool", pid=7) for step in (1, 2) for rank in (0, 1)))
    )

    assert "ranks 0-1 step 2: tool" in said
    assert "started again" not in said


def test_labels_of_launchers_and_colours_are_read_through(report: Report) -> None:
    said = report(
        "3: \x1b[31m[default1]:" + line(1, "CHECKPOINT 3: Logs directory ready") + "\x1b[0m"
    )

    assert "rank 1 CHECKPOINT 3: Logs directory ready last line" in said
    assert "rank 3" not in said


def test_nccls_own_watchdog_tells_who_called_less(report: Report) -> None:
    said = report(
        written(
            "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
            "Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
            watchdog(0, at=9, enqueued=12),
            watchdog(1, at=8, enqueued=8),
        )
    )

    assert "means rank 1 called 8 collectives, others 12: what it does after them" in said


def test_ranks_that_nccl_saw_waiting_in_different_collectives_are_told_apart(
    report: Report,
) -> None:
    caught = (
        "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={},"
    )

    said = report(
        written(
            caught.format(2, 532339, "BROADCAST"),
            caught.format(1, 532339, "BROADCAST"),
            caught.format(0, 532341, "_ALLGATHER_BASE"),
        )
    )

    assert (
        "NCCL gave up waiting: ranks 1-2 in BROADCAST number 532339, rank 0 in _ALLGATHER_BASE "
        "number 532341"
    ) in said


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("JOB 4711 ON n1 CANCELLED AT 10:23 DUE TO TIME LIMIT", "SLURM ended the job at its time"),
        ("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried", "a GPU ran out of memory"),
        ("Detected 1 oom_kill event in StepId=4711.0", "the kernel killed a process for memory"),
        ("  exitcode  : -9 (pid: 36071)  (SIGKILL)", "a rank was killed by SIGKILL"),
    ],
)
def test_what_ended_the_job_is_said(words: str, meaning: str, report: Report) -> None:
    assert meaning in report(written(line(0, "CHECKPOINT 1: Script started", world=1), words))


def test_ranks_that_said_the_same_together_are_not_told_apart(report: Report) -> None:
    said = report(written(*(line(rank, "CHECKPOINT 2: Args parsed") for rank in (0, 1))))

    assert "the ranks said the same, together: the logs do not tell who is behind" in said


def test_ranks_that_are_through_are_not_blamed(report: Report) -> None:
    said = report(written(*(line(rank, "CHECKPOINT 12: Training finished") for rank in (0, 1))))

    assert "means every rank that spoke said that its training is over" in said


INTERRUPTED = """\
Traceback (most recent call last):
  File "train.py", line 16, in <module>
    dist.all_reduce(loss)
RuntimeError: [../gloo] Connection closed by peer [10.0.0.1]:2344

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 18, in <module>
KeyboardInterrupt"""


def test_what_ranks_raise_as_they_are_ended_is_neither_a_cause_nor_their_last_word(
    report: Report,
) -> None:
    clock = "2026-11-24 10:24:{},500 - train - INFO - "

    said = report(
        f"{clock.format('09')}step 9\n{INTERRUPTED}",
        f"{clock.format('04')}loading shard 5\nKeyboardInterrupt",
        names=("rank0.log", "rank1.log"),
    )

    assert "rank 1 fell silent first, 5 s before the others; its last line: 'loading shard 5'" in (
        said
    )
    assert "means rank 0 raised what mostly follows another rank's end: RuntimeError" in said
    assert "KeyboardInterrupt" not in said


def test_what_a_rank_wrote_to_two_files_is_one_story(report: Report) -> None:
    said = report(
        "10:24:04 loading shard 5\nValueError: no such shard",
        "step 3",
        "10:24:03 step 2 is done",
        "step 3",
        names=("0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log"),
    )

    assert "rank 0 step 3 loading shard 5; raised ValueError: no such shard" in said
    assert "means rank 0 raised ValueError: no such shard" in said


@given(
    st.lists(
        st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
        min_size=1,
        max_size=20,
    )
)
def test_no_text_is_too_strange(lines: list[str]) -> None:
    logs = logs_of([("rank0.log", lines), ("rank1.log", lines[::-1])])

    assert meanings(logs) or not logs.processes
