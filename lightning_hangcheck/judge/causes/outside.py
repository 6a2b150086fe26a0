"""Causes beyond a rank's own processes: files, file locks, remote ends, ranks that never came.

file_lock, filesystem_wait, checkpoint_io, network_wait, rendezvous; and for a node that is no
longer heard, network_wait or unknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lightning_hangcheck.judge import wording
from lightning_hangcheck.judge.exits import CAME_FROM
from lightning_hangcheck.judge.frames import RENDEZVOUS, caught_around
from lightning_hangcheck.judge.job import process_of
from lightning_hangcheck.judge.processes import READS, in_words
from lightning_hangcheck.judge.rule import MOST_SHOWN, Seen, blame, filling, rule, say
from lightning_hangcheck.judge.wording import duration, join, name_ranks, within
from lightning_hangcheck.model.code_owner import owner_of
from lightning_hangcheck.model.evidence import PAGE_FAULT
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.text.shown import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.judge.patience import EndedBy
    from lightning_hangcheck.judge.rule import Finding, Situation
    from lightning_hangcheck.model.case import RunFacts
    from lightning_hangcheck.model.evidence import WaitTarget

REFUSED = (
    *("Connection", "gaierror", "URLError", "HTTPError", "MaxRetryError", "NewConnectionError"),
    *("ConnectError", "ConnectTimeout", "ReadTimeout", "RequestException", "RequestError"),
    *("RpcError", "ClientConnectorError", "ClientConnectionError", "EndpointConnectionError"),
)
"""How names of exceptions begin if a remote end refuses, leaves, or has no address: of Python,
urllib, urllib3, requests, httpx, grpc, aiohttp and botocore."""
HUB = "huggingface_hub"
"""It has time limits of its own: its callers, such as from_pretrained, take none."""
NOBODY = (
    "which no visible process of this machine holds: a stale lock file, or a lock of another host"
)
INHERITED = "which a process holds that was not seen: it inherited the file, or is on another host"
ABANDONED = "which was left behind by a process that is gone"
POLLS = {
    "filelock": "polls for",
    "baton.wait": "polls for",
    "exists": "polls for",
    "sleep": "sleeps again and again, as pollers do, for",
}
EMPTY, FULL = "which is empty", "which is full"
STATE_OF_FIFO = {"read": EMPTY, "readv": EMPTY, "write": FULL, "writev": FULL}
"""A process in these calls has found the other end: otherwise they would return at once."""
NOBODY_ELSEWHERE = (
    "all known ranks are there, so another one was never started, or they cannot reach each other"
)
FIRST_NODES_ADDRESS = "the first node's address"
"""How `frames.toml` names what an agent that has joined waits for."""
LAST_CALL_S = 30.0
"""Seconds for which torchrun waits for further nodes once there are enough of them (torch 2.13,
dynamic_rendezvous.py, ``last_call``), and LEAVING_S until it knows that a former node has gone."""
LEAVING_S = 15.0
TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
WITHOUT_VALUE = {
    *("m", "module", "no-python", "run-path", "standalone", "use-env", "virtual-local-rank")
}
"""torchrun's options that take no value (torch/distributed/run.py, 2.13)."""
NEVER_SEEN = "never came, or started on a machine that is not watched"


# Files.


@rule("file_lock", order=90, needs=("kernel",))
def file_lock(situation: Situation, idle: Sequence[RankReading]) -> Finding | None:
    """Blame the ranks of the circle that a lock closes; without one, all that wait for a lock."""

    def lock_of(reading: RankReading) -> WaitTarget | None:
        return next((target for target in reading.targets if target.kind == "lock"), None)

    def file_of(reading: RankReading) -> str:
        own = lock_of(reading)
        return processes.file_node(reading.view.host, own) if own is not None and own.name else ""

    waiting = [reading for reading in idle if lock_of(reading) is not None]
    lock = lock_of(waiting[0]) if waiting else None
    if lock is None:
        return None
    waiter, processes = waiting[0], situation.job.processes
    proven = situation.deadlocked(waiter)
    cycle = proven or situation.cycle(waiter)
    who, others, file = [waiter], [], file_of(waiter)
    if not cycle:  # a lock without a name is one rank's own
        who = [
            reading
            for reading in waiting
            if reading is waiter or (file and file_of(reading) == file)
        ]
        at_it = {reading.rank for reading in who}
        others = [reading for reading in waiting if reading.rank not in at_it]
    name = lock.name or "a file"
    child = waiter.child
    sentence = say(
        who,
        "{who} [has|have] waited {since} {at} for {child} the lock on {lock}, {holder}",
        child=f"its child pid {child.pid}, which wants" if child is not None else "",
        since=duration(waiter.silence_s),
        at=within(waiter.place),
        lock=name,
        holder=_who_holds(situation, waiter, lock),
    )
    if others:
        sentence += f"; {say(others, '{who} [waits|wait] for another lock')}"
    nobody = "a process that is gone" if lock.abandoned else "nobody that is seen"
    held = ", ".join(map(wording.process_name, lock.holders)) or nobody
    waits = f"{waiter.waiter} {POLLS.get(lock.call, f'is in {lock.call} for')} the lock on {name}"
    # a circle is as old as the last step into it: until then its holder may have worked
    silence_s = min(reading.silence_s for reading in cycle or (waiter,))
    return blame(
        situation,
        cycle or waiting,
        "file_lock",
        sentence,
        sure=0.95 if proven else (0.8, 0.5),
        aspect="held" if lock.holders else "stale" if lock.call in POLLS else None,
        evidence=[EvidenceItem("kernel", waiter.rank, f"{waits}, held by {held}")],
        silence_s=silence_s,
        place=waiter.place,
    )


def _who_holds(situation: Situation, waiter: RankReading, lock: WaitTarget) -> str:
    if not lock.holders:
        nobody = NOBODY if lock.call in POLLS else INHERITED
        return ABANDONED if lock.abandoned else nobody
    holder = lock.holders[0]
    reading = situation.job.rank_of(waiter, holder)
    if reading is None:
        owner = situation.job.processes.owners.get(process_of(waiter.view.host, holder))
        whose = "a process outside the job" if owner is None else f"a child of rank {owner}"
        return f"which {wording.process_name(holder)}, {whose}, holds"
    if reading is waiter:
        who = "it" if waiter.child is None else f"rank {waiter.rank}"
        return f"which {who} holds itself"
    doing = join("while it waits", reading.in_wait) if reading.wait is not None else ""
    return join(f"which rank {reading.rank} holds", doing, within(reading.place))


@rule("checkpoint_io", of=("idle",), order=180, sure=(0.85, 0.5), needs=("kernel",))
def checkpoint_io(reading: RankReading, job: JobReading) -> Seen | None:
    """The rank saves a checkpoint, blocked at a file or at a pipe that nobody reads."""
    if reading.phase != "checkpoint_save":
        return None
    doing = "while saving a checkpoint"
    if (in_file := _in_file(reading, job, doing)) is not None:
        return in_file
    pipe = next(filter(filling, reading.targets), None)
    if pipe is None:
        return None
    return _blocked(reading, doing, filling(pipe), "full_pipe", in_words(pipe))


@rule("filesystem_wait", of=("idle",), order=190, sure=(0.85, 0.5), needs=("kernel",))
def filesystem_wait(reading: RankReading, job: JobReading) -> Seen | None:
    """The rank's system call waits for a file, or for a FIFO that no other rank has open."""
    return _in_file(reading, job, "")


def _in_file(reading: RankReading, job: JobReading, doing: str) -> Seen | None:
    file = next((target for target in reading.targets if target.kind in ("file", "fifo")), None)
    ends = [job.rank_of(reading, holder) for holder in file.holders] if file is not None else []
    if file is None or (file.kind == "fifo" and any(end not in (None, reading) for end in ends)):
        return None
    name = file.name or "a file"
    call = f"in {file.call} of {name}"
    if file.call == PAGE_FAULT:
        call = "reading a page of a file that is mapped into its memory"
    elif file.kind == "fifo":
        end = STATE_OF_FIFO.get(file.call, "which no process has opened at its other end")
        call = f"in {file.call} of the FIFO {name}, {end}"
    return _blocked(reading, doing, call, file.kind, f"blocked {call}")


def _blocked(reading: RankReading, doing: str, call: str, aspect: str, fact: str) -> Seen:
    return Seen(
        text="{who} [is|are] blocked {at} {doing} : {since} {call}",
        words={"call": call, "doing": doing},
        aspect=aspect,
        evidence=[("kernel", f"{reading.waiter} is {fact}")],
    )


# Remote ends.


@rule("network_wait", of=("idle",), order=160, sure=(0.85, 0.5), needs=("kernel",))
def network_wait(reading: RankReading, job: JobReading) -> Seen | None:
    """The rank waits for a remote end that is no rank and no store, or asks one in vain.

    A rank at the other end has a state of its own, which is the cause; at the store a rank waits
    for a key. A rank that asks in vain sleeps between its tries, and handles or has caught the
    error of the last one.
    """
    ends = [
        target
        for target in reading.targets
        if target.kind == "socket" and not target.call.startswith("accept")
        if target.name or (target.own_end and target.call in READS)
        if not any(job.rank_of(reading, holder) for holder in target.holders)
        if not reading.keeps_store(target)
    ]
    error = reading.handling.partition(CAME_FROM)[2] or reading.handling
    error_text, vain = reading.handling, "in vain"
    if not error:  # it sleeps after the handler, in the retry loop
        caught = caught_around(job.case.code, (*reading.frames, *reading.stuck_frames))
        error = next((name for name in caught if name.startswith(REFUSED)), "")
        error_text, vain = f"{error} is caught there", "again and again"
    if not ends and reading.own.only_sleeps and error.startswith(REFUSED):
        return Seen(
            text="{who} [has|have] asked a remote end {vain} for {since} {at} : {error}",
            words={"error": error_text, "vain": vain},
            aspect="refused",
            alike=(reading.place, error.partition(":")[0]),
        )
    if not ends:
        return None
    target = ends[0]
    owners = ", ".join(map(wording.process_name, target.holders))
    end = f"{target.name} ({owners})" if owners else target.name
    for_key = reading.asks_store and target.call != "connect"
    what = f"{end}, which does not answer" if end else f"datagrams to {target.own_end}"
    if for_key:
        what = f"a key of the store at {end}, which no rank has set"
    elif target.call == "connect":
        what = f"{end}, which does not accept the connection"
    calls = (*reading.frames, *reading.stuck_frames)
    of_hub = any(owner_of(frame.file).package == HUB for frame in calls)
    return Seen(
        text="{who} [has|have] waited {since} for {what}, {at}",
        words={"what": what},
        aspect="store" if for_key else "hub" if of_hub else "remote",
        alike=(reading.place, target.call, target.name),
        evidence=[("kernel", f"{reading.waiter} is in {target.call} on a connection to {end}")]
        if end
        else [],
    )


@rule("network_wait", "unknown", order=150)
def silent_node(situation: Situation, unheard: Sequence[RankReading]) -> Finding | None:
    """Blame ranks of a silent node, if others wait only for such ranks.

    If others also wait for a rank that is seen, that one may be the only late rank. How long the
    ranks have been stuck is told by those that wait; of the others nothing is known.
    """
    job, who = situation.job, {reading.rank for reading in unheard}
    waiters = [job.ranks[rank] for rank in situation.graph.waiters]
    nodes = [
        node for node in job.case.run.silent_nodes if who.intersection(parse_ranks(node.ranks))
    ]
    only_these = situation.waited_for and len(unheard) == len(situation.suspects)
    if not only_these or not waiters or not nodes:
        return None
    reachable = all(node.reach != "unanswered" for node in nodes)
    sentences = []
    for node in nodes:
        unheard_s, why = duration(node.silent_s), wording.why_silent(node)
        last = f"; last known there: {node.last_known}" if node.last_known else ""
        sentences.append(
            f"{wording.which_node(node)} has not been heard for {unheard_s}: {why}{last}"
        )
    how = "[is|are] not seen" if reachable else "cannot be reached"
    return blame(
        situation,
        waiters,
        "unknown" if reachable else "network_wait",
        say(unheard, f"{{who}} {how}: {{nodes}}", nodes="; ".join(sentences)),
        sure=0.5 if reachable else 0.85,
        ended_by="unknown_pace" if reachable else "outside",
        aspect="node",
        evidence=[EvidenceItem("node", None, text) for text in sentences],
        culprits=tuple(reading.rank for reading in unheard),
        phase=unheard[0].phase or waiters[0].phase,
        place=None,
        pace=None,
    )


# Ranks that never came.


@rule("rendezvous", order=70, needs=("stacks",))
def rendezvous(situation: Situation) -> Finding | None:
    """Blame ranks without a process, else ranks without a store, else all that wait."""
    job, ends = situation.job, set(situation.graph.ends)
    launchers = job.waiting_in({"rendezvous_nodes"})
    if launchers and len(launchers) == len(job.alive):
        return _no_rank_yet(situation, launchers)
    if missing := situation.suspects_that_are("missing"):
        return _never_started(situation, missing)
    if lost := [
        reading for reading in job.waiting_in({"rendezvous_connect"}) if reading.rank in ends
    ]:
        # rank 0 keeps the store if no launcher or other node does
        keeper = 0 in job.elsewhere and job.case.run.nnodes <= 1
        tried_s = max(reading.silence_s for reading in lost)
        first = job.ranks.get(0)
        if first is not None and first.alive and first not in lost:
            # it may have opened the store just now, and pauses between tries grow with them
            # (Backoff.cpp): the next try comes within the time for which ranks tried in vain
            tried_s = max(0.0, min(tried_s, 2 * first.silence_s - tried_s))
        text = "{who} cannot reach the store at MASTER_ADDR:MASTER_PORT {at} : tried for {since}"
        finding = _unmet(
            situation,
            lost,
            say(lost, text) + (f"; rank 0, which must serve it, {NEVER_SEEN}" if keeper else ""),
            sure=0.7,
            silence_s=tried_s,
            aspect="peers" if keeper else "store",
        )
        return _of_absent(finding, (0,)) if keeper else finding
    waiting = job.waiting_in({"rendezvous_peers"})
    if waiting and not ends and len(waiting) == len(job.alive):
        return _nobody_came(situation, waiting)
    return None


def _unmet(
    situation: Situation,
    who: Sequence[RankReading],
    sentence: str,
    *,
    sure: float,
    ended_by: EndedBy | None = None,
    **fields: Any,  # noqa: ANN401 - the fields of `Finding`
) -> Finding:
    """Blame ranks in the rendezvous; nobody else comes if all were started and wait here.

    An unknown launcher may yet open the store that they look for; and one that asks something else
    than the store, such as a name server, has not come to the others yet.
    """
    job = situation.job
    everybody = len(job.waiting_in(RENDEZVOUS)) == len(job.ranks) == job.world_size
    everybody = everybody and job.complete and not job.case.run.one_by_one
    everybody = everybody and not any(
        target.kind == "socket" and target.name and not reading.keeps_store(target)
        for reading in job.waiting_in(RENDEZVOUS)
        for target in (reading.own.targets if reading.view.store_port is not None else ())
    )
    waiting = (*who, *job.waiting_in(RENDEZVOUS))
    return blame(
        situation,
        who,
        "rendezvous",
        sentence,
        sure=sure,
        ended_by=ended_by or ("never_coming" if everybody else "announced"),
        waited_for=True,
        phase="rendezvous",
        place=next((reading.place for reading in waiting if reading.place is not None), None),
        **fields,
    )


def _no_rank_yet(situation: Situation, launchers: Sequence[RankReading]) -> Finding:
    """The only process is a launcher that, by its command, waits for other nodes."""
    run, first = situation.job.case.run, launchers[0]
    joined = any(
        reading.wait is not None and reading.wait.name == FIRST_NODES_ADDRESS
        for reading in launchers
    )
    options = _torchruns_options(run.command)
    nodes, own = options.get("nnodes", ""), options.get("node-rank")
    master = [options[name] for name in ("master-addr", "master-port") if name in options]
    address = options.get("rdzv-endpoint") or ":".join(master)
    others = f"the other nodes of {nodes}" if nodes else "the other nodes"
    absent, since = format_ranks(run.absent_nodes), max(reading.silence_s for reading in launchers)
    again, has = " again" if run.round else "", "has joined and" if joined else "has"
    what = f"MASTER_ADDR, which the first of {others}" if joined else others
    sentence = join(
        f"no rank has started{again}: torchrun (pid {first.view.pid}) {has} waited",
        f"{duration(since)} for {what}",
        f"at {address}" if address else "",
        "must set" if joined else "",
        f"(this is node {own})" if own else "",
        f"and of node {absent} nothing was heard" if absent else "",
    )
    least, _, most = nodes.partition(":")
    called = {}
    if not joined and most not in ("", least):  # it waits for more nodes than it needs
        named = re.search(r"last_call_timeout=(\d+)", options.get("rdzv-conf", ""))
        called_s = LEAVING_S + (float(named[1]) if named is not None else LAST_CALL_S)
        called = {"goes_on_after_s": called_s}
    return _unmet(
        situation,
        launchers,
        "; ".join(filter(None, (sentence, _who_was_there(run, first.view.host)))),
        sure=0.85,
        ended_by="last_call" if called else "announced",
        aspect="address" if joined else "nodes",
        culprits=(),
        **called,
    )


def _torchruns_options(command: str) -> dict[str, str]:
    """Read torchrun's own options, named with dashes; options behind the script are its own."""
    words = iter(command.split())
    found: dict[str, str] = {}
    if not any(word.endswith(TORCHRUN) for word in words):  # this consumes words up to it
        return found
    for word in words:
        if not word.startswith("-"):
            break
        name, given, value = word.partition("=")
        name = name.lstrip("-").replace("_", "-")
        found[name] = value if given or name in WITHOUT_VALUE else next(words, "")
    return found


def _never_started(situation: Situation, missing: Sequence[RankReading]) -> Finding:
    job = situation.job
    all_started = job.complete and not job.case.run.one_by_one
    alive = len(job.alive)
    why = f"only {alive} of its processes {'was' if alive == 1 else 'were'} seen"
    claimed = next((reading for reading in job.alive if reading.view.rivals), None)
    if claimed is not None:  # several took the same number, so another is missing
        pids = sorted(pid for pid in (claimed.view.pid, *claimed.view.rivals) if pid is not None)
        text = f"{len(pids)} processes (pids {{pids}}) say that they are {{who}} {{at}}"
        why = say([claimed], text, pids=", ".join(map(str, pids)))
    text = "{who} never came: WORLD_SIZE is {size}, and {why}"
    return _unmet(
        situation,
        missing,
        say(missing, text, size=str(job.world_size), why=why),
        sure=0.95 if all_started else 0.5,
        ended_by="never_coming" if all_started else "announced",
        aspect="peers",
    )


def _nobody_came(situation: Situation, waiting: Sequence[RankReading]) -> Finding:
    """All known ranks wait for peers: somebody unknown never came."""
    job, why = situation.job, NOBODY_ELSEWHERE
    ports: dict[int, list[RankReading]] = {}
    for reading in waiting:
        if reading.view.store_port is not None:
            ports.setdefault(reading.view.store_port, []).append(reading)
    apart = len(ports) > 1
    if apart:
        by_rank = sorted(ports.items(), key=lambda item: item[1][0].rank)[:MOST_SHOWN]
        by_port = (
            say(o, "{who} [looks|look] for it at port {port}", port=str(p)) for p, o in by_rank
        )
        why = f"they were sent to different stores (MASTER_PORT), {', '.join(by_port)}"
    elif job.elsewhere:
        here = next((reading.view.host for reading in job.alive), "")
        why = f"WORLD_SIZE is {job.world_size}, and {name_ranks(job.elsewhere)} {NEVER_SEEN}"
        why = "; ".join(filter(None, (why, _who_was_there(job.case.run, here))))
    text = "{who} [has|have] waited {since} for the process group to form {at} : {why}"
    found = _unmet(
        situation,
        waiting,
        say(waiting, text, why=why),
        sure=0.95 if apart else 0.5,
        ended_by="never_coming" if apart else None,
        aspect="address" if apart else "peers",
    )
    return found if apart else _of_absent(found, job.elsewhere)


def _of_absent(finding: Finding, absent: tuple[int, ...]) -> Finding:
    """Blame the ranks that were never seen, if any, instead of those that wait for them."""
    if not absent:
        return finding
    return replace(finding, culprits=absent, held_up=finding.culprits)


def _who_was_there(run: RunFacts, here: str) -> str:
    """Say who ran on other nodes in the round before, and which of these is silent now."""
    parts = [
        f"{wording.which_node(node)} has not been heard for {duration(node.silent_s)}"
        for node in run.silent_nodes[:MOST_SHOWN]
    ]
    hosts: dict[str, list[int]] = {}
    for place in run.earlier[-1].ranks if run.earlier else ():
        if place.host not in ("", here):
            hosts.setdefault(place.host, []).append(place.rank)
    there = [f"{name_ranks(ranks)} on {host}" for host, ranks in list(hosts.items())[:MOST_SHOWN]]
    if there:
        parts.insert(0, f"round {run.earlier[-1].number} had {', '.join(there)}")
    return "; ".join(parts)
