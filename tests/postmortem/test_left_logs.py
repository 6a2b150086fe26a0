"""What logs of a job that is gone prove, and the mistakes that must not be made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from log_lines import HALF_HOUR, dumped, judged, raised, status, summary, timeout

from lightning_hangcheck.judge.left_logs import find_in_logs
from lightning_hangcheck.postmortem.logs import read_log

SHARED = Path(__file__).resolve().parents[3] / "shared"
PIECES = Path(os.environ.get("HANGCHECK_LEFT_BEHIND", SHARED / "left-behind"))
BIG = 4_501_504


def test_who_reports_first_is_not_the_culprit() -> None:
    found = judged(*(timeout(rank, 70) for rank in (3, 0, 1, 2)))
    assert found.verdict == "hang"
    assert (found.culprits, found.guessed) == ((), ())
    assert found.victims == (0, 1, 2, 3)


def test_exit_code_one_says_nothing() -> None:
    found = judged(summary((3, 1, "2024-05-13_13:26:30"), (0, -15, "2024-05-13_13:26:31")))
    assert found.verdict == "crashed"
    assert (found.culprits, found.guessed) == ((), ())


@pytest.mark.parametrize("code", [-9, -11])
def test_a_signal_before_anybody_waited_names_the_rank(code: int) -> None:
    found = judged(summary((2, code, "2024-05-13_13:26:30")))
    assert (found.cause, found.culprits, found.certainty) == ("process_dead", (2,), "proven")


def test_a_kill_of_torchrun_itself_names_nobody() -> None:
    found = judged(summary((0, 1, "2024-05-13_13:26:30"), (2, -9, "2024-05-13_13:27:01")))
    assert found.culprits == ()


def test_a_silent_rank_is_unknown_not_guilty() -> None:
    found = judged(*(timeout(rank, 70, "_ALLGATHER_BASE", (513, 2052)) for rank in (0, 1, 2)))
    assert found.world_size == 4
    assert (found.culprits, found.guessed) == ((), ())
    (gap,) = (one for one in found.gaps if one.kind == "rank")
    assert gap.rank == 3
    assert "--log-dir" in gap.reason


def test_the_rank_of_a_group_is_not_a_global_rank() -> None:
    sizes = {4: BIG, 5: BIG, 6: BIG, 7: 2 * BIG}
    lines = []
    for rank, numel in sizes.items():
        lines.append(timeout(rank, 216, numel=numel, of=rank - 4))
        lines.append(status(rank, 216, 220, 215, "119(DATA_PARALLEL)", rank - 4))
    found = judged(*lines)
    assert (found.culprits, found.certainty) == ((7,), "majority")


def test_a_rank_of_a_group_whose_global_rank_is_not_told_is_no_culprit() -> None:
    lines = [
        line.partition("]:")[2]
        for rank in range(4)
        for line in (
            timeout(rank, 216, numel=BIG * (1 + rank // 3)),
            status(rank, 216, 220, 215, "119(DATA_PARALLEL)"),
        )
    ]
    found = judged(*lines)
    assert found.cause == "collective_mismatch"
    assert found.culprits == ()


def test_numbers_of_different_groups_are_not_compared() -> None:
    found = judged(
        timeout(13, 216, "ALLREDUCE", BIG, of=1),
        status(13, 216, 220, 215, "119", 1),
        timeout(15, 216, "BROADCAST", 32, of=0),
        status(15, 216, 216, 215, "112", 0),
    )
    assert (found.cause, found.culprits) == ("unknown", ())


def test_one_number_of_a_local_group_on_two_ranks_is_two_groups() -> None:
    found = judged(
        "[rank0]:[E ProcessGroupNCCL.cpp:1664] [PG 5 Rank 0] Timeout at NCCL work: 9,"
        " last enqueued NCCL work: 9, last completed NCCL work: 8.",
        "[rank4]:[E ProcessGroupNCCL.cpp:1664] [PG 5 Rank 0] Timeout at NCCL work: 7,"
        " last enqueued NCCL work: 7, last completed NCCL work: 6.",
    )
    assert (found.verdict, found.culprits) == ("hang", ())


def test_fewer_entered_is_not_behind_where_all_are_inside() -> None:
    found = judged(
        timeout(0, 70, numel=BIG),
        status(0, 70, 95, 69),
        timeout(1, 70, numel=BIG),
        status(1, 70, 70, 69),
    )
    assert (found.culprits, found.guessed) == ((), ())


def test_who_ended_the_number_before_may_be_inside_the_call() -> None:
    found = judged(
        timeout(0, 70, numel=BIG), status(0, 70, 84, 69), dumped(1, 69, 69)
    )  # fmt: skip
    assert (found.culprits, found.certainty) == ((1,), "proven")
    assert "had not finished entering 70" in found.summary


def test_last_words_tell_which_of_two_ranks_is_late() -> None:
    words = {"rank0": "13:00:10,228 step=41 after_step\n", "rank1": "12:55:46,875 step=41 before\n"}
    lines = (timeout(0, 70), status(0, 70, 70, 69), dumped(1, 69, 69))
    assert judged(*lines).certainty == ""
    assert judged(*lines).guessed == (1,)
    found = judged(*lines, **words)
    assert (found.culprits, found.certainty) == ((1,), "proven")
    assert "before" in found.summary


def test_few_ranks_ahead_of_most_are_not_called_waiting_for_guilty_ones() -> None:
    found = judged(timeout(0, 70), status(0, 70, 70, 69), *(dumped(n, 69, 69) for n in (1, 2, 3)))
    assert (found.culprits, found.guessed) == ((), ())
    assert "may have strayed" in found.summary


def test_one_late_rank_of_many_is_proven() -> None:
    ranks = [0, 1, 2, 4, 5]
    found = judged(
        *(timeout(rank, 70, numel=BIG) for rank in ranks),
        *(status(rank, 70, 71, 69) for rank in ranks),
        dumped(3, 69, 69),
    )
    assert (found.culprits, found.certainty) == ((3,), "proven")
    assert found.victims == (0, 1, 2, 4, 5)


def test_in_a_job_of_several_groups_a_late_rank_is_only_guessed() -> None:
    """It may wait in another group, of which its own numbers do not tell."""
    found = judged(
        timeout(0, 70, numel=BIG),
        status(0, 70, 84, 69),
        timeout(2, 9, of=0),
        status(2, 9, 9, 8, "7(TP)", 0),
        dumped(1, 69, 69),
    )
    assert (found.culprits, found.guessed) == ((), (1,))


@pytest.mark.parametrize("op", ["ALLTOALL_BASE", "ALLTOALL", "COALESCED", "ALLGATHER"])
def test_lengths_are_not_compared_where_ranks_may_bring_other_ones(op: str) -> None:
    found = judged(*(timeout(rank, 70, op, 500 + 9 * rank) for rank in range(3)))
    assert (found.cause, found.culprits) == ("unknown", ())


def test_lengths_of_work_divided_unevenly_name_nobody() -> None:
    found = judged(*(timeout(rank, 70, numel=1436 - (rank == 2)) for rank in range(4)))
    assert found.culprits == ()


def test_one_rank_in_another_operation_is_the_odd_one() -> None:
    found = judged(
        *(timeout(rank, 70, numel=BIG) for rank in (1, 2, 3)),
        timeout(0, 70, "_ALLGATHER_BASE", (8, 32)),
    )
    assert (found.cause, found.culprits) == ("rank_diverged", (0,))
    assert found.certainty == "majority"


def test_of_two_ranks_in_other_operations_neither_is_named() -> None:
    found = judged(timeout(0, 70, "BROADCAST", 8), timeout(1, 70, numel=BIG))
    assert (found.cause, found.culprits, found.guessed) == ("collective_mismatch", (), ())


def test_most_of_the_few_that_were_heard_is_no_majority_of_the_job() -> None:
    found = judged(
        *(timeout(rank, 70, "_ALLGATHER_BASE", (8, 8 * 64)) for rank in (1, 2)),
        timeout(0, 70, numel=BIG),
    )
    assert (found.world_size, found.culprits) == (64, ())


def test_ras_lists_the_smaller_set_not_the_guilty_one() -> None:
    found = judged(
        "#0-0 (fa93daea854b060b) MISMATCH",
        "  Communicator ranks have different AllGather operation counts",
        "  30 ranks have launched up to operation 640",
        "  2 ranks have launched up to operation 641",
        "  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124",
        "  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124",
    )
    assert (found.verdict, found.culprits, found.guessed) == ("hang", (), ())
    assert "may be the faster" in found.summary


@pytest.mark.parametrize("code", [-6, -11, -9])
def test_how_a_rank_dies_after_its_time_out_is_a_consequence(code: int) -> None:
    found = judged(
        *(timeout(rank, 70, numel=BIG) for rank in range(3)),
        "[rank1]:[F513 13:35:57.714 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg)"
        " Rank 1] Terminating the process after attempting to dump debug info",
        "[rank1]: BrokenPipeError: [Errno 32] Broken pipe",
        summary((1, code, "2024-05-13_13:36:00")),
    )
    assert (found.verdict, found.culprits) == ("hang", ())


def test_a_kill_before_the_others_waited_is_the_cause() -> None:
    found = judged(
        summary((5, -9, "2024-05-13_12:55:40")),
        *(timeout(rank, 70, numel=BIG) for rank in range(3)),
    )
    assert (found.verdict, found.culprits) == ("dead", (5,))
    assert found.victims == (0, 1, 2)


def bar(done: int, spent: str, rank: int = 0) -> str:
    return f"[rank{rank}]: Map:  60%|██████    | {done}/1000 [{spent}<17:38, 2.86s/ examples]"


def test_a_barrier_with_a_moving_progress_bar_is_slow() -> None:
    found = judged(bar(600, "28:00"), bar(620, "29:00"), timeout(1, 3), bar(640, "30:02"))
    assert (found.verdict, found.cause) == ("slow", "slow_progress")
    assert (found.culprits, found.victims) == ((0,), (1,))


def test_a_progress_bar_that_stood_when_the_wait_began_shows_no_work() -> None:
    found = judged(bar(600, "2:28:00"), bar(620, "2:29:00"), timeout(1, 3), timeout(0, 3))
    assert found.verdict == "hang"


def test_a_clock_that_jumped_orders_nothing() -> None:
    late = {"rank0": "13:00:10,228 after\n", "rank1": "12:55:46,875 before\n"}
    found = judged(
        timeout(0, 70, ran=HALF_HOUR * 9), status(0, 70, 70, 69), dumped(1, 69, 69), **late
    )
    assert found.culprits == ()
    assert any(gap.kind == "time" for gap in found.gaps)


def test_a_time_out_long_after_its_limit_says_that_something_stood_still() -> None:
    found = judged(timeout(0, 70, ran=HALF_HOUR * 9))
    assert "stood still" in found.summary


def test_the_first_operation_that_never_ends_points_at_the_machine() -> None:
    found = judged(timeout(1, 1), status(1, 1, 1, -1))
    assert (found.cause, found.culprits) == ("network_wait", ())
    assert "NCCL_P2P_DISABLE" in found.summary


def test_where_all_ranks_are_inside_the_data_does_not_move() -> None:
    found = judged(*(timeout(rank, 70, "_ALLGATHER_BASE", (8, 32)) for rank in range(4)))
    assert (found.cause, found.culprits) == ("network_wait", ())
    assert not [gap for gap in found.gaps if gap.kind == "rank"]


def test_an_operation_that_ended_on_all_but_one_rank_points_at_its_gpu() -> None:
    found = judged(timeout(2, 70, numel=BIG), *(timeout(rank, 71) for rank in (0, 1, 3)))
    assert (found.culprits, found.certainty) == ((2,), "majority")


def test_a_source_may_end_its_broadcast_before_the_others() -> None:
    found = judged(timeout(2, 70, "BROADCAST", 8), *(timeout(rank, 72) for rank in (0, 1, 3)))
    assert found.culprits == ()


def test_an_exception_of_one_rank_explains_the_wait_of_the_others() -> None:
    found = judged(raised(3, "KeyError: 'label'"), *(timeout(rank, 70) for rank in (0, 1, 2)))
    assert (found.verdict, found.cause, found.culprits) == ("dead", "process_dead", (3,))
    assert "KeyError: 'label'" in found.summary


def test_an_exception_that_its_rank_outlived_is_not_the_cause() -> None:
    found = judged(raised(1, "KeyError: 'label'"), timeout(0, 70), timeout(1, 70))
    assert (found.verdict, found.culprits) == ("hang", ())


@pytest.mark.parametrize(
    "error",
    [
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1",
        "RuntimeError: Broken pipe",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15",
    ],
)
def test_an_exception_of_a_rank_that_lost_another_names_nobody(error: str) -> None:
    found = judged(raised(1, error))
    assert (found.culprits, found.guessed) == ((), ())


def test_an_exception_that_all_ranks_raise_is_no_ranks_own() -> None:
    found = judged(*(raised(rank, "ValueError: no such model") for rank in range(4)))
    assert (found.verdict, found.culprits) == ("crashed", ())


def test_cuda_out_of_memory_on_one_rank() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.35 GiB. GPU 3 has"
    found = judged(raised(11, error), timeout(0, 70))
    assert (found.cause, found.culprits, found.certainty) == ("memory_pressure", (11,), "proven")


def test_an_exception_of_the_only_rank_that_was_kept_may_be_everybodys() -> None:
    found = judged(raised(0, "ImportError: no module named flash_attn"))
    assert (found.verdict, found.culprits, found.guessed) == ("crashed", (), (0,))


def test_a_slurm_task_that_crashed_after_the_time_out_is_a_consequence() -> None:
    found = judged(timeout(1, 70), "srun: error: node107: task 3: Segmentation fault")
    assert (found.verdict, found.culprits) == ("hang", ())


def test_a_dead_dataloader_worker() -> None:
    error = "RuntimeError: DataLoader worker (pid 1562937) is killed by signal: Killed."
    assert judged(raised(2, error)).cause == "dataloader_worker"


def test_slurm_names_the_task_that_was_out_of_memory() -> None:
    found = judged(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=113.0. Some of the step tasks have"
        " been OOM Killed.",
        "srun: error: node107: task 3: Out Of Memory",
        "srun: error: node107: tasks 0-2: Killed",
    )
    assert (found.cause, found.culprits) == ("memory_pressure", (3,))


def test_a_slurm_task_of_torchrun_is_no_rank() -> None:
    found = judged(
        summary((12, -9, "2024-05-13_13:26:30")), "srun: error: node107: task 1: Out Of Memory"
    )
    assert 1 not in found.culprits


def test_the_kernels_kill_is_put_to_the_rank_with_that_process() -> None:
    found = judged(
        "kernel: Memory cgroup out of memory: Killed process 36002 (python) total-vm:9kB",
        summary((2, -9, "2024-05-13_13:26:30"), (0, -15, "2024-05-13_13:26:31")),
    )
    assert (found.cause, found.culprits) == ("memory_pressure", (2,))


def test_a_monitored_barrier_names_who_did_not_come() -> None:
    line = "RuntimeError: [Rank 0]: Ranks {} failed to pass monitoredBarrier in 300000 ms"
    found = judged(line.format("4, 5"))
    assert (found.culprits, found.certainty) == ((4, 5), "proven")
    alone = judged("[10:00:00.000][+1.0s][R0/4][LR0][PID:7] hello", line.format("1, 2, 3"))
    assert alone.culprits == ()


def test_a_desync_report_names_the_few_that_lag_and_not_the_many() -> None:
    report = """[rank0]:[E515 18:36:47.343377708 ProcessGroupNCCL.cpp:1937] Rank 0
\t - [0] Timeout at collective: ALLREDUCE, #315
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t     [{behind}] finished collective #182, but didn't join collective #183 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #182 finished ranks:
\t     [{behind}] finished ALLREDUCE
\t   #183 started ranks:
\t     [{ahead}] started ALLREDUCE"""
    found = judged(report.format(behind="7", ahead="0, 1, 2, 3, 4, 5, 6"))
    assert (found.culprits, found.certainty) == ((7,), "proven")
    found = judged(report.format(behind="1, 2, 3, 4, 5, 6, 7", ahead="0"))
    assert found.culprits == ()


def test_detail_with_more_ranks_names_the_odd_one() -> None:
    def line(rank: int, shape: int, other: int, theirs: int) -> str:
        prints = (
            f"Rank {one} is running collective: CollectiveFingerPrint(SequenceNumber=31,"
            f" OpType=ALLREDUCE, TensorShape=[{length}], TensorDtypes=Float,"
            " TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))"
            for one, length in ((rank, shape), (other, theirs))
        )
        return (
            f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. "
            + ", but ".join(prints)
        )

    found = judged(*(line(rank, 400, 3, 900) for rank in range(3)))
    assert (found.cause, found.culprits, found.certainty) == (
        "collective_mismatch",
        (3,),
        "majority",
    )
    assert judged(line(0, 400, 1, 900)).culprits == ()


def test_gloo_of_another_size_is_a_mismatch() -> None:
    found = judged(
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:446] op.preamble.length <="
        " op.nbytes. 61 vs 12",
    )
    assert (found.cause, found.culprits) == ("collective_mismatch", ())


UNIQUE_ID = (
    "torch.distributed.DistBackendError: [{}] is setting up NCCL communicator and retrieving"
    " ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: {}"
)


@pytest.mark.parametrize(
    ("error", "culprits", "guessed"),
    [
        ("wait timeout after 600000ms, keys: /default_pg/0//cuda//0", (0,), ()),
        ("Socket Timeout", (), (0,)),
        ("Broken pipe", (), ()),
    ],
)
def test_waiting_for_the_id_of_a_communicator(
    error: str, culprits: tuple[int, ...], guessed: tuple[int, ...]
) -> None:
    found = judged(UNIQUE_ID.format(3, error))
    assert (found.culprits, found.guessed) == (culprits, guessed)


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients."
        " 1/3 clients joined.",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for"
        " key: store_based_barrier_key:1 (world_size=3, worker_count=1, timeout=0:30:00)",
    ],
)
def test_processes_that_never_came(line: str) -> None:
    found = judged(line)
    assert (found.cause, found.culprits, found.world_size) == ("rendezvous", (), 3)
    assert "1 of 3 processes" in found.summary


def test_a_gpu_fault_is_put_to_the_rank_with_that_process() -> None:
    found = judged(
        "NVRM: Xid (PCI:0000:44:00): 79, pid=412, name=python, GPU has fallen off the bus.",
        "node0:412:900 [2] NCCL INFO comm 0x7f rank 6 nranks 8 cudaDev 2 busId 44000 - Init"
        " COMPLETE",
    )
    assert found.culprits == (6,)
    assert "Xid 79" in found.summary


def test_an_xid_that_comes_of_a_process_that_ended_is_no_cause() -> None:
    found = judged("NVRM: Xid (PCI:0000:44:00): 43, pid=412, name=python, Ch 00000008")
    assert found.verdict is None


def test_a_save_that_began_with_the_wait() -> None:
    found = judged(
        "2026-02-18 10:28:25,496 - root - INFO - Saving latest checkpoint of 3 complete epochs",
        timeout(7, 1_512, numel=306_176, limit=1_200_000, at="E218 10:48:25.033625188 "),
    )
    assert (found.cause, found.culprits, found.guessed) == ("checkpoint_io", (), (0,))


def test_a_save_long_before_the_wait_says_nothing() -> None:
    found = judged(
        "2026-02-18 07:28:25,496 - root - INFO - Saving latest checkpoint of 3 complete epochs",
        timeout(7, 1_512, numel=306_176, limit=1_200_000, at="E218 10:48:25.033625188 "),
    )
    assert found.cause == "unknown"


def test_a_stuck_watchdog_does_not_tell_who_is_behind() -> None:
    found = judged(
        "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! Process"
        " will be terminated after dumping debug info. workMetaList_.size()=3"
    )
    assert (found.verdict, found.culprits, found.cause) == ("hang", (), "unknown")


def test_a_job_that_was_cancelled() -> None:
    found = judged(
        "slurmstepd: error: *** JOB 91 ON node1 CANCELLED AT 2024-05-13T13:00:00 DUE TO TIME LIMIT"
        " ***"
    )
    assert found.summary == "The job was ended from outside: due to time limit."


def test_a_job_that_ended_well() -> None:
    found = judged("`Trainer.fit` stopped: `max_epochs=3` reached.")
    assert found.verdict == "finished"


def test_logs_without_any_trouble_are_judged_to_show_none() -> None:
    assert judged("epoch 3 loss 0.1").verdict is None


def test_of_a_job_that_was_restarted_the_last_round_counts() -> None:
    found = judged(
        raised(1, "KeyError: 'label'"),
        "[default] Worker group FAILED. 3/3 attempts left; will restart worker group",
        *(timeout(rank, 70) for rank in (0, 1)),
    )
    assert (found.verdict, found.culprits) == ("hang", ())


def test_secrets_in_quoted_lines_are_hidden() -> None:
    found = judged(
        raised(1, "ValueError: bad WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567")
    )
    shown = found.summary + json.dumps(found.evidence)
    assert "0123456789abcdef0123" not in shown


@pytest.mark.skipif(not PIECES.is_dir(), reason="HANGCHECK_LEFT_BEHIND names no folder of pieces")
def test_given_pieces_are_judged_as_their_truth_says() -> None:
    wrong = []
    for truth_file in sorted(PIECES.glob("*/truth.json")):
        truth = json.loads(truth_file.read_bytes())
        readings = []
        for log in sorted(truth_file.parent.glob("*.log")):
            with log.open("rb") as file:
                readings.append(read_log(log.name, file))
        if not readings:
            continue  # a stack, not a log
        found = find_in_logs(*readings)
        named = set(found.culprits)
        right = named <= set(truth["culprits"] or ()) and (
            bool(named or found.guessed) == bool(truth["culprits"]) or not named
        )
        if not right:
            wrong.append((truth_file.parent.name, found.culprits))
    assert wrong == []
