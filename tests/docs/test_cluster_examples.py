"""The example files for clusters are what they say: scripts, manifests, and commands of ours."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.cli.main import command_named

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = Path(__file__).parent.parent.parent / "docs" / "clusters"
FILES = sorted(path for path in (PAGES / "examples").rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix in (".sh", ".sbatch")]
MANIFESTS = [path for path in FILES if path.name in ("pytorchjob.yaml", "jobset.yaml")]
SHELL_ENDS = ("|", "||", "&&", ";", "&", ">")


def _name(path: Path) -> str:
    return path.relative_to(PAGES).as_posix()


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
    for path in SCRIPTS:
        yield _name(path), path.read_text()
    for path in MANIFESTS:
        for pod in _pods(_load(path)):
            for container in pod["containers"]:
                yield _name(path), container["args"][0]
    for page in sorted(PAGES.glob("*.md")):
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.splitlines():
                yield page.name, line.removeprefix("$ ")


def _commands(text: str) -> Iterator[list[str]]:
    """Arguments of each `hangcheck` that a shell would start, also within ``bash -c '...'``."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for word in words:
            if re.search(r"\bhangcheck \w", word):
                yield from _commands(word)
        if "hangcheck" in words:
            rest = words[words.index("hangcheck") + 1 :]
            ends = [rest.index(end) for end in SHELL_ENDS if end in rest]
            yield rest[: min(ends, default=len(rest))]


COMMANDS = [(name, words) for name, text in _shell_texts() for words in _commands(text)]


def test_each_command_of_ours_is_one_and_those_of_all_files_are_found() -> None:
    """Parsed by the real command line, without running anything."""
    for name, words in COMMANDS:
        context = command_named(words[0]).make_context(words[0], words[1:])
        assert words[0] != "run" or context.params["command"], name
    silent = {"lightning.sbatch", "kubectl-as-ssh.sh", "debug-container.yaml", "ray_train.py"}
    named = {Path(name).name for name, _ in COMMANDS}
    assert {path.name for path in FILES} - named == silent
    assert {words[0] for _, words in COMMANDS} == {"run", "attach", "merge"}


def test_scripts_are_read_by_bash() -> None:
    for path in SCRIPTS:
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
