"""`hangcheck postmortem` where nothing is left but the console lines of hangcheck itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_lines import guessed, judged

from lightning_hangcheck.cli.main import invoke

if TYPE_CHECKING:
    from pathlib import Path

PIECES = (
    *("[", "]", "[rank ", "[R0/2]", "[LR0]", "[PID:", "7", " ", "10:24:31", "99:99:99", ".5", "٣"),
    *("2026-11-24", "2026-99-99", "[+2.1s]", "step ", "CHECKPOINT 5: x", "\r", "\x1b[31m", "[R"),
    *("About to call f...", "f returned (0.1s)", "f raised E (0.1s)", "ValueError: x", "[DEBUG]"),
    *("[10:24:31]", "[rank 12345678]", "[R?/?]", "\n"),
)
PROGRAM = """
import lightning_hangcheck as hc
hc.checkpoint("Script started")
with hc.section("tokenizer"):
    hc.checkpoint("Tokenizer loaded")
"""


class Told(Protocol):
    """Puts lines into a log, and gives the verdict, and the text that is printed of it."""

    def __call__(self, *lines: str) -> tuple[dict[str, object], str]: ...


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    def run(*lines: str) -> tuple[dict[str, object], str]:
        log = tmp_path / "job.log"
        log.write_text("\n".join(lines) + "\n")
        out = tmp_path / "out"
        invoke(["postmortem", str(log), "--run-dir", str(out)])
        text = " ".join(capsys.readouterr().out.split())
        return json.loads((out / "verdict.json").read_bytes()), text

    return run


def line(rank: int | str, text: str, *, world: int | str = 2, pid: int = 0, at: float = 2.0) -> str:
    """A console line, as the ranks write it."""
    number = pid or (100 + rank if isinstance(rank, int) else 99)
    clock = f"10:{int(at) // 60:02}:{at % 60:06.3f}"
    return f"[{clock}][+{at:.3f}s][R{rank}/{world}][LR{rank}][PID:{number}] {text}"


def test_a_rank_in_a_call_from_which_the_others_returned_is_proven_to_hold_them_up(
    told: Told,
) -> None:
    ranks = (0, 1, 2)
    verdict, text = told(
        *(line(rank, "CHECKPOINT 8: Accelerator configured", world=3) for rank in ranks),
        *(line(rank, "About to call WandbLogger constructor...", world=3) for rank in ranks),
        *(line(rank, "WandbLogger constructor returned (0.400s)", world=3) for rank in (1, 2)),
        *(line(rank, "About to call barrier...", world=3, at=3) for rank in (1, 2)),
    )
    named = [verdict[name] for name in ("verdict", "cause", "culprits", "victims", "certainty")]
    assert named == ["hang", "logger_init", [0], [1, 2], "proven"]
    assert (
        "rank 0 CHECKPOINT 8: Accelerator configured in WandbLogger constructor last line" in text
    )
    assert (
        "ranks 1-2 CHECKPOINT 8: Accelerator configured in barrier last line 10:00:03.000" in text
    )
    assert "WANDB_MODE=disabled for rank != 0" in text


def test_a_logger_that_rank_0_alone_creates_is_proven_by_the_barrier_of_the_others() -> None:
    found = judged(
        line(0, "About to call WandbLogger constructor..."), line(1, "About to call barrier...")
    )
    assert (found.culprits, found.certainty, found.cause) == ((0,), "proven", "logger_init")


@pytest.mark.parametrize(
    "others",
    [
        ["About to call read_shards..."],  # they need not wait for anybody
        ["About to call barrier...", "barrier returned (0.100s)"],
        ["CHECKPOINT 9: WandbLogger ready"],
    ],
)
def test_where_others_need_not_wait_a_rank_that_is_inside_a_call_is_a_guess(
    others: list[str],
) -> None:
    found = judged(
        line(0, "About to call WandbLogger constructor..."), *(line(1, one) for one in others)
    )
    assert (found.verdict, found.culprits) == ("suspect", ())


def test_a_barrier_that_both_entered_is_not_what_one_of_them_lacks() -> None:
    found = judged(
        line(0, "About to call barrier..."),
        line(1, "About to call barrier..."),
        line(0, "About to call WandbLogger constructor..."),
    )
    assert found.culprits == ()


def test_what_two_processes_really_wrote_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "slurm-4711.out"
    with log.open("wb") as stream:
        for rank in ("0", "1"):
            program = PROGRAM if rank == "0" else PROGRAM.split("with", maxsplit=1)[0]
            subprocess.run(
                [sys.executable, "-c", program],
                env={"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"},
                stderr=stream,
                check=True,
                timeout=120,
            )
    assert invoke(["postmortem", str(log), "--run-dir", str(tmp_path / "out")]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "Rank 1 came to CHECKPOINT 1: Script started, while rank 0 came as far as" in said


@pytest.mark.parametrize(
    "form",
    [
        "[10:24:{step:02}.007][+{step}.1s][R{rank}/2][LR{rank}][PID:1{rank}] step {step}: tool",
        "[DEBUG] [10:24:{step:02}] [Rank {rank}/2] step {step} loss=0.{step}",
        "[DEBUG][rank {rank}] step {step} of 100",
        "3: \x1b[31m[DEBUG][10:24:{step:02}.007][+{step}.1s][R{rank}/2] step {step}",
    ],
)
def test_the_rank_at_an_earlier_step_is_guessed_whatever_form_the_lines_have(form: str) -> None:
    found = judged(
        *(form.format(rank=rank, step=step) for rank, last in ((0, 9), (1, 4))
          for step in range(1, last + 1))
    )  # fmt: skip
    assert (found.verdict, guessed(found)) == ("suspect", (1,))
    assert "step 4" in found.summary


def test_ranks_that_said_the_same_at_different_times_are_told_apart(told: Told) -> None:
    _, text = told(
        "[10:24:31.007][+2.1s][R1/2][LR1][PID:11] CHECKPOINT 2: Args parsed",
        "[10:31:31.007][+422.1s][R0/2][LR0][PID:10] CHECKPOINT 2: Args parsed",
    )
    assert "rank 0 7 min 00 s after rank 1. Look first at what rank 0 did before it" in text
    assert "last lines 10:24:31.007 to 10:31:31.007" in text


def test_who_fell_silent_first_is_told_over_midnight() -> None:
    found = judged(
        "[23:59:41.000][+1.0s][R1/2][LR1][PID:11] loading shard 5",
        "[00:00:20.000][+40.0s][R0/2][LR0][PID:10] loading took long",
    )
    assert guessed(found) == (1,)
    assert "Rank 1 fell silent first, 39 s before rank 0" in found.summary


def test_who_raised_first_goes_by_the_time_of_the_line_that_raised() -> None:
    found = judged(
        line(0, "read raised KeyError: 'a' (0.010s)", at=3.5),
        line(1, "load_vocab raised ValueError: no such split (0.010s)", at=3.0),
        line(1, "its log is at disk", at=9.0),
    )
    assert (found.verdict, guessed(found)) == ("crashed", (1,))
    assert "ValueError: no such split. Rank 0 raised later" in found.summary


def test_what_a_rank_raises_as_another_one_fails_was_not_first() -> None:
    found = judged(
        line(0, "reduce raised RuntimeError: Connection closed by peer (0.010s)", at=3.0),
        line(1, "load_vocab raised ValueError: no such split (0.010s)", at=3.1),
    )
    assert (found.verdict, found.culprits) == ("crashed", (1,))


def test_a_rank_that_went_on_is_not_said_to_have_raised() -> None:
    found = judged(
        line(1, "read raised OSError: try again (0.010s)"),
        line(1, "step 2: answer, 4.4 s"),
        line(0, "step 2: answer, 4.4 s"),
    )
    assert found.verdict == "healthy"


def test_all_at_the_logger_is_known_and_nobody_is_blamed() -> None:
    found = judged(*(line(rank, "About to call WandbLogger constructor...") for rank in (0, 1)))
    assert (found.verdict, found.cause, guessed(found)) == ("suspect", "logger_init", ())


def test_of_calls_of_one_name_the_earlier_one_is_guessed() -> None:
    found = judged(
        line(0, "About to call read..."),
        line(1, "About to call read..."),
        line(0, "read returned (0.100s)"),
        line(0, "About to call read..."),
    )
    assert (guessed(found), found.culprits) == ((1,), ())
    assert "Rank 1 began read #1 and did not come back from it; rank 0 began read #2" in (
        found.summary
    )


def test_where_a_rank_wrote_no_line_a_call_of_the_other_and_the_gap_are_told() -> None:
    found = judged(line(0, "About to call WandbLogger constructor..."))
    assert (found.verdict, found.cause, guessed(found)) == ("suspect", "logger_init", (0,))
    assert [gap.rank for gap in found.gaps if "log lines" in gap.what] == [1]
    quiet = judged(line(0, "CHECKPOINT 2: Args parsed"))
    assert (quiet.verdict, guessed(quiet)) == ("suspect", ())
    assert "no line of rank 1" in quiet.summary.lower()


@pytest.mark.parametrize(
    "lines",
    [
        [line(rank, "CHECKPOINT 12: Training finished") for rank in (0, 1)],
        [line(rank, "CHECKPOINT 2: Args parsed") for rank in (0, 1)],
        [line(rank, "About to call Trainer.fit...") for rank in (0, 1)],
    ],
)
def test_ranks_that_said_the_same_together_are_not_blamed(lines: list[str]) -> None:
    assert judged(*lines).verdict == "healthy"


def test_of_a_rank_the_newest_process_counts_also_before_it_knows_its_number(told: Told) -> None:
    _, text = told(
        line(0, "CHECKPOINT 4: Tokenizer loaded", pid=5),
        line("?", "CHECKPOINT 1: Script started", world="?", pid=9),
        line(0, "CHECKPOINT 2: Args parsed", pid=9),
        line(1, "CHECKPOINT 1: Script started"),
    )
    assert "rank 0 CHECKPOINT 2: Args parsed last line" in text


def test_why_the_job_was_ended_and_who_wrote_no_line_is_said(told: Told) -> None:
    verdict, text = told(
        line(0, "CHECKPOINT 2: Args parsed", world=3),
        line(1, "CHECKPOINT 1: Script started", world=3),
        "slurmstepd: error: *** JOB 91 ON n1 CANCELLED AT 2024-05-13T13:00:00 DUE TO TIME LIMIT",
    )
    assert "due to time limit" in text
    gaps = verdict["gaps"]
    assert isinstance(gaps, list)
    assert any(gap["rank"] == 2 for gap in gaps)


def test_a_hostile_name_does_nothing_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "hostile.log"
    log.write_text(line(0, "CHECKPOINT 1: \x1b[2J\u202eevil") + "\n" + line(1, "CHECKPOINT 2: b"))
    invoke(["postmortem", str(log), "--run-dir", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert "evil" in said
    assert "\x1b" not in said
    assert "\u202e" not in said


@given(
    st.lists(
        st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
        min_size=1,
        max_size=20,
    )
)
def test_no_text_is_too_strange(lines: list[str]) -> None:
    told = "\n".join(lines).encode(errors="replace").decode()
    assert 0 in [row.rank for row in judged(line(0, "About to call f..."), told).ranks]
