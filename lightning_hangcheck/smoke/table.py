"""What a smoke test found, as plain text: the runs, the first that hangs, what that says."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lightning_hangcheck.report.paragraphs import aligned, labelled, listed
from lightning_hangcheck.smoke.meaning import first_trouble, interpret
from lightning_hangcheck.smoke.pictures import name_picture
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.smoke.trial import Outcome, Result

SHOWN: dict[Result, str] = {
    "passed": "passed",
    "hang": "HANG",
    "late": "LATE",
    "failed": "FAILED",
}
SAID: dict[Result, str] = {
    "passed": "passed",
    "hang": "hangs",
    "late": "did not end in its time",
    "failed": "failed",
}


def render(outcomes: Sequence[Outcome]) -> str:
    """Write it all, at most 40 lines, ending in a newline.

    Args:
        outcomes: Of all planned runs, at least one.
    """
    meaning, trouble = interpret(outcomes), first_trouble(outcomes)
    lines = [_headline(outcomes, trouble), "", *aligned(list(_rows(outcomes)), (3,), -1), ""]
    if trouble is not None:
        lines += labelled("where", trouble.where, most=5)
        picture = name_picture(trouble.verdict) if trouble.verdict is not None else ""
        lines += labelled("picture", picture, most=3) if picture else []
    lines += labelled("means", meaning.sentence, most=3)
    # what is known of this hang says more than what is known of its kind
    best = trouble.verdict.remedies[:1] if trouble is not None and trouble.verdict else ()
    texts = [*(remedy.text for remedy in best), *meaning.remedies]
    remedies = [f"{number}. {text}" for number, text in enumerate(texts, start=1)]
    lines += listed("do", remedies, most=10) if remedies else []
    if trouble is not None:
        lines += labelled("more", f"hangcheck report {shlex.quote(trouble.run_folder)}", most=1)
        lines += labelled("", f"what it printed: {trouble.output_file}", most=1)
    return "\n".join(lines) + "\n"


def _headline(outcomes: Sequence[Outcome], trouble: Outcome | None) -> str:
    runs = several(len(outcomes), "run")
    if trouble is None:
        return f"SMOKE  {runs} passed"
    passed = sum(one.result == "passed" for one in outcomes)
    return f"SMOKE  {trouble.trial.name}: {SAID[trouble.result]}; {passed} of {runs} passed"


def _rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str, str, str]]:
    for one in outcomes:
        verdict = one.verdict if one.result in ("hang", "late") else None
        facts = (
            [verdict.cause or "", f"phase {verdict.phase}" if verdict.phase else ""]
            if verdict is not None
            else []
        )
        yield one.trial.name, SHOWN[one.result], f"{one.seconds:.1f} s", "  ".join(facts).strip()
