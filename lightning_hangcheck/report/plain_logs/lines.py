r"""One line of a log: who wrote it, when, and what it says.

Three kinds of marks stand before the text, in any order and number: of the launcher (``srun
--label``, ``torchrun --tee``), of a logging format, and of the program itself. A mark that names
the rank is believed most, as a launcher often knows the local rank only::

    [10:23:45.123][+2.456s][R0/2][LR0][PID:12345] CHECKPOINT 5: Model created
    [default1]:2026-11-24 10:23:45,123 - INFO - [rank 9] step 17 loss=0.3
    [DEBUG][rank 1] step 17
    [rank1]: ValueError: no such split
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

from msgspec import Struct

_TAG = re.compile(
    r"""
  (?:
    (?P<launcher>
        (?<!.)\s{0,3}\d{1,5}:\s                      # srun --label, at the beginning of the line
      | \[\d{1,2},\d{1,5}\]<std(?:out|err)>:         # mpirun --tag-output
      | \[\d{1,5}\]:(?=.)                            # TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE
    )
  | (?P<library> \[?[IWEF]\d{0,4}\s[^\]]{0,60}\.(?:cpp|hpp|cc|h|py):\d+\] | \[hangcheck\] )
  | [\[(<]?
      (?:(?P<date>\d{4}-\d\d-\d\d)[T _])?
      (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d{1,9})?)
      (?:Z|\s?[+-]\d\d:?\d\d)?(?![\w:<])[\])>]?
  | [\[(]\+?(?P<elapsed>\d{1,9}(?:\.\d{1,9})?)\s?s[\])]
  | (?:\[R(?=[\d?]+(?:/[\d?]+)?\])|[\[(<]?(?:global[ _-]?)?rank)[ :=\#_-]{0,2}
      (?P<rank>\d{1,7}|\?)(?:\s?(?:/|of)\s?(?P<world>\d{1,7}|\?))?(?!\w|\.\d)[\])>]?
  | [\[(]?pid[ :=]{0,2}(?P<pid>\d{1,10})[\])]?
  | [\[(](?P<local>LR|(?:local[ _-]?rank|gpu|cuda|device|[a-z_]{1,40}(?=\d{1,5}\]:)))[ :=_-]{0,2}
      (?P<local_rank>\d{1,5}|\?)[\])]
  | [\[(]?(?-i:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE|SUCCESS)\b[\])]?
  | \[[a-z_][\w.:/ -]{0,60}\]
  | (?<=[A-Z]:)[\w.]{1,80}:                          # a logger's name, as logging.BASIC_FORMAT,
  | [\w.]{1,80}\s-\s(?=(?-i:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)      # most people,
  | [\w.]{1,80}:[\w<>]{1,80}:\d{1,6}\s-\s              # and loguru write it
  | [\[(]?(?:\d{1,4}[-/]\d\d(?:[-/]\d{2,4})?|[A-Z][a-z]{2}\s{1,2}\d{1,2})(?=,?\s\d\d:\d\d:)
  | [\s|:;,>-]
  )
  [\s|:;,>-]*
    """,
    re.VERBOSE | re.IGNORECASE,
)
_RANK_LATER = re.compile(
    r"[\[(<]rank[ :=#_-]{0,2}(?P<tag>\d{1,7})[\])>]:?\s?"
    r"|(?<![\w.])(?:global_)?rank\"?\s?[=:]\s?\"?(?P<field>\d{1,7})(?![\w.])"
    r"|(?:\b[\w.<>-]{1,80}:|\s[-|]\s?)rank[ _]?(?P<word>\d{1,7})\b:?\s?",
    re.IGNORECASE,
)
"""A rank behind the name of a logger, or as a field of the message."""
NEAR_THE_HEAD = 60
_WORLD = re.compile(
    r"(?:world[_ ]?size\"?\s?[=:]\s?\"?|RANK: \d{1,7}, MEMBER: \d{1,7}/)(\d{1,7})", re.IGNORECASE
)
_DIGITS = re.compile(r"\d+")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

CHECKPOINT = re.compile(r"CHECKPOINT (\d{1,9}): (.*)")
SECTION = re.compile(
    r"About to call (?P<begun>.*)\.\.\.$"
    r"|(?P<returned>.*) returned \(\d+\.\d{1,3}s\)$"
    r"|(?P<raised>.{1,400}?) raised (?P<error>.*) \(\d+\.\d{1,3}s\)$"
)
OWN_STEP = re.compile(r"step (\d{1,9}): ")
STEP = re.compile(
    r"\W*(?:\w+\W+){0,2}?(?:global[_ -])?(?:step|iter(?:ation)?|batch)\b\W{0,4}(\d{1,12})",
    re.IGNORECASE,
)
EXCEPTION = re.compile(
    r"(?:\w+\.)*(?:[A-Z]\w*(?:Error|Exception|Failed|Interrupt|Exit|Timeout)|Exception)(?::\s.*)?$"
)

# https://github.com/pytorch/pytorch/blob/v2.9.0/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
WATCHDOG = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
)
ENQUEUED = re.compile(
    r"\[(?:PG [^\[\]]*)?Rank (\d{1,7})\].* last enqueued (?:NCCL )?work: (-?\d+), "
    r"last completed (?:NCCL )?work: -?\d+"
)

ENDINGS_MEAN = {
    r"DUE TO TIME LIMIT": "SLURM ended the job at its time limit",
    r"DUE TO PREEMPTION": "SLURM preempted the job",
    r"CUDA out of memory": "a GPU ran out of memory",
    r"(?i:oom[-_]kill|OUT_OF_MEMORY|Out Of Memory)": "the kernel killed a process for memory",
    r"Timed out waiting \d+ms for (?:recv|send) operation": (
        "gloo gave up waiting for another rank"
    ),
    r"\(SIGKILL\)|exitcode: -9\b": "a rank was killed by SIGKILL",
}
"""What SLURM, the kernel, torch and torchrun write when they end a job, and what it means."""
_ENDINGS = re.compile("|".join(f"({pattern})" for pattern in ENDINGS_MEAN))
_WORDS_OF_ENDINGS = ("DUE TO", "emory", "MEMORY", "oom", "OOM", "Timed out", "SIGKILL", "exitcode")
"""One of them is in each: much faster than the search."""
_MEANINGS = tuple(ENDINGS_MEAN.values())


class Line(Struct, frozen=True, kw_only=True):
    """Who wrote a line, when, and what it says.

    Attributes:
        rank: Global rank; None where the line does not name it.
        world_size: None where not named.
        label: What launchers or the program call the process on its node: ``default0``,
            ``gpu0``, ``1 default0``; empty where nothing does.
        local_rank: The number in it; None where a launcher of nodes stands before it.
        day, clock_s: As written: the day's number, seconds since midnight; None where not.
        elapsed_s: Seconds since the program began; None where not written.
        indented: Whether the text stands behind blanks, as the calls in a traceback do.
        library: Whether a library wrote it in its own format: not a word of the program.
    """

    text: str
    rank: int | None = None
    world_size: int | None = None
    pid: int | None = None
    label: str = ""
    local_rank: int | None = None
    day: int | None = None
    clock_s: float | None = None
    elapsed_s: float | None = None
    indented: bool = False
    library: bool = False


def read_line(raw: str) -> Line:
    """Take the marks from a line; of one that a progress bar wrote again and again, its newest."""
    line = _COLOURS.sub("", raw) if "\x1b" in raw else raw
    marks: dict[str, re.Match[str]] = {}  # by the last group of each
    at = 0
    while (tag := _TAG.match(line, at)) and (at > 0 or tag["launcher"] or line[:2] != "  "):
        if tag.lastgroup == "second":
            marks.setdefault("second", tag)  # the first clock is the line's
        elif tag.lastgroup:
            marks["rank" if tag.lastgroup == "world" else tag.lastgroup] = tag
        at = tag.end()
    launcher = _DIGITS.findall(marks["launcher"][0])[-1:] if "launcher" in marks else []
    local = marks.get("local_rank")
    label = " ".join([*launcher, *([f"{local['local']}{local['local_rank']}"] if local else [])])
    rank = marks["rank"]["rank"] if "rank" in marks else label if label.isdecimal() else "?"
    world = marks["rank"]["world"] if "rank" in marks else None
    if "rank" not in marks and "rank" in line.lower():
        later = _RANK_LATER.search(line, at)
        if later and (later["tag"] or not label):
            rank = later["tag"] or later["field"] or later["word"]
            if not later["field"] and later.start() - at < NEAR_THE_HEAD:
                at = later.end()
    if ("orld" in line or "MEMBER" in line) and (told := _WORLD.search(line)):
        world = told[1]
    clock = marks.get("second")
    return Line(
        text=line[at:].rsplit("\r", 1)[-1].strip(),
        rank=_number(rank),
        world_size=_number(world),
        pid=int(marks["pid"]["pid"]) if "pid" in marks else None,
        label=label,
        local_rank=_number(local["local_rank"]) if local and not launcher else None,
        day=_day(clock["date"]) if clock else None,
        clock_s=int(clock["hour"]) * 3600
        + int(clock["minute"]) * 60
        + float(clock["second"].replace(",", "."))
        if clock
        else None,
        elapsed_s=float(marks["elapsed"]["elapsed"]) if "elapsed" in marks else None,
        indented=line[:at].endswith("  ") or line[at : at + 2] == "  ",
        library="library" in marks,
    )


def ending_in(line: str) -> str:
    """What a line of SLURM, the kernel, torch or the launcher means; empty for any other."""
    if not any(word in line for word in _WORDS_OF_ENDINGS):
        return ""
    found = _ENDINGS.search(line)
    return _MEANINGS[(found.lastindex or 1) - 1] if found else ""


def _number(text: str | None) -> int | None:
    return None if text in (None, "?") else int(text)


@lru_cache(maxsize=8)
def _day(text: str | None) -> int | None:
    """Number of a day, from ``2026-11-24``; None where there is no such day."""
    try:
        return date.fromisoformat(text).toordinal() if text else None
    except ValueError:
        return None
