"""process_dead, process_stopped: a process cannot go on.

A rank is gone while others still need it; a child is gone that was to bring what its rank waits
for; the kernel holds a process. Of a job that is over, `find_crash` asks: did all ranks end well,
and if not, which one failed first?
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lightning_hangcheck.judge import exits, wording
from lightning_hangcheck.judge.exits import failed, how_it_ended, left_well
from lightning_hangcheck.judge.frames import outlived_stack_s
from lightning_hangcheck.judge.graph import AT_STORE, WaitGraph
from lightning_hangcheck.judge.operations import groups_of
from lightning_hangcheck.judge.patience import Patience, asks_again
from lightning_hangcheck.judge.rule import (
    MOST_SHOWN,
    Finding,
    Seen,
    Situation,
    blame,
    names,
    rule,
    say,
)
from lightning_hangcheck.judge.threads import may_help
from lightning_hangcheck.judge.wording import duration, join, name_ranks, within
from lightning_hangcheck.text.shown import NANOSECONDS, format_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.judge.patience import EndedBy

LOOPBACK = ("127.", "[::1]:", "::1:", "[::ffff:127.", "::ffff:127.")
"""Addresses of this machine that no other machine reaches."""
FROM_PROCESSES = ("pipe", "shared")
"""Kinds of wait that, among processes of multiprocessing, only another process ends."""


@rule("process_stopped", order=5)
def process_stopped(situation: Situation, job: JobReading) -> Finding | None:
    """Blame every rank that has been stopped for a while, whoever waits for it.

    A debugger that attaches to a rank after a long silence stops it for moments.
    """
    stopped = []
    for reading in job.ranks.values():
        if reading.activity != "stopped":
            continue
        since_s = reading.view.stopped_for_s  # from a watcher, or from samples
        states = [
            (each.sample.taken_ns, each.kernel.state)
            for each in reading.own.moments
            if each.kernel is not None
        ]
        held = list(takewhile(lambda seen: seen[1] in "Tt", reversed(states)))
        if since_s is None and len(held) < len(states):
            since_s = (held[0][0] - held[-1][0]) / NANOSECONDS
        silence_s = reading.silence_s if since_s is None else min(reading.silence_s, since_s)
        stopped.append(replace(reading, silence_s=silence_s))
    if not stopped:
        return None
    text = "{who} [has|have] been stopped {at} for {since} by a signal or a debugger"
    return blame(
        situation,
        stopped,
        "process_stopped",
        f"{say(stopped, text)} (kernel state T)",
        sure=0.98,
        ended_by="person",
        waited_for=situation.graph.between_ranks,
    )


@rule("process_dead", order=30)
def process_dead(situation: Situation, job: JobReading) -> Finding | None:
    """Blame ranks that are gone and waited for; if no wait shows, those that failed.

    If all that are left only retry, also ranks that broke off without a fault but neither left
    their groups nor came to an end (os._exit does that). Not blamed are ranks that a launcher ended
    because another had failed, and ranks that failed because they lost a peer.
    """
    left, still = situation.suspects, situation.standstill
    gone = situation.suspects_that_are("gone")
    ended = [reading for reading in job.ranks.values() if reading.activity == "gone"]
    fault = [reading for reading in ended if failed(reading.view)]
    if not situation.waited_for:
        asking = still and all(map(asks_again, left))
        broke_off = [
            reading
            for reading in ended
            if reading.view.process_exit is not None and not failed(reading.view)
            if reading.view.beat
            and (reading.beat.ending, reading.beat.membership) == ("running", "member")
        ]
        gone = tuple(fault or (broke_off if asking else ()))
    for_others = {
        reading.rank
        for reading in gone
        if exits.ended_from_outside(reading.view) or exits.failed_for(reading, gone)
    }
    culprits = [reading for reading in gone if reading.rank not in for_others] or list(gone)
    if not culprits or not job.alive:
        return None
    firsts = exits.firsts_to_fail(culprits, several_nodes=job.case.run.nnodes > 1)
    first = firsts[0] if firsts else culprits[0]
    others = [reading for reading in culprits if reading is not first]
    sentence = join(f"rank {first.rank}", how_it_ended(first.view))
    if others:
        sentence += f"; {names(others)} ended after it"
    if still:
        sentence += f"; {say(left, '{who} [is|are] idle {at}')}"
    finding = blame(
        situation,
        [first, *others],
        "process_dead",
        sentence,
        sure=(0.95, 0.7 if still else 0.5),
        ended_by=_who_is_left(situation, culprits, with_fault=bool(fault)),
        aspect=exits.aspect_of(first.view),
    )
    if not still:
        return finding
    since_both_s = min(finding.silence_s, *(reading.silence_s for reading in left))
    return replace(finding, held_up=tuple(reading.rank for reading in left), silence_s=since_both_s)


def _who_is_left(situation: Situation, gone: Sequence[RankReading], *, with_fault: bool) -> EndedBy:
    """Say who, other than the gone ranks, could bring what the others wait for.

    Anybody may set a key of the store: a rank that ended well may have owed none, and one that
    failed may be started again. Otherwise nobody could, if those that are left wait for what only
    the job could bring, or retry. What they ask of something outside, or one sleep, may go on by
    itself. So may ranks that have left the process group; if those that failed were in none, only
    who polls is taken to wait for them.
    """
    if situation.waited_for:
        ended = {reading.rank for reading in gone}
        waits = [wait for wait in situation.graph.waits if not ended.isdisjoint(wait.enders)]
        at_store = all({*wait.through} == {AT_STORE} for wait in waits)
        return "outside" if at_store else "nobody"
    if not situation.standstill:
        return "unknown_pace"
    if not with_fault or all(suspect.beat.membership == "left" for suspect in situation.suspects):
        return "outside"
    alone = all(each.view.beat and each.beat.membership == "none" for each in gone)
    alone = alone and not any(groups_of(each.view) for each in gone)

    def asks_the_job(reading: RankReading) -> bool:
        """It moves no byte, or asks only this machine, where its launcher may keep the store."""
        if asks_again(reading) and reading.own.asks_anew:
            return True
        sockets = [target for target in reading.targets if target.kind == "socket"]
        here = bool(sockets) and all(target.name.startswith(LOOPBACK) for target in sockets)
        return here and not alone

    within_job = situation.patience.who_ends(situation.suspects) in ("nobody", "inside")
    if within_job or all(map(asks_the_job, situation.suspects)):
        return "nobody"
    return "outside" if alone else "inside"


@rule("process_dead", of=("idle",), order=120, sure=(0.85, 0.6))
def lost_child(reading: RankReading, situation: Situation) -> Seen | None:
    """The rank waits for what only processes bring, after a child of its own failed.

    multiprocessing tells nobody that a process has died. The parent has not collected the exit
    code, else the kernel would have forgotten it. A thread of the rank that checks now and then may
    restart the child.
    """
    ended = [
        (look.pid, code)
        for look in reading.view.processes
        if look.role != "rank" and look.samples
        if (state := look.samples[-1].kernel) is not None and (code := state.exit_code)
    ]
    from_processes = any(target.kind in FROM_PROCESSES for target in reading.own_targets)
    if not ended or not from_processes:
        return None
    if situation.patience.who_ends([reading]) not in ("nobody", "inside"):
        return None
    pid, code = ended[0]
    how = f"exited with code {code}"
    if code < 0:
        how = f"was killed by {wording.signal_name(-code)}"
    sentence = f"its child pid {pid} {how}, and the rank has not collected its exit code"
    stack = reading.own.moments[-1].sample.stack if reading.own.moments else None
    supervised = stack is None or any(map(may_help, stack.threads[1:]))
    return Seen(
        text="{who} [is|are] stuck {at} : waiting for {since} for data of a child process; {child}",
        words={"child": sentence},
        ended_by="outside" if supervised else None,
        aspect="child_killed" if code < 0 else "child_raised",
        evidence=[("kernel", sentence)],
    )


# The job is over.


def is_over(job: JobReading) -> bool:
    """Whether the launched command has ended, or no rank has a process any more."""
    ended = [reading.view.process_exit is not None for reading in job.ranks.values()]
    return job.case.ended or (bool(ended) and all(ended))


def find_crash(job: JobReading) -> Finding | None:
    """Blame the first rank that failed by itself; None if the job ended well.

    Ranks that ended because another failed are no culprits. If a rank failed because another had
    left, that other one is. What fails after the job was asked to end is no crash.
    """
    ranks, run = tuple(job.ranks.values()), job.case.run
    # a launcher that ends well has killed what it no longer needs: actors, once training is over
    well = job.case.exit_code == 0
    own = [reading for reading in ranks if not (well and exits.killed_by_somebody(reading.view))]
    firsts = exits.firsts_to_fail(own, several_nodes=run.nnodes > 1)
    first = firsts[0] if firsts else None
    # if a launcher counts this restart, a rank had failed: the ranks that it ended for that failure
    # were not asked to end by anybody else
    restarted = run.next_start is not None and bool(run.next_start.number)
    asked = job.case.asked_end if restarted else exits.asked_end(job)
    if asked is not None and (first is None or first.rank not in asked.failed_before):
        return None
    ended = first.view.process_exit if first is not None else None
    caught = job.case.exit_code == 0 and (ended is None or ended.exit_code is None)
    if first is None or caught:  # nobody saw its exit code, and the job's is 0
        return _ended_otherwise(job, restarted=restarted)
    end = _its_end(first)
    if needed := exits.failed_for(first, ranks):  # they left without a fault
        how = how_it_ended(needed[0].view) if left_well(needed[0].view) else ""
        if needed[0].beat.ending == "finished":
            how = "had finished"
        sentence = say(
            needed,
            "{who} {left} {place} while others still needed [it|them]: rank {first} failed then, "
            "as {end}",
            left=how or "left with an unknown exit code",
            place=_place_of(needed[0]) or within(needed[0].place),
            first=str(first.rank),
            end=end,
        )
        return _crashed(job, needed, _and_others(sentence, [*needed, first], ranks))
    lost_a_peer = exits.lost_a_peer(first.view)
    lost = [reading for reading in ranks if reading.activity == "unheard"] if lost_a_peer else []
    if lost and job.elsewhere:
        numbers = [node.number for node in run.silent_nodes]
        nodes = join(wording.verb(numbers, "node", "nodes"), format_ranks(numbers))
        sentence = say(
            lost,
            "{who} [was|were] lost with {node}: nothing was heard from there for {since}; "
            "rank {first} failed then, as {end}",
            node=nodes if numbers else "the node there",
            since=duration(max(reading.view.unheard_for_s for reading in lost)),
            first=str(first.rank),
            end=end,
        )
        return _crashed(job, lost, _and_others(sentence, [*lost, first], ranks))
    nobody = {"culprits": (), "aspect": "silent"}  # a rank that only lost a peer is no culprit
    if lost_a_peer and job.elsewhere:
        sentence = f"rank {first.rank} failed because it lost a peer: {end}"
        sentence = _and_others(sentence, [first], ranks)
        sentence += f"; for {name_ranks(job.elsewhere)} see the other nodes' verdicts"
        return _crashed(job, [first], sentence, sure=0.5, **nobody)
    if len(firsts) > 1:  # the first of each node
        failures = [f"rank {reading.rank} failed: {_its_end(reading)}" for reading in firsts]
        if len(failures) > MOST_SHOWN:
            failures[MOST_SHOWN:] = [f"so did {len(failures) - MOST_SHOWN} more"]
        failures.append(
            "which of them failed first is unknown: the clocks of their nodes cannot be compared"
        )
        return _crashed(
            job, firsts, "; ".join(failures), sure=0.5, **(nobody if lost_a_peer else {})
        )
    sentence = f"rank {first.rank} failed first: {end}"
    if left := [reading for reading in exits.left_before(first, ranks) if left_well(reading.view)]:
        sentence += f"; {names(left)} had exited cleanly before it"
    return _crashed(job, [first], _and_others(sentence, [first], ranks))


def _its_end(reading: RankReading) -> str:
    """Say how and where a rank ended: ``it exited with code 1: KeyError (in phase backward)``."""
    phase = f"(in phase {reading.phase})" if reading.phase is not None else ""
    return join("it", how_it_ended(reading.view), phase, _place_of(reading))


def _place_of(reading: RankReading) -> str:
    """Say where a rank ended; if it went on after its last stack, where and when that was."""
    if exits.raised_at(reading.view) is not None:
        return ""  # its last words end in the place
    place, went_on_s = within(reading.place), outlived_stack_s(reading.view)
    if not place or not went_on_s:
        return place
    return f"(last seen {place}, {duration(went_on_s)} before its last progress)"


def _and_others(
    sentence: str, named_readings: Sequence[RankReading], ranks: Sequence[RankReading]
) -> str:
    named = {reading.rank for reading in named_readings}
    others = [reading for reading in ranks if reading.rank not in named and failed(reading.view)]
    return f"{sentence}; {names(others)} ended after it" if others else sentence


def _crashed(
    job: JobReading,
    culprits: Sequence[RankReading],
    sentence: str,
    /,
    sure: float = 0.9,
    **fields: Any,  # noqa: ANN401 - the fields of `Finding`
) -> Finding:
    blamed = {reading.rank for reading in culprits}
    others = any(
        failed(reading.view) for reading in job.ranks.values() if reading.rank not in blamed
    )
    read = {"aspect": exits.aspect_of(culprits[0].view), "waited_for": others, "silence_s": 0.0}
    return blame(
        Situation(job=job, graph=WaitGraph(), patience=Patience(job)),
        culprits,
        "process_dead",
        sentence,
        sure=sure,
        ended_by="nobody",
        **{**read, **fields},
    )


def _ended_otherwise(job: JobReading, *, restarted: bool) -> Finding | None:
    """No rank failed by itself: did only the command fail, or did its launcher restart?

    torchrun does not restart for exit code 0; ``sys.exit("no data")`` gives another code.
    """
    code, next_start, ranks = job.case.exit_code, job.case.run.next_start, job.ranks.values()
    open_ends = restarted and not all(left_well(reading.view) for reading in ranks)
    if next_start is not None and next_start.launcher == "torchrun":
        ends = (reading.view.process_exit for reading in ranks)
        open_ends = any(end is None or end.exit_code is None for end in ends)
    if code:
        shown = wording.exit_code_in_words(code)
        sentence = f"no rank was seen to fail, but the command ended with exit code {shown}"
    elif code is None and open_ends:
        sentence = "no rank was seen to fail, but how some of them ended is unknown"
    else:
        return None
    return Finding(
        cause="process_dead",
        culprits=(),
        ended_by="nobody",
        confidence=0.5,
        silence_s=0.0,
        sentence=sentence,
        aspect="silent" if wording.ending_signal_of(code or 0) is None else "killed",
    )
