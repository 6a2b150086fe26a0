"""Whose evidence it is: host, process, command, start and rank, said with each block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.report.page.page_facts import is_moment

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.report.page.page_facts import PageFacts


class Identity(Struct, frozen=True, kw_only=True):
    """A rank's process; what is not known of it is empty."""

    rank: int
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    command: str = ""
    started_at: str = ""
    state: str = ""
    phase: str = ""
    step: int | None = None
    checkpoint: str = ""
    sections: tuple[str, ...] = ()


def identities(facts: PageFacts) -> dict[int, Identity]:
    """Return who each rank is that the page tells of by itself."""
    states = {state.rank: state for state in facts.verdict.ranks}
    views = views_of(facts)
    found = {}
    for rank in facts.shown:
        state = states.get(rank)
        view = views.get(rank)
        command, started = _start(facts, rank)
        mark = state.last_checkpoint if state is not None else None
        found[rank] = Identity(
            rank=rank,
            local_rank=state.local_rank if state is not None else None,
            host=(state.host if state is not None else "") or (view.host if view else ""),
            pid=state.pid if state is not None else None,
            command=command or facts.verdict.command,
            started_at=started,
            state=state.state if state is not None else "",
            phase=(state.phase or "") if state is not None else "",
            step=state.step if state is not None else None,
            checkpoint=f"{mark.number} {mark.name}" if mark is not None else "",
            sections=state.open_sections if state is not None else (),
        )
    return found


def views_of(facts: PageFacts) -> dict[int, RankView]:
    """Return the case's view of each rank; the first one of a rank that was seen twice."""
    views: dict[int, RankView] = {}
    for view in facts.case.ranks if facts.case is not None else ():
        views.setdefault(view.rank, view)
    return views


def _start(facts: PageFacts, rank: int) -> tuple[str, str]:
    """The command and the moment of its last start, by its journal."""
    starts = [entry for entry in facts.journals.get(rank, ()) if entry.get("kind") == "start"]
    if not starts:
        return "", ""
    at = str(starts[-1].get("at", ""))
    return str(starts[-1].get("command", "")), at if is_moment(at) else ""
