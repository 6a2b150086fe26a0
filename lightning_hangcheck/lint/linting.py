"""Lints Python files: runs the rules on each function and formats the findings.

Ignore comments and the configuration suppress findings. Formats: text, JSON, GitHub, SARIF.
"""

from __future__ import annotations

import ast
import fnmatch
import gc
import inspect
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.lint.project import UNPARSABLE, Project, text_of
from lightning_hangcheck.lint.reached_collectives import Reach
from lightning_hangcheck.lint.rules import RULES, Code, Found, Rule, Severity
from lightning_hangcheck.text.shown import one_line, several, visible
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.lint.project import Function, Module

MOST_FILES = 50_000
LEFT_OUT = frozenset(
    {".git", ".hg", ".venv", "venv", "node_modules", "site-packages", "__pycache__", "build"}
    | {"dist", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".eggs", "hangcheck_runs"}
)
IGNORED = re.compile(r"#\s*hangcheck:\s*ignore(?:\[([\w\s,]*)\])?")
WORTH_A_LOOK = re.compile(
    rb"rank|process_(index|zero|id)|is_\w*(main|master|primary|chief|zero)|(main|master)_(only|process)"
    rb"|on_exception|prepare_data|FileLock|should_save|all_reduce|gather|barrier|broadcast"
    rb"|[dD]istributed|fully_shard|wait_for_everyone|\.compute\(\)|\.backward\("
    rb"|(?s:def \w*forward.*?(?:len\(\w+\)|\.numel\(\)|\.shape\[0\]) [=>!]=? 0\b)"
)
"""Every finding needs one of these. A file without any is parsed only if another file uses it."""


STYLES = {
    r"(?m)^\S+:\d+: HC\d+ error": "bold red",
    r"(?m)^\S+:\d+: HC\d+ note": "bold yellow",
    r"(?m)^ +\^+$": "red",
    r"(?m)^  (?:path|do|see)\b": "bold",
}
"""The rich style of each pattern of the text output."""
LONGEST_PATH = 8
"""Longest call path shown in full; the middle of a longer path is replaced by a count."""
LONGEST_LINE = 100
SCHEMA_VERSION = 1
DOCS = "https://lightning-hangcheck.readthedocs.io/en/latest/lint.html"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class Remedy(msgspec.Struct, frozen=True):
    """What to do, and a command that helps, if there is one."""

    text: str
    command: str | None = None


class Place(msgspec.Struct, frozen=True):
    """What to underline: columns `begin` to `end`, counted from 0, of the source line."""

    source: str
    begin: int
    end: int


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule found. All fields but `place` are part of the public `--json` schema."""

    code: str
    severity: Severity
    file: str
    line: int
    function: str
    message: str
    path: list[str]
    remedy: Remedy
    see: str
    place: Place


class Lint(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a lint run.

    Attributes:
        files: Number of files looked at.
        findings: Sorted by file and line.
        unreadable: One sentence for each file that could not be read or parsed.
    """

    files: int
    seconds: float
    findings: list[Finding]
    unreadable: list[str]


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tool.hangcheck.lint]` of a pyproject.toml.

    Attributes:
        ignore: Rule codes or their beginnings: HC6 means all HC6xx rules.
        exclude: Path patterns, relative to the folder of the pyproject.toml.
        notes: Whether notes are shown as well as errors.
        collectives: Names of the project's own collective functions.
    """

    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    notes: bool = False
    collectives: tuple[str, ...] = ()


def read_configuration(path: Path) -> tuple[Configuration, Path]:
    """Read the nearest pyproject.toml that has a `[tool.hangcheck.lint]`.

    Args:
        path: File or folder at which the search upwards starts.

    Returns:
        The configuration and its folder; without one, the defaults and the working folder.

    Raises:
        BadUsage: The table cannot be read, or has an unknown key or a wrong type.
    """
    for folder in (path.absolute(), *path.absolute().parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            table = msgspec.toml.decode(file.read_bytes())
            found = table.get("tool", {}).get("hangcheck", {}).get("lint")
            if found is not None:
                return msgspec.convert(found, Configuration), folder
        except (OSError, ValueError, AttributeError) as error:
            raise BadUsage(
                f"[tool.hangcheck.lint] in {file} cannot be used: {error}", "see docs/lint.md"
            ) from error
    return Configuration(), Path.cwd()


def lint(paths: Sequence[Path], configuration: Configuration, base: Path) -> Lint:
    """Find code that would make ranks diverge.

    Args:
        paths: Files and folders.
        configuration: The project's configuration.
        base: Folder to which its patterns are relative.

    Returns:
        Errors, and notes if the configuration asks for them.
    """
    began = time.perf_counter()
    project, reach = Project(), Reach(frozenset(configuration.collectives))
    found: dict[tuple[str, int, str], Finding] = {}
    unreadable: list[str] = []
    named = {str(path) for path in paths}
    count = 0
    collecting = gc.isenabled()
    gc.disable()  # the trees stay until the end; searching them for cycles takes half of the time
    try:
        modules: list[Module] = []  # parse all first: calls in any file may pass arguments
        for file in _files(paths, configuration, base, unreadable):
            count += 1
            try:
                text = text_of(file)
                if WORTH_A_LOOK.search(text):
                    modules.append(project.parse(file))
                elif file in named:  # a named file must be valid Python
                    ast.parse(text)
            except UNPARSABLE as error:
                unreadable.append(_why_not(file, error))
        for module in modules:
            for function in module.all_functions:
                for finding in _in_function(function, reach, configuration):
                    found.setdefault((finding.file, finding.line, finding.code[:3]), finding)
    finally:
        gc.freeze()  # nor are they searched when the process ends, soon after this
        if collecting:
            gc.enable()
    return Lint(
        files=count,
        seconds=time.perf_counter() - began,
        findings=sorted(
            found.values(), key=lambda finding: (finding.file, finding.line, finding.code)
        ),
        unreadable=unreadable,
    )


def _files(
    paths: Sequence[Path], configuration: Configuration, base: Path, unreadable: list[str]
) -> Iterator[str]:
    """Yield each Python file once, with its path as given."""
    seen: set[str] = set()
    for path in paths:
        if not (path.is_dir() or path.is_file()):
            unreadable.append(f"{path} is no file or folder")
            continue
        for file in _below(path) if path.is_dir() else [str(path)]:
            if file not in seen and not _excluded(file, configuration, base):
                seen.add(file)
                yield file
            if len(seen) >= MOST_FILES:
                unreadable.append(f"only the first {MOST_FILES} files were looked at")
                return


def _below(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(folder for folder in folders if folder not in LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.normpath(os.path.join(parent, name))  # noqa: PTH118 - as imports do


def _excluded(file: str, configuration: Configuration, base: Path) -> bool:
    if not configuration.exclude:
        return False
    relative = os.path.relpath(file, base)
    return any(
        fnmatch.fnmatch(relative, pattern) or fnmatch.fnmatch(relative, f"{pattern.rstrip('/')}/*")
        for pattern in configuration.exclude
    )


def _why_not(file: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        where = f" in line {error.lineno}" if error.lineno else ""
        return f"{file} is no Python of this version: {error.msg}{where}"
    if isinstance(error, RecursionError):
        return f"{file} is nested too deeply"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"{file} cannot be read: {reason}"


def _in_function(
    function: Function, reach: Reach, configuration: Configuration
) -> Iterator[Finding]:
    code = Code(function, reach)
    for rule in RULES.values():
        if rule.code.startswith(tuple(configuration.ignore)):
            continue
        if rule.notes_only and not configuration.notes:
            continue
        for found in rule.check(code):
            wanted = configuration.notes or found.severity == "error"
            if wanted and not _ignored(rule.code, found, function.module):
                yield _finding(rule, found, function)


def _ignored(code: str, found: Found, module: Module) -> bool:
    """Whether an ignore comment is on the finding's line or on the line of the test."""
    for line in (found.node.lineno, *found.also):
        if match := IGNORED.search(module.line(line)):
            codes = [word.strip() for word in (match[1] or "").split(",") if word.strip()]
            if not codes or code.startswith(tuple(codes)):
                return True
    return False


def _finding(rule: Rule, found: Found, function: Function) -> Finding:
    module, node = function.module, found.node
    line, source = node.lineno, module.line(node.lineno)
    encoded, begin = source.encode(), node.col_offset
    end = node.end_col_offset if node.end_lineno == line else None
    path: list[str] = []
    if found.event is not None:
        path = [f"{name} ({file}:{number})" for name, file, number in found.event.path]
        library = found.event.library
        path.append(f"{found.event.name} of {library}" if library else found.event.name)
    return Finding(
        code=rule.code,
        severity=found.severity,
        file=module.path,
        line=line,
        function=function.name,
        message=found.message,
        path=path,
        remedy=Remedy(_remedy(rule, function, f"{module.path}:{line}")),
        see=rule.see,
        place=Place(
            source,
            len(encoded[:begin].decode(errors="ignore")),
            len(encoded[:end].decode(errors="ignore")) if end else len(source.rstrip()),
        ),
    )


def _remedy(rule: Rule, function: Function, place: str) -> str:
    """Return the cause's remedy that begins with the rule's remedy text, or that text."""
    known = causes_file().cause[rule.cause].remedies
    begins, *texts = (
        text.removeprefix("{place}: ") for text in (rule.remedy, *(each.text for each in known))
    )
    text = next((text for text in texts if text.startswith(begins)), begins)
    words = {"{place}": place, "{function}": function.name, "{test}": "", "rank {rank}": "one side"}
    for word, value in words.items():
        text = text.replace(word, value)
    return text


# Output formats


def as_text(found: Lint) -> str:
    """Write each finding with its underlined line, call path and remedy; then the totals."""
    lines = [line for finding in found.findings for line in (*_shown(finding), "")]
    errors = sum(finding.severity == "error" for finding in found.findings)
    notes = len(found.findings) - errors
    counted = [several(errors, "error"), *([several(notes, "note")] if notes else [])]
    lines.append(f"{', '.join(counted)} in {several(found.files, 'file')}, {found.seconds:.1f} s")
    return "\n".join(lines) + "\n"


def _shown(finding: Finding) -> Iterator[str]:
    place = finding.place
    head = f"{finding.file}:{finding.line}: {finding.code} {finding.severity} in {finding.function}"
    yield visible(f"{head}: {one_line(finding.message)}")
    source = place.source[: place.begin + LONGEST_LINE].rstrip().expandtabs(1)
    cut = len(source) - len(source.lstrip())
    yield f"    {visible(source[cut:])}"
    length = max(1, min(place.end, len(source)) - place.begin)
    yield "    " + " " * max(0, place.begin - cut) + "^" * length
    path, left_out = finding.path, len(finding.path) - LONGEST_PATH + 1
    if left_out > 1:
        half = LONGEST_PATH // 2
        path = [*path[:half], f"{left_out} more calls", *path[1 - half :]]
    for number, step in enumerate(path):
        yield f"  {'path' if number == 0 else '':<5}{'-> ' if number else ''}{visible(step)}"
    yield f"  do   {one_line(finding.remedy.text)}"
    yield f"  see  {finding.see}"


def as_json(found: Lint) -> dict[str, Any]:
    """Return the object that `--json` prints, in a public schema."""
    findings = msgspec.to_builtins(found.findings)
    for finding in findings:
        del finding["place"]
    return {
        "schema_version": SCHEMA_VERSION,
        "files": found.files,
        "seconds": round(found.seconds, 3),
        "findings": findings,
    }


def as_github(found: Lint) -> str:
    """Write annotations that GitHub shows at the lines of a pull request."""
    lines = []
    for finding in found.findings:
        kind = "error" if finding.severity == "error" else "notice"
        file = _escaped(finding.file).replace(":", "%3A").replace(",", "%2C")
        said = _escaped(one_line(f"{finding.message}; {finding.remedy.text}"))
        lines.append(f"::{kind} file={file},line={finding.line},title={finding.code}::{said}\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_sarif(found: Lint) -> dict[str, Any]:
    """Return a SARIF 2.1.0 log for GitHub code scanning and other tools."""
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
                            "startColumn": finding.place.begin + 1,
                            "endColumn": max(finding.place.end, finding.place.begin + 1) + 1,
                        },
                    }
                }
            ],
        }
        for finding in found.findings
    ]
    driver = {"name": "hangcheck lint", "version": __version__, "informationUri": DOCS}
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver | {"rules": rules}}, "results": results}],
    }


def summary(doc: str) -> str:
    """Return the first sentence of a rule's docstring."""
    return inspect.cleandoc(doc).partition("\n")[0]
