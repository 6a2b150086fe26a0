"""What is said of a trial, by what its ranks said."""

from __future__ import annotations

import msgspec

from lightning_hangcheck.doctor.ranks import Note, Trial, judge_trial

STEPS = ("rendezvous", "barrier", "all_reduce")


def _start(rank: int, world_size: int = 2) -> Note:
    return Note("start", rank, world_size=world_size, host="here")


def _begin(rank: int, step: str, backend: str = "gloo") -> Note:
    return Note("begin", rank, step, backend)


def _done(rank: int, step: str, total: float = 3.0, backend: str = "gloo") -> Note:
    sums = (total, total) if step == "all_reduce" else None
    timed = step.startswith("pair")
    return Note(
        "done",
        rank,
        step,
        backend,
        sums=sums,
        round_trip_s=0.001 * timed,
        bytes_per_s=1e9 * timed,
    )


def _through(rank: int, *steps: str) -> list[Note]:
    return [note for step in steps for note in (_begin(rank, step), _done(rank, step))]


WELL = Trial(
    notes=(
        _start(0),
        _start(1),
        *_through(0, *STEPS, "pair 0-1"),
        *_through(1, *STEPS, "pair 0-1"),
    )
)


def test_ranks_that_reach_each_other_are_fine_and_their_pairs_are_timed() -> None:
    checks = judge_trial(WELL)
    assert {check.status for check in checks} == {"ok"}
    assert [check.check for check in checks] == [
        "ranks start",
        "rendezvous (gloo)",
        "barrier (gloo)",
        "all_reduce (gloo)",
        "pairs (gloo)",
    ]
    assert checks[-1].sentence == "0-1 1.00 ms, 1.0 GB/s"


def test_a_wrong_sum_fails_and_names_the_rank() -> None:
    notes = [
        one for one in WELL.notes if (one.rank, one.did, one.step) != (1, "done", "all_reduce")
    ]
    checks = judge_trial(Trial(notes=(*notes, _done(1, "all_reduce", total=2.0))))
    (failed,) = [check for check in checks if check.status == "failed"]
    assert failed.check == "all_reduce (gloo)"
    assert failed.sentence.startswith("rank 1 got (2.0, 2.0), not 3")


def test_the_step_in_which_ranks_hang_is_named_and_who_has_not_come() -> None:
    notes = (_start(0), _start(1), *_through(0, "rendezvous"), *_through(1, "rendezvous"))
    trial = Trial(notes=(*notes, _begin(0, "barrier")), ended="silent", waited_s=15.0)
    *_, last = judge_trial(trial)
    assert last.status == "failed"
    assert last.sentence == (
        "rank 0 hangs in barrier (gloo), rank 1 has not come there "
        "(given up after 15 s without news)"
    )
    assert "GLOO_SOCKET_IFNAME" in last.remedy


def test_nccl_has_its_own_remedy() -> None:
    notes = (*WELL.notes, _begin(0, "barrier", "nccl"), _begin(1, "barrier", "nccl"))
    *_, last = judge_trial(Trial(notes=notes, ended="silent", waited_s=15.0))
    assert "rank 0-1 hangs in barrier (nccl)" in last.sentence
    assert "NCCL_DEBUG=INFO" in last.remedy


def test_a_rank_that_never_starts_is_named() -> None:
    (check,) = judge_trial(Trial(notes=(_start(0, 3), _start(2, 3)), ended="silent", waited_s=60.0))
    assert check.status == "failed"
    assert check.sentence.startswith("rank 1 never started; 2 ranks of 3")


def test_a_rank_that_is_there_twice_fails() -> None:
    (check,) = judge_trial(Trial(notes=(_start(0), _start(0))))
    assert check.status == "failed"
    assert "rank 0 was started more than once" in check.sentence


def test_a_complaint_is_quoted_without_what_torch_puts_in_front() -> None:
    words = "Traceback ...\n[rank1]: RuntimeError: Connection refused by peer\nmore\n"
    notes = (_start(0), _start(1), _begin(0, "rendezvous"), _begin(1, "rendezvous"))
    *_, last = judge_trial(Trial(notes=notes, exit_code=1, last_words=words))
    assert last.sentence.endswith(
        "failed in rendezvous (gloo): RuntimeError: Connection refused by peer"
    )


def test_ranks_that_failed_and_are_started_again_do_not_hang() -> None:
    notes = (_start(0), _start(1), _begin(0, "rendezvous"), _begin(1, "rendezvous"))
    words = "[rank1]: RuntimeError: no such interface\n"
    *_, last = judge_trial(Trial(notes=notes, ended="silent", waited_s=15.0, last_words=words))
    assert "failed in rendezvous (gloo): RuntimeError" in last.sentence


def test_a_launcher_that_sends_output_elsewhere_is_a_warning() -> None:
    (check,) = judge_trial(Trial(notes=(), exit_code=0))
    assert check.status == "warning"
    (check,) = judge_trial(Trial(notes=(), exit_code=1))
    assert check.status == "failed"


def test_fewer_gpus_than_ranks_is_said() -> None:
    *_, last = judge_trial(msgspec.structs.replace(WELL, notes=(*WELL.notes, Note("no device", 1))))
    assert (last.check, last.status) == ("nccl", "warning")
