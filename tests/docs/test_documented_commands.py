"""What the documentation shows must work: commands, files, names, and examples for clusters."""

from __future__ import annotations

import pkgutil
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from processes import run_python

import lightning_hangcheck
from lightning_hangcheck.cli.main import COMMANDS, command_named, hangcheck
from lightning_hangcheck.model.slugs import CAUSES, VERDICT_KINDS
from lightning_hangcheck.model.words import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# The example files for clusters are what they say: scripts, manifests, and commands of ours.

CLUSTERS = Path(__file__).parent.parent.parent / "docs" / "clusters"
EXAMPLES = sorted(path for path in (CLUSTERS / "examples").rglob("*") if path.is_file())
SHELL_SCRIPTS = [path for path in EXAMPLES if path.suffix in (".sh", ".sbatch")]
MANIFESTS = [path for path in EXAMPLES if path.name in ("pytorchjob.yaml", "jobset.yaml")]
SHELL_ENDS = ("|", "||", "&&", ";", "&", ">")


def _name(path: Path) -> str:
    return path.relative_to(CLUSTERS).as_posix()


def _load(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text())


def _pods(manifest: Any) -> Iterator[dict[str, Any]]:
    """The pod templates that lie anywhere in a manifest."""
    if isinstance(manifest, dict):
        if "containers" in manifest:
            yield manifest
        for value in manifest.values():
            yield from _pods(value)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from _pods(value)


def _shell_texts() -> Iterator[tuple[str, str]]:
    """All that a shell would read: scripts, what containers run, and what the pages show."""
    for path in SHELL_SCRIPTS:
        yield _name(path), path.read_text()
    for path in MANIFESTS:
        for pod in _pods(_load(path)):
            for container in pod["containers"]:
                yield _name(path), container["args"][0]
    for page in sorted(CLUSTERS.glob("*.md")):
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.splitlines():
                yield page.name, line.removeprefix("$ ")


def _shell_commands(text: str) -> Iterator[list[str]]:
    """Arguments of each `hangcheck` that a shell would start, also within ``bash -c '...'``."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for word in words:
            if re.search(r"\bhangcheck \w", word):
                yield from _shell_commands(word)
        if "hangcheck" in words:
            rest = words[words.index("hangcheck") + 1 :]
            ends = [rest.index(end) for end in SHELL_ENDS if end in rest]
            yield rest[: min(ends, default=len(rest))]


OF_OURS = [(name, words) for name, text in _shell_texts() for words in _shell_commands(text)]


def test_each_command_of_ours_is_one_and_those_of_all_files_are_found() -> None:
    """Parsed by the real command line, without running anything."""
    for name, words in OF_OURS:
        context = command_named(words[0]).make_context(words[0], words[1:])
        assert words[0] != "run" or context.params["command"], name
    silent = {"lightning.sbatch", "kubectl-as-ssh.sh", "debug-container.yaml", "ray_train.py"}
    named = {Path(name).name for name, _ in OF_OURS}
    assert {path.name for path in EXAMPLES} - named == silent
    assert {words[0] for _, words in OF_OURS} == {"run", "attach", "merge"}


def test_scripts_are_read_by_bash() -> None:
    for path in SHELL_SCRIPTS:
        checked = subprocess.run(
            ["bash", "-n", str(path)], capture_output=True, text=True, timeout=120, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, ""), path
        assert path.read_text().startswith("#!/bin/bash\n"), path
        assert re.search(r"^set -e?uo pipefail$", path.read_text(), re.M), path
        # sbatch reads no option behind the first line that is a command (sbatch(1))
        _, *lines = path.read_text().splitlines()
        options = [line for line in lines if line.startswith("#SBATCH")]
        assert lines[: len(options)] == options, path
