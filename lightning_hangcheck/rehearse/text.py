"""What a rehearsal found, as plain text and as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.report.paragraphs import aligned, labelled
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.rehearse.runner import Played, Rehearsed, Result

SHOWN: dict[Result, str] = {
    "passed": "passed",
    "hung": "HUNG",
    "crashed-alike": "crashed alike",
    "crashed-on-one": "CRASHED",
    "unclear": "UNCLEAR",
    "skipped": "skipped",
}
SHORT = 88


def render(rehearsed: Rehearsed) -> str:
    """Write it all; each scene that hung gets a paragraph of its own."""
    lines = [_headline(rehearsed), "", *aligned(list(_rows(rehearsed)), (3,), -1)]
    for one in rehearsed.hung:
        lines += ["", *_paragraph(one)]
    if rehearsed.changed:
        lines += ["", *labelled("instead", "; ".join(rehearsed.changed), most=3)]
    return "\n".join(lines) + "\n"


def _headline(rehearsed: Rehearsed) -> str:
    played = [one for one in rehearsed.scenes if one.result != "skipped"]
    scenes = several(len(played), "scene")
    where = f"{several(rehearsed.ranks, 'CPU rank')}, {rehearsed.seconds:.0f} s"
    hung = rehearsed.hung
    if hung:
        return f"REHEARSAL  hangs in {len(hung)} of {scenes}: {hung[0].title} ({where})"
    return f"REHEARSAL  {scenes} played, none hangs ({where})"


def _rows(rehearsed: Rehearsed) -> Iterator[tuple[str, str, str, str]]:
    for one in rehearsed.scenes:
        seconds = f"{one.seconds:.1f} s" if one.seconds else ""
        yield one.title, SHOWN[one.result], seconds, _told(one)


def _told(one: Played) -> str:
    if one.result == "hung" and one.verdict is not None:
        phase = f"  phase {one.verdict.phase}" if one.verdict.phase else ""
        return f"{one.verdict.cause or ''}{phase}"
    return one.why if len(one.why) <= SHORT else f"{one.why[: SHORT - 3]}..."


def _paragraph(one: Played) -> Iterator[str]:
    """Three parts: where it hangs, what to do, where to read on."""
    yield f"      {one.title}"
    yield from labelled("where", one.why, most=4)
    known = [remedy.text for remedy in one.verdict.remedies] if one.verdict is not None else []
    # the scene is known to be the reason, whatever the same ranks would show for another one
    for remedy in list(filter(None, (one.remedy, *known)))[:1]:
        yield from labelled("do", remedy, most=3)
    yield from labelled("more", f"hangcheck report {shlex.quote(one.run_folder)}", most=1)


def to_json(rehearsed: Rehearsed) -> str:
    """Write one object: what was rehearsed, and each scene with the verdict of one that hung."""
    facts = {"schema_version": 1, **msgspec.to_builtins(rehearsed)}
    return msgspec.json.format(msgspec.json.encode(facts)).decode() + "\n"
