"""Judges the logs of a job that is gone: what they prove, and of which ranks, if they show it.

`RULES` are tried in order; the first that has its evidence answers. The rules keep in mind:

- The rank that reports a time-out first is not at fault for that, nor is a rank that reports none.
- torchrun's "root cause" is the first process to end. Exit code 1 says nothing, -9 and -11 do.
  SIGABRT, SIGSEGV, broken pipes and heartbeat kills after a time-out follow from it.
- ``[Rank 3]`` is a number within a group. Numbers of different groups are not compared.
- A rank with fewer operations entered is not behind if all ranks are in the one that does not end.
- A rank whose last operation is N-1 may be inside the call of N: torch counts it only afterwards.
- If most ranks lack an operation, the few ranks that have it may be the ones that diverged.
- Lengths may differ between ranks in all_to_all, coalesced and uneven operations.
- NCCL's RAS lists the smaller set of ranks, which is not always the guilty one.
- If a progress bar moves during a barrier, the job is slow. If a clock jumped, no time counts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.exits import LOSSES, OUT_OF_TIME, TOLD_TO_END
from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.judge.postmortem_facts import (
    SAME_SIZES,
    GroupState,
    LeftFinding,
    LogBook,
    collective,
    held_in_a_call,
    known,
    name_members,
    of_group,
    overslept,
    stopped_earlier,
)
from lightning_hangcheck.judge.wording import duration, name_ranks, signal_name
from lightning_hangcheck.model.left_behind import LogFact, comparable, elapsed, order_of, precedes
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import format_ranks, several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lightning_hangcheck.model.slugs import Cause, VerdictKind

NEEDS_ALL = SAME_SIZES - {"BROADCAST", "REDUCE"} | {"ALLGATHER", "REDUCE_SCATTER", "BARRIER"}
"""Operations that end on no rank before all ranks have entered."""
CONSEQUENCES = (
    *LOSSES, *TOLD_TO_END, "ChildFailedError", "SystemExit", "BrokenPipeError", "EOFError",
    "ConnectionResetError", "ConnectionRefusedError", "ConnectionError", "CalledProcessError",
    "ProcessExitedException", "ProcessRaisedException", "ActorDiedError", "RayTaskError",
    "RendezvousConnectionError", "RendezvousTimeoutError", "RendezvousClosedError",
)  # fmt: skip
"""Exceptions of a rank that lost another rank, or was ended with it."""
CLIENTS = {
    *("aiohttp", "botocore", "clearml", "comet_ml", "fsspec", "google", "httpcore", "httpx"),
    *("huggingface_hub", "mlflow", "neptune", "openai", "requests", "urllib3", "wandb"),
}
"""Packages whose exceptions are about a server, never about other ranks."""
ECHOES = (
    "NCCL", "Broken pipe", "Connection closed by peer", "Connection reset", "Socket Timeout",
    "Socket closed", "wait timeout after", "Timed out waiting", "monitoredBarrier", "gloo",
    "Detected mismatch between", "aborted", "clients joined", "store based barrier",
    "collective operation timeout", "op.nbytes", "failed to connect", "in a barrier",
    "host not found",
)  # fmt: skip
"""Words in an exception's message about other ranks, not about the rank that raised it."""
KILLED = {-9: "SIGKILL", -11: "SIGSEGV", -7: "SIGBUS", -4: "SIGILL", -8: "SIGFPE"}
ENDED_BY_LAUNCHER = (-15, 0)
"""Exit codes of processes that were ended because of another one, or ended well."""
KILLED_SO = {"SIGKILL": "killed", "SIGBUS": "shm"}
ENDS = (("segmentation", "native"), ("bus error", "shm"))
DEADLY = ("out of memory", "segmentation", "bus error", "killed")
LOST_OTHERS = ("peer_lost", "network", "gave_up", "barrier_echo", "store", "unreachable")
"""Kinds of lines of ranks that lost others: how they end is a consequence."""
LOST = ("Broken pipe", "reset by peer", "closed by peer", "Connection was likely closed")
BARRIER = 64
"""An operation with at most this many elements may be a barrier or similar."""
GPU_MEMORY = ("CUDA out of memory", "HIP out of memory", "CUDA error: out of", "Cuda failure")
OF_ERRORS: tuple[tuple[tuple[str, ...], Cause, str], ...] = (
    (
        ("out of memory", "MemoryError", "Cannot allocate memory", "bad_alloc"),
        "memory_pressure",
        "",
    ),
    (("DataLoader", "Unexpected bus error"), "dataloader_worker", "killed"),
    (("shared memory segment", "shm/nccl"), "process_dead", "shm"),
    (("Fatal Python error",), "process_dead", "native"),
    (("ECC error", "fallen off the bus", "NVLink"), "process_dead", "bad_gpu"),  # not of a program
    (("CUDA error", "Cuda failure"), "process_dead", "gpu_kernel"),
)
"""Words in errors, the cause that they indicate, and the aspect that selects remedies."""
NO_ANSWER = re.compile(
    r"timed?[ -]?out|Connect(?:ion|Timeout)|couldn't connect|Max retries|resol(?:ve|ution)"
    r"|unreachable|HTTP\w*Error|\b50[0-4] |Service Unavailable",
    re.IGNORECASE,
)
"""What a rank says of a server that did not answer."""
NO_STORAGE = re.compile(
    r"No space left|[Qq]uota exceeded|Stale (?:NFS )?file handle|Input/output error|Read-only file"
    r"|PytorchStreamWriter|enforce fail at inline_container"
)
"""What it says of storage that failed."""
HARDWARE = {48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140}
"""Xid numbers for faults of the GPU, its memory, links or firmware, not of a program."""
WAITED = re.compile(r"wait|time[ds]? ?-?out|did not|never (?:came|arrived)", re.IGNORECASE)
OF_OTHERS = re.compile(
    r"\brank[ :=#]{0,2}(\d{1,7})|\bpeers?\b|\bbarrier|main process"
    r"|(?:other|all) (?:ranks|processes)",
    re.IGNORECASE,
)
"""If both match the message of an exception, the rank waited for others, which are late."""
OF_ONE_RANK = (
    "out of memory", "CUDA error", "Cuda failure", "DataLoader worker", "Unexpected bus error",
    "Fatal Python error", "No space left on device", "shared memory segment", "bad_alloc",
)  # fmt: skip
"""Errors of a rank's own resources; other errors may be the program's, on all ranks."""
NEAR = 1.01
"""Lengths with a smaller ratio come from work that does not divide evenly among the ranks."""
MANY_LACK = " Most ranks lack it, so {} may have strayed."


def _failed(book: LogBook) -> VerdictKind:
    return "dead" if book.waiting else "crashed"


def killed(book: LogBook) -> LeftFinding | None:
    """A process that the kernel, SLURM or a signal ended before any time-out."""
    exits = [fact for fact in book.of("exit") if fact.code is not None]
    exits = [fact for fact in exits if fact.rank is not None] or exits  # the others repeat it
    lost = book.of("node_lost", "cancelled")
    for fact in book.of("task"):
        reason, before = fact.error.lower(), book.before_timeouts(fact)
        memory = "out of memory" in reason
        if not any(word in reason for word in DEADLY) or before is False:
            continue
        after = any(end.file == fact.file and end.line < fact.line for end in lost)
        ended = "killed" in reason and book.of("exception")
        if not memory and (before is None or after or ended):
            continue  # srun kills all tasks if one fails, a node is lost or the job is ended
        is_rank = not exits  # else each task is a torchrun, one per node
        cause: Cause = "memory_pressure" if memory else "process_dead"
        task = name_ranks(fact.ranks) if is_rank else f"SLURM task {format_ranks(fact.ranks)}"
        text = f"{task} on {fact.host} ended: {fact.error}."
        aspect = next((ended for word, ended in ENDS if word in reason), "")
        who = fact.ranks if is_rank else ()
        return book.finding(_failed(book), cause, text, [fact], who, aspect=aspect)
    if kernel := book.of("kill"):
        named, local = book.of_processes(fact.pid for fact in kernel)
        who = named or known(fact.rank for fact in exits if fact.code == -9 and not local)
        who = who if named or len(who) == 1 or len(who) * 2 <= len(exits) else ()
        process = f"the process of local {name_ranks(local)}" if local else "a process"
        were = "were" if len(who or local) > 1 else "was"
        text = f"{name_ranks(who) if who else process} {were} killed for want of memory."
        facts = [*kernel[:3], *exits[:3]]
        guessed = () if who else local
        return book.finding(_failed(book), "memory_pressure", text, facts, who, guessed=guessed)
    first = [
        fact for fact in exits if fact.code in KILLED and book.before_timeouts(fact) is not False
    ]
    moments = [fact.when for fact in exits if fact.when]
    began = min(moments, key=order_of(moments), default="")
    first = [fact for fact in first if fact.when in ("", began) and fact.rank not in book.waiting]
    ranks = known(fact.rank for fact in first)
    if not first or (len(ranks) > 1 and len(ranks) * 2 >= max(book.world, len(exits))):
        return None
    # local ranks: the log does not say on which node
    local = () if ranks else known(fact.group_rank for fact in first)
    signals = " and ".join(sorted({KILLED[fact.code or 0] for fact in first}))
    subject = name_ranks(ranks) if ranks else "a rank that is not named"
    subject = f"the process of local {name_ranks(local)}" if local else subject
    text = f"{subject} {'were' if len(ranks or local) > 1 else 'was'} ended by {signals}."
    text += " The log does not say who sent it." if "SIGKILL" in signals else ""
    sure = all(book.before_timeouts(fact) for fact in first)
    who, guessed = (ranks, local) if sure else ((), ranks)
    return book.finding(_failed(book), "process_dead", text, first, who, guessed=guessed,
                        aspect=KILLED_SO.get(signals, "native"))  # fmt: skip


def own_failures(book: LogBook) -> list[LogFact]:
    """Return ranks' own failures before they waited for others: no echo of others' failures."""

    def is_own(fact: LogFact) -> bool:
        package, _, name = fact.error.partition(":")[0].rpartition(".")
        others = package.partition(".")[0] not in CLIENTS
        return (
            bool(fact.error)
            and not (others and name in CONSEQUENCES)
            and not (others and any(word in fact.error for word in ECHOES))
            and (fact.rank is None or fact.rank not in book.waiting)
            and book.before_timeouts(fact) is not False
            and not book.went_on(fact)
        )

    failed = [fact for fact in book.of("exception") if is_own(fact)]
    said = " ".join(fact.error for fact in failed)
    told = [fact for fact in book.of("memory") if not book.wrote_on(fact)]  # else it was handled
    more = (replace(fact, error=fact.error or fact.text) for fact in (*told, *book.of("own_error")))
    failed += [fact for fact in more if fact.error[:60] not in said and is_own(fact)]
    return failed + [fact for fact in book.of("exit") if is_own(fact)]


def waited_for_others(fact: LogFact) -> bool:
    """Whether an exception says that its rank waited for others in vain."""
    named = [match[1] for match in OF_OTHERS.finditer(fact.error)]
    others = any(rank is None or int(rank) != fact.rank for rank in named)
    return others and WAITED.search(fact.error) is not None


def raised(book: LogBook) -> LeftFinding | None:
    """A rank failed by itself, and the logs show which."""
    failed = own_failures(book)
    early = [fact for fact in failed if not waited_for_others(fact)]
    in_vain = not early
    early = early or failed
    early.sort(key=lambda fact: (fact.rank is None, fact.file, fact.line))
    if book.clocks_agree and len({len(fact.when) for fact in early if fact.rank is not None}) == 1:
        order = order_of(fact.when for fact in early)
        early.sort(key=lambda fact: (fact.rank is None, order(fact.when)))
    ranks = set(known(fact.rank for fact in early))
    if not early or (not ranks and book.waiting):
        return None  # nothing shows whose it is, and whether it was caught
    same = set(known(fact.rank for fact in early if fact.error == early[0].error))
    everybody = len(ranks) > 1 and len(ranks) * 2 >= max(book.world, len(ranks | book.waiting))
    ends = book.of("exit")
    others_wait = bool(book.heard - ranks) or bool(ends)
    own = any(word in early[0].error for word in OF_ONE_RANK)
    alone = ranks == same and not everybody and (others_wait or own) and not in_vain
    native = "Fatal Python error" in early[0].error  # other ranks' time-outs may end in one, too
    alone &= not native or book.before_timeouts(early[0]) is True
    subject = name_ranks(same or ranks) if ranks else "a rank that is not named"
    how = "waited in vain" if in_vain else "failed"
    text = f"{subject} {how}: {redact_text(early[0].error)[:110].rstrip('. ')}."
    unlike = [fact for fact in early if fact.rank is not None and fact.rank not in same]
    if others := book.waiting - ranks:
        text += f" {name_ranks(others).capitalize()} waited in vain."
    guessed = set(known(fact.rank for fact in ends if fact.code not in ENDED_BY_LAUNCHER))
    guessed = guessed or set(known(fact.group_rank for fact in early if not fact.group))
    guessed = guessed if not ranks and len(guessed) == 1 else set()
    if unlike:  # by time, if known
        also, then = known(fact.rank for fact in unlike), f"{how}, too"
        if early[0].when:
            guessed = set(known(fact.rank for fact in early if fact.when == early[0].when))
            also, then = (
                (later, "raised later") if (later := known(ranks - guessed)) else (also, then)
            )
        error = next(fact.error for fact in early if fact.rank in also)
        text += f" {name_ranks(also).capitalize()} {then}: {redact_text(error)[:60].rstrip('. ')}."
    if len(ranks) == 1 and not alone:
        guessed = ranks  # no other rank's lines are here: all may have failed alike
    if in_vain:
        guessed = {int(rank) for fact in early for rank in OF_OTHERS.findall(fact.error) if rank}
    said = " ".join(fact.error for fact in early)
    rows = (row for row in OF_ERRORS if any(word in said for word in row[0]))
    outside = _of_outside(early[0]) or ("process_dead", "raised" if alone else "raised_somewhere")
    _, cause, aspect = next(rows, ((), *outside))
    if cause == "memory_pressure":
        aspect = "gpu_memory" if any(word in said for word in GPU_MEMORY) else ""
    elif early[0].kind == "exit" and early[0].code is None:
        aspect = "silent"
    cause, aspect = ("unknown", "ended") if in_vain else (cause, aspect)
    found = book.finding(_failed(book), cause, text, early, ranks if alone else (),
                         guessed=guessed, aspect=aspect)  # fmt: skip
    return replace(found, phase=early[0].phase or None) if alone else found


def _of_outside(fact: LogFact) -> tuple[Cause, str] | None:
    """Return what did not answer a rank that raised, by the call that it made; None if nothing."""
    if NO_STORAGE.search(fact.error):
        return ("checkpoint_io", "") if fact.phase == "checkpoint_save" else None
    if not NO_ANSWER.search(fact.error):
        return None
    if fact.phase == "logger_init":
        return "logger_init", "wandb" if "wandb" in fact.error else "own"
    loads = fact.phase in ("model_load", "tokenizer")
    return "network_wait", "hub" if loads or "hugging" in fact.error.lower() else "remote"


def gpu_fault(book: LogBook) -> LeftFinding | None:
    """The driver reported a GPU fault that no program causes."""
    faults = [fact for fact in book.of("xid") if fact.code is None or fact.code in HARDWARE]
    if not faults:
        return None
    fault = faults[0]
    ranks, local = book.of_processes([fault.pid])
    user = name_ranks(ranks) if ranks else f"local {name_ranks(local)}" if local else ""
    whose = f", which {user} used" if user else ""
    said = "as lost" if fault.code is None else f"with Xid {fault.code}"
    text = f"the driver reported the GPU at {fault.host}{whose}, {said}."
    guessed = () if ranks else local
    return book.finding(_failed(book), "process_dead", text, faults, ranks, guessed=guessed,
                        aspect="bad_gpu")  # fmt: skip


def lost_node(book: LogBook) -> LeftFinding | None:
    """The scheduler or the launcher lost a node, before any time-out."""
    lost = [fact for fact in book.of("node_lost") if book.before_timeouts(fact) is not False]
    hosts = list(dict.fromkeys(fact.host for fact in lost))
    if not hosts:
        return None
    who = book.on_nodes(hosts)
    nodes = f"{'node' if len(hosts) == 1 else 'nodes'} {', '.join(hosts[:4])}"
    text = f"{nodes} was lost" if len(hosts) == 1 else f"{nodes} were lost"
    text += f", with {name_ranks(who)}." if who else ". Nothing tells which ranks ran there."
    return book.finding(_failed(book), "process_dead", text, lost, who, aspect="bad_gpu")


def ended_before(book: LogBook) -> LeftFinding | None:
    """One rank had ended by itself when the wait of the others was not half over."""
    waits = [fact for fact in book.of("timeout") if fact.when and (fact.ran_ms or fact.limit_ms)]
    seconds = min(((fact.ran_ms or fact.limit_ms or 0) / 1000 for fact in waits), default=0.0)
    lost = known(fact.rank for fact in book.of(*LOST_OTHERS))
    early = [
        end
        for end in book.of("exit")
        if end.rank is not None and end.rank not in (*book.waiting, *lost)
        if end.code not in (*ENDED_BY_LAUNCHER, -6)
        if all(precedes(end.when, fact.when, seconds / 2) for fact in waits)
        if any(elapsed(end.when, fact.when) < 1.5 * seconds + 60 for fact in waits)
    ]  # earlier ones are of another round
    who = known(end.rank for end in early)
    if not waits or not who or not book.clocks_agree:
        return None
    before_s = min(elapsed(end.when, fact.when) for end in early for fact in waits)
    text = f"{name_ranks(who)} had ended {duration(before_s)} before others gave up waiting, with"
    text += f" {_how_ended(early[0])}."
    sure = not book.other_groups and len(who) == 1
    return book.finding("dead", "process_dead", text, [*early, *waits[:2]], who if sure else (),
                        guessed=() if sure else who, aspect="silent")  # fmt: skip


def _how_ended(end: LogFact) -> str:
    code = end.code or 0
    return signal_name(-code) if code < 0 else f"exit code {code}"


def unlike_calls(book: LogBook) -> LeftFinding | None:
    """Ranks met in different operations or lengths, as DETAIL, gloo or NCCL report."""
    facts = book.of("fingerprint", "sizes", "mismatch_warning")
    prints = {fact.ranks[0]: fact for fact in book.of("fingerprint") if len(fact.ranks) == 1}
    if not facts:
        return None
    contents = {rank: f"{fact.op} {list(fact.sizes)}" for rank, fact in prints.items()}
    odd, cause, text = _apart(contents, prints.values(), book.world)
    ops = {fact.op for fact in prints.values()}
    met = "in other operations or with other lengths"
    if len(prints) > 1 or book.of("sizes"):
        met = "in other operations" if len(ops) > 1 else "with other lengths"
    near = {rank for fact in book.of("mismatch_warning") for rank in fact.ranks}
    met += f" around {name_ranks(near)} of a communicator" if near else ""
    text = f"ranks met {met}{text}"
    return book.finding("hang" if book.waiting else "crashed", cause, text, facts, odd,
                        certainty="majority", victims=set(prints) if odd else None)  # fmt: skip


def _nearly(sizes: Iterable[tuple[int, ...]]) -> bool:
    """Whether lengths differ so little that work was divided unevenly: then nobody is wrong."""
    shapes = {size for size in sizes if size}
    return (
        len(shapes) > 1
        and len({len(shape) for shape in shapes}) == 1
        and all(
            max(column) <= max(min(column) * NEAR, min(column) + 1)
            for column in zip(*shapes, strict=True)
        )
    )


def who_differs(contents: Mapping[int, str], of: float) -> tuple[list[int], str]:
    """Return who differs from a clear majority of so many ranks, and the words for who did what."""
    counts = Counter(contents.values()).most_common()
    clear = len(counts) > 1 and counts[0][1] > 1 and counts[0][1] * 2 > max(len(contents), of)
    odd = sorted(rank for rank, content in contents.items() if clear and content != counts[0][0])
    parts = (
        f"{name_ranks(rank for rank, own in contents.items() if own == content)} in {content}"
        for content, _ in counts[::-1][:4]
    )
    text = f": {'; '.join(parts)}" if contents else ""
    return odd, text if odd else f"{text}; nothing shows which of them is wrong"


def _apart(
    contents: Mapping[int, str], each: Iterable[LogFact | GroupState], world: int
) -> tuple[list[int], Cause, str]:
    """Return who differs, what cause that indicates, and who did what."""
    each = list(each)
    odd, text = who_differs(contents, inf if _nearly(fact.sizes for fact in each) else world)
    other_ops = odd and len({fact.op for fact in each}) > 1
    return odd, "rank_diverged" if other_ops else "collective_mismatch", f"{text}."


def unlike_timeouts(book: LogBook) -> LeftFinding | None:
    """Ranks wait in different operations or lengths under one number of one group."""
    for name, group in book.groups.items():
        for seq in sorted(
            {state.seq for state in group.values() if state.seq is not None and state.op}
        ):
            states = [state for state in group.values() if state.seq == seq and state.op]
            contents = {state.number: state.content for state in states}
            if len(set(contents.values())) < 2 or _nearly(state.sizes for state in states):
                continue
            if name.startswith("PG ") and any(state.rank != state.number for state in states):
                continue  # each rank numbers its own groups: these may be several
            least = max(book.world * (name == "default"), *(number + 1 for number in contents))
            odd, cause, text = _apart(contents, states, least)
            text = f"ranks differ in operation {seq}{of_group(name)}{text}"
            who = known(state.rank for state in states if state.number in odd)
            table = collective(name, seq, _table(states))
            return book.finding("hang", cause, text, [state.facts[0] for state in states], who,
                                certainty="majority", collectives=(table,))  # fmt: skip
    return None


def _table(states: Iterable[GroupState]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for state in states:
        found[state.content or "not named"].append(state.number)
    return found


def did_not_reach_barrier(book: LogBook) -> LeftFinding | None:
    """A monitored barrier names who did not come; alone there, rank 0 may have diverged."""
    facts = book.of("barrier")
    if not facts:
        return None
    fact = max(facts, key=lambda each: len(each.ranks))
    alone = len(fact.ranks) >= book.world - 1 > 1
    limit_s = (fact.limit_ms or 0) / 1000
    text = f"{name_ranks(fact.ranks)} did not reach the monitored barrier"
    text += f" within {limit_s:.0f} s." if 0 < limit_s < 7 * 86_400 else "."
    text += " Rank 0 was there alone, so it may be the one that strayed." if alone else ""
    lines, who = [*facts, *book.said_by(fact.ranks)], () if alone else fact.ranks
    victims = book.waiting | ({0} - set(fact.ranks))
    return book.finding("hang", "unknown", text, lines, who, victims=victims)


def lagging(book: LogBook) -> LeftFinding | None:
    """Torch's desync report: who finished the last common operation and did not join the next."""
    reports = [fact for fact in book.of("desync") if fact.ranks]
    if not reports or book.other_groups:
        return None  # its numbers name no group
    fact = reports[-1]
    fewer = len(fact.ranks) < (fact.count or len(book.heard - set(fact.ranks)) or 1)
    who = name_ranks(fact.ranks)
    text = f"by torch's desync report {who} joined no operation at all."
    if fact.seq:
        text = f"by torch's desync report {who} did not join operation {fact.seq}."
    elif fact.enqueued is not None:
        text = f"by torch's desync report {fact.op} {fact.enqueued} had not ended on {who}, and had"
        text += " on others."
        fewer &= fact.op in NEEDS_ALL
    text += "" if fewer or fact.enqueued else MANY_LACK.format("the few that have it")
    facts = [fact, *book.of("timeout")[:3], *book.said_by(fact.ranks)]
    return book.finding("hang", "unknown", text, facts, fact.ranks if fewer else ())


def slow(book: LogBook) -> LeftFinding | None:
    """Ranks wait while another rank's progress bar moves."""
    timeouts = book.of("timeout", "barrier_echo")
    limit = min((fact.limit_ms for fact in timeouts if fact.limit_ms), default=0)
    bars: dict[tuple[str, int | None, int | None], list[LogFact]] = defaultdict(list)
    for fact in book.of("bar"):
        bars[fact.file, fact.rank, fact.count].append(fact)
    for states in bars.values():
        first, last = states[0], states[-1]
        done, total = last.seq or 0, last.count or 0
        if not timeouts or not (first.seq or 0) < done < total or last.rank in book.waiting:
            continue
        reported = [fact.line for fact in timeouts if fact.file == last.file]
        as_long = abs((last.ran_ms or 0) - limit) < 0.2 * limit
        if not as_long and not (reported and last.line > min(reported)):
            continue  # the bar may have stopped when the wait began
        who = () if last.rank is None else (last.rank,)
        text = (
            f"{name_ranks(who) if who else 'a rank that is not named'} was still working, at {done}"
            f" of {total}, when others gave up waiting after {limit / 1000:.0f} s. It was slow, it"
            " did not hang."
        )
        guessed = () if who else {0} - book.waiting
        facts = [first, last, *timeouts]
        return book.finding("slow", "slow_progress", text, facts, who, guessed=guessed,
                            aspect="silent")  # fmt: skip
    return None


def saving(book: LogBook) -> LeftFinding | None:
    """The wait began while a checkpoint was saved: by the time, or in a barrier after the save."""
    timeouts = book.of("timeout", "status")
    saves = [fact for fact in book.of("saving") if book.before_timeouts(fact)]
    if not timeouts or not saves:
        return None
    last = saves[-1]
    went_on = [fact for fact in book.of("bar") if fact.file == last.file and fact.line > last.line]
    states = [state for group in book.groups.values() for state in group.values()]
    small = all(max(state.sizes, default=1) <= BARRIER for state in states if state.seq is not None)
    began = book.clocks_agree and any(  # within a minute of the saving
        abs(elapsed(last.when, fact.when) - (fact.ran_ms or fact.limit_ms) / 1000) < 60
        for fact in timeouts
        if fact.limit_ms and comparable(fact.when, last.when)
    )  # fmt: skip
    if any(book.before_timeouts(fact) for fact in went_on) or not (small or began):
        return None
    who = {0 if last.rank is None else last.rank} - book.waiting
    text = (
        f"{name_ranks(book.waiting)} began to wait when a checkpoint was being saved. The time"
        " limit ended before the saving did, as far as the logs tell."
    )
    return book.finding("hang", "checkpoint_io", text, [last, *timeouts], guessed=who)


def behind(book: LogBook) -> LeftFinding | None:
    """Some ranks have not finished entering an operation in which others are."""
    for name, group in book.groups.items():
        open_at = [state.seq for state in group.values() if state.seq is not None]
        if not open_at:
            continue
        seq = min(open_at)
        inside: list[GroupState] = []
        late: list[GroupState] = []
        ahead = False
        for state in group.values():
            entered, done = state.enqueued, state.completed
            if state.seq == seq or (entered is not None and entered >= seq > (done or 0)):
                inside.append(state)
            elif state.seq is not None or (done is not None and done >= seq):
                ahead = True
            elif entered is not None and done is not None and state.rank not in book.waiting:
                late.append(state)
        if not late or ahead or not inside:
            continue
        few = len(late) <= len(inside)
        sure = len(late) < len(inside) or _further(book, inside, late)
        sure = few and sure and not book.other_groups
        ranks = known(state.rank for state in late)
        done = max(state.completed or 0 for state in late)
        text = (
            f"{name_members(late)} ended operation {done}{of_group(name)} and had not finished "
            f"entering {seq}, in which {name_members(inside)} waited."
        )
        said = book.said_by(ranks[:4])
        if said and len(ranks) == 1:
            text += f" Its last words: {redact_text(said[0].text)[:80]}."
        text += "" if few else MANY_LACK.format("those that are in it")
        table = {**_table(inside), "not entered, or inside the call": ranks}
        return book.finding(
            "hang",
            "unknown",
            text,
            [*(fact for state in (*late, *inside) for fact in state.facts), *said],
            ranks if sure else (),
            guessed=ranks if few and not sure else (),
            victims=known(state.rank for state in inside),
            collectives=(collective(name, seq, table),),
        )
    return None


def _further(book: LogBook, inside: Sequence[GroupState], late: Sequence[GroupState]) -> bool:
    """Whether more than one number shows that ``late`` is behind, not the others one call too far.

    The others entered two or more later operations; or, if clocks agree, their last lines are
    later.
    """
    if any((state.enqueued or 0) >= (state.seq or 0) + 2 for state in inside):
        return True
    in_it, not_in_it = (
        [word.when for word in book.said_by(state.rank for state in states) if word.when]
        for states in (inside, late)
    )
    order = order_of(in_it)
    known = bool(book.clocks_agree and in_it and not_in_it)
    return known and max(map(order, not_in_it)) < min(map(order, in_it))


def all_inside(book: LogBook) -> LeftFinding | None:
    """Ranks wait, and nothing shows for whom; a first operation points at the machine."""
    facts = book.of("timeout", "status", "dump_signal", "call")
    numbered = {
        name: [state for state in group.values() if state.seq is not None]
        for name, group in book.groups.items()
    }
    waits = {name: states for name, states in numbered.items() if states}
    late = max((fact.ran_ms or 0 for fact in book.of("timeout") if overslept(fact)), default=0)
    slept = f" The watchdog spoke only after {late / 1000:.0f} s: it, or the machine, stood still."
    slept = slept if late else ""
    if not waits:
        text = (
            "ranks dumped after a time-out whose own line is not here, or of a group without a "
            "name. Nothing tells for whom they waited."
        )
        bare = [state for group in book.groups.values() for state in group.values() if state.op]
        if bare:  # torch before 1.13
            ops = " and ".join(sorted({state.op for state in bare}))
            text = f"{name_members(bare)} waited in {ops}, of which this torch writes no number."
            text += " Nothing tells for whom."
        return book.finding("hang", "unknown", text + slept, facts) if facts else None
    name, states = max(waits.items(), key=lambda item: len(item[1]))
    seq = min(state.seq or 0 for state in states)
    inside = [state for state in states if state.seq == seq]
    others = [state for state in states if state.seq != seq]
    seen = name_members(inside)
    op = max((state.op for state in inside), default="")
    where = f"operation {seq} ({op or 'not named'}){of_group(name)}"
    who: tuple[int, ...] = ()
    cause: Cause = "unknown"
    if op in NEEDS_ALL and len(inside) == 1 < len(others):
        who = known([inside[0].rank])
        text = f"{where} ended on {name_members(others)} and not on {seen}: its GPU, driver or"
        text += " link."
    elif others:
        text = (
            f"{seen} waited in {where}, which {name_members(others)} had ended. In some operations "
            "a rank may end before others have come: this proves nobody at fault."
        )
    elif (
        seq <= 1 and all((state.completed or 0) <= 0 for state in states) and not book.other_groups
    ):
        cause = "network_wait"
        text = (
            f"the first operation{of_group(name)} never ended on {seen}. Look at the machine first:"
            " GPU peer traffic (try NCCL_P2P_DISABLE=1), IOMMU, ACS, network interface."
        )
        if len(inside) < (book.told or len(inside) + 1):
            text += " Nothing shows whether all other ranks had begun it."
    elif book.of("ras_equal"):
        text = (
            f"{seen} waited in {where}. By NCCL's RAS all ranks launched equally many operations, "
            "so data does not move, or lengths differ."
        )
    elif name == "default" and 0 < book.told <= len(inside):
        cause = "network_wait"
        text = (
            f"all {book.told} ranks were in {where} with equal lengths: data does not move. Look "
            "at the network, the GPUs and their links."
        )
    else:
        text = f"{seen} waited in {where}. The logs do not say for whom."
    shown = book.of("timeout", "status", "ras_equal", "dump_signal", "call")
    victims = book.waiting | set(known(state.rank for state in states))
    table = collective(name, seq, _table(inside))
    return book.finding("hang", cause, text + slept, shown, who, certainty="majority",
                        victims=victims, collectives=(table,))  # fmt: skip


def never_came(book: LogBook) -> LeftFinding | None:
    """Processes waited at the rendezvous for others that did not come."""
    if stores := [fact for fact in book.of("store") if fact.ranks]:
        lost = all(any(word in store.error for word in LOST) for store in stores)
        roots = {rank for store in stores for rank in store.ranks}
        whole = (
            any("default_pg" in store.error for store in stores) and len(roots) == 1 and not lost
        )
        who = name_ranks(known(store.group_rank for store in stores))
        text = f"{who} waited for {name_ranks(roots)} to begin the first operation of a group"
        text += ", and lost the store: the process that keeps it had ended." if lost else "."
        kind: VerdictKind = "dead" if lost else "hang"
        cause: Cause = "process_dead" if lost else "rendezvous"
        return book.finding(kind, cause, text, stores, roots if whole else (),
                            guessed=() if whole or lost else roots, aspect="" if lost else "root",
                            victims=known(store.rank for store in stores))  # fmt: skip
    facts = book.of("rendezvous")
    if not facts:
        return None
    short = [fact for fact in facts if fact.count and (fact.seq or 0) < fact.count]
    fact = max(short or facts, key=lambda each: (each.seq or 0, each.line))
    came = set(known(each.rank for each in facts if each.count == fact.count))
    absent = set(range(fact.count or 0)) - came if short and len(came) == fact.seq else set()
    text = f"{fact.seq} of {fact.count} processes came" if short else "not all processes came"
    if fact.count and not short and (fact.seq or 0) > fact.count:
        text = f"{fact.seq} processes, for {fact.count} ranks, came"
    text += " to the meeting point"
    text += f" within {fact.limit_ms / 1000:.0f} s" if fact.limit_ms else ""
    if absent:
        text += f", and {name_ranks(absent)} did not."
    elif fact.count and not short and (fact.seq or 0) > fact.count:
        text += ": its store counts an earlier start, or another job, too. Give each start a port"
        text += " of its own."
    text += "" if text.endswith(".") else ". The log does not say whether the others started."
    return book.finding("hang", "rendezvous", text, facts, absent, victims=came)


ADDRESS = re.compile(r"\[?([\w.-]{1,255})\]?(?:, |:)(\d{1,5})\b")
Row = tuple[tuple[str, ...], "VerdictKind", "Cause", str]
PLAIN: tuple[Row, ...] = (
    (("ras_dead",), "dead", "process_dead", "NCCL's RAS cannot reach {processes}."),
    (("ras_missing",), "hang", "unknown",
     "NCCL's RAS got no answer from {ranks} of a communicator."),
    (("ras_count",), "hang", "unknown",
     "by NCCL's RAS the ranks launched different numbers of {op}: {counts}. It lists the smaller"
     " set, which may be the faster one."),
    (("ras_equal",), "hang", "unknown",
     "by NCCL's RAS all ranks launched equally many operations: data does not move."),
    (("heartbeat", "gil"), "hang", "unknown",
     "torch's watchdog thread stood still on {writers}, in a driver call or for the interpreter"
     " lock. That does not say which rank is behind."),
)  # fmt: skip
"""Lines that are clear by themselves: kinds of facts, verdict, cause and text."""
BROKEN: tuple[Row, ...] = (
    (("gave_up",), "hang", "unknown",
     "{writers} waited {limit} for {part}, until its time limit. The logs do not say for whom."),
    (("barrier_echo",), "hang", "unknown",
     "{writers} reached a monitored barrier and got no answer from rank 0: it did not come, or left"
     " because another rank did not. The end of its log tells."),
    (("network", "peer_lost"), "crashed", "network_wait",
     "connections to other ranks broke or brought nothing: another rank had ended, or the network"
     " failed. The logs do not say which."),
    (("unreachable",), "hang", "rendezvous",
     "a process could not reach its meeting point or a peer{address}."),
    (("cancelled",), "crashed", "unknown", "the job was ended from outside: {why}."),
    (("fatal",), "crashed", "unknown", "native code gave up on {writers}: {said}."),
    (("exception", "task", "exit"), "crashed", "unknown",
     "processes ended ({ended}), which does not say why. A launcher names the first to end, which"
     " need not be the cause."),
)  # fmt: skip
"""The same for lines that show only that something broke."""


def _plainly(book: LogBook, rows: Iterable[Row]) -> LeftFinding | None:
    for kinds, verdict, cause, text in rows:
        if not (facts := book.of(*kinds)):
            continue
        writers = known(fact.rank for fact in facts)
        death = signal_name(-(facts[0].code or 0)) if (facts[0].code or 0) < 0 else ""
        death += f" ({causes_file().signals[death]})" if death in causes_file().signals else ""
        words = {
            "processes": ", ".join(f"process {fact.pid} on {fact.host}" for fact in facts[:4]),
            "ranks": name_ranks(rank for fact in facts for rank in fact.ranks),
            "op": facts[0].op,
            "counts": ", ".join(
                f"{several(fact.count or 1, 'rank')} launched {fact.seq or 0}" for fact in facts[:6]
            ),
            "writers": name_ranks(writers) if writers else "a rank",
            "limit": duration((facts[0].limit_ms or 0) / 1000),
            "said": redact_text(facts[0].error)[:110].rstrip("., "),
            "ended": f"exit code {facts[0].code}",
            "part": "another rank's part of an operation",
            "why": facts[0].error.lower() or death or "it was cancelled",
        }
        if facts[0].error:
            task = f"task {format_ranks(facts[0].ranks)}: " if facts[0].ranks else ""
            words["ended"] = redact_text(f"{task}{facts[0].error}")[:110]
            words["part"] = f"what some rank puts under {words['ended']} into the store"
        address = ADDRESS.match(facts[0].error)
        words["address"] = f" at {address[1]}:{address[2]}" if address else ""
        aspect = {"network_wait": "transport", "rendezvous": "endpoint"}.get(cause, "")
        aspect = "ended" if verdict == "crashed" and not aspect else aspect
        return book.finding(verdict, cause, text.format(**words), facts, aspect=aspect)
    return None


def left_first(book: LogBook) -> LeftFinding | None:
    """Most ranks lost connections, or were ended with the others: the few others went first."""
    lost = set(known(fact.rank for fact in book.of("peer_lost", "network")))
    exits = {fact.rank: fact for fact in book.of("exit") if fact.rank is not None}
    first = book.heard - lost - {rank for rank, end in exits.items() if end.code == -15}
    failed = book.waiting | set(known(fact.rank for fact in book.of("exception", "fatal")))
    few = 0 < len(first) * 2 < book.world == len(book.heard)
    if not few or not lost or first & failed:
        return None
    who = name_ranks(first)
    text = f"{name_ranks(lost)} lost connections to other ranks and {who} did not: look first at"
    text += f" how {who} ended."
    ends = [exits[rank] for rank in sorted(first) if rank in exits]
    if exits and not ends:
        text += " No failure of it is listed, so it may have ended well, before the others."
    text += f" It ended with {_how_ended(ends[0])}." if ends else ""
    facts = [*book.said_by(sorted(first)), *ends, *book.of("peer_lost", "network")]
    cause: Cause = "uneven_work" if exits and not ends else "process_dead"
    return book.finding("crashed", cause, text, facts, guessed=first,
                        aspect="" if cause == "uneven_work" else "silent")  # fmt: skip


def broken_down(book: LogBook) -> LeftFinding | None:
    """The logs show only broken connections, a cancelled job or an exit code."""
    cancelled = next(row for row in BROKEN if "cancelled" in row[0])
    first = {fact.file: fact.line for fact in reversed(book.of("network", "peer_lost"))}
    tasks = {fact.file: fact.line for fact in reversed(book.of("task"))}
    ends = [  # srun itself ends a step if one of its tasks failed
        end
        for end in book.of(*cancelled[0])
        if end.error or end.code or end.line < tasks.get(end.file, end.line + 1)
    ]
    if not ends:
        return _plainly(book, [row for row in BROKEN if row is not cancelled])
    came_first = all(end.line < first.get(end.file, end.line + 1) for end in ends)
    return _plainly(book, (cancelled, *BROKEN) if came_first else BROKEN)


RULES: tuple[Callable[[LogBook], LeftFinding | None], ...] = (
    killed, lost_node, raised, gpu_fault, ended_before, unlike_calls, unlike_timeouts,
    did_not_reach_barrier, slow, lagging, behind, held_in_a_call, saving, all_inside, never_came,
    lambda book: _plainly(book, PLAIN),
    stopped_earlier, left_first, broken_down,
)  # fmt: skip
"""Order: what a process says of its own end, what ranks did differently, who is late, who waits,
and last what shows only that something broke."""


def find_in_logs(book: LogBook) -> LeftFinding | None:
    """Return what the logs of one job prove; None if they show no trouble."""
    found = next((finding for rule in RULES if (finding := rule(book)) is not None), None)
    if found is None or found.kind != "hang":
        return found
    callers: dict[str, list[int]] = defaultdict(list)
    for fact in book.of("call", "exception"):  # without a collective nobody waited
        in_vain = OUT_OF_TIME.search(fact.error) or "monitoredBarrier" in fact.error
        waited = fact.kind == "call" or (fact.op and in_vain)
        if fact.place and waited:
            callers[f"{fact.op} {fact.place}"] += known([fact.rank])
    also = [
        f"{name_ranks(ranks) if ranks else 'a rank'} made the call that timed out: {call}"
        for call, ranks in list(callers.items())[:3]
    ]
    if not found.culprits:  # nothing shows whose it is, and whether it was caught
        failed = [fact for fact in own_failures(book) if fact.rank is None]
        also += [
            f"before that a rank that is not named wrote: {redact_text(fact.error)[:110]}"
            for fact in failed[:1]
            if book.before_timeouts(fact)
        ]
    return replace(found, sentence="; ".join((found.sentence, *also)))
