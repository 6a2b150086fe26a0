"""What a smoke test found, as JUnit XML: what CI systems read and show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.report import junit_xml
from lightning_hangcheck.smoke.meaning import interpret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.smoke.trial import Outcome


def render(outcomes: Sequence[Outcome]) -> bytes:
    """Write one test suite with a test case for each run.

    A run that hangs, or did not end in its time, is a failure; one that ended with an exit code of
    its own is an error.
    """
    cases = [_case(outcome) for outcome in outcomes]
    return junit_xml.render("hangcheck smoke", cases, interpret(outcomes).sentence)


def _case(outcome: Outcome) -> junit_xml.RunCase:
    return junit_xml.RunCase(
        classname="hangcheck.smoke",
        name=outcome.trial.name,
        seconds=outcome.seconds,
        trouble=None if outcome.result == "passed" else _trouble(outcome),
    )


def _trouble(outcome: Outcome) -> junit_xml.Trouble:
    cause = outcome.verdict.cause if outcome.verdict is not None else None
    return junit_xml.Trouble(
        kind="error" if outcome.result == "failed" else "failure",
        type=cause or outcome.result,
        message=outcome.where,
        lines=(outcome.run_folder, outcome.output_file),
    )
