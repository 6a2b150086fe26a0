"""What plain logs mean: who said less than the others, and what ended the job."""

from __future__ import annotations

from lightning_hangcheck.report.plain_logs.picture import meanings
from lightning_hangcheck.report.plain_logs.rank_ends import ends_of


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


def told(*lines: str) -> list[str]:
    return meanings(ends_of([lines]))


def test_the_rank_that_passed_fewer_checkpoints_is_behind() -> None:
    said = told(
        line(0, "CHECKPOINT 1: Script started"),
        line(1, "CHECKPOINT 1: Script started"),
        line(0, "CHECKPOINT 2: Args parsed"),
        line(1, "About to call load_dataset..."),
    )

    assert said == [
        "rank 1 passed CHECKPOINT 1: Script started and began load_dataset, rank 0 came to "
        "CHECKPOINT 2: Args parsed: look first at what rank 1 does there"
    ]


def test_all_at_the_logger_is_known_by_name() -> None:
    said = told(*(line(rank, "About to call WandbLogger constructor...") for rank in (0, 1)))

    assert len(said) == 1
    assert "every rank is at the logger" in said[0]
    assert "WANDB_MODE=disabled for rank != 0" in said[0]


def test_a_section_that_returned_is_left() -> None:
    said = told(
        line(0, "About to call barrier..."),
        line(1, "About to call barrier..."),
        line(0, "barrier returned (0.400s)"),
    )

    assert said == ["rank 1 began barrier and did not come back from it; rank 0 said nothing of it"]


def test_who_told_fewer_steps_is_behind() -> None:
    said = told(
        *(line(rank, "About to call Trainer.fit...") for rank in (0, 1)),
        *(line(rank, "step 1: answer, 4.4 s") for rank in (0, 1)),
        line(1, "step 2: tool, name=check_storage, 41.2 s"),
    )

    assert said == [
        "rank 1 told 2 steps, the last one 'step 2: tool, name=check_storage, 41.2 s', rank 0 "
        "1 step, the last one 'step 1: answer, 4.4 s': look first at what rank 0 does in the next "
        "one",
        "all ranks began Trainer.fit, and none came back from it",
    ]


def test_ranks_that_told_as_many_steps_are_alike() -> None:
    said = told(*(line(rank, f"step 1: answer, {rank + 1}.4 s") for rank in (0, 1)))

    assert said == ["the ranks said the same: their log does not tell who is behind"]


def test_of_sections_of_one_name_the_inner_one_is_left_first() -> None:
    ends = ends_of(
        [
            [
                line(0, "About to call read..."),
                line(0, "About to call parse..."),
                line(0, "About to call read..."),
                line(0, "read returned (0.100s)"),
            ]
        ]
    )

    assert ends.ranks[0].sections == ["read", "parse"]


def test_who_raised_comes_first() -> None:
    said = told(
        line(0, "CHECKPOINT 2: Args parsed"),
        line(1, "About to call load_vocab..."),
        line(1, "load_vocab raised ValueError: no such split (0.010s)"),
    )

    assert said[0].startswith("rank 1 raised ValueError: no such split")


def test_a_rank_without_a_line_is_missing() -> None:
    said = told(
        line(0, "CHECKPOINT 1: Script started", world=3),
        line(1, "CHECKPOINT 1: Script started", world=3),
    )

    assert said[0].startswith("rank 2 of 3 wrote no line")


def test_a_rank_that_learns_its_number_later_is_one_process() -> None:
    ends = ends_of(
        [
            [
                line("?", "CHECKPOINT 1: Script started", pid=7),
                line(1, "CHECKPOINT 2: Args parsed", pid=7),
            ]
        ]
    )

    assert [(end.rank, end.number) for end in ends.ranks] == [(1, 2)]


def test_of_a_restarted_rank_the_new_process_counts() -> None:
    said = told(
        line(0, "CHECKPOINT 4: Tokenizer loaded", world=1, pid=5),
        line(0, "CHECKPOINT 1: Script started", world=1, pid=9),
    )

    assert "rank 0 was started again: what its last process said is shown" in said


def test_processes_of_one_id_on_two_nodes_stay_apart() -> None:
    ends = ends_of(
        [
            [line(0, "CHECKPOINT 1: Script started", pid=7)],
            [line(1, "CHECKPOINT 2: Args parsed", pid=7)],
        ]
    )

    assert [(end.rank, end.number) for end in ends.ranks] == [(0, 1), (1, 2)]


def test_labels_of_launchers_and_colours_are_read_through() -> None:
    ends = ends_of(
        [["1: \x1b[31m[default1]:" + line(1, "CHECKPOINT 3: Logs directory ready") + "\x1b[0m"]]
    )

    assert [(end.rank, end.number) for end in ends.ranks] == [(1, 3)]


def test_nccls_own_watchdog_tells_who_called_less() -> None:
    said = told(
        "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
        "ran for 600029 milliseconds before timing out.",
        watchdog(0, at=9, enqueued=12),
        watchdog(1, at=8, enqueued=8),
    )

    assert said == [
        "rank 1 called 8 collectives, others 12: "
        "what it does after them is what the others wait for"
    ]


def test_a_time_limit_of_slurm_is_said() -> None:
    said = told(
        line(0, "CHECKPOINT 1: Script started", world=1),
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:23:45 DUE TO TIME LIMIT",
    )

    assert said == ["SLURM ended the job at its time limit"]


def test_ranks_that_said_the_same_are_not_told_apart() -> None:
    said = told(*(line(rank, "CHECKPOINT 2: Args parsed") for rank in (0, 1)))

    assert said == ["the ranks said the same: their log does not tell who is behind"]


def test_ranks_that_are_through_are_not_blamed() -> None:
    said = told(*(line(rank, "CHECKPOINT 12: Training finished") for rank in (0, 1)))

    assert said == ["every rank that spoke said that its training is over"]
