"""What the documentation shows must work: commands parse, files and names of the code exist."""

from __future__ import annotations

import pkgutil
import re
import shlex
from pathlib import Path

import click
import pytest
from processes import run_python

import lightning_hangcheck
from lightning_hangcheck.cli.main import COMMANDS, command_named, hangcheck
from lightning_hangcheck.model.slugs import CAUSES, VERDICT_KINDS
from lightning_hangcheck.model.words import PHASES

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


def _blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page.relative_to(ROOT).as_posix(), body)
        for page in PAGES
        if "_build" not in page.parts
        for kind, body in BLOCK.findall(page.read_text())
        if kind == language
    ]


def _commands() -> list[tuple[str, list[str]]]:
    """Each ``$ ...`` line of a console block as words, without leading environment assignments."""
    found = []
    for page, body in _blocks("console"):
        for line in body.splitlines():
            if line.startswith("$ "):
                words = shlex.split(line[2:], comments=True)
                while words and ASSIGNMENT.fullmatch(words[0]):
                    words.pop(0)
                found.append((page, words))
    return found


HANGCHECK = [(page, words[1:]) for page, words in _commands() if words[0] == "hangcheck"]
SCRIPTS = [(page, words[0]) for page, words in _commands() if words[0].startswith("scripts/")]


def test_documented_hangcheck_commands_parse() -> None:
    """Parsed by the real command line, without running anything."""
    own_options = hangcheck.get_params(click.Context(hangcheck))
    for page, words in HANGCHECK:
        if words and words[0].startswith("--"):
            assert words[0] in [name for option in own_options for name in option.opts], page
        elif words:
            context = command_named(words[0]).make_context(words[0], words[1:])
            assert words[0] != "run" or context.params["command"], f"{page}: run without a command"


def test_documented_scripts_exist_and_python_compiles() -> None:
    assert [one for one in SCRIPTS if not (ROOT / one[1]).is_file()] == []
    for page, code in _blocks("python"):
        compile(code, page, "exec")


@pytest.mark.parametrize("command", [*map(command_named, COMMANDS)], ids=COMMANDS)
def test_every_option_is_on_the_command_line_page(command: click.Command) -> None:
    """With its environment variable and default, where it has them."""
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert f"## hangcheck {command.name}" in page
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        row = next(line for line in page.splitlines() if line.startswith(f"| `{option.opts[0]}"))
        help_text = option.help or ""
        for shown in re.findall(r"HANGCHECK_\w+", help_text):
            assert f"`{shown}`" in row
        for shown in re.findall(r"\[default: ([\w.]+)\]", help_text):
            assert f"| {shown} |" in row


def test_every_slug_and_every_public_name_is_on_its_page() -> None:
    vocabulary = (ROOT / "docs" / "vocabulary.md").read_text()
    slugs = (*VERDICT_KINDS, *PHASES)
    assert [one for one in slugs if f"\n| `{one}` |" not in vocabulary] == []
    causes = (ROOT / "docs" / "causes.md").read_text()
    assert [one for one in CAUSES if f"\n## {one}\n" not in causes] == []
    page = (ROOT / "docs" / "python-interface.md").read_text()
    names = [name for name in lightning_hangcheck.__all__ if "__" not in name]
    assert [one for one in names if f"hc.{one}(" not in page] == []


PACKAGE = Path(str(lightning_hangcheck.__file__)).parent
"""Beside the documentation in a checkout, elsewhere where the tests run on what is installed."""
TOP_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WORKED_EXAMPLE = re.compile(r"^```(?:diff|python|toml)\n.*?^```", re.MULTILINE | re.DOTALL)
"""It adds files that are not there; what stands outside of it must be."""
CODE = re.compile(r"`([^`\n]+)`")
SOURCE_FILE = re.compile(r"(?:[\w.-]+/)+(?!NAME\.)[\w-]+\.(?:py|toml|md)\b")
"""A file of the repository; ``NAME`` stands for one that a reader will write."""
DOTTED = re.compile(r"lightning_hangcheck(?:\.\w+)+")


def _named(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """What the pages name between backticks, each with its page."""
    return sorted(
        {
            (page.relative_to(ROOT).as_posix(), found)
            for page in TOP_PAGES
            for code in CODE.findall(WORKED_EXAMPLE.sub("", page.read_text()))
            for found in pattern.findall(code)
        }
    )


FILES = _named(SOURCE_FILE)
NAMES = _named(DOTTED)


@pytest.mark.parametrize(("page", "file"), FILES)
def test_a_file_that_a_page_names_exists(page: str, file: str) -> None:
    """By its path from the root, or from the package."""
    assert _is_there(file) or (PACKAGE / file).is_file(), f"{page} names {file}"


@pytest.mark.parametrize(("page", "name"), NAMES)
def test_a_name_that_a_page_names_exists(page: str, name: str) -> None:
    pkgutil.resolve_name(name)


def _is_there(file: str) -> bool:
    """Whether a file of the repository exists, by its path from the root."""
    return (ROOT / file).is_file() or (PACKAGE.parent / file).is_file()


@pytest.mark.parametrize("script", ["make_causes", "make_schema"])
def test_generated_pages_are_up_to_date(script: str) -> None:
    """After a change of causes.toml or verdict.py, run the script without --check."""
    check = run_python(ROOT / "scripts" / script, "--check")
    assert check.returncode == 0, check.stdout + check.stderr
