"""What a rehearsal found, as plain text and as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.report.paragraphs import aligned, labelled
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from lightning_hangcheck.rehearse.runner import Rehearsed, Result

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
    hung = rehearsed.hung
    scenes = several(sum(played.result != "skipped" for played in rehearsed.scenes), "scene")
    where = f"{several(rehearsed.ranks, 'CPU rank')}, {rehearsed.seconds:.0f} s"
    headline = f"REHEARSAL  {scenes} played, none hangs ({where})"
    if hung:
        headline = f"REHEARSAL  hangs in {len(hung)} of {scenes}: {hung[0].title} ({where})"
    rows = []
    for played in rehearsed.scenes:
        told = played.why if len(played.why) <= SHORT else f"{played.why[: SHORT - 3]}..."
        if played.result == "hung" and played.verdict is not None:
            phase = f"  phase {played.verdict.phase}" if played.verdict.phase else ""
            told = f"{played.verdict.cause or ''}{phase}"
        seconds = f"{played.seconds:.1f} s" if played.seconds else ""
        rows.append((played.title, SHOWN[played.result], seconds, told))
    lines = [headline, "", *aligned(rows, (3,), -1)]
    for played in hung:  # where it hangs, what to do, where to read on
        lines += ["", f"      {played.title}", *labelled("where", played.why, most=4)]
        known = (
            [remedy.text for remedy in played.verdict.remedies]
            if played.verdict is not None
            else []
        )
        # the scene is known to be the reason, whatever the same ranks would show for another one
        for remedy in list(filter(None, (played.remedy, *known)))[:1]:
            lines += labelled("do", remedy, most=3)
        lines += labelled("more", f"hangcheck report {shlex.quote(played.run_folder)}", most=1)
    if rehearsed.changed:
        lines += ["", *labelled("instead", "; ".join(rehearsed.changed), most=3)]
    return "\n".join(lines) + "\n"


def to_json(rehearsed: Rehearsed) -> str:
    """Write one object: what was rehearsed, and each scene with the verdict of one that hung."""
    facts = {"schema_version": 1, **msgspec.to_builtins(rehearsed)}
    return msgspec.json.format(msgspec.json.encode(facts)).decode() + "\n"
