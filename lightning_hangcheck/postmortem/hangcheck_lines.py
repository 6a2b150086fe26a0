"""Follows hangcheck's own console lines: where each rank was last, and what it raised there.

A line of another process of the same rank begins anew: the job was started again. A rank that goes
on after an exception has cured it.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from lightning_hangcheck.model.log_facts import LastWord, LogFact, Section, Trail
from lightning_hangcheck.postmortem.log_words import MOST_SHOWN

MOST_SECTIONS = 64
"""Of a rank: open ones, and names of those that returned."""
MOST_RANKS = 20_000
OWN_NEEDLES = (b"[R", b"[rank ")
"""In every line that names its rank as hangcheck's lines do."""
_CHECKPOINT = re.compile(r"CHECKPOINT (\d{1,9}): (.*)")
_SECTION = re.compile(
    r"About to call (?P<begun>.*)\.\.\.$"
    r"|(?P<returned>.*) returned \(\d+\.\d{1,3}s\)$"
    r"|(?P<raised>.{1,400}?) raised (?P<error>.*) \(\d+\.\d{1,3}s\)$"
)
_STEP = re.compile(r"(?:step|batch)[ =]{1,3}(\d{1,9})\b", re.IGNORECASE)
_ASKED_TO_END = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|SignalException)\b")


class _Followed(Struct, kw_only=True):
    pid: int | None
    word: LastWord
    checkpoint: int = 0
    passed: str = ""
    step: int | None = None
    inside: list[Section] = field(default_factory=list)
    returned: dict[str, Section] = field(default_factory=dict)
    raised: LogFact | None = None


class OwnLines:
    """All such lines of one file, in their order."""

    def __init__(self) -> None:
        self._known: dict[int | str, _Followed] = {}

    def hear(self, word: LastWord, pid: int | None) -> None:
        """Take a line; of a process that does not know its rank yet, ``word.rank`` is None."""
        key = f"process {pid}" if word.rank is None else word.rank
        if word.rank is not None and (early := self._known.pop(f"process {pid}", None)):
            self._known[word.rank] = early
        one = self._known.get(key)
        if one is None or (one.pid != pid and None not in (one.pid, pid)):
            if one is None and len(self._known) >= MOST_RANKS:
                return
            one = self._known[key] = _Followed(pid=pid, word=word)
        one.word = word
        if passed := _CHECKPOINT.match(word.text):
            one.checkpoint, one.passed = int(passed[1]), passed[2]
        elif section := _SECTION.match(word.text):
            _hear_section(one, section)
            if section["raised"]:
                return  # that is not to go on
        elif step := _STEP.match(word.text):
            one.step = int(step[1])
        else:
            return
        one.raised = None

    def trails(self) -> tuple[Trail, ...]:
        """Where each rank was last."""
        return tuple(
            Trail(
                rank=rank,
                file=one.word.file,
                line=one.word.line,
                when=one.word.when,
                checkpoint=one.checkpoint,
                passed=one.passed,
                step=one.step,
                inside=tuple(one.inside),
                returned=tuple(one.returned.values()),
            )
            for rank, one in self._known.items()
            if isinstance(rank, int)
        )

    def last_words(self) -> list[LastWord]:
        """The newest line of each rank."""
        return [one.word for rank, one in self._known.items() if isinstance(rank, int)]

    def exceptions(self) -> list[LogFact]:
        """What ranks raised and did not go on from, the first of each."""
        return [one.raised for one in self._known.values() if one.raised is not None]


def _hear_section(one: _Followed, said: re.Match[str]) -> None:
    word = one.word
    if said["begun"]:
        earlier = one.returned.get(said["begun"])
        if len(one.inside) < MOST_SECTIONS:
            times = 1 + (earlier.times if earlier else 0)
            one.inside.append(Section(said["begun"], times, word.line))
        return
    name = said["returned"] or said["raised"]
    for number in reversed(range(len(one.inside))):
        if one.inside[number].name == name:
            del one.inside[number]
            break
    if said["returned"]:
        earlier = one.returned.pop(name, None)
        if len(one.returned) >= MOST_SECTIONS:
            del one.returned[next(iter(one.returned))]
        one.returned[name] = Section(name, 1 + (earlier.times if earlier else 0), word.line)
    elif one.raised is None and not _ASKED_TO_END.match(said["error"]):
        error = said["error"][:MOST_SHOWN]
        one.raised = LogFact(
            kind="exception",
            text=word.text,
            file=word.file,
            line=word.line,
            rank=word.rank,
            op=error.partition(":")[0].rpartition(".")[2],
            error=error,
            when=word.when,
        )
