"""Runs for the page's tests: made of the product's own structs, of any number of ranks."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

import msgspec
from cases import IN_ALL_REDUCE, IN_LOAD, job, look, rank, torch, with_threads

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import ThreadStack
from lightning_hangcheck.report.page import write_as
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.report.page import Form

VOID = {"meta", "br", "link", "input"}
ODD = 5


def alike(world_size: int) -> Case:
    """Rank 5 stands in its loading, all others wait for it at one line."""
    return job(*(rank(r, IN_LOAD if r == ODD else IN_ALL_REDUCE) for r in range(world_size)))


def deep(world_size: int) -> Case:
    """The same, with deep stacks of libraries, threads and workers, all of them different."""
    views = []
    for number in range(world_size):
        frames = tuple(torch(f"inner_{number}_{depth}", "nn/modules/m.py") for depth in range(50))
        others = [ThreadStack(tid=9000 + n, name=f"t{n}", frames=frames) for n in range(8)]
        workers = [look(frames, pid=5000 + n, role="worker", index=n) for n in range(4)]
        stack = (*frames, *(IN_LOAD if number == ODD else IN_ALL_REDUCE))
        views.append(with_threads(rank(number, stack), *others))
        processes = (*views[-1].processes, *workers)
        views[-1] = msgspec.structs.replace(views[-1], processes=processes)
    return job(*views)


def written(
    folder: Path, case: Case, verdict: Verdict | None = None, form: Form = "html", price: str = ""
) -> str:
    """Write a case in one of its forms; its folder may be empty."""
    return write_as(
        form, RunFolder(folder), verdict or judge(case), case, run_folder="run", price=price
    )


class ReadPage(HTMLParser):
    """Reads a page and notes what a browser would do with it.

    Attributes:
        open_elements: Elements that were opened and not closed.
        elements: Each element with its attributes.
        ids: All that can be linked to.
        text: All that is shown.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open_elements: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.elements.append((tag, named))
        if "id" in named:
            self.ids.append(named["id"])
        if tag not in VOID:
            self.open_elements.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open_elements.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open_elements, f"</{tag}> closes nothing"
        assert self.open_elements.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
