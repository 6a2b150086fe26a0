"""The three pictures that a distributed job shows that does not start, told from a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hangcheck.model.naming.slugs import Phase
    from lightning_hangcheck.model.verdict import RankState, Verdict

AT_TRAINER: frozenset[Phase] = frozenset({"trainer_init", "rendezvous"})


def name_picture(verdict: Verdict) -> str:
    """Name the picture and what it says; empty where it is none of the three.

    Args:
        verdict: On a job that hangs, or that is suspected of it.
    """
    phases = {state.phase for state in verdict.ranks}
    several = len(verdict.ranks) > 1
    if phases == {"logger_init"}:
        subject = "all ranks are" if several else "the process is"
        return f"at the logger: {subject} creating the experiment logger, and none came out of it"
    if phases and phases <= AT_TRAINER:
        subject = "all ranks are" if several else "the process is"
        return f"at the Trainer: {subject} in its constructor or in its first rendezvous"
    ahead = _one_ahead(verdict.ranks) if several else None
    if ahead is not None:
        return (
            f"one rank ahead: rank {ahead.rank} has come to {_name(ahead)}, and no other rank has"
        )
    return ""


def _one_ahead(states: tuple[RankState, ...]) -> RankState | None:
    """The only rank that has passed the last checkpoint or step that any rank has passed."""
    furthest = max(map(_reached, states))
    there = [state for state in states if _reached(state) == furthest]
    return there[0] if len(there) == 1 else None


def _reached(state: RankState) -> tuple[int, int]:
    mark = state.last_checkpoint
    return mark.number if mark is not None else 0, -1 if state.step is None else state.step


def _name(state: RankState) -> str:
    mark = state.last_checkpoint
    checkpoint = f"checkpoint {mark.number} {mark.name}" if mark is not None else ""
    return ", ".join(filter(None, (checkpoint, "" if state.step is None else f"step {state.step}")))
