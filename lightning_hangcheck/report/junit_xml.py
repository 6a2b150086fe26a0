"""JUnit XML, which CI systems read and show: the one place that writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree as Xml

from msgspec import Struct

from lightning_hangcheck.text.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence


class Trouble(Struct, frozen=True, kw_only=True):
    """Why a test case did not pass.

    Attributes:
        kind: ``failure`` for what was looked for, a hang; ``error`` for any other end.
        type: One word for it: a cause, as a rule.
        message: One sentence.
        lines: Where to read on.
    """

    kind: Literal["failure", "error"]
    type: str
    message: str
    lines: tuple[str, ...] = ()


class RunCase(Struct, frozen=True, kw_only=True):
    """One run; without trouble it passed."""

    name: str
    classname: str
    seconds: float
    trouble: Trouble | None = None


def render(suite_name: str, cases: Sequence[RunCase], note: str) -> bytes:
    """Write one test suite.

    Args:
        suite_name: Of the suite.
        cases: In their order.
        note: One sentence on all of them.
    """
    kinds = [case.trouble.kind for case in cases if case.trouble is not None]
    suite = Xml.Element(
        "testsuite",
        name=suite_name,
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        time=f"{sum(case.seconds for case in cases):.3f}",
    )
    for case in cases:
        _add_case(suite, case)
    Xml.SubElement(suite, "system-out").text = one_line(note)
    suites = Xml.Element("testsuites")
    suites.append(suite)
    written: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written


def _add_case(suite: Xml.Element, case: RunCase) -> None:
    element = Xml.SubElement(
        suite,
        "testcase",
        classname=case.classname,
        name=one_line(case.name),
        time=f"{case.seconds:.3f}",
    )
    trouble = case.trouble
    if trouble is not None:
        told = Xml.SubElement(
            element, trouble.kind, type=trouble.type, message=one_line(trouble.message)
        )
        told.text = "\n".join(map(one_line, trouble.lines))
