"""Reads logs of any launcher into facts: reads gigabytes in pieces, and trusts no line.

Supported are one file per rank (the rank in its name), all ranks in one file, and the prefixes of
torch (``[rank3]:``), torchrun (``[default3]:``), ``srun --label`` (``3: ``),
``mpirun --tag-output`` (``[1,3]<stderr>:``), ``kubectl logs --prefix`` (``[pod/...]``), Ray
(``(Actor pid=7)``), Determined (``[rank=3] ||``) and hangcheck's own lines (``[R3/8]``). A line may
have several prefixes. Lines may be interleaved, of any length, and end in carriage returns, as in
progress bars.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from itertools import accumulate, pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO

from msgspec.structs import replace

from lightning_hangcheck.model.left_behind import (
    FactKind,
    LogFact,
    LogReading,
    Section,
    Trail,
    elapsed,
)
from lightning_hangcheck.postmortem.log_words import (
    MOST_SHOWN,
    PARSERS,
    Around,
    group_of,
    moment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE = 4 * 1024 * 1024
BLOCK = 64 * 1024
"""Bytes that are read, at most, of what follows a line and belongs to it: a traceback, a report."""
LONGEST_LINE = 8_000
MOST_RANKS = 100_000
MOST_OF_A_KIND = 2_000
"""Facts that are kept of one kind; in a log full of them the first say the most."""
ONE_A_RANK = frozenset({"timeout", "status", "dump_signal", "exit", "communicator", "process"})
MOST_OF_RANKS = 20_000
"""Facts that are kept of the kinds of which each rank has some, and lines read for one needle."""
MOST_BELOW = 400_000
"""Lines that are read after other lines, in total: ranks may write between each other's lines."""
MOST_BARS = 40
MOST_SECTIONS = 64
"""Per rank: open sections, and names of sections that returned."""
MOST_FOLLOWED = 20_000
"""Ranks whose hangcheck lines are followed."""
OWN_NEEDLES = (b"[R", b"[rank ")
"""Each hangcheck line that names its rank contains one of these."""

NEEDLES = re.compile(
    b"|".join(
        re.escape(parser) for parser in sorted([*PARSERS, *OWN_NEEDLES], key=len, reverse=True)
    )
)

# Who wrote a line

_PREFIX = re.compile(
    r"""\s*(?:
      \[rank(?P<rank>\d{1,7})\]:?
    | (?:\[(?:DEBUG|INFO|WARNING|ERROR|\+[\d.]+s
          |(?:\d{4}-\d\d-\d\d[T\ ])?\d\d:\d\d:\d\d(?:[.,]\d+)?)\][ \t]*){0,4}
      \[(?:R(?:ank\ )?(?P<own>\d{1,7}|\?)/(?P<world>\d{1,7}|\?)|rank\ (?P<named>\d{1,7}))\]
      [ \t]*(?:\[LR[\d?]+\])?[ \t]*(?:\[PID:(?P<pid>\d{1,9})\])?
    | \[(?!rank)[A-Za-z_]{2,30}(?P<local>\d{1,5})\]:
    | \[\d{1,5},(?:mpirank:)?(?P<mpi>\d{1,7})(?:,[\w-]{1,40})?\]<std(?:out|err)>:
    | (?P<label>\d{1,7}):(?=\s)
    | \[pod/[^\]\n]{1,200}\]
    | \([^()\n]{0,60}?(?:\[?rank=(?P<actor>\d{1,7})\]?,?\ )?pid=\d+[^)\n]{0,80}\)
    | \d{4}-\d\d-\d\dT[\d:.]+Z
    | (?:\S{1,60}\ ){0,3}?\[rank=(?P<bars>\d{1,7})\]\ \|\|
    | (?P<any>.{1,160}?(?=\[rank\d{1,7}\]:))
    )[ \t]?""",
    re.VERBOSE,
)
_QUICK = re.compile(
    rb"(?:[^\S\n]*(?:\[pod/[^\]\n]{1,200}\]|\d{1,7}:|\([^)\n]{1,140}\)|\d{4}-\d\d-\d\dT[\d:.]+Z|"
    rb"\[\d{1,9}\])){0,6}?[^\S\n]*"
    rb"(\[rank\d{1,7}\]|\[[A-Za-z_]{2,30}\d{1,5}\]:|"
    rb"\[\d{1,5},(?:mpirank:)?\d{1,7}[^\]\n]{0,40}\]<std|\d{1,7}: |\([^)\n]{0,60}rank=\d{1,7})"
)
_BAR = re.compile(
    r"\d%\|[^|\n]{0,400}\|\s*(\d{1,15}(?:\.\d{1,9})?)([kMG]?)/(\d{1,15}(?:\.\d{1,9})?)([kMG]?)"
    r" \[(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})<"
)
_CHECKPOINT = re.compile(r"CHECKPOINT (\d{1,9}): (.*)")
_SECTION = re.compile(
    r"About to call (?P<begun>.*)\.\.\.$"
    r"|(?P<returned>.*) returned \(\d+\.\d{1,3}s\)$"
    r"|(?P<raised>.{1,400}?) raised (?P<error>.*) \(\d+\.\d{1,3}s\)$"
)
_TELLING = re.compile(rb"CHECKPOINT |About to call | returned \(| raised ")
_STEP_IN = re.compile(rb"step|batch", re.IGNORECASE)
_STEP = re.compile(r"(?:step|batch)[ =]{1,3}(\d{1,9})\b", re.IGNORECASE)
_ASKED_TO_END = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|SignalException)\b")
_PLAIN = bytes(10 if byte == 13 else 32 if byte == 0 else byte for byte in range(256))
_UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TAG = re.compile(r"\[rank(\d{1,7})\]:")
_BEGINS_PREFIX = b" [(0123456789"
_AFTERMATH = re.compile(rb"ProcessGroup\w+\.cpp|frame #|^terminate called|^\s*what\(\):")
"""What torch prints while a process ends is not the last line of the user's program."""
_RANK_INSIDE = re.compile(
    r"^(?:\S{1,40} ){0,4}?[\[(<]?(?:global[_ ])?rank[ :=_]{0,2}(\d{1,7})\b", re.I
)
_RANK_FIRST = re.compile(
    rb"\s*(?:[\dA-Z\[(]\S{0,39} ){0,4}?[\[(<]?(?i:rank)[ :=_]{0,2}(\d{1,7})\s?[]:|,)>-]"
)
"""How many scripts mark their lines: ``rank 3: ...``, after at most a time or a level."""
_RANK_OF_FILE = re.compile(
    r"(?:^|[^a-z])(?:global[-_]?)?(?:rank|task|proc)[-_. ]?(\d{1,7})(?!\d)", re.I
)


def rank_of_name(path: str | PurePath) -> int | None:
    """Return the rank in the name of a file or of its folder; None if neither has one."""
    found = map(_RANK_OF_FILE.search, reversed(PurePath(path).parts[-2:]))
    return next((int(match[1]) for match in found if match is not None), None)


class Writer:
    """Who wrote a line, by its prefixes: torch's own prefixes count most."""

    __slots__ = ("label", "own", "pid", "rank", "text", "world")

    def __init__(self, line: str, *, labelled: bool, before: int = LONGEST_LINE) -> None:
        self.rank: int | None = None
        self.label: int | None = None
        self.world = 0
        self.pid: int | None = None
        self.own = False  # whether it has hangcheck's own prefix
        at = 0
        for _ in range(6):
            found = _PREFIX.match(line, at, before)
            if found is None or (found["label"] and not labelled):
                break
            if found["any"] and self.rank is not None:
                break  # the text after a rank may quote another rank
            at = found.end()
            self.own |= bool(found["own"] or found["named"])
            name = found["rank"] or found["own"] or found["named"] or found["bars"]
            if name and name.isdigit():
                self.rank = int(name)
            for weak in ("local", "mpi", "label", "actor"):
                if found[weak]:
                    self.label = int(found[weak])
            if found["world"] and found["world"].isdigit():
                self.world = int(found["world"])
            if found["pid"]:
                self.pid = int(found["pid"])
        self.text = line[at:]


# The reader


def read_log(path: str | PurePath, file: BinaryIO, begun: bytes = b"") -> LogReading:
    """Read a log from beginning to end; memory stays below 100 MB whatever the log holds.

    Args:
        path: Its name, for quotes and for a rank in the name; the path is not opened.
        file: The log, open for reading bytes; if compressed, the opened stream of its text.
        begun: Bytes that were already read.

    Raises:
        OSError, EOFError, zlib.error: The file or its compression is broken.
    """
    return _Reader(str(path)).read(file, begun)


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.rank = rank_of_name(path)
        self.facts: list[LogFact] = []
        self.words: dict[int | None, LogFact] = {}
        self.trails: dict[int | str, Trail] = {}
        self.labelled = False
        self.tagged: set[int] = set()
        self.looked_at: Counter[bytes] = Counter()
        self.kept: Counter[str] = Counter()
        self.saves: deque[LogFact] = deque(maxlen=MOST_OF_A_KIND)  # the newest say the most
        self.bars: dict[tuple[int | None, int], tuple[LogFact, LogFact]] = {}
        self.by_label: dict[int, int] = {}
        self.contradicted = False
        self.world = 0
        self.line = 1
        self.lines_left = MOST_BELOW

    def read(self, file: BinaryIO, carry: bytes) -> LogReading:
        while True:
            data = file.read(PIECE)
            raw = carry + data
            end = len(raw) if not data else raw.rfind(b"\n", 0, max(0, len(raw) - BLOCK)) + 1
            if data and end == 0 and len(raw) > PIECE:
                end = len(raw)  # a line without an end is read in pieces
            if self.line == 1:  # ``3: `` is a label if nearly all lines have one
                lines = [word for word in raw[:BLOCK].split(b"\n")[:200] if word.strip()]
                labels = sum(bool(re.match(rb"\s*\d{1,7}: ", line)) for line in lines)
                self.labelled = len(lines) > 1 and labels >= 0.8 * len(lines)
            if end:
                self._piece(raw, end)
                self.line += raw.count(b"\n", 0, end)
            carry = raw[end:]
            if not data:
                return self._result()

    def _piece(self, raw: bytes, end: int) -> None:
        text = raw.translate(_PLAIN)
        at, line, newest_own = 0, self.line, 0
        plain: dict[bytes, dict[bool, tuple[int, int]]] = defaultdict(dict)
        for hit in NEEDLES.finditer(text, 0, min(len(text), end + LONGEST_LINE)):
            if hit.start() >= end:
                break
            line += raw.count(b"\n", at, hit.start())
            at = hit.start()
            if hit[0] not in OWN_NEEDLES:
                self._hit(text, hit, line)
            elif line != newest_own:
                stop = text.find(b"\n", at, at + LONGEST_LINE)
                tag, _, rest = text[at : stop if stop > 0 else at + LONGEST_LINE].partition(b"]")
                if b"?" not in tag and not _TELLING.search(rest):  # only the newest counts
                    plain[tag][_STEP_IN.search(rest) is not None] = at, line
                    continue
                for spot in sorted(plain.pop(tag, {}).values()):
                    self._own(text, *spot)
                if self._own(text, at, line):
                    newest_own = line
        for spot in sorted({spot for spots in plain.values() for spot in spots.values()}):
            self._own(text, *spot)
        self._bars(text, raw, end)
        self._last_words(text, raw, end)

    def _hit(self, text: bytes, hit: re.Match[bytes], line: int) -> None:
        kind, parse = PARSERS[hit[0]]
        most = MOST_OF_RANKS if kind in ONE_A_RANK else MOST_OF_A_KIND
        full = kind != "saving" and self.kept[kind] >= most
        if full or self.looked_at[hit[0]] >= MOST_OF_RANKS:
            return
        self.looked_at[hit[0]] += 1
        begin, whole = _line_at(text, hit.start())
        writer = Writer(whole, labelled=self.labelled)
        if inside := _TAG.findall(whole, 0, hit.start() - begin):
            writer.rank = int(inside[-1])  # after what others wrote on the same line
        # in a repeated message the last tag is the time-out's
        group, group_rank = group_of(writer.text)
        fact = self._fact(kind, writer, line, whole)
        fact = replace(fact, group=group, group_rank=group_rank, pid=writer.pid)

        # a prefix of a traceback is before each of its lines, whoever added it
        mark = text[begin : hit.start()]
        first = b"\n" + mark + b"  File "
        marked = bool(mark) and text.find(first, hit.end(), hit.end() + LONGEST_LINE) >= 0

        def below(most: int) -> list[str]:
            found: list[str] = []
            at, stop = begin, min(len(text), begin + BLOCK)
            while at < stop and len(found) < most and self.lines_left > 0:
                self.lines_left -= 1
                end = text.find(b"\n", at, stop)
                end = stop if end < 0 else end
                raw = text[at : min(end, at + LONGEST_LINE)]
                if marked and raw.startswith(mark):
                    found.append(raw[len(mark) :].decode("utf-8", "replace"))
                elif not marked:
                    other = Writer(raw.decode("utf-8", "replace"), labelled=self.labelled)
                    if (other.rank, other.label) in ((writer.rank, writer.label), (None, None)):
                        found.append(other.text)
                at = end + 1
            return found

        above = text[max(0, begin - 500) : begin].decode("utf-8", "replace")
        found = parse(fact, writer.text.strip(), Around(below, above))
        self.kept[kind] += bool(found)
        (self.saves if kind == "saving" else self.facts).extend(found)

    def _fact(self, kind: FactKind, writer: Writer, line: int, whole: str) -> LogFact:
        """Make the fact of a line, with the rank that its prefixes name."""
        if writer.world:
            self.world = max(self.world, writer.world)
        rank = writer.rank
        if rank is not None:
            self.contradicted |= writer.label not in (None, rank)
        else:
            rank = writer.label if writer.label is not None else self.rank
            if writer.label is not None:
                self.by_label[line] = writer.label
        text = writer.text.strip()[:MOST_SHOWN]
        when = moment(whole)
        return LogFact(kind=kind, text=text, file=self.path, line=line, rank=rank, when=when)

    def _own(self, text: bytes, at: int, line: int) -> bool:
        """Follow hangcheck's own lines: where each rank was last, and what it raised there.

        A line of another process of the same rank starts a new trail: the job was restarted. A rank
        that continues after an exception has handled it.
        """
        whole = _COLOURS.sub("", _line_at(text, at)[1])
        writer = Writer(whole, labelled=self.labelled)
        if not writer.own or not writer.text.strip():
            return False
        word = self._fact("last", writer, line, whole)
        early = f"process {writer.pid}"
        key: int | str = early
        if writer.rank is not None:
            key = writer.rank
            self._keep(word)
            if early in self.trails:  # the process did not know its rank yet
                self.trails[key] = self.trails.pop(early)
        trail = self.trails.get(key)
        if trail is None or (trail.pid != writer.pid and None not in (trail.pid, writer.pid)):
            if trail is None and len(self.trails) >= MOST_FOLLOWED:
                return True
            trail = self.trails[key] = Trail(rank=-1, pid=writer.pid)
        trail.rank, trail.when = -1 if writer.rank is None else writer.rank, word.when
        section = _SECTION.match(word.text)
        if passed := _CHECKPOINT.match(word.text):
            trail.checkpoint, trail.passed = int(passed[1]), passed[2]
        elif section is not None:
            _pass_section(trail, section, word)
        elif step := _STEP.match(word.text):
            trail.step = int(step[1])
        else:
            return True
        if not (section and section["raised"]):  # the rank continued
            trail.raised = None
        return True

    def _bars(self, text: bytes, raw: bytes, end: int) -> None:
        """Keep the first and the newest state of each progress bar."""
        first, at = text.find(b"%|", 0, end), end
        spots: list[int] = []
        while first >= 0 and len(spots) < MOST_BARS and (at := text.rfind(b"%|", 0, at)) >= first:
            spots.append(at)
        line, counted = self.line, 0
        for spot in sorted({first, *spots} - {-1}):
            begin, whole = _line_at(text, spot, 400)
            writer = Writer(whole, labelled=self.labelled, before=spot - begin)
            line, counted = line + raw.count(b"\n", counted, spot), spot
            bar = _BAR.search(writer.text)
            if bar is None:
                continue
            done, total = (int(float(bar[i]) * _UNITS[bar[i + 1]]) for i in (1, 3))
            ran_s = int(bar[5] or 0) * 3600 + int(bar[6]) * 60 + int(bar[7])
            fact = self._fact("bar", writer, line, whole[: spot - begin])
            fact = replace(fact, seq=done, count=total, ran_ms=ran_s * 1000)
            earliest = self.bars.get((fact.rank, total), (fact, fact))[0]
            if len(self.bars) < MOST_OF_A_KIND:
                self.bars[fact.rank, total] = (earliest, fact)

    def _last_words(self, text: bytes, raw: bytes, end: int) -> None:
        lines = text[:end].split(b"\n")
        newest: dict[bytes, int] = {}
        match, first = _QUICK.match, _RANK_FIRST.match
        for number, line in enumerate(lines):
            if not line:
                continue
            if line[:1] in _BEGINS_PREFIX and (found := match(line)):
                if b"ProcessGroup" not in line and b"frame #" not in line:
                    newest[found[1]] = number
                elif tagged := _TAG.match(found[1].decode() + ":"):
                    self.tagged.add(int(tagged[1]))
            elif (
                (b"ank" in line[:80] or b"ANK" in line[:80])
                and (found := first(line))
                and b"ProcessGroup" not in line
            ):
                newest[b"rank " + found[1]] = number
        for number in range(len(lines) - 1, -1, -1):
            if lines[number].strip() and not _AFTERMATH.search(lines[number]):
                newest[b""] = number
                break
        returns = list(accumulate(map(len, lines), initial=0)) if b"\r" in raw else []
        counted = passed = 0
        for number in sorted(set(newest.values())):
            whole = lines[number][:LONGEST_LINE].decode("utf-8", "replace")
            at = self.line + number
            if returns:  # an editor counts no carriage returns
                passed += raw.count(b"\r", counted, returns[number] + number)
                counted = returns[number] + number
                at -= passed
            writer = Writer(whole, labelled=self.labelled)
            word = self._fact("last", writer, at, whole)
            if word.rank is None and (inside := _RANK_INSIDE.match(writer.text)):
                word = replace(word, rank=int(inside[1]))
            self._keep(word)

    def _keep(self, word: LogFact) -> None:
        """Keep a rank's last line, unless a later one is known."""
        known = self.words.get(word.rank)
        if (known is None or known.line < word.line) and len(self.words) < MOST_RANKS:
            self.words[word.rank] = word

    def _result(self) -> LogReading:
        bars = (fact for pair in self.bars.values() for fact in dict.fromkeys(pair))
        facts = sorted([*self.facts, *self.saves, *bars], key=lambda fact: fact.line)
        start = _last_restart(facts)
        kept = facts[start + 1 :] or facts
        words = [fact for fact in self.words.values() if fact.rank is not None]
        if self.contradicted:  # labels are not ranks: torch's tags count

            def labelled(fact: LogFact) -> bool:
                return fact.rank is not None and self.by_label.get(fact.line) == fact.rank

            kept = [
                replace(fact, rank=fact.group_rank if fact.group == "default" else None)
                if labelled(fact)
                else fact
                for fact in kept
            ]
            words = [word for word in words if not labelled(word)]
        began = facts[start].line if start >= 0 else 0
        raised = (trail.raised for trail in self.trails.values())
        kept += [fact for fact in raised if fact is not None and fact.line > began]
        kept.sort(key=lambda fact: fact.line)
        ranks = {fact.rank for fact in (*kept, *words) if fact.rank is not None} | self.tagged
        return LogReading(
            file=self.path,
            facts=tuple(kept),
            last_words=tuple(words or self.words.values()),
            trails=tuple(trail for trail in self.trails.values() if trail.rank >= 0),
            ranks=tuple(sorted(ranks)),
            world_size=self.world,
            clock_went_back=_goes_back(  # a summary tells when ranks ended before it
                [fact.when for fact in kept if fact.when and fact.kind != "exit"]
            ),
        )


def _last_restart(facts: Sequence[LogFact]) -> int:
    """Return the index of the fact before the last round of the job; -1 if there is only one round.

    A launcher reports a restart. Or torchrun reported more failures, one at once in each round,
    than summaries, one at its end. Launchers of several nodes may have the same number in a log.
    """
    reported: dict[int, list[int]] = defaultdict(list)
    for at, fact in enumerate(facts):
        if fact.kind == "exit" and fact.seq is not None:
            reported[fact.seq].append(at)
    summaries = sum(fact.kind == "summary" for fact in facts)
    ends = max(1, summaries // max(1, len(reported)))
    starts = [failures[-ends - 1] for failures in reported.values() if len(failures) > ends]
    starts += [at for at, fact in enumerate(facts) if fact.kind == "restart"]
    return max(starts, default=-1)


def _line_at(text: bytes, at: int, before: int = LONGEST_LINE) -> tuple[int, str]:
    """Return start and text of the line around a position; of a long line only the near part."""
    begin = max(text.rfind(b"\n", 0, at) + 1, at - before)
    end = text.find(b"\n", at, at + LONGEST_LINE)
    stop = min(len(text), at + LONGEST_LINE) if end < 0 else end
    return begin, text[begin:stop].decode("utf-8", "replace")


def _pass_section(trail: Trail, said: re.Match[str], word: LogFact) -> None:
    name = said["begun"] or said["returned"] or said["raised"]
    earlier = next((section for section in trail.returned if section.name == name), None)
    this = Section(name, 1 + (earlier.times if earlier else 0), word.line)
    if said["begun"]:
        if len(trail.inside) < MOST_SECTIONS:
            trail.inside.append(this)
        return
    if inside := [section for section in trail.inside if section.name == name]:
        trail.inside.remove(inside[-1])
    if said["returned"]:
        others = [section for section in trail.returned if section.name != name]
        trail.returned = [*others[-MOST_SECTIONS + 1 :], this]
    elif trail.raised is None and not _ASKED_TO_END.match(said["error"]):
        trail.raised = replace(word, kind="exception", error=said["error"][:MOST_SHOWN])


def _goes_back(times: Sequence[str]) -> bool:
    """Whether times of one form fall by more than a minute; a new day does not count."""
    return any(len(a) == len(b) and b < a and elapsed(a, b) < -60 for a, b in pairwise(times))
