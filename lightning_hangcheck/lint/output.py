"""Shows what was found: as text, for GitHub's annotations, and as SARIF."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.lint.rules import RULES
from lightning_hangcheck.text.shown import one_line, several, visible
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.lint.linting import Finding, Lint, Place

STYLES = {
    r"(?m)^\S+:\d+: HC\d+ error": "bold red",
    r"(?m)^\S+:\d+: HC\d+ note": "bold yellow",
    r"(?m)^ +\^+$": "red",
    r"(?m)^  (?:path|do|see)\b": "bold",
}
"""For each pattern of the text the style that rich knows."""
LONGEST_PATH = 8
"""Calls of a path that are shown; what is between the first and the last is counted."""
LONGEST_LINE = 100
SCHEMA_VERSION = 1
DOCS = "https://lightning-hangcheck.readthedocs.io/en/latest/lint.html"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(found: Lint) -> str:
    """Write all findings, the line of each underlined, its path and remedy, and how many."""
    lines = [
        line
        for finding, place in zip(found.findings, found.places, strict=True)
        for line in (*_finding(finding, place), "")
    ]
    errors = sum(finding.severity == "error" for finding in found.findings)
    notes = len(found.findings) - errors
    counted = [several(errors, "error"), *([several(notes, "note")] if notes else [])]
    lines.append(f"{', '.join(counted)} in {several(found.files, 'file')}, {found.seconds:.1f} s")
    return "\n".join(lines) + "\n"


def _finding(finding: Finding, place: Place) -> Iterator[str]:
    head = f"{finding.file}:{finding.line}: {finding.code} {finding.severity} in {finding.function}"
    yield visible(f"{head}: {one_line(finding.message)}")
    source = place.source[: place.begin + LONGEST_LINE].rstrip().expandtabs(1)
    cut = len(source) - len(source.lstrip())
    yield f"    {visible(source[cut:])}"
    length = max(1, min(place.end, len(source)) - place.begin)
    yield "    " + " " * max(0, place.begin - cut) + "^" * length
    for number, step in enumerate(_shortened(finding.path)):
        yield f"  {'path' if number == 0 else '':<5}{'-> ' if number else ''}{visible(step)}"
    yield f"  do   {one_line(finding.remedy.text)}"
    yield f"  see  {finding.see}"


def _shortened(path: list[str]) -> list[str]:
    if len(path) <= LONGEST_PATH:
        return path
    left_out = len(path) - LONGEST_PATH + 1
    return [*path[: LONGEST_PATH // 2], f"{left_out} more calls", *path[-LONGEST_PATH // 2 + 1 :]]


def as_json(found: Lint) -> dict[str, Any]:
    """Return the object that `--json` prints. The public promise."""
    return {
        "schema_version": SCHEMA_VERSION,
        "files": found.files,
        "seconds": round(found.seconds, 3),
        "findings": msgspec.to_builtins(found.findings),
    }


def as_github(found: Lint) -> str:
    """Write annotations that GitHub shows beside the lines of a pull request."""
    lines = []
    for finding in found.findings:
        kind = "error" if finding.severity == "error" else "notice"
        place = f"file={_property(finding.file)},line={finding.line},title={finding.code}"
        lines.append(
            f"::{kind} {place}::{_data(one_line(f'{finding.message}; {finding.remedy.text}'))}"
        )
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_sarif(found: Lint) -> dict[str, Any]:
    """Return a SARIF 2.1.0 log, as code scanning of GitHub and others read it."""
    rules = [
        {
            "id": rule.code,
            "name": rule.check.__name__,
            "shortDescription": {"text": summary(rule.doc)},
            "helpUri": f"{DOCS}#{rule.code.lower()}",
        }
        for rule in RULES.values()
    ]
    results = [
        {
            "ruleId": finding.code,
            "ruleIndex": list(RULES).index(finding.code),
            "level": finding.severity,
            "message": {"text": f"{finding.message}; {finding.remedy.text}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": finding.file},
                        "region": {
                            "startLine": finding.line,
                            "startColumn": place.begin + 1,
                            "endColumn": max(place.end, place.begin + 1) + 1,
                        },
                    }
                }
            ],
        }
        for finding, place in zip(found.findings, found.places, strict=True)
    ]
    driver = {
        "name": "hangcheck lint",
        "version": __version__,
        "informationUri": DOCS,
        "rules": rules,
    }
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


# The page of the documentation

FAMILIES = {
    "HC1": "A rank alone reaches a collective",
    "HC2": "A rank leaves before one",
    "HC3": "Lengths and shapes that depend on a rank's data",
    "HC4": "Barriers and locks where not all come",
    "HC5": "Groups",
    "HC6": "Starting up",
}
BEGIN, END = "<!-- rules: written by scripts/make_causes -->", "<!-- end of rules -->"


def summary(doc: str) -> str:
    """Return the first sentence of a rule's docstring."""
    return inspect.cleandoc(doc).partition("\n")[0]


def rules_page(page: str) -> str:
    """Put the rules, a sentence each, into the page of the documentation, between its two marks.

    Args:
        page: As it is.
    """
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines: list[str] = []
    family = ""
    for rule in RULES.values():
        if rule.code[:3] != family:
            family = rule.code[:3]
            lines += [f"## {family}xx: {FAMILIES[family]}", ""]
        severity = "Note" if rule.notes_only else "Error or note"
        lines += [f"### {rule.code}", "", summary(rule.doc), ""]
        lines += [f"{severity}: `{rule.cause}` ([source]({rule.see})).", ""]
    return "\n".join([before.rstrip(), "", BEGIN, "", *lines, END]) + after
