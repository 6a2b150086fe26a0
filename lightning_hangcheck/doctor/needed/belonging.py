"""Do the files that a run needs belong together? By what the ledger knows of who made them."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.earlier_work import read_ledger
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.ledger.book import difference, fingerprint
from lightning_hangcheck.ledger.story import tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.doctor.subject import Subject
    from lightning_hangcheck.ledger.story import PhaseStory, Story

NAME = "files belong together"
LOOK_LIMIT_S = 20.0
"""For fingerprints of all of them: of each at most 64 MiB are read."""


def files_belong_together(subject: Subject) -> tuple[Check, ...]:
    """Compare what ``--needs`` names with how phases of the ledger left it, and from what.

    Args:
        subject: The run; where no phase made what it needs, nothing is asked.
    """
    if not subject.needs:
        return ()
    story = tell(read_ledger(subject))
    made = {path: phase for path in subject.needs if (phase := _maker(story, path)) is not None}
    if not made:
        return ()
    try:
        found = apart(LOOK_LIMIT_S, lambda: list(_problems(made)))
    except (OSError, NoAnswerFromStorage) as error:
        return (Check(NAME, "warning", f"they cannot be compared: {error}", "ls -l"),)
    told = ", ".join(f"{path} by phase {phase.name}" for path, phase in made.items())
    return tuple(
        Check(NAME, "warning", problem, f"hangcheck ledger check {quote(phase)}")
        for problem, phase in found
    ) or (Check(NAME, "ok", f"as they were made: {told}"),)


def _maker(story: Story, path: str) -> PhaseStory | None:
    """The newest phase that made the file, and whose work counts."""
    whole = _absolute(path)
    makers = (one for one in reversed(story.phases) if one.counts)
    return next((one for one in makers if whole in {made.path for made in one.outputs}), None)


def _problems(made: Mapping[str, PhaseStory]) -> Iterator[tuple[str, str]]:
    """Each in one sentence, with the phase to look at."""
    for path, phase in made.items():
        whole = _absolute(path)
        (left,) = (one for one in phase.outputs if one.path == whole)
        changed = difference(left, fingerprint(whole))
        if changed:
            yield f"{changed}, since phase {phase.name} made it", phase.name
    yield from _of_other_inputs(made)
    for path, phase in made.items():
        for used in phase.inputs:
            changed = difference(used, fingerprint(used.path))
            if changed:
                yield f"{path} was made from another version: {changed}", phase.name


def _of_other_inputs(made: Mapping[str, PhaseStory]) -> Iterator[tuple[str, str]]:
    """Two files that were made from the same file, which was another one each time."""
    first: dict[str, tuple[str, str]] = {}
    for path, phase in made.items():
        for used in phase.inputs:
            other, digest = first.setdefault(used.path, (path, used.digest))
            if digest != used.digest:
                yield f"{other} and {path} were made from two versions of {used.path}", phase.name


def _absolute(path: str) -> str:
    return str(Path(path).absolute())
