"""What a trial of ranks says: how far each came, who hangs in which step, how fast pairs are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.text.amounts import bytes_in_words, several
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.doctor.ranks.trial import Note, Trial

START = "ranks start"
COMPLAINT = re.compile(r"(?m)^(?:\[\S+\]:\s*)*((?:\w+\.)*\w*(?:Error|Exception|error): .+)$")
"""The last line of a traceback; torch puts ``[rank0]:`` in front of it."""
LOOK_CLOSER = {
    "rendezvous": "hangcheck doctor --only launch -- CMD, for the address and the port",
    "gloo": "ip -br link, then: export GLOO_SOCKET_IFNAME=NAME",
    "nccl": "export NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=NAME; on one node also NCCL_P2P_DISABLE=1",
}


def judge_trial(trial: Trial) -> tuple[Check, ...]:
    """Say how far the ranks came: each step that all have done, and the first that they have not.

    Args:
        trial: That is over.
    """
    starts = [note for note in trial.notes if note.did == "start"]
    if not starts:
        return (_nobody(trial),)
    ranks = sorted({note.rank for note in starts})
    expected = max(note.world_size for note in starts)
    twice = {note.rank for note in starts if _count(starts, note.rank) > 1}
    if twice:
        found = f"rank {format_ranks(twice)} was started more than once, of {expected} ranks"
        return (Check(START, "failed", found, "unset RANK WORLD_SIZE LOCAL_RANK"),)
    hosts = len({note.host for note in starts})
    found = f"{several(len(ranks), 'rank')} of {expected} on {several(hosts, 'host')}"
    if len(ranks) < expected:
        missing = format_ranks(set(range(expected)) - set(ranks))
        found = f"rank {missing} never started; {found}{_ending(trial)}"
        return (Check(START, "failed", found, LOOK_CLOSER["rendezvous"]),)
    return (Check(START, "ok", found), *_steps(trial, ranks))


def _steps(trial: Trial, ranks: Sequence[int]) -> Iterator[Check]:
    begun = [note for note in trial.notes if note.did == "begin"]
    for name, step in dict.fromkeys((_name(note), note.step) for note in begun):
        done = {one.rank: one for one in trial.notes if one.did == "done" and _name(one) == name}
        needed = _members(step, ranks)
        if set(needed) - set(done):
            yield _undone(trial, name, needed, done)
            return
        if step == "all_reduce":
            yield _sum(name, list(done.values()), len(ranks))
        elif step in ("rendezvous", "barrier"):
            yield Check(name, "ok", f"rank {format_ranks(done)} came through")
    yield from _pairs(trial)
    if any(note.did == "no device" for note in trial.notes):
        found = "not tried: there are fewer GPUs than ranks on a host"
        yield Check("nccl", "warning", found, "torchrun --nproc_per_node=gpu")


def _undone(trial: Trial, name: str, needed: Sequence[int], done: dict[int, Note]) -> Check:
    """Ranks that have not come to the step keep the others waiting in it."""
    inside = {note.rank for note in trial.notes if note.did == "begin" and _name(note) == name}
    waiting = sorted(inside - set(done))
    absent = sorted(set(needed) - inside)
    who = f"rank {format_ranks(waiting)}" if waiting else "nobody"
    hangs = trial.ended == "silent" and not COMPLAINT.search(trial.last_words)
    verb = "hangs" if hangs else "failed"
    found = f"{who} {verb} in {name}"
    if absent:
        found += f", rank {format_ranks(absent)} has not come there"
    if done:
        found += f", rank {format_ranks(done)} is through"
    remedy = LOOK_CLOSER["rendezvous" if name.startswith("rendezvous") else name.split()[-1][1:-1]]
    return Check(name, "failed", found + _ending(trial), remedy)


def _sum(name: str, notes: Sequence[Note], ranks: int) -> Check:
    right = float(ranks * (ranks + 1) // 2)
    wrong = [note for note in notes if note.sums != (right, right)]
    if wrong:
        found = f"rank {format_ranks(one.rank for one in wrong)} got {wrong[0].sums}, not {right:g}"
        remedy = "have that host's memory and GPUs tested: dcgmi diag -r 3"
        return Check(name, "failed", found, remedy)
    return Check(name, "ok", f"every rank got the sum {right:g}")


def _pairs(trial: Trial) -> Iterator[Check]:
    """All pairs of each backend, the slowest first."""
    timed = [note for note in trial.notes if note.round_trip_s and _is_first_of_pair(note)]
    for backend in dict.fromkeys(note.backend for note in timed):
        ours = sorted(
            (note for note in timed if note.backend == backend), key=lambda one: -one.round_trip_s
        )
        found = "; ".join(map(_time, ours))
        yield Check(f"pairs ({backend})", "ok", f"slowest first: {found}" if ours[1:] else found)


def _time(note: Note) -> str:
    speed = bytes_in_words(note.bytes_per_s)
    return f"{note.step.removeprefix('pair ')} {note.round_trip_s * 1000:.2f} ms, {speed}/s"


def _nobody(trial: Trial) -> Check:
    found = f"no rank was heard{_ending(trial)}"
    if trial.ended == "by itself" and trial.exit_code == 0:
        remedy = "leave out options that send output elsewhere: --log-dir, --redirects, srun -o"
        return Check(START, "warning", found, remedy)
    return Check(START, "failed", found, LOOK_CLOSER["rendezvous"])


def _ending(trial: Trial) -> str:
    """How the trial ended, with the first complaint."""
    complaint = COMPLAINT.search(trial.last_words)
    if complaint:
        return f": {complaint[1]}"
    if trial.ended == "silent":
        return f" (given up after {trial.waited_s:.0f} s without news)"
    return f" (the launcher ended with exit code {trial.exit_code})"


def _name(note: Note) -> str:
    return f"{note.step} ({note.backend})"


def _members(step: str, ranks: Sequence[int]) -> list[int]:
    if step.startswith("pair "):
        return [int(number) for number in step.removeprefix("pair ").split("-")]
    return list(ranks)


def _is_first_of_pair(note: Note) -> bool:
    return note.step == f"pair {note.rank}-{note.step.rpartition('-')[2]}"


def _count(starts: Sequence[Note], rank: int) -> int:
    return sum(note.rank == rank for note in starts)
