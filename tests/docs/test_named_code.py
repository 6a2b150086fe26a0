"""Files and names of the code that the documentation names exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import lightning_hangcheck

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path(str(lightning_hangcheck.__file__)).parent
"""Beside the documentation in a checkout, elsewhere where the tests run on what is installed."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
WORKED_EXAMPLE = re.compile(r"^```(?:diff|python|toml)\n.*?^```", re.MULTILINE | re.DOTALL)
"""It adds files that are not there; what stands outside of it must be."""
ADDED = re.compile(r"^```python\n# (\S+\.py)$", re.MULTILINE)
CHANGED = re.compile(r"^--- ([^\s,]+)", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
SOURCE_FILE = re.compile(r"(?:[\w.-]+/)+(?!NAME\.)[\w-]+\.(?:py|toml|md)\b")
"""A file of the repository; ``NAME`` stands for one that a reader will write."""
DOTTED = re.compile(r"lightning_hangcheck(?:\.\w+)+")
WALKS = "how-it-works.md"


def _named(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """What the pages name between backticks, each with its page."""
    return sorted(
        {
            (page.relative_to(ROOT).as_posix(), found)
            for page in PAGES
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


def test_a_worked_example_changes_files_that_are_there() -> None:
    """Or that it has added itself."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    added, changed = set(ADDED.findall(text)), set(CHANGED.findall(text))
    assert added
    assert changed
    assert [file for file in changed - added if not _is_there(file)] == []
    assert [file for file in added if _is_there(file)] == []


@pytest.mark.parametrize(("page", "name"), NAMES)
def test_a_name_that_a_page_names_exists(page: str, name: str) -> None:
    module, *attributes = _longest_module(name)
    found = importlib.import_module(module)
    for attribute in attributes:
        found = getattr(found, attribute)


def _is_there(file: str) -> bool:
    """Whether a file of the repository exists, by its path from the root."""
    return (ROOT / file).is_file() or (PACKAGE.parent / file).is_file()


def _longest_module(name: str) -> list[str]:
    """Split a dotted name into its module, as far as there is one, and the attributes."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        file = PACKAGE.parent.joinpath(*parts[:end])
        if file.with_suffix(".py").is_file() or (file / "__init__.py").is_file():
            return [".".join(parts[:end]), *parts[end:]]
    return [parts[0], *parts[1:]]


def test_the_walks_name_files() -> None:
    """Guards the tests above against finding nothing to test."""
    assert len([file for page, file in FILES if page.endswith(WALKS)]) >= 20
    assert len([file for page, file in FILES if page == "CONTRIBUTING.md"]) >= 10
