"""What is looked for in logs: the words of torch, NCCL, gloo, SLURM, the kernel and the driver.

All is one table, `WORDS`: a needle, what a line with it is about, and how its numbers are read. The
texts are those of torch 1.13 to 2.15, NCCL 2.10 to 2.28, SLURM 19 to 25 and Linux 4 to 6, as their
sources write them. Each needle begins with a character that is rare in logs, so that one regular
expression finds them all at 100 MB/s.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from msgspec.structs import replace

from lightning_hangcheck.model.log_facts import FactKind, LogFact
from lightning_hangcheck.text.shown import parse_ranks

MOST_NAMED = 4_096
"""Ranks that one line names; where there are more, none is kept."""
MOST_SHOWN = 300
"""Characters of a line that are kept."""
LARGEST = 2**53
"""Of a number; torch writes -1 as 18446744073709551615 where it has none."""
_TIMES = re.compile(
    r"\b[IWEF](?P<m>\d\d?)(?P<d>\d\d) (?P<t>\d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|\b\d{4}-(?P<m2>\d\d)-(?P<d2>\d\d)[T _](?P<t2>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
    r"|(?<![\d:])(?P<t3>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?![\d:])"
)


def moment(text: str) -> str:
    """Return when a line was written, as `LogFact.when` has it; empty where it does not say."""
    found = _TIMES.search(text[:400])
    if found is None:
        return ""
    time = (found["t"] or found["t2"] or found["t3"]).replace(",", ".")
    month, day = found["m"] or found["m2"], found["d"] or found["d2"]
    return f"{int(month):02}-{day} {time[:12]}" if month else time[:12]


# What is looked for

_GROUP = re.compile(
    r"\[PG (?:ID (?P<id>\d+) PG )?(?:GUID (?P<guid>[^\s(\]]+)|(?P<number>\d+))"
    r"(?: ?\((?P<name>[^)\]]*)\))? Rank (?P<rank>\d+)\]"
)
_BARE = re.compile(r"\[Rank (\d+)\]")
_WORK = {
    name: re.compile(rf"{re.escape(name)}\s*[=:]\s*(-?\w+)")
    for name in ("SeqNum", "OpType", "NumelIn", "NumelOut", "Timeout(ms)")
}
_SHAPE = re.compile(r"TensorShape=\[([\d, ]*)\]")
_RAN = re.compile(r"ran for (\d+) milliseconds")
_NUMBERS = {
    "seq": re.compile(r"(?:at (?:\w+ )?work(?: sequence id)?:?) (\d+)"),
    "enqueued": re.compile(r"[Ll]ast enqueued (?:\w+ )?work: (-?\d+)"),
    "completed": re.compile(r"[Ll]ast completed (?:\w+ )?work: (-?\d+)"),
}
_FINGERPRINT = re.compile(
    r"Rank (\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(\d+),? ?)?OpType=(\w+)(?:[^()]*?TensorShape=\[([\d, ]*)\])?"
)
_DESYNC = re.compile(
    r"\[([\d, ]+)\] finished collective #(\d{1,15}), but didn't join collective #(\d{1,15})"
)
_NEVER = re.compile(r"ranks \[([\d, ]+)\] are the lagging ranks")
_STARTED = re.compile(
    r"#(\d+) (started|finished) ranks:((?:\s*\[[\d, ]+\] (?:started|finished) \w+)+)"
)
_RAS_COUNT = re.compile(r"^\s*(\d+) ranks have (?:launched up to operation (\d+)|not launched any)")
_RAS_ONE = re.compile(
    r"^\s*Rank (\d+)(?: has (?:launched up to operation (\d+)|(not launched any) operations))? --"
)
_RAS_ROW = re.compile(r"^\s*\d+\s+\d+\s+\d+\s+\S+\s+(?:\d+-)?(\d+)\s+\d+\s+(\S+)\s+(\S+)\s*$")
_DEAD_ONE = re.compile(r"^\s*Process (\d+) on node (\S+) managing GPUs? ")
_EXIT = re.compile(r"exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)")
_EXIT_RANK = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)")
_EXIT_TIME = re.compile(r"time\s*:\s*(\S+)")
_EXIT_HOST = re.compile(r"host\s*:\s*(\S+)")
_EXIT_SAID = re.compile(
    r"^[ \t]*([\w.]{0,120}?(?:Error|Exception|Interrupt|Exit)\b(?::.*)?)$", re.M
)
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z_]\w*(?:$|: |:$)")


def _number(text: str | None) -> int | None:
    """Read a number; None where there is none, or torch wrote one for `none`."""
    try:
        value = int(text) if text is not None and len(text) < 30 else None
    except ValueError:
        return None
    return value if value is not None and abs(value) < LARGEST else None


def _numbers(text: str) -> tuple[int, ...]:
    """Read numbers or ranges of ranks; those that are none are left out."""
    try:
        return parse_ranks(text.replace(" ", ""), MOST_NAMED)
    except ValueError:
        return ()


def group_of(text: str) -> tuple[str, int | None]:
    """Return the group that a line is about, and the writer's number in it."""
    tags = list(_GROUP.finditer(text))
    if not tags:
        bare = _BARE.search(text)
        return "", int(bare[1]) if bare and len(bare[1]) < 8 else None
    tag = tags[-1]
    rank = _number(tag["rank"])
    if tag["name"] == "default_pg" or "0" in (tag["guid"], tag["number"]):
        return "default", rank
    return (f"guid {tag['guid']}" if tag["guid"] else f"PG {tag['number']}"), rank


Facts = list[LogFact]
Block = Callable[[int], list[str]]
"""Gives a line and so many less one after it of the same writer."""
Parser = Callable[[LogFact, str, Block], Facts]


def _timeout(fact: LogFact, line: str, _: Block) -> Facts:
    told = {
        name: (found[1] if (found := one.search(line)) else None) for name, one in _WORK.items()
    }
    shape = _SHAPE.search(line)
    sizes = tuple(_number(told[one]) for one in ("NumelIn", "NumelOut"))
    if shape is not None:
        sizes = tuple(_number(one.strip()) for one in shape[1].split(",") if one.strip())
    ran = _RAN.search(line)
    return [
        replace(
            fact,
            seq=_number(told["SeqNum"]),
            op=told["OpType"] or "",
            sizes=tuple(one for one in sizes if one is not None) if None not in sizes else (),
            limit_ms=_number(told["Timeout(ms)"]),
            ran_ms=_number(ran[1]) if ran else None,
        )
    ]


def _numbers_told(fact: LogFact, line: str, _: Block) -> Facts:
    told = {
        name: _number(found[1]) for name, one in _NUMBERS.items() if (found := one.search(line))
    }
    if not told.keys() - {"seq"}:
        return []
    return [
        replace(
            fact,
            seq=told.get("seq"),
            enqueued=told.get("enqueued"),
            completed=told.get("completed"),
        )
    ]


def _desync(fact: LogFact, line: str, block: Block) -> Facts:
    never = _NEVER.search(line)
    if never is not None:
        return [replace(fact, ranks=_numbers(never[1]), seq=0)]
    report = "\n".join(block(40))
    behind = _DESYNC.search(report)
    if behind is None:
        return []
    others: set[int] = set()
    for one in _STARTED.finditer(report):
        if one[2] == "started" or (_number(one[1]) or 0) > int(behind[2]):
            others |= {
                rank for part in re.findall(r"\[([\d, ]+)\]", one[3]) for rank in _numbers(part)
            }
    mine = _numbers(behind[1])
    return [
        replace(fact, text=behind[0][:MOST_SHOWN], ranks=mine, seq=_number(behind[3]),
                count=len(others - set(mine)))
    ]  # fmt: skip


def _fingerprints(fact: LogFact, line: str, block: Block) -> Facts:
    text = line if "CollectiveFingerPrint" in line else " ".join([line, *block(3)])
    found = []
    for one in _FINGERPRINT.finditer(text):
        shape = tuple(
            _number(part.strip()) or 0 for part in (one[4] or "").split(",") if part.strip()
        )
        found.append(
            replace(fact, ranks=(int(one[1]),), seq=_number(one[2]), op=one[3], sizes=shape)
        )
    return found


def _ras_counts(fact: LogFact, line: str, block: Block) -> Facts:
    op = re.search(r"different (\w+) operation counts", line)
    if op is None:
        return []
    found: Facts = []
    for row in block(200)[1:]:
        many, one = _RAS_COUNT.match(row), _RAS_ONE.match(row)
        if many is not None:
            found.append(replace(fact, text=row.strip(), op=op[1], seq=_number(many[2]) or 0,
                                 count=_number(many[1])))  # fmt: skip
        elif one is not None and (one[2] or one[3]):
            fact_of_one = replace(fact, text=row.strip(), op=op[1], count=1, ranks=_numbers(one[1]))
            found.append(replace(fact_of_one, seq=_number(one[2]) or 0))
        elif one is not None and found:
            found[-1] = replace(found[-1], ranks=(*found[-1].ranks, *_numbers(one[1])))
        else:
            break
    return found


def _ras_rows(fact: LogFact, _: str, block: Block) -> Facts:
    rows = [row for line in block(40)[2:] if (row := _RAS_ROW.match(line))]
    sizes = [int(row[1]) for row in rows if len(row[1]) < 8]
    if not rows or any((row[2], row[3]) != ("RUNNING", "OK") for row in rows):
        return [replace(fact, kind="communicator", count=max(sizes))] if sizes else []
    return [replace(fact, text=rows[0][0].strip(), count=max(sizes, default=0))]


def _ras_absent(fact: LogFact, line: str, block: Block) -> Facts:
    rows = block(200)[1:]
    ranks = [int(one[1]) for row in rows if (one := _RAS_ONE.match(row)) and len(one[1]) < 8]
    if "Missing" in line:
        return [replace(fact, ranks=tuple(ranks))] if "rank" in line else []
    return [
        replace(
            fact, kind="ras_dead", text=row.strip()[:MOST_SHOWN], pid=_number(one[1]), host=one[2]
        )
        for row in rows
        if (one := _DEAD_ONE.match(row))
    ]


def exit_entry(fact: LogFact, line: str, block: Block) -> Facts:
    """One entry of torchrun's summary: its rank, host and time stand before its exit code."""
    code = _EXIT.search(line)
    if code is None:
        return []
    above, below = fact.error.rpartition("[")[2], "\n".join(block(60)[1:])
    rank, time, host = (one.search(above) for one in (_EXIT_RANK, _EXIT_TIME, _EXIT_HOST))
    entry = re.split(r"^\s*\[\d+\]:\s*$|^[=-]{8,}", below, maxsplit=1, flags=re.M)[0]
    said = _EXIT_SAID.findall(entry)
    return [
        replace(
            fact,
            rank=_number(rank[1]) if rank else None,
            code=_number(code[1]),
            pid=_number(code[2]),
            host=host[1] if host else "",
            when=moment(time[1]) if time else "",
            error=said[-1].strip()[:MOST_SHOWN] if said and "Traceback" in entry else "",
        )
    ]


def _spawned(fact: LogFact, line: str, _: Block) -> Facts:
    """torch.multiprocessing.spawn: which of its processes a signal ended."""
    found = re.search(r"process (\d{1,7}) terminated with signal (SIG[A-Z]+)", line)
    if found is None or found[2] not in signal.Signals.__members__:
        return []
    return [replace(fact, rank=int(found[1]), code=-signal.Signals[found[2]])]


_CHAIN = ("During handling of the above", "The above exception was the direct")


def _exception(fact: LogFact, _: str, block: Block) -> Facts:
    for most in (80, 400):
        lines = block(most)[1:]
        end = next((n for n, line in enumerate(lines) if line[:1].strip(" \t+|")), len(lines))
        if end + 3 < len(lines):
            break
    if end >= len(lines) or not _RAISED.match(lines[end]):
        return []
    after = [one for one in lines[end + 1 : end + 60] if one.strip()]
    if any(one.startswith(_CHAIN) for one in after[:40]):
        return []  # what came of it is told below, in a traceback of its own
    line = lines[end]
    message = " ".join([line, *after[:2]]) if line.endswith(":") else line
    name = line.partition(":")[0].rpartition(".")[2]
    return [replace(fact, text=message[:MOST_SHOWN], op=name, error=message[:MOST_SHOWN])]


def _plain(pattern: str) -> Parser:
    """Make a parser that takes fields from one pattern, whose named groups are fields."""
    compiled = re.compile(pattern)

    def parse(fact: LogFact, line: str, _: Block) -> Facts:
        found = compiled.search(line)
        if found is None:
            return []
        told: dict[str, object] = {}
        for name, text in found.groupdict().items():
            if text is None:
                continue
            if name in ("error", "host", "op"):
                told[name] = text.strip()[:MOST_SHOWN]
            elif name == "seconds":
                told["limit_ms"] = (_number(text) or 0) * 1000
            elif name == "ranks":
                told[name] = _numbers(text)
            elif name == "sizes":
                told[name] = tuple(_number(one) or 0 for one in text.split(" vs "))
            else:
                told[name] = _number(text)
        return [replace(fact, **told)]

    return parse


_any = _plain(r"")
_task = _plain(r"error: (?P<host>\S+): tasks? (?P<ranks>[\d,\- ]+): (?P<error>.*)")
_came = _plain(r"world_size=(?P<count>\d+), (?:num_workers_joined|worker_count)=(?P<seq>\d+)")
_barrier = _plain(r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<limit_ms>\d+)")
_store = _plain(
    r"\[(?P<group_rank>\d{1,7})\] is setting up NCCL communicator and retr\w+ ncclUniqueId from "
    r"\[(?P<ranks>\d{1,7})\].*?(?:got error|got exception|error): (?P<error>.*)"
)
_clients = _plain(
    r"after (?P<seconds>\d+) seconds waiting for clients\. (?P<seq>\d+)/(?P<count>\d+) clients"
)
_network = _plain(
    r"NCCL WARN (?P<error>.*(?:NET/|[Tt]imed? ?out|Connection|Got completion|remote peer|socket).*)"
)
_xid = _plain(r"Xid \((?:PCI:)?(?P<host>[\w:.]+)\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+))?")
_comm = _plain(r"^[^\s:]{1,255}:(?P<pid>\d+):\d+.* rank (?P<seq>\d+) n[rR]anks (?P<count>\d+)")
_saves = _plain(r"Saving (?:[\w.']+ ){0,3}(?:checkpoint|model|state|weights|optimizer)")

WORDS: tuple[tuple[str, FactKind, Parser], ...] = (
    # torch's watchdog and its monitor; 2.0 to 2.15
    ("Watchdog caught collective operation", "timeout", _timeout),
    ("Exception (either an error or timeout", "status", _numbers_told),
    ("PG status: last", "status", _numbers_told),
    ("Timeout at NCCL work", "status", _numbers_told),
    ("Received a dump signal", "dump_signal", _numbers_told),
    ("Heartbeat monitor timed out", "heartbeat", _any),
    ("NCCL's watchdog got stuck", "heartbeat", _any),
    ("Could not acquire GIL within", "gil", _any),
    ("To our best knowledge", "desync", _desync),
    # torch's own checks of what ranks do
    ("Detected mismatch between collectives", "fingerprint", _fingerprints),
    ("Barrier in ", "barrier", _barrier),
    ("Barrier, but received errors", "barrier_echo", _any),
    # meeting
    ("UniqueId from", "store", _store),
    ("Timed out after", "rendezvous", _clients),
    ("Timed out initializing process group", "rendezvous", _came),
    ("Waiting in store based barrier", "rendezvous", _came),
    ("RendezvousTimeoutError", "rendezvous", _any),
    ("The client socket has", "unreachable", _plain(r"connect to \(?(?P<error>[^)]*)")),
    # gloo
    ("Gloo connectFullMesh failed", "unreachable", _any),
    ("<= op.nbytes", "sizes", _plain(r"op\.nbytes\. (?P<sizes>\d+ vs \d+)")),
    ("Timed out waiting", "peer_lost", _plain(r"waiting (?P<limit_ms>\d+)ms for (?:recv|send) op")),
    ("Connection closed by peer", "peer_lost", _any),
    ("Connection reset by peer", "peer_lost", _any),
    # NCCL
    ("Mismatched collective", "mismatch_warning", _any),
    ("NCCL WARN", "network", _network),
    ("Communicator ranks have different", "ras_count", _ras_counts),
    ("Ranks    Status  Errors", "ras_equal", _ras_rows),
    ("Missing communicator data from", "ras_missing", _ras_absent),
    ("DEAD\n", "ras_dead", _ras_absent),
    ("Init COMPLETE", "communicator", _comm),
    # how processes ended: the driver, torchrun, SLURM, the kernel, Python
    ("NVRM: Xid", "xid", _xid),
    ("(pid: ", "exit", exit_entry),
    ("ProcessExitedException: process", "exit", _spawned),
    ("Out Of Memory", "task", _task),
    ("Segmentation fault", "task", _task),
    ("Bus error", "task", _task),
    ("Exited with exit code", "task", _task),
    ("Killed\n", "task", _task),
    ("Killed process", "kill", _plain(r"Killed process (?P<pid>\d+)")),
    ("OOM Killed", "kill", _any),
    ("Some of your processes may have been killed", "kill", _any),
    ("CANCELLED AT", "cancelled", _plain(r"CANCELLED AT \S+ (?P<error>DUE TO [A-Z ]+)")),
    ("Traceback (most recent call last)", "exception", _exception),
    ("CUDA out of memory", "memory", _any),
    ("HIP out of memory", "memory", _any),
    ("CUDA error:", "cuda_error", _plain(r"(?P<error>CUDA error: .*)")),
    # what the job was at
    ("Worker group FAILED", "restart", _plain(r"will restart worker group")),
    ("Restarting worker group", "restart", _any),
    ("Saving ", "saving", _saves),
    ("Retrieving full model state dict", "saving", _any),
    ("Training finished", "finished", _any),
    ("Trainer.fit` stopped:", "finished", _any),
)
PARSERS = {needle.encode(): (kind, parse) for needle, kind, parse in WORDS}
