"""Words of torch, NCCL, gloo, SLURM, the kernel and the driver that are searched for in logs.

The table `WORDS` has each needle, what a line with it is about, and how its numbers are read. The
texts come from the sources of torch 1.13 to 2.15, NCCL 2.10 to 2.28, SLURM 19 to 25 and Linux 4 to
6. Each needle begins with a rare character, so that one regular expression finds all at 100 MB/s.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.judge.frames import rules_of, users_frames, users_place
from lightning_hangcheck.judge.wording import within
from lightning_hangcheck.look.stacks import FRAME
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.left_behind import FactKind, LogFact
from lightning_hangcheck.model.words import phase_of_function
from lightning_hangcheck.text.shown import parse_ranks

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import Phase

MOST_NAMED = 4_096
"""Ranks that one line may name; if it names more, none is kept."""
MOST_SHOWN = 300
"""Characters kept of a line."""
LARGEST = 2**53
"""Larger numbers are dropped; torch writes -1 as 18446744073709551615 if it has no number."""
_TIMES = re.compile(
    r"\b[IWEF](?P<m>\d\d?)(?P<d>\d\d) (?P<t>\d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|\b\d{4}-(?P<m2>\d\d)-(?P<d2>\d\d)[T _](?P<t2>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
    r"|(?<![\d:])(?P<t3>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?![\d:])"
)


def moment(text: str) -> str:
    """Return when a line was written, in the form of `LogFact.when`; empty if it does not say."""
    found = _TIMES.search(text[:400])
    if found is None:
        return ""
    time = (found["t"] or found["t2"] or found["t3"]).replace(",", ".")
    month, day = found["m"] or found["m2"], found["d"] or found["d2"]
    return f"{int(month):02}-{day} {time[:12]}" if month else time[:12]


# Patterns

_GROUP = re.compile(
    r"\[PG (?:ID (?P<id>\d+) PG )?(?:GUID (?P<guid>[^\s(\]]+)|(?P<number>\d+))"
    r"(?: ?\((?P<name>[^)\]]*)\))? Rank (?P<rank>\d+)\]"
)
_BARE = re.compile(r"\[Rank (\d+)\]")
_NOT_JOINED = re.compile(
    r"\[([\d, ]+)\] finished collective #(\d{1,15}), but didn't join collective #(\d{1,15})"
    r"|ranks \[([\d, ]+)\] are the lagging ranks"
)
_NOT_ENDED = re.compile(r"\[([\d, ]+)\] joined but didn't finish collective #(\d{1,15})")
_STARTED = re.compile(
    r"#(\d+) (started|finished) ranks:((?:\s*\[[\d, ]+\] (?:started|finished) \w+)+)"
)
_CALL = re.compile(r"#\d+ (\S{1,200}) from (\S.{0,400}):(\d{1,9})\s*$")
_RAS_ROW = re.compile(r"^\s*\d+\s+\d+\s+\d+\s+\S+\s+(?:\d+-)?(\d{1,7})\s+\d+\s+(\S+)\s+(\S+)\s*$")
_EXIT_SAID = re.compile(
    r"^[ \t]*([\w.]{0,120}?(?:Error|Exception|Interrupt|Exit)\b(?::.*)?)$", re.M
)
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z_]\w*(?:$|: |:$)")
_PYTHON_CALL = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in (?P<function>.+)')
COLLECTIVES = "torch/distributed/distributed_c10d.py"
_CHAIN = ("During handling of the above", "The above exception was the direct", "Original Trace")
_CONTAINED = ("Exception ignored", "--- Logging error ---", "exception was never retrieved")
"""Python writes these before a traceback after which the program continues."""
_OF_NETWORK = re.compile(
    r"[Tt]imed? ?out|Connection|Got completion|completed with error|remote peer|Broken pipe"
    r"|[Ss]ocket.* fail|truncated|Call to ibv_|RemoteError"
)
_OF_NODE = re.compile(r"No space left on device|shared memory segment|Cuda failure.*out of memory")
_OF_USE = "Duplicate GPU"
_DEATHS = {"Killed": 9, "Segmentation": 11, "Bus": 7, "Aborted": 6, "Illegal": 4, "Floating": 8}
"""How the names of signals begin in messages of the C library and shells."""


def _number(text: str | None) -> int | None:
    """Read a number; None if there is none, or torch wrote one that stands for none."""
    value = int(text) if text is not None and len(text) < 30 else LARGEST
    return value if abs(value) < LARGEST else None


def _numbers(text: str) -> tuple[int, ...]:
    """Read a list of ranks and ranges of ranks; empty if the text is no such list."""
    try:
        return parse_ranks(text.replace(" ", ""), MOST_NAMED)
    except ValueError:
        return ()


def group_of(text: str) -> tuple[str, int | None]:
    """Return the group that a line names, and the writer's number in that group."""
    tags = list(_GROUP.finditer(text))
    if not tags:
        bare = _BARE.search(text)
        return "", int(bare[1]) if bare and len(bare[1]) < 8 else None
    tag = tags[-1]
    rank = _number(tag["rank"])
    if tag["name"] == "default_pg" or "0" in (tag["guid"], tag["number"]):
        return "default", rank
    return (f"guid {tag['guid']}" if tag["guid"] else f"PG {tag['number']}"), rank


class Around(NamedTuple):
    """The lines around a line.

    Attributes:
        below: Returns the line and the next lines of the same writer, as many in all as asked for.
        above: The 500 bytes before the line.
    """

    below: Callable[[int], list[str]]
    above: str


Facts = list[LogFact]
Parser = Callable[[LogFact, str, Around], Facts]


def _filled(fact: LogFact, values: Mapping[str, str | None]) -> LogFact:
    """Put what the named groups of patterns matched into the fields of those names."""
    fields: dict[str, object] = {}
    for name, text in values.items():
        if text is not None:
            field, read = _FIELDS.get(name, (name, _number))
            fields[field] = read(text)
    return replace(fact, **fields)


def _shown(text: str) -> str:
    return text.strip()[:MOST_SHOWN]


def _every_number(text: str) -> tuple[int, ...]:
    numbers = map(_number, re.findall(r"\d+", text))
    return tuple(number for number in numbers if number is not None)


_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    **{name: (name, _shown) for name in ("error", "host", "op", "text")},
    "seconds": ("limit_ms", lambda text: (_number(text) or 0) * 1000),
    "signal": ("code", lambda text: -(_number(text) or 0)),
    "death": ("code", lambda text: -signal.Signals[text]),
    "when": ("when", moment),
    "ranks": ("ranks", _numbers),
    "sizes": ("sizes", _every_number),
}
"""Field and reader of a named group; other groups are numbers in fields of the same name."""


def _fields(needed: str = "^", *others: str, lines: int = 0, until: str = "") -> Parser:
    """Make a parser from patterns whose named groups are fields.

    Args:
        needed: Each match is a fact.
        others: Patterns that may be missing.
        lines: How many lines to search below, up to NCCL's next heading, if this one has no match.
        until: How the message ends. A line without it was broken by a terminal: the next are
            joined.
    """
    first, *more = (re.compile(pattern) for pattern in (needed, *others))

    def parse(fact: LogFact, line: str, around: Around) -> Facts:
        groups: dict[str, str | None] = {}
        if until and re.search(until, line) is None:
            rows = around.below(3)
            rest = takewhile(lambda row: row.strip() and "ProcessGroup" not in row, rows[1:])
            line = "".join([*rows[:1], *rest])
        for pattern in more:
            if (match := pattern.search(line)) is not None:
                groups |= match.groupdict()
        found = [{**groups, **match.groupdict()} for match in first.finditer(line)]
        if not found and lines:
            details = takewhile(lambda row: row[:1] != "#", around.below(lines)[1:])
            found = [
                {**groups, "text": row, **match.groupdict()}
                for row in details
                for match in first.finditer(row)
            ]
        return [_filled(fact, values) for values in found]

    return parse


def _desync(fact: LogFact, _: str, around: Around) -> Facts:
    """Read who has not joined an operation, or is still in one, and how many ranks are further."""
    report = "\n".join(around.below(40))
    behind, inside = _NOT_JOINED.search(report), _NOT_ENDED.search(report)
    said = behind or inside
    if said is None:
        return []
    mine, others, op = _numbers(said[1] or said[4]), set[int](), ""
    for number, did, rows in _STARTED.findall(report):
        further = (_number(number) or 0) > int(said[2] or 0)
        if further or (behind is not None and did == "started"):
            others.update(*map(_numbers, re.findall(r"\[([\d, ]+)\]", rows)))
        elif behind is None:
            op = rows.split()[-1]
    fact = replace(fact, text=said[0][:MOST_SHOWN], ranks=mine, count=len(others - set(mine)))
    if behind is None:
        return [replace(fact, enqueued=_number(said[2]), op=op)] if fact.count else []
    return [replace(fact, seq=_number(behind[3]) if behind[3] else 0)]


def _call(fact: LogFact, _: str, around: Around) -> Facts:
    """Read where a timed-out operation was called from, by torch's flight recorder."""
    rows = takewhile(bool, map(_CALL.match, around.below(100)[1:]))
    frames = [Frame(row[1], row[2], int(row[3])) for row in rows if row]
    others = (frame for frame in frames if "/torch/" not in frame.file)
    place = users_place(frames[::-1]) or next(others, None)
    return [replace(fact, op=frames[0].function, place=within(place))] if place else []


def _ras_rows(fact: LogFact, _: str, around: Around) -> Facts:
    rows = [row for line in around.below(40)[2:] if (row := _RAS_ROW.match(line))]
    if not rows:
        return []
    count = max(int(row[1]) for row in rows)
    if any((row[2], row[3]) != ("RUNNING", "OK") for row in rows):
        return [replace(fact, kind="communicator", count=count)]
    return [replace(fact, text=rows[0][0].strip(), count=count)]


def _exit_entry(fact: LogFact, line: str, around: Around) -> Facts:
    """Read an entry of torchrun's summary: its rank, host and time come before its exit code.

    The line that torchrun writes at the moment of the failure names only the local rank.
    """
    if "local_rank: " in line:
        return _exit_at_once(fact, line, around)
    below = "\n".join(around.below(60)[1:])
    entry = re.split(r"^\s*\[\d+\]:\s*$|^[=-]{8,}", below, maxsplit=1, flags=re.M)[0]
    above = around.above.rpartition("[")[2]
    found = _exit_in_summary(replace(fact, when=""), f"{above}\n{line}", around)[-1:]
    if found and "Traceback" in entry and (said := _EXIT_SAID.findall(entry)):
        found[0] = replace(found[0], error=_shown(said[-1]))
    return found


def _exception(fact: LogFact, _: str, around: Around) -> Facts:
    before = around.above.rstrip().rpartition("\n")[2]
    if any(word in before for word in _CONTAINED):
        return []
    for most in (80, 400):
        lines = around.below(most)[1:]
        end = next((n for n, line in enumerate(lines) if line[:1].strip(" \t+|")), len(lines))
        if end + 3 < len(lines):
            break
    if end >= len(lines) or not _RAISED.match(lines[end]):
        return []
    after = [row for row in lines[end + 1 : end + 60] if row.strip()]
    if any(row.startswith(_CHAIN) for row in after[:40]):
        return []  # the exception that followed has its own traceback below
    line = lines[end]
    message = (" ".join([line, *after[:2]]) if line.endswith(":") else line)[:MOST_SHOWN]
    calls = filter(None, map(_PYTHON_CALL.match, lines[:end]))
    frames = [Frame(row["function"], row["file"], int(row["line"])) for row in calls]
    op = next((call.function for call in frames if call.file.endswith(COLLECTIVES)), "")
    place = within(users_place(frames))
    said = replace(fact, text=message, error=message, op=op, place=place)
    return [replace(said, phase=_phase_of(frames) or "")]


def _phase_of(frames: Sequence[Frame]) -> Phase | None:
    """Return the phase of the innermost known call, or of a user's function by its name."""
    rules = [rule for frame in reversed(frames) for rule in rules_of(frame)]
    named = (phase_of_function(frame.function) for frame in reversed(users_frames(frames)))
    called = (
        *(rule.phase for rule in rules if rule.wins),
        *(rule.phase for rule in rules),
        *named,
        *(rule.of_file for rule in rules),
    )
    return next(filter(None, called), None)


def _ended(*patterns: str, until: str = "") -> Parser:
    """Make a parser of how a process ended: the line is from its launcher, not from its rank."""
    parse = _fields(*patterns, until=until)
    return lambda fact, line, around: parse(replace(fact, kind="exit", rank=None), line, around)


def _ended_task(fact: LogFact, line: str, around: Around) -> Facts:
    """Read how a task ended, as SLURM or a shell reports it."""
    if (shell := _BY_SHELL.search(line)) is None:
        return _task(fact, line, around)
    code = -_DEATHS[shell["name"]]
    return [replace(fact, kind="exit", rank=None, pid=int(shell["pid"]), code=code)]


def _died(fact: LogFact, line: str, around: Around) -> Facts:
    """Read what Python's faulthandler writes while a signal ends the process, and the code line."""
    _, _, why = line.partition("Fatal Python error: ")
    rows = around.below(200)
    current = next((n for n, row in enumerate(rows) if row.startswith("Current thread")), len(rows))
    found = takewhile(bool, map(FRAME.match, rows[current + 1 :]))
    frames = [Frame(row["function"], row["file"], int(row["line"])) for row in found if row]
    place = users_place(frames[::-1])
    said = f"Fatal Python error: {why}{f' {within(place)}' if place else ''}"
    # an abort may follow another rank's time-out
    kind: FactKind = "fatal" if why.startswith("Aborted") else "own_error"
    return [replace(fact, kind=kind, error=said[:MOST_SHOWN])]


def _nccl(fact: LogFact, line: str, around: Around) -> Facts:
    """Read NCCL's error or warning: of the network, of what a node lacks, or of wrong use."""
    _, warns, said = line.partition("NCCL WARN ")
    if not warns:
        rows = [line, *around.below(6)[1:]]
        last = next((n for n, row in enumerate(rows) if "Last error:" in row), 0)
        said = rows[last].rpartition("Last error:")[2] or " ".join(rows[last + 1 : last + 2])
        said += " (ncclRemoteError)" if "ncclRemoteError" in " ".join(rows) else ""
    said = said.strip()[:MOST_SHOWN]
    if "collective mismatch" in said:
        return [replace(fact, kind="mismatch_warning")]
    if _OF_NODE.search(said):
        return [replace(fact, kind="own_error", error=said, text=said)]
    if _OF_NETWORK.search(said):
        return [replace(fact, error=said, text=said)]
    return (
        [replace(fact, kind="fatal", error=said, text=said)] if not warns or _OF_USE in said else []
    )


_any = _fields()
_status_numbers = _fields(
    r"[Ll]ast (?:enqueued|completed) (?:\w+ )?work: -?\d.*",
    r"(?:at (?:\w+ )?work(?: sequence id)?:?) (?P<seq>\d+)",
    r"[Ll]ast enqueued (?:\w+ )?work: (?P<enqueued>-?\d+)",
    r"[Ll]ast completed (?:\w+ )?work: (?P<completed>-?\d+)",
    until=r"[Ll]ast completed (?:\w+ )?work: -?\d",
)
_exit_at_once = _ended(
    r"(?:^E\d{4} \S+ (?P<seq>\d{1,9}) .*)?exitcode\s*:\s*(?P<code>-?\d+)\)"
    r" local_rank: (?P<group_rank>\d{1,7}) \(pid: (?P<pid>\d+)\)"
)
_exit_in_summary = _ended(
    r"exitcode\s*:\s*(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)",
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)",
    r"time\s*:\s*(?P<when>\S+)",
    r"host\s*:\s*(?P<host>\S+)",
)
_SIGNAL = rf"(?P<death>{'|'.join(signal.Signals.__members__)})\b"
_task = _fields(r"error: (?P<host>\S+): tasks? (?P<ranks>[\d,\- ]+): (?P<error>.*)")
_asked_to_end = _fields(rf"Received (?:Signals\.{_SIGNAL}|(?P<signal>\d{{1,3}})) death signal")
_BY_SHELL = re.compile(rf": line \d+: *(?P<pid>\d{{1,9}}) (?P<name>{'|'.join(_DEATHS)})\b")
_came = _fields(
    r"world_size=(?P<count>\d+), (?:num_workers_joined|worker_count)=(?P<seq>\d+)",
    r"(?:on|for) rank:? (?P<rank>\d{1,7}),",
)

# fmt: off
WORDS: tuple[tuple[str, FactKind, Parser], ...] = (
    # torch's watchdog and its monitor; 2.0 to 2.15
    ("Watchdog caught collective operation", "timeout", _fields(
        "^",
        r"SeqNum\s*[=:]\s*(?P<seq>-?\d+)",
        r"OpType\s*[=:]\s*(?P<op>-?\w+)",
        r"(?P<sizes>NumelIn\s*[=:]\s*\d+\W+NumelOut\s*[=:]\s*\d+(?=\D)|TensorShape=\[[\d, ]*\])",
        r"Timeout\(ms\)\s*[=:]\s*(?P<limit_ms>-?\d+)(?=\D)",
        r"ran for (?P<ran_ms>\d+) milliseconds", until="before timing out")),
    ("Exception (either an error or timeout", "status", _status_numbers),
    ("PG status: last", "status", _status_numbers),
    ("Timeout at NCCL work", "status", _status_numbers),
    ("Received a dump signal", "dump_signal", _status_numbers),
    ("Stack trace of the failed collective:", "call", _call),
    ("Heartbeat monitor timed out", "heartbeat", _any),
    ("NCCL's watchdog got stuck", "heartbeat", _any),
    ("]:[F", "fatal", _fields(r"\[F\d{3,4} \d\d:[^\]]*\](?: \[[^\]]*\])* (?P<error>.*)")),
    ("Could not acquire GIL within", "gil", _any),
    ("To our best knowledge", "desync", _desync),
    # torch's own checks of what ranks do
    ("Detected mismatch between collectives", "fingerprint", _fields(
        r"Rank (?P<ranks>\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
        r"(?:SequenceNumber=(?P<seq>\d+),? ?)?OpType=(?P<op>\w+)"
        r"(?:[^()]*?TensorShape=\[(?P<sizes>[\d, ]*)\])?", lines=3)),
    ("Barrier in ", "barrier", _fields(
        r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<limit_ms>\d+)")),
    ("Barrier, but received errors", "barrier_echo", _any),
    # rendezvous
    ("UniqueId from", "store", _fields(
        r"\[(?P<group_rank>\d{1,7})\] is setting up NCCL communicator and retr\w+ ncclUniqueId"
        r" from \[(?P<ranks>\d{1,7})\].*?(?:got error|got exception|error): (?P<error>.*)")),
    ("Timed out after", "rendezvous", _fields(
        r"after (?P<seconds>\d+) seconds waiting for clients\. (?P<seq>\d+)/(?P<count>\d+) clie")),
    ("Timed out initializing process group", "rendezvous", _came),
    ("Waiting in store based barrier", "rendezvous", _came),
    ("RendezvousTimeoutError", "rendezvous", _any),
    ("ValueError: host not found", "unreachable", _any),
    ("The client socket has", "unreachable", _fields(r"connect to \(?(?P<error>[^)]*)")),
    # gloo
    ("Gloo connectFullMesh failed", "unreachable", _any),
    ("<= op.nbytes", "sizes", _fields(r"op\.nbytes\. (?P<sizes>\d+ vs \d+)")),
    ("DistStoreError: wait", "gave_up", _fields(
        r"wait timeout after (?P<limit_ms>\d+)ms, keys: (?P<error>\S+)")),
    ("Timed out waiting", "gave_up", _fields(r"waiting (?P<limit_ms>\d+)ms for (?:rec|sen)")),
    ("Connection closed by peer", "peer_lost", _any),
    ("Connection reset by peer", "peer_lost", _any),
    # NCCL
    ("Mismatched collective", "mismatch_warning", _fields("^", r"around rank (?P<ranks>\d{1,7})")),
    ("NCCL WARN", "network", _nccl),
    ("NCCL error", "network", _nccl),
    ("Communicator ranks have different", "ras_count", _fields(
        r"^\s*(?:(?P<count>\d+) ranks have|Rank \d{1,7} has) "
        r"(?:launched up to operation (?P<seq>\d+)|not launched any)",
        r"different (?P<op>\w+) operation counts", lines=200)),
    ("Ranks    Status  Errors", "ras_equal", _ras_rows),
    ("Missing communicator data from", "ras_missing", _fields(
        r"^\s*Rank (?P<ranks>\d{1,7}) --", lines=200)),
    ("DEAD\n", "ras_dead", _fields(
        r"^\s*Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? ", lines=200)),
    ("Init COMPLETE", "communicator", _fields(
        r"^(?P<host>[^\s:]{1,255}):(?P<pid>\d+):\d+.* rank (?P<seq>\d+) n[rR]anks (?P<count>\d+)")),
    # which process is which rank: Lightning's and DeepSpeed's launchers
    ("GLOBAL_RANK: ", "process", _fields(r"(?P<rank>\d{1,7}), MEMBER: \d+/(?P<count>\d{1,7})")),
    ("INFO] [launch.py:", "process", _fields(
        r"(?:process (?P<pid>\d+) spawned with command: .*--local_rank\W+(?P<group_rank>\d{1,7})"
        r"|dist_world_size=(?P<count>\d{1,7}))")),
    # how processes ended: the driver, torchrun, SLURM, the kernel, Python
    ("NVRM: Xid", "xid", _fields(
        r"Xid \((?:PCI:)?(?P<host>[\w:.]+)\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+))?")),
    ("NVRM: The NVIDIA GPU", "xid", _fields(
        "fallen off the bus", r"GPU (?P<host>[\w:.]+)", lines=4)),
    ("(pid: ", "exit", _exit_entry),
    ("ERROR:composer.cli", "exit", _ended(
        r"[Rr]ank (?P<rank>\d{1,7})(?: \(PID (?P<pid>\d+)\))? \w+ with (?:exit )?code"
        r" (?P<code>-?\d+)")),
    ("PID ", "exit", _ended(  # mpirun's
        r"rank (?P<rank>\d{1,7}) with PID (?P<pid>\d+) on node (?P<host>\S+)"
        r" exited on\s*signal (?P<signal>\d{1,3})\b", until=r"signal \d")),
    ("Exception: process", "exit", _ended(  # torch.multiprocessing.spawn
        rf"process (?P<rank>\d{{1,7}}) terminated with signal {_SIGNAL}")),
    ("Child process with PID", "exit", _ended(  # Lightning's: names the local rank
        r"(?:\[rank: (?P<group_rank>\d{1,7})\] )?Child process with PID (?P<pid>\d+)"
        r" terminated with code (?P<code>-?\d+)")),
    # DeepSpeed, and torch before 1.9, name the last command started, whichever process died
    ("ERROR] [launch.py:", "exit", _ended(r"exits with return code = (?P<code>-?\d+)")),
    ("<Signals.", "exit", _ended(rf"died with <Signals\.{_SIGNAL}")),
    ("Worker exit type: SYSTEM_ERROR", "exit", _ended(
        r"(?P<error>its worker process has died|A worker died or was killed)")),
    ("Out Of Memory", "task", _task),
    ("Segmentation fault", "task", _ended_task),
    ("Bus error", "task", _ended_task),
    ("Exited with exit code", "task", _task),
    ("Killed\n", "task", _task),
    ("Killed  ", "task", _ended_task),
    ("Fatal Python error: ", "own_error", _died),
    ("Killed process", "kill", _fields(r"Killed process (?P<pid>\d+)")),
    ("OOM Killed", "kill", _any),
    ("OOMKilled", "kill", _any),
    ("The node was low on resource: memory", "kill", _any),
    ("Exceeded step memory limit", "kill", _any),
    ("Exceeded job memory limit", "kill", _any),
    ("Some of your processes may have been killed", "kill", _any),
    # SLURM's, torchrun's and Ray's
    ("Node failure on ", "node_lost", _fields(r"failure on (?P<host>\S+)")),
    ("As part of the sync operation the node", "node_lost", _fields(
        r"node\(s\) '(?P<host>[^'\s]+?)_\d+_\d+'")),
    ("The node with node id", "node_lost", _fields(
        r"address: (?P<host>[\w.:-]{1,255}) and node name: \S{1,255} has been marked dead")),
    ("CANCELLED AT", "cancelled", _fields(r"CANCELLED AT \S+(?: (?P<error>DUE TO [A-Z ]+))?")),
    ("SignalException: Process", "cancelled", _fields(r"got signal: (?P<signal>\d{1,3})\b")),
    ("Received 1 death signal", "cancelled", _asked_to_end),
    ("Received 2 death signal", "cancelled", _asked_to_end),
    ("Received 15 death signal", "cancelled", _asked_to_end),
    ("Received Signals.", "cancelled", _asked_to_end),
    ("Traceback (most recent call last)", "exception", _exception),
    ("CUDA out of memory", "memory", _any),
    ("HIP out of memory", "memory", _any),
    ("'std::bad_alloc'", "own_error", _fields("'(?P<error>std::bad_alloc)'")),
    ("CUDA error:", "own_error", _fields(r"(?P<error>CUDA error: .*)")),
    ("Cuda failure", "own_error", _fields(
        r"(?P<error>Cuda failure (?:\d+ )?'(?!driver shutting down|context is destroyed)[^']*')")),
    ("DataLoader worker (pid", "own_error", _fields(r"(?P<error>DataLoader worker \(pid.*)")),
    ("The server socket has failed to listen", "own_error", _fields(
        r"(?P<error>The server socket has failed to bind.*Address already in use)")),
    ("Unexpected bus error", "own_error", _fields(r"(?P<error>Unexpected bus error.*)")),
    # what the job was doing
    ("Root Cause (first", "summary", _any),
    ("Worker group FAILED", "restart", _fields(r"will restart worker group")),
    ("Restarting worker group", "restart", _any),
    ("Saving ", "saving", _fields(
        r"Saving (?:[\w.']+ ){0,3}(?:checkpoint|model|state|weights|optimizer)")),
    ("Retrieving full model state dict", "saving", _any),
    ("Training finished", "finished", _any),
    ("Training completed", "finished", _any),
    ("Trainer.fit` stopped:", "finished", _any),
)
# fmt: on
PARSERS = {needle.encode(): (kind, parse) for needle, kind, parse in WORDS}
