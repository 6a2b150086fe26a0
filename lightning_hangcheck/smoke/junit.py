"""What a smoke test found, as JUnit XML: what CI systems read and show."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from lightning_hangcheck.smoke.meaning import interpret
from lightning_hangcheck.text.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.smoke.trial import Outcome


def render(outcomes: Sequence[Outcome]) -> bytes:
    """Write one test suite with a test case for each run.

    A run that hangs, or did not end in its time, is a failure; one that ended with an exit code of
    its own is an error.
    """
    failures = [one for one in outcomes if one.result in ("hang", "late")]
    errors = [one for one in outcomes if one.result == "failed"]
    suite = Xml.Element(
        "testsuite",
        name="hangcheck smoke",
        tests=str(len(outcomes)),
        failures=str(len(failures)),
        errors=str(len(errors)),
        time=f"{sum(one.seconds for one in outcomes):.3f}",
    )
    for one in outcomes:
        _add_case(suite, one)
    Xml.SubElement(suite, "system-out").text = one_line(interpret(outcomes).sentence)
    suites = Xml.Element("testsuites")
    suites.append(suite)
    written: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written


def _add_case(suite: Xml.Element, outcome: Outcome) -> None:
    case = Xml.SubElement(
        suite,
        "testcase",
        classname="hangcheck.smoke",
        name=outcome.trial.name,
        time=f"{outcome.seconds:.3f}",
    )
    if outcome.result == "passed":
        return
    kind = "error" if outcome.result == "failed" else "failure"
    cause = outcome.verdict.cause if outcome.verdict is not None else None
    trouble = Xml.SubElement(
        case, kind, type=cause or outcome.result, message=one_line(outcome.where)
    )
    trouble.text = f"{one_line(outcome.run_folder)}\n{one_line(outcome.output_file)}"
