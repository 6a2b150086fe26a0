"""Reads logs of any launcher into facts: gigabytes in pieces, and no line is trusted.

Understood are one file a rank (the rank in its name), all ranks in one file, and the prefixes of
torch (``[rank3]:``), torchrun (``[default3]:``), ``srun --label`` (``3: ``), ``mpirun
--tag-output`` (``[1,3]<stderr>:``), ``kubectl logs --prefix`` (``[pod/...]``), Ray
(``(Actor pid=7)``) and hangcheck's own lines (``[R3/8]``), also several before one line. Lines may
be interleaved, of any length, and end in carriage returns as those of progress bars do.
"""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO

from msgspec.structs import replace

from lightning_hangcheck.model.log_facts import LastWord, LogFact, LogReading, seconds
from lightning_hangcheck.postmortem.hangcheck_lines import OWN_NEEDLES, OwnLines
from lightning_hangcheck.postmortem.log_words import (
    MOST_SHOWN,
    PARSERS,
    exit_entry,
    group_of,
    moment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE = 4 * 1024 * 1024
BLOCK = 64 * 1024
"""What follows a line and belongs to it, a traceback or a report, is read up to so many bytes."""
LONGEST_LINE = 8_000
MOST_RANKS = 100_000
MOST_OF_A_KIND = 2_000
"""Facts of a kind that are kept: of a log that is full of them the first tell most."""
ONE_A_RANK = frozenset({"timeout", "status", "dump_signal", "exit", "communicator"})
MOST_OF_RANKS = 20_000
"""Facts of those kinds of which each rank has some."""
MOST_BARS = 40

NEEDLES = re.compile(
    b"|".join(re.escape(one) for one in sorted([*PARSERS, *OWN_NEEDLES], key=len, reverse=True))
)

# Who writes a line

_PREFIX = re.compile(
    r"""\s*(?:
      \[rank(?P<rank>\d{1,7})\]:?
    | (?:\[(?:DEBUG|INFO|WARNING|ERROR|\+[\d.]+s
          |(?:\d{4}-\d\d-\d\d[T\ ])?\d\d:\d\d:\d\d(?:[.,]\d+)?)\][ \t]*){0,4}
      \[(?:R(?:ank\ )?(?P<own>\d{1,7}|\?)/(?P<world>\d{1,7}|\?)|rank\ (?P<named>\d{1,7}))\]
      [ \t]*(?:\[LR[\d?]+\])?[ \t]*(?:\[PID:(?P<pid>\d{1,9})\])?
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
    rb"\[\d{1,9}\])){0,6}?[^\S\n]*"
    rb"(\[rank\d{1,7}\]|\[[A-Za-z_]{2,30}\d{1,5}\]:|"
    rb"\[\d{1,5},\d{1,7}\]<std|\d{1,7}: |\([^)\n]{0,60}rank=\d{1,7})"
)
_BAR = re.compile(
    r"\d%\|[^|\n]{0,400}\|\s*(\d{1,15}(?:\.\d{1,9})?)([kMG]?)/(\d{1,15}(?:\.\d{1,9})?)([kMG]?)"
    r" \[(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})<"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TAG = re.compile(r"\[rank(\d{1,7})\]:")
_BEGINS_PREFIX = b" [(0123456789"
_AFTERMATH = re.compile(rb"ProcessGroup\w+\.cpp|frame #|^terminate called|^\s*what\(\):")
"""What torch prints while a process goes down is no last word of the user's program."""
_RANK_INSIDE = re.compile(
    r"^(?:\S{1,40} ){0,4}?[\[(<]?(?:global[_ ])?rank[ :=_]{0,2}(\d{1,7})\b", re.I
)
_RANK_OF_FILE = re.compile(
    r"(?:^|[^a-z])(?:global[-_]?)?(?:rank|task|proc)[-_. ]?(\d{1,7})(?!\d)", re.I
)


class Writer:
    """Whose a line is, by its prefixes: torch's own count most."""

    __slots__ = ("label", "own", "pid", "rank", "text", "world")

    def __init__(self, line: str, *, labelled: bool) -> None:
        self.rank: int | None = None
        self.label: int | None = None
        self.world = 0
        self.pid: int | None = None
        self.own = False  # whether it is marked as hangcheck marks lines
        at = 0
        for _ in range(6):
            found = _PREFIX.match(line, at)
            if found is None or (found["label"] and not labelled):
                break
            at = found.end()
            self.own |= bool(found["own"] or found["named"])
            told = found["rank"] or found["own"] or found["named"]
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
        self.own_lines = OwnLines()
        self.newest_own = 0
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
        for hit in NEEDLES.finditer(text, 0, min(len(text), end + LONGEST_LINE)):
            if hit.start() >= end:
                break
            line += raw.count(b"\n", at, hit.start())
            at = hit.start()
            self._hit(text, hit, line)
        self._bars(text, raw, end)
        self._last_words(text, raw, end)

    def _hit(self, text: bytes, hit: re.Match[bytes], line: int) -> None:
        if hit[0] in OWN_NEEDLES:
            self._own(text, hit.start(), line)
            return
        kind, parse = PARSERS[hit[0]]
        count = self.counts.get(kind, 0)
        if count >= (MOST_OF_RANKS if kind in ONE_A_RANK else MOST_OF_A_KIND):
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
        group, group_rank = group_of(said)
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
        if kind == "exit" and parse is exit_entry:
            fact = replace(fact, error=text[max(0, begin - 500) : begin].decode("utf-8", "replace"))
        found = parse(fact, said, lambda most: self._block(text, begin, writer, most))
        self.counts[kind] = count + 1
        self.facts += found

    def _own(self, text: bytes, at: int, line: int) -> None:
        if line == self.newest_own:
            return
        begin = max(text.rfind(b"\n", 0, at) + 1, at - BLOCK)
        end = text.find(b"\n", at)
        end = min(len(text) if end < 0 else end, begin + LONGEST_LINE)
        whole = _COLOURS.sub("", text[begin:end].decode("utf-8", "replace"))
        writer = Writer(whole, labelled=self.labelled)
        said = writer.text.strip()
        if not writer.own or not said:
            return
        self.newest_own = line
        rank = self._rank_of(writer) if writer.rank is not None else None
        self.own_lines.hear(
            LastWord(
                rank=rank, text=said[:MOST_SHOWN], file=self.path, line=line, when=moment(whole)
            ),
            writer.pid,
        )

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
            (
                number
                for number in range(len(lines) - 1, -1, -1)
                if lines[number].strip() and not _AFTERMATH.search(lines[number])
            ),
            None,
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
        bars = (one for pair in self.bars.values() for one in dict.fromkeys(pair))
        for word in self.own_lines.last_words():
            known_word = self.words.get(word.rank)
            if known_word is None or known_word.line <= word.line:
                self.words[word.rank] = word
        facts = sorted(
            [*self.facts, *bars],
            key=lambda fact: fact.line,
        )
        starts = [number for number, fact in enumerate(facts) if fact.kind == "restart"]
        kept = facts[starts[-1] + 1 :] if starts and starts[-1] + 1 < len(facts) else facts
        if self.contradicted:
            kept = [one if one.kind == "exit" else replace(one, rank=_own(one)) for one in kept]
        began = facts[starts[-1]].line if starts else 0
        kept += [one for one in self.own_lines.exceptions() if one.line > began]
        kept.sort(key=lambda fact: fact.line)
        words = tuple(one for one in self.words.values() if one.rank is not None)
        known = {one.rank for one in kept} | {one.rank for one in words}
        notes = ["long lines or repeated words were cut"] if self.cut else []
        return LogReading(
            file=self.path,
            size=size,
            lines=self.line,
            facts=tuple(kept),
            last_words=words or tuple(self.words.values()),
            trails=self.own_lines.trails(),
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
