"""Constructed verdicts for the report's tests: a run of one kind of trouble each."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

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
SITE = "/venv/lib/python3.11/site-packages"
IN_BACKWARD = (
    "<module> (/home/ada/demo/train.py:140)",
    f"backward ({SITE}/lightning/pytorch/strategies/ddp.py:10)",
    f"all_reduce ({SITE}/torch/distributed/distributed_c10d.py:2800)",
)
IN_FEED = (
    "<module> (/home/ada/demo/train.py:140)",
    "training_step (/home/ada/demo/train.py:71)",
    "wait_for_feed (/home/ada/demo/train.py:88)",
)


def verdict(kind: str, **fields: Any) -> Verdict:
    """A two-rank verdict; every field can be given."""
    given: dict[str, Any] = {
        "verdict": kind,
        "run_id": RUN_ID,
        "command": COMMAND,
        "world_size": 2,
        "started_at": STARTED_AT,
        "detected_at": TAKEN_AT,
    }
    return Verdict(**(given | fields))


def case(*ranks: RankView) -> Case:
    """A case of the same run, for the time of each rank's last progress."""
    run = RunFacts(run_id=RUN_ID, command=COMMAND, started_at=STARTED_AT, world_size=len(ranks))
    return Case(run=run, taken_at=TAKEN_AT, taken_ns=0, ranks=ranks)


def _state(rank: int, state: str, phase: str, **more: Any) -> RankState:
    return RankState(rank=rank, state=state, phase=phase, **more)  # type: ignore[arg-type]


def stalled() -> tuple[Case, Verdict]:
    """Rank 1 sleeps in a user's function of a training step; rank 0 waits in backward."""
    mark = LastCheckpoint(number=11, name="Trainer ready", at=STALLED_SINCE)
    told = [
        ("stack", 1, "3 samples, 2 s apart, same stack: wait_for_feed (train.py:88)"),
        ("kernel", 1, "main thread sleeps in hrtimer_nanosleep, 0.00 s CPU in 31 s"),
        ("stack", 0, "backward waits for the gradients of rank 1"),
        ("lost", None, "last checkpoint step 10; 2 steps, 90 s, 3 rank minutes are lost"),
    ]
    limit = (
        "train.py:88: give the wait in wait_for_feed a time limit, for example\n"
        "  feed.get(timeout=30)"
    )
    until_then = "until then: end the job by itself with hangcheck run --on-hang abort"
    stacks = (IN_BACKWARD, IN_FEED)
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
        evidence=tuple(EvidenceItem(*one) for one in told),
        remedies=(
            Remedy(limit, "https://docs.python.org/3/library/queue.html"),
            Remedy(until_then, ""),
        ),
        wait_for=(Edge("rank:0", "rank:1", "backward"),),
        ranks=tuple(
            _state(r, state, phase, pid=4711 + r, step=7, last_checkpoint=mark, stack_group=r)
            for r, (state, phase) in enumerate(
                (("waiting", "backward"), ("stalled", "training_step"))
            )
        ),
        stack_groups=tuple(
            StackGroup(id=r, process="rank", ranks=str(r), count=1, frames=frames)
            for r, frames in enumerate(stacks)
        ),
    )


def never_came() -> Verdict:
    """Four of eight ranks never came; nothing of the others' kernel state could be read."""
    late = "py-spy timed out after 5 s"
    start = "start as many processes as WORLD_SIZE says: torchrun --nproc_per_node=8"
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
        remedies=(Remedy(start, ""),),
        gaps=(
            Gap("kernel state", 0, "not permitted"),
            Gap("stack", 1, late),
            Gap("stack", 2, late),
        ),
        wait_for=tuple(
            Edge(f"rank:{rank}", f"rank:{missing}", "init_process_group")
            for rank in range(4)
            for missing in range(4, 8)
        ),
        ranks=tuple(_state(r, "waiting" if r < 4 else "missing", "rendezvous") for r in range(8)),
    )


def crashed() -> tuple[Case, Verdict]:
    """Rank 1 failed first, with last words that hold a terminal escape; rank 0 was killed."""
    words = "ValueError: \x1b[31mbad batch\x1b[0m at train.py:71"
    first = ProcessExit(order=0, at=TAKEN_AT, exit_code=1, last_words=words)
    return case(
        RankView(rank=0, process_exit=ProcessExit(order=1, at=TAKEN_AT, exit_code=-15)),
        RankView(rank=1, process_exit=first),
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
        ranks=(_state(0, "gone", "backward"), _state(1, "gone", "training_step")),
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
        ranks=tuple(_state(r, "stalled" if r == 3 else "waiting", "validation") for r in range(8)),
    )


def running(kind: str, summary: str) -> Verdict:
    """Every rank runs; only the kind differs."""
    state = "gone" if kind == "finished" else "running"
    ranks = tuple(_state(r, state, "training_step", step=40 + r) for r in (0, 1))
    return verdict(kind, summary=summary, confidence=1.0, ranks=ranks)


def recovered() -> Verdict:
    """The verdict that ends the alarm of `stalled`, as the sidecar makes it."""
    hang = stalled()[1]
    return replace(
        hang,
        verdict="recovered",
        stalled_for_s=41.0,
        remedies=(),
        evidence=hang.evidence[:-1],
        summary="rank 1 advances again after 41 s",
    )
