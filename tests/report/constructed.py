"""Constructed verdicts for the report's tests: a run of one kind of trouble each."""

from __future__ import annotations

from typing import Any

import msgspec

from lightning_hangcheck.model.case import Case, ProcessExit, RankView, RunFacts
from lightning_hangcheck.model.verdict import (
    Edge,
    EvidenceItem,
    Gap,
    LastCheckpoint,
    RankState,
    Remedy,
    StackGroup,
    Verdict,
)

RUN_ID = "20261120T102301-7f3a"
FOLDER = f"hangcheck_runs/{RUN_ID}"
COMMAND = "torchrun --nproc_per_node=2 train.py"
STARTED_AT = "2026-11-20T10:23:01Z"
TAKEN_AT = "2026-11-20T10:24:16.000000Z"
STALLED_SINCE = "2026-11-20T10:23:45.000000Z"
C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
DDP = "/venv/lib/python3.11/site-packages/lightning/pytorch/strategies/ddp.py"


def verdict(kind: str, **fields: Any) -> Verdict:
    """A two-rank verdict; every field can be given."""
    facts = Verdict(
        verdict="healthy",
        run_id=RUN_ID,
        command=COMMAND,
        started_at=STARTED_AT,
        detected_at=TAKEN_AT,
        world_size=2,
    )
    return msgspec.structs.replace(facts, verdict=kind, **fields)


def case(*ranks: RankView) -> Case:
    """A case of the same run, for the time of each rank's last progress."""
    run = RunFacts(run_id=RUN_ID, command=COMMAND, started_at=STARTED_AT, world_size=len(ranks))
    return Case(run=run, taken_at=TAKEN_AT, taken_ns=0, ranks=ranks)


def stalled() -> tuple[Case, Verdict]:
    """Rank 1 sleeps in a user's function of a training step; rank 0 waits in backward."""
    mark = LastCheckpoint(number=11, name="Trainer ready", at=STALLED_SINCE)
    return case(
        RankView(rank=0, pid=4711, silent_for_s=30.4), RankView(rank=1, pid=4712, silent_for_s=31.0)
    ), verdict(
        "hang",
        stalled_since=STALLED_SINCE,
        stalled_for_s=31.0,
        culprits=(1,),
        victims=(0,),
        cause="rank_stalled",
        phase="training_step",
        confidence=0.9,
        summary="rank 1 is stuck in wait_for_feed (/home/ada/demo/train.py:88) in its training "
        "step since 31 s; rank 0 waits for it",
        evidence=(
            EvidenceItem(
                "stack", 1, "3 samples, 2 s apart, same stack: wait_for_feed (train.py:88)"
            ),
            EvidenceItem(
                "kernel", 1, "main thread sleeps in hrtimer_nanosleep, 0.00 s CPU in 31 s"
            ),
            EvidenceItem("stack", 0, "backward waits for the gradients of rank 1"),
            EvidenceItem(
                "lost", None, "last checkpoint step 10; 2 steps, 90 s, 3 rank minutes are lost"
            ),
        ),
        remedies=(
            Remedy(
                "train.py:88: give the wait in wait_for_feed a time limit, for example\n"
                "  feed.get(timeout=30)",
                "https://docs.python.org/3/library/queue.html",
            ),
            Remedy("until then: end the job by itself with hangcheck run --on-hang abort", ""),
        ),
        wait_for=(Edge("rank:0", "rank:1", "backward"),),
        ranks=(
            RankState(
                rank=0,
                pid=4711,
                state="waiting",
                phase="backward",
                step=7,
                last_checkpoint=mark,
                stack_group=0,
            ),
            RankState(
                rank=1,
                pid=4712,
                state="stalled",
                phase="training_step",
                step=7,
                last_checkpoint=mark,
                stack_group=1,
            ),
        ),
        stack_groups=(
            StackGroup(
                id=0,
                process="rank",
                ranks="0",
                count=1,
                frames=(
                    "<module> (/home/ada/demo/train.py:140)",
                    f"backward ({DDP}:10)",
                    f"all_reduce ({C10D}:2800)",
                ),
            ),
            StackGroup(
                id=1,
                process="rank",
                ranks="1",
                count=1,
                frames=(
                    "<module> (/home/ada/demo/train.py:140)",
                    "training_step (/home/ada/demo/train.py:71)",
                    "wait_for_feed (/home/ada/demo/train.py:88)",
                ),
            ),
        ),
    )


def never_came() -> Verdict:
    """Four of eight ranks never came; nothing of the others' kernel state could be read."""
    return verdict(
        "hang",
        world_size=8,
        stalled_since=STALLED_SINCE,
        stalled_for_s=900.0,
        culprits=(4, 5, 6, 7),
        victims=(0, 1, 2, 3),
        cause="rendezvous",
        phase="rendezvous",
        confidence=0.95,
        summary="ranks 4-7 never came: WORLD_SIZE is 8 and only 4 ranks were started",
        evidence=(
            EvidenceItem("process", None, "4 processes with a RANK on this node, 8 promised"),
        ),
        remedies=(
            Remedy("start as many processes as WORLD_SIZE says: torchrun --nproc_per_node=8", ""),
        ),
        gaps=(
            Gap("kernel state", 0, "not permitted"),
            Gap("stack", 1, "py-spy timed out after 5 s"),
            Gap("stack", 2, "py-spy timed out after 5 s"),
        ),
        wait_for=tuple(
            Edge(f"rank:{rank}", f"rank:{missing}", "init_process_group")
            for rank in range(4)
            for missing in range(4, 8)
        ),
        ranks=tuple(
            RankState(rank=rank, state="waiting" if rank < 4 else "missing", phase="rendezvous")
            for rank in range(8)
        ),
    )


def crashed() -> tuple[Case, Verdict]:
    """Rank 1 failed first, with last words that hold a terminal escape; rank 0 was killed."""
    words = "ValueError: \x1b[31mbad batch\x1b[0m at train.py:71"
    return case(
        RankView(rank=0, process_exit=ProcessExit(order=1, at=TAKEN_AT, exit_code=-15)),
        RankView(
            rank=1, process_exit=ProcessExit(order=0, at=TAKEN_AT, exit_code=1, last_words=words)
        ),
    ), verdict(
        "crashed",
        culprits=(1,),
        victims=(0,),
        cause="unknown",
        phase="training_step",
        confidence=1.0,
        summary="rank 1 failed first: ValueError: bad batch (train.py:71)",
        evidence=(EvidenceItem("last_words", 1, words),),
        remedies=(Remedy("mend train.py:71; the other ranks only followed", ""),),
        ranks=(
            RankState(rank=0, state="gone", phase="backward"),
            RankState(rank=1, state="gone", phase="training_step"),
        ),
    )


def suspect() -> Verdict:
    """Rank 3 of 8 is silent for 12 s and the others wait for it."""
    return verdict(
        "suspect",
        world_size=8,
        stalled_since=STALLED_SINCE,
        stalled_for_s=12.0,
        culprits=(3,),
        victims=(0, 1, 2, 4, 5, 6, 7),
        cause="rank_stalled",
        phase="validation",
        confidence=0.5,
        summary="rank 3 is silent since 12 s in evaluate (train.py:120)",
        ranks=tuple(
            RankState(rank=rank, state="stalled" if rank == 3 else "waiting", phase="validation")
            for rank in range(8)
        ),
    )


def running(kind: str, summary: str) -> Verdict:
    """Every rank runs; only the kind differs."""
    state = "gone" if kind == "finished" else "running"
    ranks = tuple(
        RankState(rank=r, state=state, phase="training_step", step=40 + r) for r in (0, 1)
    )
    return verdict(kind, summary=summary, confidence=1.0, ranks=ranks)


def recovered() -> Verdict:
    """The verdict that ends the alarm of `stalled`, as the sidecar makes it."""
    return msgspec.structs.replace(
        stalled()[1],
        verdict="recovered",
        stalled_for_s=41.0,
        remedies=(),
        evidence=stalled()[1].evidence[:-1],
        summary="rank 1 advances again after 41 s",
    )
