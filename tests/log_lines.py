"""Composes what torch, NCCL, SLURM and the kernel write, from the facts of an incident."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from lightning_hangcheck.judge import judge
from lightning_hangcheck.postmortem.logs import read_log
from lightning_hangcheck.postmortem.postmortem import Left, case_of
from lightning_hangcheck.postmortem.stacks import Text

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

HALF_HOUR = 1_800_000


def timeout(
    rank: int,
    seq: int,
    op: str = "ALLREDUCE",
    numel: int | tuple[int, int] = 1,
    *,
    of: int | None = None,
    at: str = "E513 13:25:57.714781669 ",
    limit: int = HALF_HOUR,
    ran: int | None = None,
) -> str:
    """The watchdog's line of a global rank; ``of`` is its number in its group."""
    numel_in, numel_out = (numel, numel) if isinstance(numel, int) else numel
    return (
        f"[rank{rank}]:[{at}ProcessGroupNCCL.cpp:632] [Rank {rank if of is None else of}] Watchdog"
        f" caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op},"
        f" NumelIn={numel_in}, NumelOut={numel_out}, Timeout(ms)={limit})"
        f" ran for {ran or limit + 60} milliseconds before timing out."
    )


def tag(rank: int, guid: str = "0(default_pg)", of: int | None = None) -> str:
    """torch's name of a rank in a group."""
    number = rank if of is None else of
    return f"[PG ID {0 if guid.startswith('0') else 3} PG GUID {guid} Rank {number}]"


def status(
    rank: int, seq: int, enqueued: int, completed: int, guid: str = "0(default_pg)",
    of: int | None = None,
) -> str:  # fmt: skip
    """What the watchdog tells with a time-out (torch 2.7 and later)."""
    return (
        f"[rank{rank}]:[E513 13:25:57.720000000 ProcessGroupNCCL.cpp:2268] {tag(rank, guid, of)} "
        f" failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work:"
        f" {enqueued}, last completed work: {completed}"
    )


def dumped(rank: int, enqueued: int, completed: int, caller: int = 0) -> str:
    """What a rank says when another one's time-out makes it dump."""
    return (
        f"[rank{rank}]:[E513 13:25:58.100000000 ProcessGroupNCCL.cpp:1743] {tag(rank)} Received a"
        f" dump signal due to a collective timeout from  rank {caller} and we will try our best to"
        f" dump the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work:"
        f" {completed}.This is most likely caused by incorrect usages of collectives"
    )


def raised(rank: int | None, error: str, where: str = "train.py") -> str:
    """A Python traceback, with the rank before each line where it is known."""
    before = "" if rank is None else f"[rank{rank}]: "
    lines = (
        "Traceback (most recent call last):",
        f'  File "/home/ada/{where}", line 140, in <module>',
        "    main()",
        f'  File "/home/ada/{where}", line 91, in main',
        "    loss = step(batch)",
        "           ^^^^^^^^^^^",
        error,
    )
    return "\n".join(before + line for line in lines)


def summary(*exits: tuple[int, int, str]) -> str:
    """torchrun's summary: rank, exit code and time of each; the first one is its root cause."""

    def entry(number: int, rank: int, code: int, time: str) -> str:
        name = {-9: "(SIGKILL)", -11: "(SIGSEGV)", -6: "(SIGABRT)", -15: "(SIGTERM)"}.get(code, "")
        return (
            f"[{number}]:\n  time      : {time}\n  host      : node0\n"
            f"  rank      : {rank} (local_rank: {rank})\n"
            f"  exitcode  : {code} (pid: {36_000 + rank}) {name}\n  error_file: <N/A>\n"
            "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic"
        )

    told = [entry(number, *one) for number, one in enumerate(exits)]
    return "\n".join(
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "=" * 60,
            "train.py FAILED",
            "-" * 60,
            "Failures:",
            *(told[1:] or ["  <NO_OTHER_FAILURES>"]),
            "-" * 60,
            "Root Cause (first observed failure):",
            told[0],
            "=" * 60,
        )
    )


def judged(*lines: str, **files: str) -> Verdict:
    """Judge one log of these lines, and further files: ``rank1="..."`` is ``rank1.log``."""
    logs = {"job.log": "\n".join(lines) + "\n"} if lines else {}
    logs |= {f"{name}.log": text for name, text in files.items()}
    texts = [Text(read_log(name, io.BytesIO(text.encode())), ()) for name, text in logs.items()]
    return judge(case_of(Left(texts=texts), "test"))
