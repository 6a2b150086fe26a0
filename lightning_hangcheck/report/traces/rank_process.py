"""One rank as a process of a trace: its threads are kinds of events, and rows of sections."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from lightning_hangcheck.report.page.rank_history import longest_first
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.traces.trace_events import TraceEvent, microseconds
from lightning_hangcheck.text.redaction import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from lightning_hangcheck.report.page.rank_history import EnteredCollective, RankHistory, Span

THREADS = 64
"""Of a rank at most. Ids of threads are unique in the whole file so: Perfetto looks for one in all
processes. Process 0 is the kernel's idle task there, so ranks begin behind it."""
MOST_ROWS = 8
MOST_GROUPS = 12
LONGEST_NAME = 300
STALL = "no progress"


@lru_cache(maxsize=8192)
def shown(text: str) -> str:
    """Make a foreign text harmless, and short; what looks like a secret is hidden once more."""
    return redact_text(plain(text))[:LONGEST_NAME]


class RankProcess:
    """Collects the events of one rank.

    Attributes:
        events: So far.
    """

    def __init__(self, rank: int) -> None:
        self.pid = (rank + 1) * THREADS
        self.events: list[TraceEvent] = []
        self._threads: dict[str, int] = {}
        self._name("process_name", self.pid, name=f"rank {rank}")
        self._name("process_sort_index", self.pid, sort_index=rank)

    def label(self, text: str) -> None:
        """Write a text beside the process's name."""
        self._name("process_labels", self.pid, labels=shown(text))

    def thread(self, name: str) -> int:
        """Return the thread of that name; beyond what there is room for, the last one."""
        if name not in self._threads and len(self._threads) < THREADS - 1:
            tid = self.pid + len(self._threads) + 1
            self._threads[name] = tid
            self._name("thread_name", tid, name=shown(name))
            self._name("thread_sort_index", tid, sort_index=tid)
        return self._threads.get(name, self.pid + THREADS - 1)

    def lasts(
        self,
        thread: str,
        name: str,
        began: datetime,
        ended: datetime,
        **args: str | float,
    ) -> None:
        """Add what lasts from one moment to another."""
        ts = microseconds(began)
        self.events.append(
            TraceEvent(
                name=shown(name),
                ph="X",
                pid=self.pid,
                tid=self.thread(thread),
                ts=ts,
                dur=max(0, microseconds(ended) - ts),
                cat=thread.partition(" ")[0],
                args={
                    key: shown(arg) if isinstance(arg, str) else arg for key, arg in args.items()
                },
            )
        )

    def happens(self, thread: str, name: str, at: datetime) -> None:
        """Add what happens at a moment."""
        self.events.append(
            TraceEvent(
                name=shown(name),
                ph="i",
                pid=self.pid,
                tid=self.thread(thread),
                ts=microseconds(at),
                s="t",
                cat=thread.partition(" ")[0],
            )
        )

    def tell(self, history: RankHistory, most: int) -> None:
        """Add what a rank's history has, but for the stall.

        Args:
            history: Of this rank.
            most: Events at most of each kind.
        """
        sections = [span for span in history.spans if span.kind in ("section", "open")]
        steps = [span for span in history.spans if span.kind == "steps"]
        for one in history.happenings[-most:]:
            self.happens("checkpoints", one.name, one.at)
        for number, row in enumerate(nested_rows(longest_first(sections)[:most])):
            for span in row:
                name = f"{span.name}, not left" if span.kind == "open" else span.name
                self.lasts(
                    f"sections{f' {number + 1}' if number else ''}", name, span.began, span.ended
                )
        for span in steps[-most:]:
            each = round(span.seconds / span.steps, 6)
            self.lasts("steps", span.name, span.began, span.ended, seconds_each=each)

    def tell_collectives(
        self,
        entered: Sequence[EnteredCollective],
        missed: Iterable[EnteredCollective],
        end: datetime,
    ) -> None:
        """Add the collectives of each group; what others entered and this rank did not, is a hole.

        When one ended is in no record: one that did is a moment.

        Args:
            entered: By this rank.
            missed: The first of each group that it has not entered, and when others did.
            end: The moment of the verdict.
        """
        groups = list(dict.fromkeys(one.group for one in (*entered, *missed)))[:MOST_GROUPS]
        for one in entered:
            thread, name = f"collectives of {one.group}", f"#{one.number} {one.operation}"
            if one.group in groups and one.ended:
                self.happens(thread, name, one.at)
            elif one.group in groups:
                self.lasts(thread, f"{name}, not ended", one.at, end, number=one.number)
        for one in missed:
            if one.group in groups:
                name = f"#{one.number} {one.operation}, not entered"
                self.lasts(f"collectives of {one.group}", name, one.at, end, number=one.number)

    def _name(self, what: str, tid: int, **args: str | int) -> None:
        self.events.append(TraceEvent(name=what, ph="M", pid=self.pid, tid=tid, args=dict(args)))


def nested_rows(spans: Iterable[Span]) -> list[list[Span]]:
    """Divide spans into rows in which each two are apart, or one lies in the other.

    Sections of several threads may overlap otherwise, and a thread of a trace cannot show that.
    Spans for which no row is left are left out.
    """
    rows: list[list[Span]] = []
    around: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.began, -span.seconds)):
        for row, outer in zip(rows, around, strict=True):
            while outer and outer[-1].ended <= span.began:
                outer.pop()
            if not outer or span.ended <= outer[-1].ended:
                row.append(span)
                outer.append(span)
                break
        else:
            if len(rows) < MOST_ROWS:
                rows.append([span])
                around.append([span])
    return rows
