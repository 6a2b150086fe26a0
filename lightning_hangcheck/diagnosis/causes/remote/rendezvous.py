"""rendezvous: ranks wait for peers that never came, or for a store that does not answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.reading.waits.torch_waits import RENDEZVOUS
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb, within
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import EndedBy
    from lightning_hangcheck.model.case import RunFacts

NOBODY_ELSEWHERE = (
    "all known ranks are there, so one that they expect was never started, or they cannot reach "
    "each other"
)
FIRST_NODES_ADDRESS = "the first node's address"
"""As `frames.toml` calls what an agent that has joined waits for."""
LAST_CALL_S = 30.0
"""For which torchrun waits for further nodes once there are enough of them (torch 2.13,
dynamic_rendezvous.py, ``last_call``), and LEAVING_S until it knows that an earlier one has gone."""
LEAVING_S = 15.0
SEVERAL = 2
"""From which on ranks of one group cannot meet."""
MOST_TOLD = 4
NEVER_SEEN = "never came, or started where nobody looked"


def rendezvous(situation: Situation) -> Finding | None:
    """Blame ranks that have no process, else ranks without a store, else all that wait."""
    job = situation.job
    launchers = job.waiting_in({"rendezvous_nodes"})
    if launchers and len(launchers) == len(job.alive):
        return _no_rank_yet(job, launchers)
    missing = situation.suspects_that_are("missing")
    if missing:
        return _never_started(situation, missing)
    ends = set(situation.graph.ends)
    lost = [one for one in job.waiting_in({"rendezvous_connect"}) if one.rank in ends]
    if lost:
        return _no_store(situation, lost)
    waiting = job.waiting_in({"rendezvous_peers"})
    if waiting and not situation.graph.ends and len(waiting) == len(job.alive):
        return _nobody_came(situation, waiting)
    return None


def _no_rank_yet(job: JobReading, launchers: Sequence[RankReading]) -> Finding:
    """The only process of the job is its launcher, which waits for other nodes to join it.

    How many nodes it waits for, and where, its command says: no rank is there yet that could.
    """
    command, (first, *_) = job.case.run.command, launchers
    told_later = any(_waits_for_address(one) for one in launchers)
    nodes, own = _option(command, "nnodes"), _option(command, "node[-_]rank")
    host, port = _option(command, "master[-_]addr"), _option(command, "master[-_]port")
    address = _option(command, "rdzv[-_]endpoint") or ":".join(filter(None, (host, port)))
    again = " again" if job.case.run.round else ""
    sentence = join(
        f"no rank has started{again}: torchrun (pid {first.view.pid}) has",
        "joined and" if told_later else "",
        f"waited {_silence(launchers)} for",
        "the address that the first of" if told_later else "",
        f"the other nodes of {nodes}" if nodes else "the other nodes",
        f"at {address}" if address else "",
        "is to tell its ranks (MASTER_ADDR)" if told_later else "",
        f"(this is node {own})" if own else "",
        _absent(job.case.run.absent_nodes),
    )
    sentence = "; ".join(filter(None, (sentence, who_was_there(job.case.run, first.view.host))))
    called_s = 0.0 if told_later else _last_call_s(command, nodes)
    finding = blame(
        launchers,
        cause="rendezvous",
        ended_by="last_call" if called_s else "announced",
        confidence=0.85,
        sentence=sentence,
        waited_for=True,
    )
    aspect = "address" if told_later else "nodes"
    finding = replace(finding, culprits=(), phase="rendezvous", aspect=aspect)
    return replace(finding, goes_on_after_s=called_s) if called_s else finding


def _waits_for_address(launcher: RankReading) -> bool:
    wait = launcher.rank_activity.wait
    return wait is not None and wait.name == FIRST_NODES_ADDRESS


def _last_call_s(command: str, nodes: str) -> float:
    """Seconds for which torchrun itself waits for more nodes than it needs; 0 if it needs all."""
    least, _, most = nodes.partition(":")
    if most in ("", least):
        return 0.0
    named = re.search(r"last_call_timeout=(\d+)", _option(command, "rdzv[-_]conf"))
    return LEAVING_S + (float(named[1]) if named is not None else LAST_CALL_S)


def _absent(nodes: Sequence[int]) -> str:
    return f"and of node {format_ranks(nodes)} nothing was heard" if nodes else ""


def _option(command: str, name: str) -> str:
    """Read an option of a command line, ``--name value`` or ``--name=value``; empty if absent."""
    found = re.search(rf"--{name}[ =](\S+)", command)
    return found[1] if found is not None else ""


def _never_started(situation: Situation, missing: Sequence[RankReading]) -> Finding:
    job = situation.job
    who = [reading.rank for reading in missing]
    sentence = (
        f"{name_ranks(who)} never came: WORLD_SIZE is {job.world_size}, and "
        f"{_of_one_number(job) or _too_few(job)}"
    )
    ended_by: EndedBy = "never_coming" if job.complete else "announced"
    finding = blame(
        missing,
        cause="rendezvous",
        ended_by=ended_by,
        confidence=0.95 if job.complete else 0.5,
        sentence=sentence,
        waited_for=True,
    )
    return _as_rendezvous(finding, job.waiting_in(RENDEZVOUS), "peers")


def _too_few(job: JobReading) -> str:
    alive = len(job.alive)
    return f"only {alive} of its processes {verb(range(alive), 'was', 'were')} seen"


def _of_one_number(job: JobReading) -> str:
    """Say where several processes took the same number; it is theirs that somebody misses."""
    claimed = next((one for one in job.alive if one.view.rivals), None)
    if claimed is None:
        return ""
    pids = sorted(pid for pid in (claimed.view.pid, *claimed.view.rivals) if pid is not None)
    who = ", ".join(str(pid) for pid in pids)
    return join(
        f"{len(pids)} processes (pids {who}) say that they are rank {claimed.rank}",
        within(claimed.place),
    )


def _no_store(situation: Situation, lost: Sequence[RankReading]) -> Finding:
    """Ranks that find no store; rank 0 is to keep it where no launcher or other node does."""
    job = situation.job
    who = [reading.rank for reading in lost]
    keeper = 0 in job.elsewhere and job.case.run.nnodes <= 1
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        "been looking for the store at MASTER_ADDR:MASTER_PORT",
        within(lost[0].place),
        f"for {_silence(lost)}",
    )
    if keeper:
        sentence += f": rank 0, which is to keep it, {NEVER_SEEN}"
    finding = blame(
        lost,
        cause="rendezvous",
        ended_by=_still_to_come(job),
        confidence=0.7,
        sentence=sentence,
        waited_for=True,
    )
    if keeper:
        finding = replace(finding, culprits=(0,), left_standing=tuple(who))
    return _as_rendezvous(finding, lost, "peers" if keeper else "store")


def _nobody_came(situation: Situation, waiting: Sequence[RankReading]) -> Finding:
    """All known ranks wait for peers, and nobody is elsewhere: somebody unknown never came."""
    job = situation.job
    who = [reading.rank for reading in waiting]
    apart = _at_other_stores(waiting)
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        f"waited {_silence(waiting)} for the process group to form",
        f"{within(waiting[0].place)}:",
        apart or (_unseen(job) if job.elsewhere else NOBODY_ELSEWHERE),
    )
    finding = blame(
        waiting,
        cause="rendezvous",
        ended_by="never_coming" if apart else _still_to_come(job),
        confidence=0.95 if apart else 0.5,
        sentence=sentence,
        waited_for=True,
    )
    if apart:
        return _as_rendezvous(finding, waiting, "address")
    if job.elsewhere:
        finding = replace(finding, culprits=job.elsewhere, left_standing=tuple(who))
    return _as_rendezvous(finding, waiting, "peers")


def _at_other_stores(waiting: Sequence[RankReading]) -> str:
    """Say where ranks that wait for each other were sent to different stores; empty if not."""
    ports: dict[int, list[int]] = {}
    for reading in waiting:
        if reading.view.store_port is not None:
            ports.setdefault(reading.view.store_port, []).append(reading.rank)
    if len(ports) < SEVERAL:
        return ""
    told = [
        f"{name_ranks(ranks)} {verb(ranks, 'looks', 'look')} for it at port {port}"
        for port, ranks in sorted(ports.items(), key=lambda item: item[1])
    ]
    return f"they were sent to different stores (MASTER_PORT), {', '.join(told[:MOST_TOLD])}"


def _unseen(job: JobReading) -> str:
    here = next((one.view.host for one in job.alive), "")
    told = f"WORLD_SIZE is {job.world_size}, and {name_ranks(job.elsewhere)} {NEVER_SEEN}"
    return "; ".join(filter(None, (told, who_was_there(job.case.run, here))))


def who_was_there(run: RunFacts, here: str) -> str:
    """Say who ran on other nodes in the round before, and which of these is not heard any more.

    Args:
        run: Facts of the run.
        here: The host that waits.
    """
    told = [
        join(
            f"node {node.number}",
            f"(ranks {node.ranks})" if node.ranks else "",
            f"has not been heard for {duration(node.silent_s)}",
        )
        for node in run.silent_nodes[:MOST_TOLD]
    ]
    hosts: dict[str, list[int]] = {}
    for place in run.earlier[-1].ranks if run.earlier else ():
        if place.host not in ("", here):
            hosts.setdefault(place.host, []).append(place.rank)
    there = [f"{name_ranks(ranks)} on {host}" for host, ranks in list(hosts.items())[:MOST_TOLD]]
    if there:
        told.insert(0, f"in round {run.earlier[-1].number} there were {', '.join(there)}")
    return "; ".join(told)


def _as_rendezvous(finding: Finding, waiting: Sequence[RankReading], aspect: str) -> Finding:
    """The phase is the rendezvous, the place where somebody waits in it."""
    place = finding.place or next((one.place for one in waiting if one.place is not None), None)
    return replace(finding, phase="rendezvous", place=place, aspect=aspect)


def _still_to_come(job: JobReading) -> EndedBy:
    """Nobody else comes where the launcher has started every rank, and all of them wait here."""
    everybody = len(job.waiting_in(RENDEZVOUS)) == len(job.ranks) == job.world_size
    return "never_coming" if job.complete and everybody else "announced"


def _silence(readings: Sequence[RankReading]) -> str:
    return duration(max(reading.silence_s for reading in readings))


MISSING_RANKS = Rule(cause="rendezvous", needs=("stacks",), find=rendezvous)
