"""Reads logs of any launcher into facts: gigabytes in pieces, and no line is trusted.

Understood are one file a rank (the rank in its name), all ranks in one file, and the prefixes of
torch (``[rank3]:``), torchrun (``[default3]:``), ``srun --label`` (``3: ``), ``mpirun
--tag-output`` (``[1,3]<stderr>:``), ``kubectl logs --prefix`` (``[pod/...]``), Ray
(``(Actor pid=7)``) and hangcheck's own lines (``[R3/8]``), also several before one line. Lines may
be interleaved, of any length, and end in carriage returns as those of progress bars do.

What is looked for is one table, `WORDS`. Its needles all begin with a character that is rare in
logs, so that one regular expression finds them at 100 MB/s and more. The texts are those of
torch 2.0 to 2.15, NCCL 2.10 to 2.28, SLURM 19 to 25 and Linux 4 to 6, as their sources write them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO

from msgspec.structs import replace

from lightning_hangcheck.model.log_facts import (
    FactKind,
    LastWord,
    LogFact,
    LogReading,
    seconds,
)
from lightning_hangcheck.text.rank_ranges import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE = 4 * 1024 * 1024
BLOCK = 64 * 1024
"""What follows a line and belongs to it, a traceback or a report, is read up to so many bytes."""
LONGEST_LINE = 8_000
MOST_SHOWN = 300
MOST_OF_A_KIND = 20_000
MOST_WITH_BLOCKS = 2_000
"""Of tracebacks: of a log that is full of them the first tell most."""
MOST_RANKS = 100_000
MOST_BARS = 40
LARGEST = 2**53
"""Of a number; torch writes -1 as 18446744073709551615 where it has none."""

# Who writes a line

_PREFIX = re.compile(
    r"""\s*(?:
      \[rank(?P<rank>\d{1,7})\]:?
    | \[\d\d:\d\d:\d\d\.\d+\]\[\+[\d.]+s\]\[R(?P<own>\d{1,7}|\?)/(?P<world>\d{1,7}|\?)\]
      \[LR[\d?]+\]\[PID:(?P<pid>\d{1,9})\]
    | \[[A-Za-z_]{2,30}(?P<local>\d{1,5})\]:(?=\s)
    | \[\d{1,5},(?P<mpi>\d{1,7})\]<std(?:out|err)>:
    | (?P<label>\d{1,7}):(?=\s)
    | \[pod/[^\]\n]{1,200}\]
    | \([^()\n]{0,60}?(?:\[?rank=(?P<actor>\d{1,7})\]?,?\ )?pid=\d+[^)\n]{0,80}\)
    | \d{4}-\d\d-\d\dT[\d:.]+Z
    | \[\d{1,9}\](?=\s*\[rank)
    )[ \t]?""",
    re.VERBOSE,
)
_QUICK = re.compile(
    rb"(?:[^\S\n]*(?:\[pod/[^\]\n]{1,200}\]|\d{1,7}:|\([^)\n]{1,140}\)|\d{4}-\d\d-\d\dT[\d:.]+Z|"
    rb"\[\d{1,9}\]))*?[^\S\n]*"
    rb"(\[rank\d{1,7}\]|\[[\d:.]{12}\]\[\+[\d.]+s\]\[R\d{1,7}/|\[[A-Za-z_]{2,30}\d{1,5}\]:|"
    rb"\[\d{1,5},\d{1,7}\]<std|\d{1,7}: |\([^)\n]{0,60}rank=\d{1,7})"
)
_TAG = re.compile(r"\[rank(\d{1,7})\]:")
_BEGINS_PREFIX = b" [(0123456789"
_AFTERMATH = re.compile(rb"ProcessGroup\w+\.cpp|frame #|^terminate called|^\s*what\(\):|^\s*$")
"""What torch prints while a process goes down is no last word of the user's program."""
_RANK_INSIDE = re.compile(
    r"^(?:\S{1,40} ){0,4}?[\[(<]?(?:global[_ ])?rank[ :=_]{0,2}(\d{1,7})\b", re.I
)
_RANK_OF_FILE = re.compile(
    r"(?:^|[^a-z])(?:global[-_]?)?(?:rank|task|proc)[-_. ]?(\d{1,7})(?!\d)", re.I
)
_TIMES = re.compile(
    r"\b[IWEF](?P<m>\d\d?)(?P<d>\d\d) (?P<t>\d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|\b\d{4}-(?P<m2>\d\d)-(?P<d2>\d\d)[T _](?P<t2>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
    r"|(?<![\d:])(?P<t3>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?![\d:])"
)


class Writer:
    """Whose a line is, by its prefixes: torch's own count most."""

    __slots__ = ("label", "pid", "rank", "text", "world")

    def __init__(self, line: str, *, labelled: bool) -> None:
        self.rank: int | None = None
        self.label: int | None = None
        self.world = 0
        self.pid: int | None = None
        at = 0
        for _ in range(6):
            found = _PREFIX.match(line, at)
            if found is None or (found["label"] and not labelled):
                break
            at = found.end()
            told = found["rank"] or found["own"]
            if told and told.isdigit():
                self.rank = int(told)
            for weak in ("local", "mpi", "label", "actor"):
                if found[weak]:
                    self.label = int(found[weak])
            if found["world"] and found["world"].isdigit():
                self.world = int(found["world"])
            if found["pid"]:
                self.pid = int(found["pid"])
        self.text = line[at:]


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
_EXIT_SAID = re.compile(r"^\s*((?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit)\b:?.*)$", re.M)
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z_]\w*(?:$|: |:$)")
_BAR = re.compile(
    r"\d%\|[^|\n]{0,400}\|\s*(\d{1,15}(?:\.\d{1,9})?)([kMG]?)/(\d{1,15}(?:\.\d{1,9})?)([kMG]?)"
    r" \[(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})<"
)


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
        return parse_ranks(text.replace(" ", ""), MOST_RANKS)
    except ValueError:
        return ()


def _group(text: str) -> tuple[str, int | None]:
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


def _exit(fact: LogFact, line: str, block: Block) -> Facts:
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
_comm = _plain(r"^\S+?:(?P<pid>\d+):\d+.* rank (?P<seq>\d+) n[rR]anks (?P<count>\d+)")
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
    ("(pid: ", "exit", _exit),
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
_PARSERS = {needle.encode(): (kind, parse) for needle, kind, parse in WORDS}
_NEEDLES = re.compile(b"|".join(re.escape(one) for one in sorted(_PARSERS, key=len, reverse=True)))
_REPEATED = ("terminated with exception", "what():  ")
"""Before a message that its writer has printed already."""


# The reader


def read_log(path: str | PurePath, file: BinaryIO) -> LogReading:
    """Read a log from its beginning to its end; memory stays below 100 MB whatever it holds.

    Args:
        path: Its name, for what is quoted and for a rank in the name; it is not opened.
        file: The log, open for reading bytes; a compressed one as the opened stream of its text.

    Raises:
        OSError, EOFError, zlib.error: The file, or what it is compressed with, is broken.
    """
    return _Reader(str(path)).read(file)


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.rank = rank_of_name(path)
        self.facts: list[LogFact] = []
        self.words: dict[int | None, LastWord] = {}
        self.labelled = False
        self.counts: dict[str, int] = {}
        self.bars: dict[tuple[int | None, int], tuple[LogFact, LogFact]] = {}
        self.contradicted = False
        self.world = 0
        self.line = 1
        self.cut = False

    def read(self, file: BinaryIO) -> LogReading:
        size, carry = 0, b""
        while True:
            data = file.read(PIECE)
            size += len(data)
            raw = carry + data
            end = len(raw) if not data else raw.rfind(b"\n", 0, max(0, len(raw) - BLOCK)) + 1
            if data and end == 0 and len(raw) > PIECE:
                end, self.cut = len(raw), True  # a line without an end is read as it comes
            if self.line == 1:
                self.labelled = _is_labelled(raw)
            if end:
                self._piece(raw, end)
                self.line += raw.count(b"\n", 0, end)
            carry = raw[end:]
            if not data:
                return self._result(size)

    def _piece(self, raw: bytes, end: int) -> None:
        text = raw.translate(_PLAIN)
        at, line = 0, self.line
        for hit in _NEEDLES.finditer(text, 0, min(len(text), end + LONGEST_LINE)):
            if hit.start() >= end:
                break
            line += raw.count(b"\n", at, hit.start())
            at = hit.start()
            self._hit(text, hit, line)
        self._bars(text, raw, end)
        self._last_words(text, raw, end)

    def _hit(self, text: bytes, hit: re.Match[bytes], line: int) -> None:
        kind, parse = _PARSERS[hit[0]]
        count = self.counts.get(kind, 0)
        if count >= (MOST_WITH_BLOCKS if kind == "exception" else MOST_OF_A_KIND):
            self.cut = True
            return
        begin = max(text.rfind(b"\n", 0, hit.start()) + 1, hit.start() - LONGEST_LINE)
        end = text.find(b"\n", hit.start())
        end = min(len(text) if end < 0 else end, hit.start() + LONGEST_LINE)
        whole = text[begin:end].decode("utf-8", "replace")
        writer = Writer(whole, labelled=self.labelled)
        inside = _TAG.findall(whole, 0, hit.start() - begin) if writer.rank is None else ()
        if inside:
            writer.rank = int(inside[-1])  # behind a progress bar, or a host's name
        said = writer.text.strip()
        # the tag of what is repeated belongs to the time-out; else to the line itself
        group, group_rank = _group(said)
        fact = LogFact(
            kind=kind,
            text=said[:MOST_SHOWN],
            file=self.path,
            line=line,
            rank=self._rank_of(writer),
            group=group,
            group_rank=group_rank,
            when=moment(whole),
            pid=writer.pid,
        )
        if kind == "exit" and parse is _exit:
            fact = replace(fact, error=text[max(0, begin - 500) : begin].decode("utf-8", "replace"))
        found = parse(fact, said, lambda most: self._block(text, begin, writer, most))
        self.counts[kind] = count + 1
        self.facts += found

    def _rank_of(self, writer: Writer) -> int | None:
        if writer.world:
            self.world = max(self.world, writer.world)
        if writer.rank is not None:
            self.contradicted |= writer.label not in (None, writer.rank)
            return writer.rank
        return writer.label if writer.label is not None else self.rank

    def _block(self, text: bytes, begin: int, writer: Writer, most: int) -> list[str]:
        """Return a line and those after it of the same writer, without prefixes."""
        found: list[str] = []
        stop = min(len(text), begin + BLOCK)
        while begin < stop and len(found) < most:
            end = text.find(b"\n", begin, stop)
            end = stop if end < 0 else end
            line = text[begin : min(end, begin + LONGEST_LINE)].decode("utf-8", "replace")
            one = Writer(line, labelled=self.labelled)
            if (one.rank, one.label) in ((writer.rank, writer.label), (None, None)):
                found.append(one.text)
            begin = end + 1
        return found

    def _bars(self, text: bytes, raw: bytes, end: int) -> None:
        """Keep the first and the newest state of each progress bar."""
        first, at = text.find(b"%|", 0, end), end
        spots: list[int] = []
        while first >= 0 and len(spots) < MOST_BARS and (at := text.rfind(b"%|", 0, at)) >= first:
            spots.append(at)
        line, counted = self.line, 0
        for spot in sorted({first, *spots} - {-1}):
            begin = max(text.rfind(b"\n", 0, spot) + 1, spot - 400)
            whole = text[begin : spot + 600].partition(b"\n")[0].decode("utf-8", "replace")
            writer = Writer(whole, labelled=self.labelled)
            line, counted = line + raw.count(b"\n", counted, spot), spot
            bar = _BAR.search(writer.text)
            if bar is None:
                continue
            done, total = (int(float(bar[i]) * _UNITS[bar[i + 1]]) for i in (1, 3))
            fact = LogFact(
                kind="bar",
                text=writer.text.strip()[:MOST_SHOWN],
                file=self.path,
                line=line,
                rank=self._rank_of(writer),
                seq=done,
                count=total,
                ran_ms=(int(bar[5] or 0) * 3600 + int(bar[6]) * 60 + int(bar[7])) * 1000,
                when=moment(whole[: spot - begin]),
            )
            earliest = self.bars.get((fact.rank, total), (fact, fact))[0]
            if len(self.bars) < MOST_OF_A_KIND:
                self.bars[fact.rank, total] = (earliest, fact)

    def _last_words(self, text: bytes, raw: bytes, end: int) -> None:
        lines = text[:end].split(b"\n")
        newest: dict[bytes, int] = {}
        match = _QUICK.match
        for number, line in enumerate(lines):
            if (
                line[:1] in _BEGINS_PREFIX
                and (found := match(line))
                and b"ProcessGroup" not in line
                and b"frame #" not in line
            ):
                newest[found[1]] = number
        last = next(
            (n for n in range(len(lines) - 1, -1, -1) if not _AFTERMATH.search(lines[n])), None
        )
        returns = list(accumulate(map(len, lines), initial=0)) if b"\r" in raw else []
        for number in sorted({*newest.values(), *(() if last is None else (last,))}):
            whole = lines[number][:LONGEST_LINE].decode("utf-8", "replace")
            writer = Writer(whole, labelled=self.labelled)
            rank = self._rank_of(writer)
            if rank is None and (inside := _RANK_INSIDE.match(writer.text)):
                rank = int(inside[1])
            at = self.line + number
            if returns:  # lines that end in a carriage return only are one to an editor
                at -= raw.count(b"\r", 0, returns[number] + number)
            known = self.words.get(rank)
            if (known is None or known.line <= at) and len(self.words) < MOST_RANKS:
                self.words[rank] = LastWord(
                    rank=rank,
                    text=writer.text.strip()[:MOST_SHOWN],
                    file=self.path,
                    line=at,
                    when=moment(whole),
                )

    def _result(self, size: int) -> LogReading:
        facts = sorted(
            [*self.facts, *(one for pair in self.bars.values() for one in dict.fromkeys(pair))],
            key=lambda fact: fact.line,
        )
        starts = [number for number, fact in enumerate(facts) if fact.kind == "restart"]
        kept = facts[starts[-1] + 1 :] if starts and starts[-1] + 1 < len(facts) else facts
        if self.contradicted:
            kept = [one if one.kind == "exit" else replace(one, rank=_own(one)) for one in kept]
        words = tuple(one for one in self.words.values() if one.rank is not None)
        known = {one.rank for one in kept} | {one.rank for one in words}
        notes = ["long lines or repeated words were cut"] if self.cut else []
        return LogReading(
            file=self.path,
            size=size,
            lines=self.line,
            facts=tuple(kept),
            last_words=words or tuple(self.words.values()),
            ranks=tuple(sorted(one for one in known if one is not None)),
            world_size=self.world,
            rounds=1 + len(starts),
            clock_went_back=_goes_back([one.when for one in kept]),
            left_out="; ".join(notes),
        )


_PLAIN = bytes(10 if one == 13 else 32 if one == 0 else one for one in range(256))
_UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def rank_of_name(path: str) -> int | None:
    """Return the rank that a file's name, or the folder it is in, tells; None if none does."""
    for part in reversed(PurePath(path).parts[-2:]):
        found = _RANK_OF_FILE.search(part)
        if found is not None:
            return int(found[1])
    return None


def _is_labelled(raw: bytes) -> bool:
    """Whether ``3: `` before lines is a label: nearly all of them have one."""
    lines = [one for one in raw[:BLOCK].split(b"\n")[:200] if one.strip()]
    labelled = sum(bool(re.match(rb"\s*\d{1,7}: ", one)) for one in lines)
    return len(lines) > 1 and labelled >= 0.8 * len(lines)


def _own(fact: LogFact) -> int | None:
    """Whose a fact is where labels are no ranks: only torch's tag of the default group tells."""
    return fact.group_rank if fact.group == "default" else None


def _goes_back(times: Sequence[str]) -> bool:
    """Whether times of one form fall by more than a minute; those of a day's turn do not count."""
    told = [one for one in times if one]
    return any(
        len(a) == len(b)
        and seconds(b) < seconds(a) - 60
        and (" " in a or seconds(a) - seconds(b) < 43_200)
        for a, b in pairwise(told)
    )
